"""What a control group has counted: CPU time, memory, processes ended for want of it."""

import contextlib
import os
import threading
from collections.abc import Sequence

from belljar.backends.linux.cgroup.cgroup_files import METERS, Meter
from belljar.backends.linux.cgroup.plan import Hierarchy


class Meters:
    """The readings of one group, in every hierarchy it is in; whoever made it.

    Taken around every cell, so the files are opened once and kept. A reading is None where the
    kernel does not offer it, and after close(). Safe to use from any thread.
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

    def cpu_seconds(self) -> float | None:
        return self._read("cpu")

    def memory_current(self) -> int | None:
        return _whole(self._read("current"))

    def memory_peak(self) -> int | None:
        return _whole(self._read("peak"))

    def tasks(self) -> int | None:
        return _whole(self._read("tasks"))

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

    def oom_kills(self) -> int | None:
        return _whole(self._read("oom_kills"))

    def pids_max_hits(self) -> int | None:
        return _whole(self._read("pids_max_hits"))

    def _read(self, what: str) -> float | None:
        with self._lock:
            opened = self._open(what)
            if opened is None:
                return None
            fd, meter = opened
            try:
                text = os.pread(fd, 4096, 0)
            except OSError:
                return None  # ENODEV: somebody else removed the group
        if meter.key is None:
            return int(text) * meter.unit
        for line in text.splitlines():
            key, _, value = line.partition(b" ")
            if key == meter.key:
                return int(value) * meter.unit
        return None

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


def _whole(reading: float | None) -> int | None:
    return None if reading is None else int(reading)
