"""The same hostile program where nothing stops it: there the oracles must trip, or they would
prove nothing.

As an unprivileged process, as root of a bare namespace, or as one that root has left a way back.
It has limits of its own, so that it cannot hurt this machine; what could is never run so."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import shutil
import signal
import subprocess
import tempfile
import time
from typing import IO, Any

from belljar.conformance.canaries import (
    ENVIRONMENT_SECRET,
    UNPRIVILEGED,
    VARIABLE,
    Canaries,
    python,
)
from belljar.conformance.posture import descriptors, drift, posture
from belljar.conformance.processes import tree
from belljar.conformance.programs import Program, shared
from belljar.conformance.setting import NOBODY, temporary

_RUNNER = """
import sys
source = sys.stdin.buffer.read(int(sys.stdin.buffer.readline())).decode()
print("@@ready", flush=True)
sys.stdin.buffer.readline()
exec(compile(source, "<guest>", "exec"), {"__name__": "__main__"})
print("@@done", flush=True)
sys.stdin.buffer.readline()
"""
_FLOOD = 200_000  # bytes of output that only a flood has


class ControlUnavailable(Exception):
    """This machine cannot run the control; that says nothing about the oracle."""


class Control:
    """A hostile program run where nothing stops it: which oracles trip?"""

    _process: subprocess.Popen[bytes]

    def __init__(self, program: Program, canaries: Canaries, kind: str) -> None:
        self._program = program
        self._canaries = canaries
        self._kind = kind
        self._output = bytearray()
        self.told: dict[str, str] = {}  # what each oracle that tripped said

    def trips(self) -> set[str]:
        with tempfile.TemporaryDirectory(dir="/tmp", prefix=temporary("control")) as scratch:
            os.chmod(scratch, 0o777)
            with open(os.path.join(scratch, "hostile.py"), "w") as file:
                file.write(shared())
            os.chmod(os.path.join(scratch, "hostile.py"), 0o644)
            self._start(scratch)
            try:
                self._watch()
            finally:
                self._end()
        return set(self.told)

    # -- steps ----------------------------------------------------------------------------------

    def _command(self) -> tuple[list[str], dict[str, Any]]:
        """What to run, and as whom."""
        interpreter = python()
        if interpreter is None:
            raise ControlUnavailable("there is no Python that an unprivileged user may run")
        if self._kind == "saved-root":
            leave = f"import os; os.setresuid({NOBODY}, {NOBODY}, 0)"
            return [interpreter, "-c", leave + _RUNNER], {}
        if self._kind == "namespace":
            if (unshare := shutil.which("unshare")) is None:
                raise ControlUnavailable("the program `unshare` is not installed")
            bare = [unshare, "--user", "--map-root-user", "--mount"]
            return [*bare, interpreter, "-c", _RUNNER], UNPRIVILEGED
        return [interpreter, "-c", _RUNNER], UNPRIVILEGED

    def _start(self, scratch: str) -> None:
        command, identity = self._command()
        # A leaked directory, as a careless runner would have it.
        leaked = os.open(self._canaries.directory, os.O_RDONLY | os.O_DIRECTORY)
        environment = self._canaries.environment(confined=False)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=scratch,
                env={**environment, VARIABLE: ENVIRONMENT_SECRET, "PYTHONPATH": scratch},
                pass_fds=(leaked,),
                start_new_session=True,
                preexec_fn=_gentle,
                **identity,
            )
        finally:
            os.close(leaked)
        os.set_blocking(self._stdout.fileno(), False)
        source = self._program.source.encode()
        with contextlib.suppress(BrokenPipeError):
            self._send(f"{len(source)}\n".encode() + source)
        if not self._read_until(b"@@ready", 60.0):
            said = self._output.decode("latin-1")
            self._end()
            raise ControlUnavailable(f"the control did not start: {said.strip()[-300:]}")
        self._reference = posture(self._process.pid)
        self._known = set(descriptors(self._process.pid).values())

    def _watch(self) -> None:
        self._send(b"\n")
        done = self._read_until(b"@@done", self._program.control_seconds)
        if self._process.poll() is None:
            if not done:
                self.told["hang"] = f"it had not ended after {self._program.control_seconds:g} s"
            found = drift(self._reference, tree(self._process.pid), known=self._known)
            if found:
                self.told["posture"] = "; ".join(found)[:500]
        else:
            code = self._process.returncode
            self.told[f"exit {code}"] = f"its process ended with {code}"
        if len(self._output) > _FLOOD:
            self.told["output"] = f"{len(self._output)} bytes of output, and more to come"
        text = self._output.decode("latin-1")
        self.told |= self._canaries.wrongs(text)
        if (at := text.find("ACHIEVED")) >= 0:
            self.told["achieved"] = text[at:].splitlines()[0][:200]

    @property
    def _stdout(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def _read_until(self, mark: bytes, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while mark not in self._output[-200:] and time.monotonic() < deadline:
            if not select.select([self._stdout], [], [], 0.05)[0]:
                if self._process.poll() is not None:
                    return False
                continue
            data = os.read(self._stdout.fileno(), 65536)
            if not data:
                self._process.wait()
                return False
            self._output += data
            if len(self._output) > 1_000_000:
                return False
        return mark in self._output

    def _end(self) -> None:
        below = tree(self._process.pid) if self._process.poll() is None else []
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._canaries.revive()


def _gentle() -> None:
    """Limits of a control: it is hostile code, after all."""
    for kind, value in (
        (resource.RLIMIT_CPU, 5),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 16 << 20),
        (resource.RLIMIT_AS, 2 << 30),
    ):
        resource.setrlimit(kind, (value, value))
