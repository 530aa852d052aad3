"""`belljar ps`, `top` and `gc`, as other processes run them beside one that has a sandbox."""

import contextlib
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl

import pytest

from belljar.cli import ps
from belljar.cli.top import split_keys
from census import wait_until
from project import ROOT

BELLJAR = [sys.executable, "-m", "belljar"]
LONG = 60.0  # seconds: on a busy machine

# Says the ids of an idle sandbox and of one whose code runs, and goes on until its input ends.
OWNER = """
import sys, threading
from belljar import Sandbox
with Sandbox(environment="python", metadata={"owner": "ann"}) as idle, \\
        Sandbox(environment="python", limits={"timeout": 1000}) as busy:
    begun = threading.Event()
    code = "print('on', flush=True)\\nwhile True: pass"
    thread = threading.Thread(
        target=lambda: busy.run_code(code, on_stdout=lambda text: begun.set()), daemon=True
    )
    thread.start()
    begun.wait()
    print(idle.id, busy.id, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def environ(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runtime")
    directory.chmod(0o700)
    return {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}".rstrip(":"),
        "BELLJAR_RUNTIME_DIR": str(directory),
        "TERM": "xterm-256color",
        "COLUMNS": "200",
        "LINES": "30",
    }


@contextlib.contextmanager
def owner_process(environ, program=OWNER, sandboxes=2):
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
    ) as process:
        try:
            ids = process.stdout.readline().split()
            assert len(ids) == sandboxes
            yield process, *ids
        finally:
            process.stdin.close()
            process.wait(30)


@pytest.fixture(scope="module")
def owner(backend, environ):
    with owner_process(environ) as started:
        yield started


def belljar(environ, *args):
    return subprocess.run(
        [*BELLJAR, *args], capture_output=True, text=True, env=environ, timeout=60
    )


def test_ps_lists_live_sandboxes_of_another_process(owner, environ):
    process, idle, busy = owner

    def listed():
        """Once the busy one has had a processor, which on a busy machine may take a while."""
        done = belljar(environ, "ps", "--json")
        assert done.returncode == 0, done.stderr
        found = {each["id"]: each for each in json.loads(done.stdout)}
        assert found.keys() == {idle, busy}
        cpu = found[busy]["cpu_percent"] or 0.0
        return found if cpu > 5 and (found[idle]["cpu_percent"] or 0.0) < cpu else None

    found = wait_until(listed, LONG, "that one is busy")
    assert found[busy]["state"] == "busy"
    assert found[idle]["metadata"] == {"owner": "ann"}
    for each in found.values():
        assert each["owner"]["pid"] == process.pid
        assert "python" in each["owner"]["command"]
        assert each["memory"] > 100_000
        assert each["limits"]["memory"] == 512 * 2**20
        assert each["processes"] >= 1
    text = belljar(environ, "ps").stdout
    assert text.splitlines()[0].split()[:4] == ["ID", "STATE", "BACKEND", "ENV"]
    assert idle in text
    assert str(process.pid) in text


def test_top_once_is_a_table_sorted_as_asked(owner, environ):
    _, idle, busy = owner

    def in_order():
        lines = belljar(environ, "top", "--once").stdout.splitlines()
        assert lines[0].startswith("2 sandboxes, ")
        return [line.split()[0] for line in lines[2:]] == [busy, idle]

    wait_until(in_order, LONG, "that the busy one is the first")
    lines = belljar(environ, "top", "--once", "--sort", "age").stdout.splitlines()
    assert [line.split()[0] for line in lines[2:]] == [idle, busy]


def test_top_without_a_terminal_says_what_to_do(environ):
    done = subprocess.run(
        [*BELLJAR, "top"], input="", capture_output=True, text=True, env=environ, timeout=60
    )
    assert done.returncode == 2
    assert "--once" in done.stderr


class Terminal:
    def __init__(self, environ, *args):
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            os.execve(sys.executable, [*BELLJAR, *args], environ)
        ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 200, 0, 0))
        self.seen = ""

    def read_until(self, *texts, timeout=LONG):
        """Until one of them has appeared since the last call."""
        deadline = time.monotonic() + timeout
        while not any(text in self.seen for text in texts):
            left = deadline - time.monotonic()
            assert left > 0, f"no {texts} in {self.seen[-2000:]!r}"
            if select.select([self.descriptor], [], [], left)[0]:
                self.seen += os.read(self.descriptor, 65536).decode(errors="replace")
        said, self.seen = self.seen, ""
        return said

    def type(self, keys):
        os.write(self.descriptor, keys.encode())

    def end(self):
        """Its exit status; what it still writes is read, so that it can end."""
        with contextlib.suppress(OSError):
            while data := os.read(self.descriptor, 65536):
                self.seen += data.decode(errors="replace")
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@contextlib.contextmanager
def terminal(environ, *args):
    made = Terminal(environ, *args)
    try:
        yield made
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            if os.waitpid(made.pid, os.WNOHANG)[0] == 0:
                os.kill(made.pid, signal.SIGKILL)
                os.waitpid(made.pid, 0)
        os.close(made.descriptor)


def test_top_shows_sorts_and_quits_in_a_terminal(owner, environ):
    _, _, busy = owner
    with terminal(environ, "top", "--interval", "0.2") as screen:
        shown = screen.read_until(busy)
        assert "belljar top" in shown
        assert "\x1b[?1049h" in shown, "it has a screen of its own"
        screen.type("m")
        assert "by memory" in screen.read_until("by memory")
        screen.type("\x1b[B-")
        screen.read_until("every 0.4 s")
        screen.type("k")
        screen.read_until("y: yes")
        screen.type("n")
        screen.read_until("nothing was killed")
        screen.type("q")
        assert screen.end() == 0
        assert "\x1b[?1049l" in screen.seen, "what was there before is there again"
    assert len(json.loads(belljar(environ, "ps", "--json").stdout)) == 2


def test_top_kills_what_was_chosen_and_confirmed(backend, environ):
    with owner_process(environ) as (_, idle, busy):
        with terminal(environ, "top", "--interval", "0.2", "--sort", "age") as screen:
            screen.read_until(busy)
            for _ in range(10):  # others' may be older
                screen.type("k")
                if f"kill {busy}" in screen.read_until("y: yes"):
                    break
                screen.type("n\x1b[B")
                screen.read_until("nothing was killed", "every")
            screen.type("y")
            screen.read_until(f"killed {busy}")
            screen.type("q")
            assert screen.end() == 0

        def left():
            return {each["id"] for each in json.loads(belljar(environ, "ps", "--json").stdout)}

        wait_until(lambda: busy not in left(), LONG, "its death")
        assert idle in left()


def test_what_a_killed_process_leaves_is_an_orphan_until_gc(backend, environ):
    with owner_process(environ) as (process, idle, _):
        process.kill()
        process.wait(30)
    assert idle not in belljar(environ, "ps").stdout
    told = {each["id"]: each for each in json.loads(belljar(environ, "ps", "-a", "--json").stdout)}
    assert told[idle]["state"] == "orphan"
    swept = []

    def collected():
        """What is just dying may still be in use."""
        done = belljar(environ, "gc", "--json")
        assert done.returncode in (0, 1), done.stderr
        leftovers = json.loads(done.stdout)["leftovers"]
        swept.extend(each["kind"] for each in leftovers if each["removed"])
        return done.returncode == 0

    wait_until(collected, LONG, "that nothing is left over")
    assert swept.count("presence") == 2
    assert idle not in belljar(environ, "ps", "-a").stdout


def test_keys_are_told_apart():
    assert list(split_keys(b"\x1b[A\x1bOBm\x1b[3~q")) == ["up", "down", "m", "delete", "q"]
    assert list(split_keys(b"\x1b")) == ["escape"]
    assert list(split_keys(b"\x1b[15~")) == []
    assert list(split_keys(b"\x03")) == ["q"]


ROW = ["bj-b31849c6d0584f11", "busy", "native", "python", "168.2", "155.5 MiB", "512.0 MiB"]
ROW += ["31.4%", "12", "12m05s", "somebody", "1234567", "python busy.py --with many arguments"]
NAMES = ps.HEADER


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 160])
@pytest.mark.parametrize("gap", [2, 4])
def test_a_narrow_terminal_has_fewer_columns_and_each_of_them_whole(width, gap):
    kept = ps.fit_columns([ROW], width, gap=gap)
    names = [NAMES[number] for number in kept]
    assert sum(room + gap for room in kept.values()) <= width or width == 40
    assert all(room >= len(ROW[n]) for n, room in kept.items() if NAMES[n] != "OWNER")
    assert {"ID", "CPU %", "MEMORY"} <= set(names)
    if width >= 80:
        assert {"STATE", "AGE", "MEM %"} <= set(names)
    if width == 160:
        assert len(kept) == len(NAMES)


FIRST_OF_ITS_PROCESS = """
import asyncio, sys
from belljar import AsyncSandbox
async def main():
    async with AsyncSandbox(environment="python") as sandbox:
        print(sandbox.id, flush=True)
        await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""


def test_ps_sees_the_first_async_sandbox_of_a_process(backend, environ):
    with owner_process(environ, FIRST_OF_ITS_PROCESS, sandboxes=1) as (_, sandbox):
        listed = json.loads(belljar(environ, "ps", "--json").stdout)
        assert sandbox in [each["id"] for each in listed]
