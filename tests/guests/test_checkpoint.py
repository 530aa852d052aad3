"""Checkpoints, rollback and forks: what comes back, what cannot, and what others see of it."""

import asyncio
import contextlib
import gc
import os
import random
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from textwrap import dedent

import anyio
import pytest

import census
import gvisor
from belljar import (
    CheckpointLost,
    InvalidOption,
    Limits,
    Outcome,
    Sandbox,
    SandboxClosed,
    SandboxError,
)

FILL = """
f = open('filler', 'wb')
try:
    while True:
        f.write(bytes(1 << 20))
except OSError as error:
    print(error.strerror)
"""


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


# --- the interpreter -------------------------------------------------------------------------


@pytest.mark.contract("docker")
def test_rollback_brings_variables_back(sandbox):
    seen = there_and_back(
        sandbox,
        "x = [1]; def_ = 5",
        "x.append(2); y = 1; del def_",
        "x, 'y' in globals(), def_",
    )
    assert seen == ([1], False, 5)


@pytest.mark.contract("docker")
def test_rollback_brings_modules_path_and_environment_back(sandbox):
    seen = there_and_back(
        sandbox,
        "import sys, os, colorsys; os.environ['A'] = '1'; sys.path.append('/workspace/lib')",
        "import wave; os.environ['A'] = '2'; sys.path.pop(); colorsys.mine = 1",
        "('wave' in sys.modules, os.environ['A'], sys.path[-1], hasattr(colorsys, 'mine'),"
        " os.popen('echo $A').read())",
    )
    assert seen == (False, "1", "/workspace/lib", False, "1\n")


def test_random_numbers_go_on_where_they_were_each_time(sandbox):
    ok(sandbox, "import random; random.random()")
    checkpoint = sandbox.checkpoint()
    draws = []
    for _ in range(3):
        draws.append(value(sandbox, "[random.random() for _ in range(3)]"))
        sandbox.rollback(checkpoint)
    assert draws[0] == draws[1] == draws[2]


def test_numpy_pandas_and_matplotlib_state_comes_back(data_sandbox):
    ok(
        data_sandbox,
        """
        import numpy as np, pandas as pd, matplotlib.pyplot as plt, random
        generator = np.random.default_rng(7)
        frame = pd.DataFrame({'a': range(4)})
        pd.set_option('display.max_rows', 7)
        plt.rcParams['lines.linewidth'] = 9
        """,
    )
    checkpoint = data_sandbox.checkpoint()
    draws = []
    for _ in range(2):
        draws.append(value(data_sandbox, "np.random.rand(), generator.random(), random.random()"))
        ok(data_sandbox, "frame['b'] = 1; pd.reset_option('all'); plt.rcdefaults()")
        data_sandbox.rollback(checkpoint)
    assert draws[0] == draws[1]
    seen = "list(frame), pd.get_option('display.max_rows'), plt.rcParams['lines.linewidth']"
    assert value(data_sandbox, seen) == (["a"], 7, 9.0)
    execution = ok(data_sandbox, "plt.plot([1, 2]); plt.show()")
    assert any(result.png for result in execution.results)


@pytest.mark.contract("docker")
def test_rollback_brings_the_directory_back(sandbox):
    seen = there_and_back(
        sandbox,
        "import os; os.makedirs('a/b'); os.chdir('a/b')",
        "import shutil; os.chdir('/'); shutil.rmtree('/workspace/a')",
        "os.getcwd(), os.listdir('/workspace')",
    )
    assert seen == ("/workspace/a/b", ["a"])


def test_going_back_twice_and_on_from_there(sandbox):
    ok(sandbox, "x = 0")
    first = sandbox.checkpoint()
    ok(sandbox, "x = 1; open('f', 'w').write('1')")
    second = sandbox.checkpoint()
    ok(sandbox, "x = 2; open('f', 'w').write('2')")
    for checkpoint, expected in [(first, (0, [])), (second, (1, ["f"])), (first, (0, []))]:
        sandbox.rollback(checkpoint)
        assert value(sandbox, "import os; x, os.listdir()") == expected
        ok(sandbox, "x = 99")
    third = sandbox.checkpoint()
    sandbox.rollback(second)
    assert value(sandbox, "x, open('f').read()") == (1, "1")
    sandbox.rollback(third)
    assert value(sandbox, "x") == 99


def test_top_level_await_works_before_and_after(sandbox):
    ok(sandbox, "import asyncio; await asyncio.sleep(0); x = 1")
    checkpoint = sandbox.checkpoint()
    assert checkpoint.lacks == ()
    ok(sandbox, "x = 2; await asyncio.sleep(0)")
    for _ in range(2):
        sandbox.rollback(checkpoint)
        assert value(sandbox, "await asyncio.sleep(0.001, x)") == 1


def test_a_loop_that_was_left_behind_is_not_taken_for_sockets(sandbox):
    for _ in range(3):
        ok(sandbox, "import asyncio; await asyncio.sleep(0)")
        checkpoint = sandbox.checkpoint()
        assert checkpoint.lacks == ()
        sandbox.rollback(checkpoint)


def test_values_and_execution_after_a_rollback(data_sandbox):
    ok(data_sandbox, "import numpy as np")
    data_sandbox.put(x=[1, 2])
    checkpoint = data_sandbox.checkpoint()
    data_sandbox.put(x=3, y=4)
    data_sandbox.rollback(checkpoint)
    assert data_sandbox.get("x") == [1, 2]
    with pytest.raises(KeyError):
        data_sandbox.get("y")
    data_sandbox.put(y=b"x" * 1_000_000)
    assert value(data_sandbox, "len(y)") == 1_000_000
    assert data_sandbox.run_code("np.ones(200_000)").value.sum() == 200_000
    assert data_sandbox.run_code("1 / 0").error.name == "ZeroDivisionError"
    assert ok(data_sandbox, "print('out')").stdout == "out\n"


def test_host_functions_answer_after_a_rollback(make_sandbox):
    sandbox = make_sandbox(functions={"double": lambda x: 2 * x})
    ok(sandbox, "a = double(1)")
    checkpoint = sandbox.checkpoint()
    sandbox.expose(lambda x: 3 * x, "triple")
    assert value(sandbox, "triple(1)") == 3
    sandbox.rollback(checkpoint)
    assert value(sandbox, "a, double(2), triple(2)") == (2, 4, 6)


def test_a_name_the_code_has_taken_from_a_host_function_stays_taken(make_sandbox):
    sandbox = make_sandbox(functions={"double": lambda x: 2 * x})
    assert there_and_back(sandbox, "double = 3", "double = 4", "double") == 3
    fork = sandbox.fork()
    with fork:
        assert value(fork, "double") == 3


# --- files -----------------------------------------------------------------------------------

MAKE_TREE = r"""
import os, stat, resource
most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
size = 1 << 50 if most < 0 else most
os.makedirs('d/empty')
open('d/text', 'w').write('hello')
os.chmod('d/text', 0o640)
os.utime('d/text', ns=(10**18, 10**18 + 5))
os.symlink('nowhere/at all', 'd/link')
os.utime('d/link', ns=(3 * 10**17, 3 * 10**17), follow_symlinks=False)
os.mkfifo('d/fifo', 0o620)
os.link('d/text', 'd/same')
os.link('d/text', 'd/third')
open('d/secret', 'w').write('nobody reads me'); os.chmod('d/secret', 0)
os.mkdir('d/locked'); open('d/locked/in', 'w').write('in'); os.chmod('d/locked', 0)
os.mkdir('d/read-only'); open('d/read-only/in', 'w').write('in'); os.chmod('d/read-only', 0o500)
os.mkdir('top-read-only'); os.chmod('top-read-only', 0o500)
open(b'd/\xff\xfe', 'w').close(); open('d/new\nline', 'w').close(); open('d/ \t*', 'w').close()
with open('d/sparse', 'wb') as f:
    f.write(b'start'); f.seek(size // 2); f.write(b'middle'); f.truncate(size)
os.chmod('d/empty', 0o711)
os.utime('d', ns=(2 * 10**18, 2 * 10**18))
os.utime('.', ns=(10**18, 10**18))
def look():
    found = {}
    for top, names, files in os.walk(b'/workspace'):
        for name in [b'.', *names, *files]:
            path = os.path.join(top, name)
            s = os.lstat(path)
            found[path] = oct(s.st_mode), s.st_mtime_ns, s.st_size, (s.st_nlink, s.st_blocks) \
                if stat.S_ISREG(s.st_mode) else os.path.islink(path) and os.readlink(path)
    return found
"""


@pytest.mark.contract("docker")
def test_files_come_back_as_they_were(sandbox):
    ok(sandbox, MAKE_TREE + "\nbefore = look()")
    checkpoint = sandbox.checkpoint()
    for _ in range(2):
        ok(sandbox, "os.system('chmod -R u+rwx /workspace; rm -rf /workspace/*; echo > new')")
        sandbox.rollback(checkpoint)
        seen = value(
            sandbox,
            "[(k, before.get(k), v) for k, v in look().items() if before.get(k) != v],"
            " list(before.keys() - look().keys())",
        )
        assert seen == ([], [])
    ok(
        sandbox,
        """
        assert os.stat('d/text').st_ino == os.stat('d/same').st_ino == os.stat('d/third').st_ino
        f = open('d/sparse', 'rb'); f.seek(size // 2)
        assert f.read(6) == b'middle'
        os.chmod('d/secret', 0o600); assert open('d/secret').read() == 'nobody reads me'
        os.chmod('d/locked', 0o700); assert open('d/locked/in').read() == 'in'
        """,
    )


def test_directories_thousands_deep_come_back(sandbox):
    seen = there_and_back(
        sandbox,
        """
        import os
        for i in range(3000):
            os.mkdir('d'); os.chdir('d')
        open('bottom', 'w').write('deep'); os.chdir('/workspace')
        """,
        "import subprocess; subprocess.run(['rm', '-rf', '/workspace/d'])",
        "for i in range(3000): os.chdir('d')\nopen('bottom').read()",
    )
    assert seen == "deep"


@pytest.mark.parametrize("mode", [0, 0o500, 0o300])
def test_a_workspace_that_is_locked_can_be_kept_and_brought_back(sandbox, mode):
    ok(sandbox, "import os; x = 1; os.mkdir('d'); open('d/f', 'w').write('a')")
    before = sandbox.checkpoint()
    ok(sandbox, f"os.chmod('/workspace', {mode})")
    locked = sandbox.checkpoint()
    sandbox.rollback(before)
    assert value(sandbox, "oct(os.stat('/workspace').st_mode), open('d/f').read()") == (
        "0o40700",
        "a",
    )
    sandbox.rollback(locked)
    assert value(sandbox, "os.stat('/workspace').st_mode & 0o777") == mode
    with sandbox.fork() as fork:
        assert value(fork, "os.stat('/workspace').st_mode & 0o777") == mode
        ok(fork, "os.chmod('/workspace', 0o700); open('d/f', 'w').write('b')")
    assert value(sandbox, "os.chmod('/workspace', 0o700); open('d/f').read()") == "a"


@pytest.mark.contract("docker")
def test_open_files_go_on_where_they_were(sandbox):
    ok(
        sandbox,
        """
        import os
        open('read', 'w').write('0123456789' * 2000)
        reading = open('read'); reading.read(3)
        appending = open('log', 'a'); appending.write('one\\n'); appending.flush()
        raw = os.open('read', os.O_RDONLY); os.read(raw, 5)
        outside = os.open('/etc/passwd', os.O_RDONLY); os.read(outside, 2)
        directory = os.open('/workspace', os.O_RDONLY)
        """,
    )
    checkpoint = sandbox.checkpoint()
    for _ in range(2):
        ok(sandbox, "reading.read(4); appending.write('two\\n'); appending.flush()")
        ok(sandbox, "os.read(raw, 1000); os.read(outside, 100); os.remove('read')")
        sandbox.rollback(checkpoint)
        assert value(
            sandbox,
            "reading.read(2), os.read(raw, 2), os.lseek(outside, 0, 1),"
            " open('log').read(), sorted(os.listdir(directory))",
        ) == ("34", b"56", 2, "one\n", ["log", "read"])
        ok(sandbox, "appending.write('three\\n'); appending.flush()")
        assert value(sandbox, "open('log').read()") == "one\nthree\n"


def test_no_file_of_a_checkpoint_can_be_reached_by_path(sandbox):
    ok(sandbox, "open('kept', 'w').write('SECRET'); import os")
    sandbox.checkpoint()
    with sandbox.fork():
        ok(sandbox, "os.remove('kept')")
        seen = value(
            sandbox,
            """
            import glob
            names = []
            roots = ['/proc/1/fd', '/proc/1/cwd', '/proc/1/root', '/workspace/..',
                     '/proc/self/root/workspace', '/workspace/../current']
            for pattern in ('cwd', 'cwd/..', 'fd/*', 'fd/*/..', 'root/workspace'):
                roots += glob.glob('/proc/[0-9]*/' + pattern)
            for root in roots:
                try:
                    found = os.listdir(root)
                    names += [(root, n) for n in found if n in ('kept', 'current', 'w1', 'w2')]
                except OSError:
                    pass
            names
            """,
        )
        # The parked interpreter stands in the same /workspace, and knows no other.
        assert seen == []


# --- what cannot be carried ------------------------------------------------------------------

LACKING = {
    "thread": ("import threading; t = threading.Event(); threading.Thread(target=t.wait).start()"),
    "child": "import subprocess; p = subprocess.Popen(['sleep', '100'])",
    "socket": "import socket; s = socket.socket()",
    "pipe": "import os; p = os.pipe()",
    "asyncio": """
import asyncio
task = asyncio.ensure_future(asyncio.sleep(100))
await asyncio.sleep(0)
""",
    "shared memory": """
import mmap
with open('mapped', 'w+b') as f:
    f.truncate(4096)
    m = mmap.mmap(f.fileno(), 4096)
""",
}


@pytest.mark.parametrize("kind", LACKING)
def test_what_cannot_be_kept_is_said(sandbox, kind):
    ok(sandbox, "x = 1")
    ok(sandbox, LACKING[kind])
    checkpoint = sandbox.checkpoint()
    assert len(checkpoint.lacks) == 1
    assert kind in checkpoint.lacks[0]
    assert not sandbox.run_code("x = 2").notes
    sandbox.rollback(checkpoint)
    execution = sandbox.run_code("x")
    assert execution.value == 1
    assert any(kind in note for note in execution.notes)
    assert not any(kind in note for note in sandbox.run_code("x").notes)
    fork = sandbox.fork()
    with fork:
        assert value(fork, "x") == 1


def test_a_plain_session_lacks_nothing(data_sandbox):
    ok(
        data_sandbox,
        "import numpy, pandas, matplotlib.pyplot; numpy.ones((300, 300)) @ numpy.ones((300, 300))",
    )
    assert data_sandbox.checkpoint().lacks == ()


@pytest.mark.contract("docker")
def test_rollback_ends_what_was_started_since(sandbox, outside):
    before = sandbox.checkpoint()
    guest = outside(sandbox)
    ok(
        sandbox,
        "import subprocess; p = subprocess.Popen(['sleep', '1234'], start_new_session=True)",
    )
    sandbox.commands.run("sleep 1235 >/dev/null 2>&1 &")
    census.wait_until(lambda: len([p for p in guest.processes() if p.name == "sleep"]) == 2)
    sandbox.rollback(before)
    census.wait_until(lambda: not [p for p in guest.processes() if p.name == "sleep"])
    assert value(sandbox, "1") == 1


def test_locks_that_other_threads_hold_do_not_stop_a_checkpoint(sandbox):
    ok(
        sandbox,
        """
        import logging, threading, time, io
        handler = logging.StreamHandler(io.StringIO()); logging.getLogger().addHandler(handler)
        held, stop = threading.Event(), threading.Event()
        def hold():
            handler.acquire(); held.set()
            while True: logging.getLogger(str(time.monotonic()))
        threading.Thread(target=hold, daemon=True).start(); held.wait()
        """,
    )
    checkpoint = sandbox.checkpoint()
    sandbox.rollback(checkpoint)
    ok(sandbox, "logging.warning('x'); import wave")


# --- after the worst -------------------------------------------------------------------------

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


@pytest.mark.contract("docker")
@pytest.mark.parametrize("worst", some(*WORST))
def test_one_can_go_back_from(sandbox, worst):
    ok(sandbox, "x = 1; open('f', 'w').write('a' * 1000)")
    checkpoint = sandbox.checkpoint()
    for _ in range(2):
        sandbox.run_code(WORST[worst], timeout=2)
        sandbox.rollback(checkpoint)
        execution = sandbox.run_code("import os; x, os.listdir(), len(open('f').read())")
        assert execution.value == (1, ["f"], 1000), execution
        assert execution.state_preserved


@pytest.mark.contract("docker")
@pytest.mark.needs_cgroup
@gvisor.MEMORY
def test_one_can_go_back_from_out_of_memory(make_sandbox):
    sandbox = make_sandbox(limits=Limits(memory="256m"), strict=False)
    ok(sandbox, "x = bytearray(b'1') * (100 << 20)")
    checkpoint = sandbox.checkpoint()
    ok(sandbox, "del x")
    for _ in range(2):
        execution = sandbox.run_code(
            "y = 1; z = [bytearray(b'1') * (1 << 20) for i in range(1000)]"
        )
        assert execution.outcome is Outcome.out_of_memory
        sandbox.rollback(checkpoint)
        assert value(sandbox, "len(x), x[-1], 'y' in globals()") == (100 << 20, 49, False)


@pytest.mark.contract("docker")
def test_one_can_go_back_after_a_restart(sandbox):
    ok(sandbox, "x = 1")
    checkpoint = sandbox.checkpoint()
    sandbox.restart()
    assert sandbox.run_code("x").error.name == "NameError"
    sandbox.rollback(checkpoint)
    assert value(sandbox, "x") == 1


@gvisor.PROCESSES
def test_going_back_from_a_bomb_that_still_goes_off(sandbox):
    ok(sandbox, "x = 1")
    checkpoint = sandbox.checkpoint()
    ok(
        sandbox,
        """
        import os, time
        if os.fork() == 0:
            os.setsid()
            while True:
                try: os.fork()
                except OSError: pass
        while True:
            try:
                if os.fork() == 0: os._exit(0)
            except OSError: break
        """,
    )
    sandbox.rollback(checkpoint)
    assert value(sandbox, "import os; x") == 1
    # Those killed are gone when the kernel is done with them.
    left = "len([n for n in os.listdir('/proc') if n.isdigit()])"
    census.wait_until(lambda: value(sandbox, left) <= 4, 30.0, "the end of the bomb")


def test_a_checkpoint_while_files_come_and_go(sandbox):
    ok(
        sandbox,
        """
        import subprocess
        code = 'import os\\nwhile True:\\n for i in range(100): open(f"t{i}", "w").close()'
        code += '\\n for i in range(100): os.remove(f"t{i}")'
        p = subprocess.Popen(['python3', '-c', code]); x = 1; open('stays', 'w').write('a')
        """,
    )
    for _ in range(10):
        checkpoint = sandbox.checkpoint()
        sandbox.rollback(checkpoint)
        assert value(sandbox, "x, open('stays').read()") == (1, "a")
        sandbox.release(checkpoint)


@pytest.mark.contract("docker")
def test_rollback_waits_for_commands_and_restarts(sandbox):
    ok(sandbox, "x = 1")
    checkpoint = sandbox.checkpoint()
    begun = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        command = "echo begun; sleep 0.3; echo late > late"
        ran = pool.submit(sandbox.commands.run, command, on_stdout=lambda text: begun.set())
        assert begun.wait(60)
        restarts = pool.submit(lambda: [sandbox.restart() for _ in range(5)])
        for _ in range(5):
            sandbox.rollback(checkpoint)
        restarts.result(60)
        assert ran.result(60).exit_code == 0
        sandbox.rollback(checkpoint)
    assert value(sandbox, "import os; x, os.listdir()") == (1, [])


# --- letting go ------------------------------------------------------------------------------


def test_release_frees_processes_and_room(make_sandbox, outside):
    sandbox = make_sandbox(limits=Limits(workspace="64m"))
    guest = outside(sandbox)
    ok(sandbox, "open('f', 'wb').write(bytes(15 << 20)); import os")
    before = len(guest.processes())
    for _ in range(5):
        kept = [sandbox.checkpoint() for _ in range(2)]
        census.wait_until(lambda: len(guest.processes()) == before + 2, 30.0, "both copies")
        for checkpoint in kept:
            sandbox.release(checkpoint)
        census.wait_until(lambda: len(guest.processes()) == before)
    free = "s = os.statvfs('/workspace'); (s.f_blocks - s.f_bfree) * s.f_bsize >> 20"
    assert value(sandbox, free) == 15


def test_locked_trees_give_their_room_back_too(make_sandbox):
    sandbox = make_sandbox(limits=Limits(workspace="64m"))
    ok(
        sandbox,
        """
        import os
        os.makedirs('a/b/c'); open('a/b/c/f', 'wb').write(bytes(10 << 20))
        os.chmod('a/b/c', 0); os.chmod('a/b', 0o500); os.chmod('a', 0o400)
        """,
    )
    for _ in range(8):
        sandbox.release(sandbox.checkpoint())
        census.wait_until(
            lambda: (
                value(
                    sandbox,
                    "s = os.statvfs('/workspace'); (s.f_blocks - s.f_bfree) * s.f_bsize >> 20",
                )
                == 10
            )
        )


def test_a_released_checkpoint_is_lost(sandbox):
    ok(sandbox, "x = 1")
    checkpoint = sandbox.checkpoint()
    sandbox.release(checkpoint)
    sandbox.release(checkpoint)
    with pytest.raises(CheckpointLost):
        sandbox.rollback(checkpoint)
    assert value(sandbox, "x") == 1


def test_a_checkpoint_of_another_sandbox_is_refused(make_sandbox):
    one, other = make_sandbox(), make_sandbox()
    checkpoint = one.checkpoint()
    with pytest.raises(CheckpointLost, match="not of this sandbox"):
        other.rollback(checkpoint)
    with pytest.raises(InvalidOption, match="Checkpoint is needed"):
        one.rollback(3)
    one.close()
    with pytest.raises(SandboxClosed):
        one.rollback(checkpoint)
    with pytest.raises(SandboxClosed):
        one.checkpoint()
    with pytest.raises(SandboxClosed):
        one.fork()


def test_a_checkpoint_is_lost_with_its_guest(sandbox, outside):
    ok(sandbox, "x = 1")
    checkpoint = sandbox.checkpoint()
    guest = outside(sandbox)
    guest.end()
    with pytest.raises(CheckpointLost):
        sandbox.rollback(checkpoint)
    assert value(sandbox, "1") == 1


# --- limits ----------------------------------------------------------------------------------


def keep_until_refused(sandbox, kept):
    for _ in range(20):
        kept.append(sandbox.checkpoint())


@pytest.mark.contract("docker")
@gvisor.PROCESSES
def test_checkpoints_beyond_the_process_limit_are_refused_and_nothing_is_lost(make_sandbox):
    sandbox = make_sandbox(limits=Limits(processes=8))
    ok(sandbox, "x = 1; open('f', 'w').write('a')")
    kept = []
    with pytest.raises(SandboxError, match="process") as caught:
        keep_until_refused(sandbox, kept)
    assert "processes=" in caught.value.hint
    assert 1 <= len(kept) < 8
    assert value(sandbox, "x") == 1
    sandbox.release(kept.pop())
    ok(sandbox, "x = 2")
    for checkpoint in kept:
        sandbox.rollback(checkpoint)
        assert value(sandbox, "x, open('f').read()") == (1, "a")


@pytest.mark.contract("docker")
def test_checkpoints_beyond_the_workspace_limit_are_refused_and_nothing_is_lost(make_sandbox):
    sandbox = make_sandbox(limits=Limits(workspace="32m"))
    ok(sandbox, "import os; x = 1; open('f', 'wb').write(os.urandom(10 << 20))")
    first = sandbox.checkpoint()
    for _ in range(3):
        with pytest.raises(SandboxError, match="No space") as caught:
            keep_until_refused(sandbox, [])
        assert "workspace=" in caught.value.hint
    assert value(sandbox, "import os; x, os.path.getsize('f')") == (1, 10 << 20)
    sandbox.rollback(first)
    assert value(sandbox, "import os; x, os.path.getsize('f')") == (1, 10 << 20)


@pytest.mark.contract("docker")
def test_checkpoints_take_no_memory_for_what_does_not_change(make_sandbox):
    sandbox = make_sandbox(limits=Limits(memory="512m"), strict=False)
    ok(sandbox, "x = bytearray(b'1') * (150 << 20)")
    kept = [sandbox.checkpoint() for _ in range(8)]
    assert value(sandbox, "x[-1], len(x)") == (49, 150 << 20)
    sandbox.rollback(kept[3])
    assert value(sandbox, "x[-1], len(x)") == (49, 150 << 20)


# --- hostile code ----------------------------------------------------------------------------

PARKED = """
import os
mine = os.getpid()
parked = [int(n) for n in os.listdir('/proc') if n.isdigit() and int(n) not in (1, mine)]
"""


def test_a_parked_interpreter_that_the_code_kills_is_a_lost_checkpoint(sandbox):
    ok(sandbox, "x = 1; open('f', 'w').write('a')")
    checkpoint = sandbox.checkpoint()
    ok(sandbox, PARKED + "\nassert len(parked) == 1; os.kill(parked[0], 9)")
    with pytest.raises(CheckpointLost):
        sandbox.rollback(checkpoint)
    assert value(sandbox, "x, open('f').read()") == (1, "a")


def test_a_parked_interpreter_that_the_code_stops_does_not_hang_a_rollback(sandbox):
    ok(sandbox, "x = 1")
    checkpoint = sandbox.checkpoint()
    ok(sandbox, PARKED + "\nimport signal; os.kill(parked[0], signal.SIGSTOP); x = 2")
    sandbox.rollback(checkpoint)
    assert value(sandbox, "x") == 1


@pytest.mark.contract("docker")
def test_a_fork_that_the_code_kills_is_told(sandbox):
    ok(sandbox, "x = 1; open('f', 'w').write('a')")
    with sandbox.fork() as fork:
        ok(sandbox, PARKED + "\nos.kill(parked[0], 9)")
        execution = fork.run_code("'x' in globals(), open('f').read()")
        assert execution.value == (False, "a")
        assert not execution.state_preserved
    assert value(sandbox, "x") == 1


HOOKS = {
    "raises": "import os; os.register_at_fork(before=lambda: 1/0, after_in_child=lambda: 1/0)",
    "sleeps": "import os, time; os.register_at_fork(after_in_child=lambda: time.sleep(0.2))",
    "lingers": "import os, time; os.register_at_fork(after_in_parent=lambda: time.sleep(2.2))",
    "reaps": "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "undumpable": "import ctypes; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)",
    "forks": "import os; os.register_at_fork(after_in_parent=lambda: None, before=lambda: None)",
}


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_of_the_code_do_no_harm(sandbox, hook):
    ok(sandbox, "x = 1")
    ok(sandbox, HOOKS[hook])
    checkpoint = sandbox.checkpoint()
    ok(sandbox, "x = 2")
    sandbox.rollback(checkpoint)
    assert value(sandbox, "x") == 1


REFUSED = {
    "exits": "import os; os.register_at_fork(after_in_child=lambda: os._exit(0))",
    "becomes a reaper": "import ctypes; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)",
}


@pytest.mark.parametrize(
    "hook",
    [
        pytest.param(
            hook,
            marks=pytest.mark.not_gvisor("there are no reapers but PID 1")
            if hook == "becomes a reaper"
            else (),
        )
        for hook in REFUSED
    ],
)
def test_code_that_spoils_its_own_copies_loses_nothing_else(sandbox, hook):
    ok(sandbox, "x = 1; open('f', 'w').write('a')")
    ok(sandbox, REFUSED[hook])
    with pytest.raises(SandboxError, match="could not keep"):
        sandbox.checkpoint()
    assert value(sandbox, "x, open('f').read()") == (1, "a")


def test_a_hook_that_hangs_costs_the_interpreter_but_not_the_files(sandbox, monkeypatch):
    ok(sandbox, "open('f', 'w').write('a'); x = 1")
    checkpoint = sandbox.checkpoint()
    ok(sandbox, "import os, time; os.register_at_fork(before=lambda: time.sleep(1000))")
    with monkeypatch.context() as patch:
        patch.setattr("belljar.sandbox.guest_session.KEEP_TIMEOUT", 4.0)
        with pytest.raises(SandboxError, match="took too long"):
            sandbox.checkpoint()
    execution = sandbox.run_code("open('f').read()")
    assert execution.value == "a"
    assert not execution.state_preserved
    sandbox.rollback(checkpoint)
    assert value(sandbox, "x") == 1


@pytest.mark.parametrize("way", ["checkpoint", "fork", "undo"])
def test_a_hook_that_hangs_is_ended_by_the_time_out(make_sandbox, monkeypatch, way):
    monkeypatch.setattr(
        "belljar.sandbox.guest_session.KEEP_TIMEOUT", 1000.0
    )  # longer than a test may take
    sandbox = make_sandbox(limits={"timeout": 3})
    ok(sandbox, "import os, time; os.register_at_fork(before=lambda: time.sleep(1000))")
    ways = {
        "checkpoint": sandbox.checkpoint,
        "fork": sandbox.fork,
        "undo": lambda: sandbox.run_code("1", undo_on_error=True),
    }
    with pytest.raises(SandboxError, match="took too long"):
        ways[way]()
    assert value(sandbox, "1 + 1") == 2


FORGED = """
import socket, struct, os, time
s = socket.socket(fileno=os.dup(3))
def frame(kind, body=b''): return struct.pack('!BIII', kind, 0, len(body), 0) + body
"""


@pytest.mark.parametrize(
    "frames",
    [
        "frame(72)",
        "frame(71)",
        'frame(71, b\'{"missing": 5, "error": 7}\')',
        "frame(72) + frame(71)",
    ],
)
def test_forged_words_of_a_worker_do_no_harm(sandbox, frames):
    ok(sandbox, "x = 1")
    ok(sandbox, FORGED + f"\ns.sendall({frames})")
    checkpoint = sandbox.checkpoint()
    ok(sandbox, "x = 2")
    ok(
        sandbox,
        f"import threading; t = threading.Timer(0.02, lambda: s.sendall({frames})); t.start()",
    )
    with contextlib.suppress(SandboxError):  # it may spoil its own
        sandbox.checkpoint()
    ok(sandbox, "t.join()")
    sandbox.rollback(checkpoint)
    assert value(sandbox, "x") == 1


def test_a_copy_that_is_somebody_else_is_not_taken(sandbox):
    """Code that answers for its own copy, from a process that is a checkpoint already."""
    ok(sandbox, "x = 1")
    ok(
        sandbox,
        """
        import os
        seen = []
        def child():
            for name in os.listdir('/proc/self/fd'):
                try: path = os.readlink('/proc/self/fd/' + name)
                except OSError: continue
                if path.startswith('socket:') and int(name) > 3:
                    import socket, struct
                    s = socket.socket(fileno=os.dup(int(name)))
                    s.sendall(struct.pack('!BIII', 72, 0, 0, 0))
        os.register_at_fork(after_in_child=child)
        """,
    )
    with pytest.raises(SandboxError):
        sandbox.checkpoint()
    assert value(sandbox, "x") == 1


# --- undo_on_error ---------------------------------------------------------------------------

UNDONE = {
    "error": "1 / 0",
    "timeout": "while True: pass",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "exit": "import sys; sys.exit(3)",
    "output_limit": "while True: print('x' * 10000)",
    "out_of_memory": "raise MemoryError",
}


@pytest.mark.parametrize("outcome", UNDONE)
def test_what_a_cell_did_is_undone_after(sandbox, outcome, outside):
    ok(sandbox, "x = 1; open('f', 'w').write('a'); import os")
    guest = outside(sandbox)
    before = len(guest.processes())
    code = f"x = 2; y = 3; open('f', 'w').write('b'); open('g', 'w').close()\n{UNDONE[outcome]}"
    seconds = 2 if outcome == "timeout" else 60
    execution = sandbox.run_code(code, undo_on_error=True, timeout=seconds)
    assert execution.outcome.value == outcome
    assert execution.state_preserved
    assert any("undone" in note for note in execution.notes)
    assert not any("lost" in note for note in execution.notes)
    assert value(sandbox, "x, 'y' in globals(), open('f').read(), os.listdir()") == (
        1,
        False,
        "a",
        ["f"],
    )
    census.wait_until(lambda: len(guest.processes()) == before)


def test_what_went_well_stays(sandbox, outside):
    ok(sandbox, "1")
    guest = outside(sandbox)
    before = len(guest.processes())
    for i in range(10):
        execution = sandbox.run_code(f"x = {i}; open('f', 'w').write('{i}')", undo_on_error=True)
        assert execution.ok
        assert not execution.notes
    assert value(sandbox, "x, open('f').read()") == (9, "9")
    census.wait_until(lambda: len(guest.processes()) == before)


def test_what_a_cancelled_cell_did_is_undone_too(run_async, open_sandbox):
    """And no copy of the interpreter is left behind."""
    code = "x = 2; open('f', 'w').close(); print('begun'); time.sleep(100)"

    async def run_until_it_prints(sandbox):
        with anyio.CancelScope() as scope:
            await sandbox.run_code(code, undo_on_error=True, on_stdout=lambda text: scope.cancel())
        assert scope.cancelled_caught

    async def main():
        async with open_sandbox() as sandbox:
            await sandbox.run_code("x = 1; import os, time")
            before = (await sandbox.usage()).processes
            for _ in range(3):
                await run_until_it_prints(sandbox)
            execution = await sandbox.run_code("x, os.listdir()")
            assert execution.value == (1, [])
            assert execution.state_preserved
            with anyio.fail_after(60):
                while before is not None and (await sandbox.usage()).processes > before:
                    await anyio.sleep(0.05)

    run_async(main)


def test_undoing_what_killed_the_parked_one_is_said(sandbox):
    ok(sandbox, "x = 1")
    execution = sandbox.run_code(PARKED + "\nos.kill(parked[0], 9); 1 / 0", undo_on_error=True)
    assert execution.outcome is Outcome.error
    assert any("could not be undone" in note for note in execution.notes)
    assert value(sandbox, "x") == 1


# --- forks -----------------------------------------------------------------------------------


@pytest.mark.contract("docker")
def test_a_fork_goes_on_by_itself_and_so_does_the_original(sandbox):
    ok(sandbox, "x = [1]; open('f', 'w').write('a'); import os")
    with sandbox.fork() as fork:
        assert fork.id != sandbox.id
        assert value(fork, "x, open('/workspace/f').read()") == ([1], "a")
        ok(fork, "x.append('fork'); open('/workspace/f', 'w').write('fork'); os.mkdir('only fork')")
        assert value(sandbox, "x, open('/workspace/f').read(), os.listdir()") == ([1], "a", ["f"])
        ok(sandbox, "x.append('original'); open('f', 'w').write('original')")
        assert value(fork, "x, open('f').read()") == ([1, "fork"], "fork")
    assert value(sandbox, "x, open('f').read()") == ([1, "original"], "original")


@pytest.mark.contract("docker")
def test_a_fork_of_a_fork_outlives_both(backend, outside):
    first = Sandbox(environment="python")
    ok(first, "x = 1; open('f', 'w').write('1')")
    guest = outside(first)
    second = first.fork()
    ok(second, "x += 1; open('f', 'a').write('2')")
    third = second.fork()
    ok(third, "x += 1; open('f', 'a').write('3')")
    first.close()
    assert value(third, "x, open('f').read()") == (3, "123")
    assert value(second, "x, open('f').read()") == (2, "12")
    second.close()
    with pytest.raises(SandboxClosed):
        second.run_code("1")
    assert value(third, "x, open('f').read()") == (3, "123")
    assert guest.alive()
    census.wait_until(lambda: len(guest.processes()) == 2)
    third.close()
    assert not guest.alive()


@pytest.mark.contract("docker")
def test_files_commands_and_values_are_the_branchs_own(make_sandbox, tmp_path):
    sandbox = make_sandbox(functions={"who": lambda: "host"})
    sandbox.files.write("f", "original")
    with sandbox.fork() as fork:
        fork.files.write("f", "fork")
        fork.put(x=1)
        sandbox.put(x=2)
        assert sandbox.commands.run("cat f").stdout == "original"
        assert fork.commands.run("cat /workspace/f").stdout == "fork"
        assert (sandbox.get("x"), fork.get("x")) == (2, 1)
        local = tmp_path / "up"
        local.write_text("uploaded")
        fork.files.upload(local, "up")
        assert not sandbox.files.exists("up")
        fork.files.download("f", tmp_path / "down")
        assert (tmp_path / "down").read_text() == "fork"
        assert sandbox.files.read("f") == "original"
        assert value(fork, "who()") == "host"
        fork.expose(lambda: "only here", "mine")
        assert value(fork, "mine()") == "only here"
        assert sandbox.run_code("mine()").error.name == "NameError"


@pytest.mark.contract("docker")
def test_a_fork_may_go_back_to_a_checkpoint_of_the_original(sandbox):
    ok(sandbox, "x = 1; open('f', 'w').write('1')")
    checkpoint = sandbox.checkpoint()
    ok(sandbox, "x = 2; open('f', 'w').write('2')")
    with sandbox.fork() as fork:
        fork.rollback(checkpoint)
        assert value(fork, "x, open('f').read()") == (1, "1")
        assert value(sandbox, "x, open('f').read()") == (2, "2")
        inner = fork.checkpoint()
        ok(fork, "x = 3")
        fork.rollback(inner)
        assert value(fork, "x") == 1
    assert value(sandbox, "x, open('f').read()") == (2, "2")


@pytest.mark.parametrize("worst", some("crash", "exit", "loop", "bomb", "stubborn"))
def test_what_ends_one_branch_leaves_the_other(sandbox, worst):
    ok(sandbox, "x = 1; open('f', 'w').write('a')")
    with sandbox.fork() as fork:
        fork.run_code(WORST[worst], timeout=1)
        assert value(sandbox, "x, open('f').read()") == (1, "a")
        assert value(fork, "open('f').read()") == "a"
        sandbox.run_code(WORST[worst], timeout=1)
        assert value(fork, "open('f').read()") == "a"


@pytest.mark.contract("docker")
@pytest.mark.needs_cgroup
@gvisor.MEMORY
def test_out_of_memory_in_one_branch_leaves_the_other(make_sandbox):
    sandbox = make_sandbox(limits=Limits(memory="256m"), strict=False)
    ok(sandbox, "x = bytearray(b'1') * (80 << 20)")
    with sandbox.fork() as fork:
        execution = fork.run_code("y = [bytearray(b'1') * (1 << 20) for i in range(1000)]")
        assert execution.outcome is Outcome.out_of_memory
        assert value(sandbox, "len(x)") == 80 << 20


def test_what_one_branch_left_running_stands_still_meanwhile(sandbox):
    ok(
        sandbox,
        """
        import os, subprocess, time
        p = subprocess.Popen(['sh', '-c', 'while :; do echo >> /workspace/ticks; done'])
        while not os.path.exists('ticks'): time.sleep(0.01)
        """,
    )
    with sandbox.fork() as fork:
        assert any("child processes" in note for note in fork.run_code("1").notes)
        ok(fork, "import os, time; os.path.exists('ticks') and os.remove('ticks'); time.sleep(0.3)")
        assert value(fork, "os.path.exists('/workspace/ticks')") is False
        before = value(sandbox, "import os; os.path.getsize('ticks')")
        census.wait_until(lambda: value(sandbox, "os.path.getsize('ticks')") > before)
        assert value(fork, "os.path.exists('/workspace/ticks')") is False


@pytest.mark.contract("docker")
def test_open_files_go_on_when_another_branch_has_had_its_turn(sandbox):
    ok(
        sandbox,
        """
        import os
        log = open('log', 'a'); log.write('one\\n'); log.flush()
        gone = open('gone', 'w+'); gone.write('x'); gone.flush(); os.remove('gone')
        open('gone', 'w').write('another'); os.makedirs('a/b'); os.chdir('a/b')
        """,
    )
    with sandbox.fork() as fork:
        for i in range(2):
            for one in (fork, sandbox):
                name = "fork" if one is fork else "original"
                ok(one, f"log.write('{name}\\n'); log.flush()")
                assert value(one, "os.getcwd(), open('/workspace/log').read()") == (
                    "/workspace/a/b",
                    "one\n" + f"{name}\n" * (i + 1),
                )
                assert value(one, "gone.seek(0), gone.read()") == (0, "x")


def test_branches_alternate_without_a_mix_up(sandbox):
    ok(sandbox, "n = 0; import os")
    with sandbox.fork() as fork:
        for i in range(50):
            for one in (sandbox, fork):
                name = "fork" if one is fork else "original"
                code = f"n += 1; open(f'{name}-{{n}}', 'w').close(); n, len(os.listdir())"
                assert value(one, code) == (i + 1, i + 1)


def test_branches_are_used_from_threads_at_once(sandbox):
    ok(sandbox, "n = 0; import os; open('n', 'w').write('0')")
    forks = [sandbox.fork() for _ in range(3)]
    step = "n += 1; m = int(open('n').read()) + 1; open('n', 'w').write(str(m)); n, m"

    def work(one):
        return [value(one, step) for _ in range(20)]

    try:
        with ThreadPoolExecutor(4) as pool:
            for seen in pool.map(work, [sandbox, *forks]):
                assert seen == [(i, i) for i in range(1, 21)]
    finally:
        for fork in forks:
            fork.close()


def test_branches_are_used_by_tasks_at_once(run_async, open_sandbox):
    async def main():
        async with open_sandbox() as sandbox:
            await sandbox.run_code("n = 0; open('n', 'w').write('0')")
            forks = [await sandbox.fork() for _ in range(3)]
            step = "n += 1; m = int(open('n').read()) + 1; open('n', 'w').write(str(m)); n, m"

            async def work(one):
                for i in range(1, 21):
                    assert (await one.run_code(step)).value == (i, i)
                    await one.files.write("own", str(i))

            async with anyio.create_task_group() as group:
                for one in (sandbox, *forks):
                    group.start_soon(work, one)
            checkpoint = await forks[0].checkpoint()
            await forks[0].run_code("n = 'x'")
            await forks[0].rollback(checkpoint)
            assert (await forks[0].run_code("n")).value == 20
            async with anyio.create_task_group() as group:
                for one in forks:
                    group.start_soon(one.close)

    run_async(main)


def test_closing_a_branch_ends_what_it_has_under_way(sandbox):
    ok(sandbox, "x = 1")
    for call in ("run_code", "command"):
        fork = sandbox.fork()
        begun = threading.Event()

        def work(fork=fork, begun=begun, call=call):
            if call == "command":
                say = {"on_stdout": lambda text: begun.set()}
                return fork.commands.run("echo begun; exec sleep 100", **say)
            return fork.run_code("print(1)\nwhile True: pass", on_stdout=lambda text: begun.set())

        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(work)
            assert begun.wait(60)
            fork.kill()
            result = future.result(60)
        assert result.outcome is Outcome.killed, result
        assert value(sandbox, "x") == 1


def test_a_host_function_that_uses_the_other_branch_does_not_hang(make_sandbox):
    branches = []
    sandbox = make_sandbox(functions={"ask": lambda: branches[0].run_code("1").value})
    with sandbox.fork() as fork:
        branches.append(fork)
        execution = sandbox.run_code("ask()", timeout=60)
        assert execution.error.name == "SandboxError", execution
        assert value(fork, "1") == 1


@pytest.mark.contract("docker")
def test_a_fork_that_nobody_closed_does_not_keep_the_guest(backend, outside):
    sandbox = Sandbox(environment="python")
    ok(sandbox, "x = 1")
    guest = outside(sandbox)
    forgotten = [sandbox.fork()]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)
        census.forget(forgotten, told)
    assert value(sandbox, "x") == 1
    sandbox.close()
    census.wait_until(lambda: not guest.alive())


def test_the_guest_dies_for_all_branches(sandbox, outside):
    ok(sandbox, "x = 1")
    with sandbox.fork() as fork:
        guest = outside(sandbox)
        guest.end()
        for one in (sandbox, fork):
            execution = one.run_code("'x' in globals()")
            assert execution.value is False
            assert not execution.state_preserved
        ok(fork, "open('f', 'w').write('own guest now')")
        assert value(sandbox, "import os; os.listdir()") == []


def test_with_blocks_and_errors_close_forks(sandbox, outside):
    ok(sandbox, "1")
    guest = outside(sandbox)
    before = len(guest.processes())

    def fail():
        with sandbox.fork() as fork:
            ok(fork, "1")
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    ok(sandbox, "1")
    census.wait_until(lambda: len(guest.processes()) == before)


def test_many_forks_one_after_another_leave_nothing(sandbox, outside):
    ok(sandbox, "import os; open('f', 'wb').write(os.urandom(1 << 20))")
    guest = outside(sandbox)
    before = len(guest.processes())
    for i in range(20):
        with sandbox.fork() as fork:
            ok(fork, f"open('g', 'wb').write(bytes({i} << 10))")
    ok(sandbox, "1")
    census.wait_until(lambda: len(guest.processes()) == before)
    used = "s = os.statvfs('/workspace'); (s.f_blocks - s.f_bfree) * s.f_bsize >> 20"
    census.wait_until(lambda: value(sandbox, used) == 1)


# --- against a model -------------------------------------------------------------------------


STEPS = ["change", "keep", "back", "fork", "close", "release", "crash", "undo", "command", "look"]


class Model:
    """What a branch should hold: a number, and the same number in a file."""

    def __init__(self, sandbox, held):
        self.sandbox = sandbox
        self.held = held

    def change(self, number):
        ok(self.sandbox, f"x = {number}; open('x', 'w').write('{number}')")
        self.held = (number, str(number))

    def check(self):
        assert value(self.sandbox, "x, open('/workspace/x').read()") == self.held


def test_any_order_of_steps_gives_what_the_model_says(make_sandbox):
    seed = int(os.environ.get("BELLJAR_TEST_SEED", "7"))
    steps = int(os.environ.get("BELLJAR_TEST_STEPS", "80"))
    chance = random.Random(seed)
    live, kept = [Model(make_sandbox(), None)], []
    live[0].change(0)
    for step in range(1, steps):
        one = chance.choice(live)
        what = chance.choice(STEPS)
        if what == "change":
            one.change(step)
        elif what == "keep" and len(kept) < 6:
            kept.append((one.sandbox.checkpoint(), one.held))
        elif what == "back" and kept:
            checkpoint, held = chance.choice(kept)
            one.sandbox.rollback(checkpoint)
            one.held = held
        elif what == "fork" and len(live) < 5:
            live.append(Model(one.sandbox.fork(), one.held))
        elif what == "close" and len(live) > 1:
            live.remove(one)
            one.sandbox.close()
            continue
        elif what == "release" and kept:
            one.sandbox.release(kept.pop(chance.randrange(len(kept)))[0])
        elif what == "crash":
            one.sandbox.run_code("import os; os.abort()")
            assert one.sandbox.files.read("x") == one.held[1]
            one.change(step)
        elif what == "undo":
            one.sandbox.run_code("x = 1; open('x', 'w').close(); 1 / 0", undo_on_error=True)
        elif what == "command":
            assert one.sandbox.commands.run("cat x").stdout == one.held[1]
        one.check()
    for one in live:
        one.check()
        one.sandbox.close()


# --- the host's directory --------------------------------------------------------------------


def test_a_workspace_on_the_host_is_rolled_back_there_too(make_sandbox, tmp_path):
    sandbox = make_sandbox(workspace=tmp_path)
    ok(sandbox, "x = 1; open('f', 'w').write('a')")
    checkpoint = sandbox.checkpoint()
    ok(sandbox, "x = 2; open('f', 'w').write('b'); open('g', 'w').write('g')")
    assert (tmp_path / "f").read_text() == "b"
    sandbox.rollback(checkpoint)
    assert (tmp_path / "f").read_text() == "a"
    assert not (tmp_path / "g").exists()
    assert value(sandbox, "import os; x, os.listdir()") == (1, ["f"])
    sandbox.run_code("open('f', 'w').write('c'); 1 / 0", undo_on_error=True)
    assert (tmp_path / "f").read_text() == "a"
    with pytest.raises(InvalidOption, match="cannot be forked"):
        sandbox.fork()


# --- cancellation and leaks ------------------------------------------------------------------


def test_a_cancelled_checkpoint_or_rollback_leaves_a_sandbox_that_works(open_sandbox, backend):
    async def main():
        async with open_sandbox() as sandbox:
            await sandbox.run_code("x = 1; open('f', 'wb').write(bytes(20 << 20))")
            kept = await sandbox.checkpoint()
            for delay in (0.0, 0.001, 0.004, 0.01):
                for call in (sandbox.checkpoint, lambda: sandbox.rollback(kept)):
                    task = asyncio.create_task(call())
                    await asyncio.sleep(delay)
                    task.cancel()
                    (made,) = await asyncio.gather(task, return_exceptions=True)
                    if made is not None and not isinstance(made, BaseException):
                        await sandbox.release(made)
                    assert (await sandbox.run_code("x, open('f', 'rb').seek(0, 2)")).value == (
                        1,
                        20 << 20,
                    )
            pids = "import os; len([n for n in os.listdir('/proc') if n.isdigit()])"
            with anyio.fail_after(60):
                while (await sandbox.run_code(pids)).value > 3:
                    await asyncio.sleep(0.01)

    asyncio.run(main())


@pytest.mark.contract("docker")
def test_nothing_is_left_behind(backend):
    def use():
        with Sandbox(environment="python") as sandbox:
            ok(sandbox, "open('f', 'w').write('a')")
            checkpoint = sandbox.checkpoint()
            with sandbox.fork() as fork:
                fork.run_code("1 / 0", undo_on_error=True)
                sandbox.rollback(checkpoint)
            sandbox.fork().close()

    use()
    before = census.take()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            use()
        gc.collect()
    assert census.settle(before, timeout=30.0, ignore=["thread AnyIO"]) == []
