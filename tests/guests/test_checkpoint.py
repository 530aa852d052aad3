"""Checkpoints and rollback: what comes back, and what cannot."""

import pytest

import census
import gvisor
from belljar import (
    CheckpointLost,
    InvalidOption,
    Limits,
    SandboxClosed,
    SandboxError,
)
from checkpoints import ok, there_and_back, value

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
