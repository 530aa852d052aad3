"""The control group of one sandbox, once it is made: entered, read, killed, removed."""

import contextlib
import os
import threading
from collections.abc import Sequence

from belljar.backends.linux.cgroup import tree
from belljar.backends.linux.cgroup.plan import Hierarchy
from belljar.backends.linux.cgroup.tree import METERS, Meter


class Meters:
    """The counters of one group, in every hierarchy it is in; the group may be another program's.

    They are read around every cell, so the files are opened once and kept. A value is None where
    the kernel does not offer it, and after close(). Safe to use from any thread.
    """

    def __init__(self, places: Sequence[tuple[Hierarchy, str]]) -> None:
        self._places = {
            controller: (hierarchy.version, path)
            for hierarchy, path in places
            for controller in hierarchy.controllers
        }
        self.paths = tuple(path for _, path in places)
        self._lock = threading.Lock()
        self._files: dict[str, tuple[int, Meter]] = {}
        self._closed = False

    def close(self) -> None:
        with self._lock:
            self._closed = True
            while self._files:
                os.close(self._files.popitem()[1][0])

    def read(self, *names: str) -> list[int | None]:
        """Read counters by their names in METERS; CPU time is in nanoseconds."""
        values: list[int | None] = []
        with self._lock:
            for name in names:
                opened = self._files.get(name) or self._open(name)
                values.append(None if opened is None else _read_meter(*opened))
        return values

    def reset_peak(self) -> bool:
        """Let the peak count from now on; False where it is that of the whole life."""
        with self._lock:
            opened = self._open("peak")
            if opened is None:
                return False
            try:
                # v2 (Linux 6.12) resets it for readers of this very descriptor.
                os.pwrite(opened[0], b"0", 0)
            except OSError:
                return False
            return True

    def _open(self, what: str) -> tuple[int, Meter] | None:
        if what in self._files or self._closed:
            return self._files.get(what)
        for version, meter in METERS[what].items():
            place = self._places.get(meter.controller)
            if place is None or place[0] != version:
                continue
            # Before Linux 6.12 the peak of v2 can only be read.
            for access in (os.O_RDWR, os.O_RDONLY) if what == "peak" else (os.O_RDONLY,):
                with contextlib.suppress(OSError):
                    fd = os.open(f"{place[1]}/{meter.file}", access | os.O_CLOEXEC)
                    self._files[what] = fd, meter
                    return fd, meter
        return None


def _read_meter(fd: int, meter: Meter) -> int | None:
    try:
        text = os.pread(fd, 4096, 0)
    except OSError:  # ENODEV: the group was removed
        return None
    if meter.key is not None:
        _, _, text = (b"\n" + text).partition(b"\n%s " % meter.key)
        text, _, _ = text.partition(b"\n")
    return int(text) * meter.unit if text else None


class Cgroup(Meters):
    """The group of one sandbox, in every hierarchy used. Safe to use from any thread."""

    def __init__(
        self, owner: tree.Owner, places: Sequence[tuple[Hierarchy, str]], enforced: frozenset[str]
    ) -> None:
        super().__init__(places)
        self.enforced = enforced
        self._owner = owner
        self._doors = [(p, "tasks" if h.version == 1 else "cgroup.procs") for h, p in places]
        # kill() changes limits and restores them: a second one must not take the changed ones.
        self._killing = threading.Lock()
        self._join: list[int] = []
        self.gone = False  # remove() has succeeded

    def join_fds(self) -> list[int]:
        """Descriptors on which a process writes b"0" to enter, one for each hierarchy.

        Opened by us, so that it is our permission that counts, not the new process's. In v1 a
        single thread that moves itself (`tasks`) needs no lock on all processes, which would
        wait for every processor: 0.04 ms instead of 6 to 15. The writer must have one thread.
        """
        with self._lock:
            if not self._join and not self._closed:
                with contextlib.ExitStack() as undo:
                    opened = []
                    for path, file in self._doors:
                        fd = os.open(f"{path}/{file}", os.O_WRONLY | os.O_CLOEXEC)
                        undo.callback(os.close, fd)
                        opened.append(fd)
                    undo.pop_all()
                self._join = opened
            return list(self._join)

    def close_join_fds(self) -> None:
        with self._lock:
            while self._join:
                os.close(self._join.pop())

    def kill(self) -> bool:
        """SIGKILL to every member; True when none is left. May be called again."""
        if not self._is_ours():
            return False
        with self._killing:
            return tree.kill(self.paths)

    def freeze(self) -> bool:
        """Freeze every member, in v2; False where that cannot be done. (What the freezer of v1 has
        frozen cannot be killed.)"""
        with contextlib.suppress(OSError):
            for path in self.paths:
                if os.path.exists(f"{path}/cgroup.freeze"):
                    tree.freeze(path)
                    return True
        return False

    def thaw(self) -> None:
        for path in self.paths:
            tree.thaw(path)

    def hasten(self) -> None:
        """SIGKILL to every member, at once and without a look at what comes of it."""
        if self._is_ours():
            tree.hasten(self.paths[0])

    def remove(self) -> bool:
        """Remove the group once its processes are gone; True if it is not there any more.

        Waits a short while for processes that are exiting; called again, it tries again.
        """
        if not self._is_ours():
            return False
        self.close_join_fds()
        self.close()
        self.gone = self.gone or tree.remove(self.paths)
        return self.gone

    def _is_ours(self) -> bool:
        """Not so in a fork of the owner: what it inherited goes on belonging to its parent.

        Asked before the lock is taken: a fork may inherit that in a locked state.
        """
        return os.getpid() == self._owner.pid
