"""Start the interpreter of a launcher. It waits, with its imports done, to be told what to run.

Imports little: `belljar run` starts one before it imports its own modules.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import threading

_PROGRAM = """
import ctypes, importlib.util, json, os, signal, socket, sys, typing
gate = int(sys.argv[2])
if program := os.read(gate, 65536):
    os.close(gate)
    exec(program)
"""

# Popen waits until no process has its pipe any more. A fork of this process in that moment, by
# another thread, would have it for as long as it lives.
_spawning = threading.Lock()
os.register_at_fork(
    before=_spawning.acquire, after_in_parent=_spawning.release, after_in_child=_spawning.release
)


class WaitingLauncher:
    def __init__(self) -> None:
        stack = contextlib.ExitStack
        with stack() as failed, stack() as theirs, stack() as ours:
            self.control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            failed.push(self.control)
            theirs.push(control)
            self.their_control = control.fileno()  # the number that it has there
            self._source = os.memfd_create("belljar", os.MFD_CLOEXEC)
            ours.callback(os.close, self._source)
            gate, self._opener = os.pipe()
            theirs.callback(os.close, gate)
            ours.callback(os.close, self._opener)
            words = ["-I", "-S", "-c", _PROGRAM, str(self._source), str(gate)]
            self.process = _spawn(words, (self._source, self.their_control, gate))
            failed.pop_all()
            self._ours = ours.pop_all()

    def run(self, bootstrap: str, entry: str, bundle: bytes) -> None:
        """Let it go on: with the bundle's module `entry`."""
        with self._ours:  # closed: it ends if it was told nothing
            _fill(self._source, bundle)
            os.write(self._opener, f"sys.argv[2] = {entry!r}\n{bootstrap}".encode())

    def close(self) -> None:
        """It is not needed."""
        self._ours.close()
        self.control.close()
        self.process.kill()
        self.process.wait()


def _spawn(words: list[str], descriptors: tuple[int, ...]) -> subprocess.Popen[bytes]:
    with _spawning:
        # An own session: Ctrl-C at the terminal is for the host process to handle.
        return subprocess.Popen(
            [sys.executable, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None if os.environ.get("BELLJAR_DEBUG") else subprocess.DEVNULL,
            pass_fds=descriptors,
            # Only what the interpreter itself may need to start.
            env={k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"},
            cwd="/",
            start_new_session=True,
        )


def _fill(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)


_waiting: WaitingLauncher | None = None


def prepare() -> None:
    """Start one for the next `take`, in a process that has one thread. If it cannot be started,
    the sandbox's own start meets the same error."""
    global _waiting
    with contextlib.suppress(OSError):
        _waiting = WaitingLauncher()
        atexit.register(discard)


def take() -> WaitingLauncher:
    global _waiting
    waiting, _waiting = _waiting, None
    return waiting or WaitingLauncher()


def discard() -> None:
    """End the one that was not taken."""
    if _waiting is not None:
        take().close()
