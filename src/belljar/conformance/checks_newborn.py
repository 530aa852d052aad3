"""What one guest leaves for the next: nothing."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from unittest import mock

from belljar.backends.native import backend as native
from belljar.conformance.canaries import collect_output
from belljar.conformance.processes import alive, init_of, process
from belljar.conformance.programs import find_program
from belljar.conformance.report_data import Look, NotRun
from belljar.conformance.stage import Stage, check, scratch
from belljar.environment import environment

_DESCRIBE = """
import os, resource, sys, threading
(sorted(os.environ.items()), sorted(sys.modules), threading.active_count(), os.getcwd(),
 os.umask(0o022), sys.path, [resource.getrlimit(k) for k in range(16)],
 [os.listdir(p) for p in ('/workspace', '/tmp', '/dev/shm', '/home/user', '/var/tmp')],
 sorted(os.listdir('/proc/self/fd')), sys.getrecursionlimit())
"""
_SOIL = """
import os, sys, threading, resource, socket, decimal
os.environ['DIRT'] = '1'; os.umask(0); os.chdir('/tmp'); sys.path.append('/dirt')
resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20)); sys.setrecursionlimit(5000)
for place in ('/tmp', '/dev/shm', '/home/user', '/var/tmp'): open(place + '/dirt', 'w')
sys.modules['dirt'] = sys
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
_POISON = """
import builtins, gc, json, os, signal, sys
builtins.print = None
json.dumps = None
os.getpid = lambda: 666
for module in list(sys.modules.values()):
    if getattr(module, '__name__', '').startswith('_belljar'):
        for name in list(vars(module)): setattr(module, name, None)
for number in range(3, 64):
    try: os.write(number, b'{"uid": 0}')
    except OSError: pass
os.kill(os.getppid(), 9)
"""


@check(
    82,
    what="plant code for the next interpreter: LD_PRELOAD, .pth, sitecustomize, startup files",
    expected="a restarted interpreter and another sandbox do not load it",
)
def planted(stage: Stage, look: Look) -> None:
    sandbox = stage.start()
    execution, _ = stage.run_program(find_program("r82_plant"), sandbox)
    look.expect(execution.ok, "the program planted the code", execution.error)
    sandbox.restart()
    seek = "import os; os.environ.get('PLANTED'), os.environ.get('LD_PRELOAD')"
    after = sandbox.run_code(seek)
    look.expect(after.value == (None, None), "the new interpreter did not load it", after.value)
    look.expect("PLANTED" not in after.stdout, "the new interpreter printed nothing of it")
    shown = sandbox.commands.run("env").stdout
    look.expect("LD_PRELOAD" not in shown, "the environment of commands does not have it")
    other = stage.open(strict=False)
    found = other.run_code("import os; os.listdir('/workspace'), os.listdir('/tmp')").value
    look.expect(found == ([], []), "another sandbox has none of the files", found)
    sandbox.run_code("import os; os.environ['PLANTED'] = '1'")
    look.control(sandbox.run_code(seek).value == ("1", None), "set on purpose, it is seen")


@check(
    84,
    what="leave variables, modules, threads, limits, files and a umask for the next tenant",
    expected="a new sandbox has none of it; a restart keeps only files",
)
def newborn(stage: Stage, look: Look) -> None:
    first = stage.open()
    before = first.run_code(_DESCRIBE).value
    first.run_code(_SOIL)
    soiled = first.run_code(_DESCRIBE).value
    look.control(before is not None and soiled != before, "the description shows the changes")
    first.restart()
    restarted = first.run_code(_DESCRIBE).value
    first.close()
    again = stage.open().run_code(_DESCRIBE).value
    look.expect(again == before, "a new sandbox is like the first one was", again)
    if isinstance(before, tuple) and isinstance(restarted, tuple):
        kept = (7, 8)  # files stay, by contract
        same = all(restarted[n] == before[n] for n in range(10) if n not in kept)
        look.expect(same, "a restarted interpreter is like new, except for files", restarted)
    else:
        look.wrong("the guest did not describe itself")


@check(84, what="damage the worker from within, then kill init", expected="the next sandboxes work")
def poisoned_runner(stage: Stage, look: Look) -> None:
    for _ in range(2):
        bad = stage.open(strict=False)
        told = bad.run_code(_POISON, timeout=3)
        init = init_of(bad)
        above = process(init) if init and alive(init) and not stage.setting.docker else None
        bad.close()
        good = stage.open(strict=False)
        fine = good.run_code("import os; print(1); os.getpid() < 100").value
        look.expect(fine is True, f"after {told.outcome.value}, the next sandbox works", fine)
        if above is not None:
            below = process(init_of(good))
            kept = below is not None and below.parent == above.parent
            look.expect(kept, "the same zygote made both")
    look.control(not told.ok or told.value is None, f"the damaged one: {told.outcome.value}")


@check(
    85,
    what="predict the random numbers of a sibling that has the same parent",
    expected="seeds, identifiers and temporary names differ",
)
def random_numbers(stage: Stage, look: Look) -> None:
    code = "import os, random, tempfile, uuid\n"
    code += "[random.random(), os.urandom(8), str(uuid.uuid4()), tempfile.mktemp()]"
    siblings = [stage.open(strict=False) for _ in range(3)]
    seen = [sandbox.run_code(code).value for sandbox in siblings]
    for place, what in enumerate(("random.random()", "os.urandom", "uuid4", "temporary names")):
        values = {str(value[place]) for value in seen if isinstance(value, list)}
        look.expect(len(values) == 3, f"{what}: three siblings have three values", values)
    before = siblings[0].run_code("import random; random.random()").value
    siblings[0].restart()
    after = siblings[0].run_code("import random; random.random()").value
    look.expect(before != after, "a restarted interpreter has another seed")
    same = [s.run_code("import random; random.seed(1); random.random()").value for s in siblings]
    look.control(len(set(map(str, same))) == 1, "with the same seed they draw the same number")


@check(
    86,
    what="an environment whose directory is full of links to the host, to /proc and to /dev",
    expected="the guest resolves them inside its own root, and the host is not reached",
)
def poisoned_environment(stage: Stage, look: Look) -> None:
    if stage.setting.docker:
        raise NotRun("this would leave a hostile image on the engine")
    with scratch() as here:
        built = _poison(here, str(stage.canaries.secret_file))
        secret = (built.path / "secret").read_text()
        look.control(secret == stage.canaries.secret, "on the host, the link leads to the secret")
        with mock.patch.object(native, "build", return_value=built):
            stage.canaries.reset()
            sandbox = stage.open(environment=environment.Environment("poisoned"), strict=False)
        execution = sandbox.run_code(
            _FOLLOW, env={"SECRET": str(stage.canaries.secret_file), "HOST": str(here)}
        )
        look.expect(execution.ok, "the guest followed them all", execution.error)
        stage.check_canaries(look, collect_output(execution))
        for line in execution.stdout.splitlines():
            look.saw(line[:200])
        look.expect("root:" not in execution.stdout, "the guest read no file of the host")
        look.control("link /" in execution.stdout, "the guest uses the prepared environment")
        sandbox.close()


_FOLLOW = """
import os
print('link', os.readlink('/opt/env/host'))
for path in ('secret', f'host{os.environ["SECRET"]}', 'up/etc/shadow', 'lib/proc/etc/shadow'):
    try: print(open('/opt/env/' + path).read())
    except OSError as error: print(error)
print(sorted(os.listdir('/opt/env/dev')))
"""


def _poison(here: Path, secret: str) -> environment.Built:
    """A copy of the plain environment with links added."""
    built = environment.build(environment.resolve("python"))
    poisoned = here / "poisoned"
    shutil.copytree(built.path, poisoned, symlinks=True)
    (here / ".locks").mkdir()
    (here / ".locks" / "poisoned.use").touch()
    links = {
        "secret": secret,
        "host": "/",
        "dev": "/dev",
        "up": "../..",
        "lib/proc": "/proc/1/root",
    }
    for name, to in links.items():
        (poisoned / name).symlink_to(to)
    return dataclasses.replace(built, path=poisoned)
