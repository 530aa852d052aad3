"""What the kernel counts of a guest, and of this process."""

from __future__ import annotations

import contextlib
import re
import resource
from pathlib import Path

from belljar.conformance.posture import threads
from belljar.conformance.processes import tree

_MADE = re.compile("belljar|docker[/-][0-9a-f]{64}")


class Counters:
    """The control groups of a guest, read from the host's own mounts of them."""

    def __init__(self, pid: int) -> None:
        self._paths: dict[str, Path] = {}
        mounted = _mounted()
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for controller in controllers.split(","):
                if controller in mounted:
                    self._paths[controller] = Path(mounted[controller] + path)

    def _read(self, controller: str, v1: str, v2: str) -> str:
        if controller in self._paths:
            return (self._paths[controller] / v1).read_text()
        return (self._paths[""] / v2).read_text()

    @property
    def inside(self) -> bool:
        return any(_MADE.search(str(path)) for path in self._paths.values())

    @property
    def memory_limit(self) -> int:
        return int(self._read("memory", "memory.limit_in_bytes", "memory.max"))

    @property
    def memory_peak(self) -> int:
        return int(self._read("memory", "memory.max_usage_in_bytes", "memory.peak"))

    @property
    def processes(self) -> int:
        return int(self._read("pids", "pids.current", "pids.current"))

    @property
    def refused_forks(self) -> int:
        return int(self._read("pids", "pids.events", "pids.events").split()[1])

    @property
    def cpu_seconds(self) -> float:
        text = self._read("cpuacct", "cpuacct.usage", "cpu.stat")
        return int(text) / 1e9 if text.strip().isdigit() else int(text.split()[1]) / 1e6


def _mounted() -> dict[str, str]:
    """Where each controller's hierarchy is; "": the unified one."""
    found = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split()[:3]
        if kind == "cgroup2":
            found[""] = before.split()[4]
        elif kind == "cgroup":
            for controller in options.split(","):
                found[controller] = before.split()[4]
    return found


def tasks_below(pid: int) -> int:
    """Those that are there at one moment: who is met in two rounds was there between them."""
    return len(_tasks(pid) & _tasks(pid))


def _tasks(pid: int) -> set[int]:
    found: set[int] = set()
    for each in tree(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            found.update(threads(each))
    return found


def own_memory() -> int:
    """Resident bytes of this very process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def shared_memory() -> int:
    """What the whole machine has in shared memory and files without a disk, in bytes."""
    found = re.search(r"Shmem: +(\d+)", Path("/proc/meminfo").read_text())
    return int(found[1]) * 1024 if found else 0
