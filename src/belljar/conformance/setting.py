"""Where the suite runs: backend, runtime, user; and the lock between suites on one machine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from belljar.backends.docker.isolation import guest_kernel
from belljar.conformance.processes import alive

ROOT = os.geteuid() == 0
NOBODY = 65534


def temp_prefix(kind: str) -> str:
    """The prefix of this process's temporary directories."""
    return f"belljar-{kind}-{os.getpid()}-"


def remove_stale_directories() -> None:
    """Remove temporary directories of suites that were killed."""
    for path in Path("/tmp").glob("belljar-c*-*-*"):
        found = re.fullmatch(r"belljar-(?:canary|control|check)-(\d+)-\w+", path.name)
        with contextlib.suppress(OSError):
            if found and path.lstat().st_uid == os.getuid() and not alive(int(found[1])):
                shutil.rmtree(path)


@dataclass(frozen=True, kw_only=True)
class Setting:
    backend: str  # native or docker
    runtime: str | None = None  # of containers: runc, runsc, ...
    counted: bool = True  # control groups limit the guests' memory
    engine: str | None = None  # name and version of the container engine

    @property
    def docker(self) -> bool:
        return self.backend == "docker"

    @property
    def gvisor(self) -> bool:
        """True if the host sees gVisor's kernel instead of the guest's processes."""
        return self.docker and guest_kernel(self.runtime or "") == "gVisor"

    @property
    def options(self) -> dict[str, Any]:
        """The options of a sandbox in this setting."""
        runtime = {"runtime": self.runtime} if self.runtime else {}
        return {"backend": self.backend, **runtime}

    @property
    def name(self) -> str:
        if self.docker:
            return f"docker with {self.runtime}"
        return "native, by root" if ROOT else "native, by an ordinary user"

    @property
    def kind(self) -> str:
        """native, docker or gvisor: this decides which mechanisms hold a guest."""
        return "gvisor" if self.gvisor else self.backend


# Some controls change the whole machine (`marks_the_machine`). Another suite that runs at the same
# time would take that for damage, so such a control holds these locks alone. All users share them.
# A process that waits for the second lock holds the first, so a stream of shared holders cannot
# starve an exclusive one.
_LOCKS = ("/tmp/belljar-controls.gate", "/tmp/belljar-controls.lock")
_LOCK_PATIENCE = 180.0  # seconds; a longer holder is not a suite, and is waited for only once
_given_up = False


@contextlib.contextmanager
def machine_lock(*, control: bool = False) -> Iterator[None]:
    """Held shared while an attempt is judged, and exclusively while a `control` runs."""
    with contextlib.ExitStack() as stack:
        gate, lock = (_open_lock(path, stack) for path in _LOCKS)
        kind = fcntl.LOCK_EX if control else fcntl.LOCK_SH
        deadline = time.monotonic() + _LOCK_PATIENCE
        _acquire(gate, kind, deadline)
        _acquire(lock, kind, deadline)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield


def _open_lock(path: str, stack: contextlib.ExitStack) -> int:
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        os.chmod(path, 0o666)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    stack.callback(os.close, descriptor)
    return descriptor


def _acquire(descriptor: int, kind: int, deadline: float) -> None:
    global _given_up
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return
        if _given_up or time.monotonic() > deadline:
            _given_up = True
            return
        time.sleep(0.01)
