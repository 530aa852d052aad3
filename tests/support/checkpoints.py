"""What the tests of checkpoints, rollback and forks share."""

from textwrap import dedent

import pytest

import gvisor

FILL = """
f = open('filler', 'wb')
try:
    while True:
        f.write(bytes(1 << 20))
except OSError as error:
    print(error.strerror)
"""
PARKED = """
import os
mine = os.getpid()
parked = [int(n) for n in os.listdir('/proc') if n.isdigit() and int(n) not in (1, mine)]
"""
WORST = {
    "crash": "import os; os.abort()",
    "exit": "import os; os._exit(3)",
    "kill": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "loop": "while True: pass",
    "stubborn": "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
    "output": "while True: print('x' * 10000)",
    "closed": "import os; os.closerange(3, 100)",
    "bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "full": FILL,
    "inodes": "for i in range(70000): open(f'file{i}', 'w').close()",
}


def some(*names):
    """Of the worst: a bomb ends a guest of gVisor's altogether."""
    return [pytest.param(name, marks=gvisor.PROCESSES if name == "bomb" else ()) for name in names]


def ok(sandbox, code, **options):
    execution = sandbox.run_code(dedent(code), **options)
    assert execution.ok, repr(execution)
    return execution


def value(sandbox, code):
    return ok(sandbox, code).value


def there_and_back(sandbox, before, between="", after="None"):
    """Run, checkpoint, run, roll back: what `after` is then."""
    ok(sandbox, before)
    checkpoint = sandbox.checkpoint()
    ok(sandbox, between)
    sandbox.rollback(checkpoint)
    return value(sandbox, after)
