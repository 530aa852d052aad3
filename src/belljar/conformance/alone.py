"""What a control does to the whole machine, another suite beside this one would see: so nobody
judges an attempt meanwhile. (Few controls do such things; they say so in `marks_the_machine`.)"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

# Of all users: they see the same host. Who waits for the second keeps the first, so that those who
# share it cannot keep out for ever who wants it alone.
_PATHS = ("/tmp/belljar-controls.gate", "/tmp/belljar-controls.lock")
_PATIENCE = 180.0  # seconds; who holds it longer is no suite, and is waited for once only
_given_up = False


@contextlib.contextmanager
def undisturbed(*, control: bool = False) -> Iterator[None]:
    """While an attempt is judged; `control`: while one is run that marks the machine."""
    with contextlib.ExitStack() as stack:
        gate, lock = (_open(path, stack) for path in _PATHS)
        kind = fcntl.LOCK_EX if control else fcntl.LOCK_SH
        deadline = time.monotonic() + _PATIENCE
        _take(gate, kind, deadline)
        _take(lock, kind, deadline)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield


def _open(path: str, stack: contextlib.ExitStack) -> int:
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        os.chmod(path, 0o666)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    stack.callback(os.close, descriptor)
    return descriptor


def _take(descriptor: int, kind: int, deadline: float) -> None:
    global _given_up
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return
        if _given_up or time.monotonic() > deadline:
            _given_up = True
            return
        time.sleep(0.01)
