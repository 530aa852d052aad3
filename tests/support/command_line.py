"""The command line as its users start it: as a process, with pipes or at a terminal."""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import engine_view
import setting
from project import ROOT

BELLJAR = [sys.executable, "-m", "belljar"]
SLEEP = "import time\nprint('ready', flush=True)\ntime.sleep(60)\n"


class Cli:
    """Starts `belljar` in a directory of its own."""

    def __init__(self, directory: Path, cache: Path) -> None:
        self.directory = directory
        self.environ = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}".rstrip(":"),
            "BELLJAR_CACHE": str(cache),
            "XDG_STATE_HOME": str(directory / "state"),
            "TERM": "xterm-256color",
        }

    def __call__(self, *args: str, code: str | bytes = b"") -> subprocess.CompletedProcess[str]:
        raw = code.encode() if isinstance(code, str) else code
        done = subprocess.run(
            [*BELLJAR, *args],
            input=raw,
            capture_output=True,
            cwd=self.directory,
            env=self.environ,
            timeout=60,
            check=False,
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    def run(self, code: str | bytes, *args: str) -> subprocess.CompletedProcess[str]:
        return self("run", "-e", "python", *args, "-", code=code)

    @contextlib.contextmanager
    def started(self, *args: str) -> Iterator[subprocess.Popen[bytes]]:
        process = subprocess.Popen(
            [*BELLJAR, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.directory,
            env=self.environ,
        )
        with process:
            try:
                yield process
            finally:
                end(process)

    @contextlib.contextmanager
    def running(self, code: str, *args: str) -> Iterator[subprocess.Popen[bytes]]:
        """`belljar run`, once the code has said that it is ready."""
        (self.directory / "code.py").write_text(code)
        with self.started("run", "-e", "python", "code.py", *args) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process

    @contextlib.contextmanager
    def terminal(self, *args: str, **environ: str) -> Iterator[Terminal]:
        ours, theirs = os.openpty()
        # The first terminal that a session leader opens becomes the one whose Ctrl-C it gets.
        become = (
            "import os, sys; os.open(os.ttyname(0), os.O_RDWR); os.execv(sys.argv[1], sys.argv[1:])"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", become, *BELLJAR, *args],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            cwd=self.directory,
            env={**self.environ, **environ},
        )
        os.close(theirs)
        try:
            with process:
                try:
                    yield Terminal(ours, process)
                finally:
                    end(process)
        finally:
            os.close(ours)


def end(process: subprocess.Popen[bytes]) -> None:
    """Orderly, so that a test that is done early leaves nothing for the next start to sweep."""
    for _ in range(10):
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2)
            return
        # A signal in the moment before readline begins to wait is seen with the next one only.
    process.kill()


class Terminal:
    """The person's side of a terminal."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self._descriptor = descriptor
        self.process = process
        self.seen = b""

    def type(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def press_ctrl_c(self, until: str) -> str:
        """As a person does: once more, if the first one came before readline began to wait."""
        for _ in range(10):
            self.type("\x03")
            with contextlib.suppress(TimeoutError):
                return self.read_until(until, timeout=5)
        raise TimeoutError(f"Ctrl-C did nothing: {self.seen!r}")

    def read_until(self, text: str, timeout: float = 30) -> str:
        """What appeared since the last call, up to and with `text`."""
        deadline = time.monotonic() + timeout
        while text.encode() not in self.seen:
            assert self._read(deadline - time.monotonic()), f"no {text!r} in {self.seen!r}"
        before, found, self.seen = self.seen.partition(text.encode())
        return (before + found).decode()

    def read_all(self, timeout: float = 30) -> str:
        deadline = time.monotonic() + timeout
        while self._read(deadline - time.monotonic()):
            pass
        self.process.wait(timeout)
        return self.seen.decode()

    def _read(self, timeout: float) -> bool:
        if not select.select([self._descriptor], [], [], max(timeout, 0))[0]:
            raise TimeoutError(f"nothing more after {self.seen!r}")
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:  # EIO: nobody has the other side any more
            return False
        self.seen += data
        return bool(data)


class Family:
    """The processes below one and of its containers, to see from outside that all of them end."""

    def __init__(self, parent: int) -> None:
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    status = (entry / "status").read_text()
                    found = int(re.search(r"^PPid:\t(\d+)", status, re.MULTILINE)[1])  # type: ignore[index]
                    children.setdefault(found, []).append(int(entry.name))
        self._containers = engine_view.guests_of(parent) if setting.DOCKER else []
        pids = list(self._containers)
        waiting = [parent, *self._containers]
        while waiting:
            below = children.get(waiting.pop(), [])
            pids += below
            waiting += below
        self.pids: list[int] = []
        self._descriptors: list[int] = []
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                self._descriptors.append(os.pidfd_open(pid))
                self.pids.append(pid)

    def close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []

    def init(self) -> int:
        """The first process of the guest: the container's, or the innermost pid 1."""
        if self._containers:
            return self._containers[0]
        inits: list[tuple[int, int]] = []
        for pid in self.pids:
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                numbers = re.search(r"^NSpid:\t(.*)$", status, re.MULTILINE)[1].split()  # type: ignore[index]
                if numbers[-1] == "1":
                    inits.append((len(numbers), pid))
        return max(inits)[1]

    def survivors(self, timeout: float = 30) -> list[int]:
        """Those that have not ended in time."""
        deadline = time.monotonic() + timeout
        alive = []
        for pid, descriptor in zip(self.pids, self._descriptors, strict=True):
            if not select.select([descriptor], [], [], max(0, deadline - time.monotonic()))[0]:
                alive.append(pid)
        self.close()
        return alive
