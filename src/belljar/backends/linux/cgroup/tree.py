"""Directories of control groups: whose they are, how they are emptied and removed."""

import contextlib
import errno
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from belljar.backends.linux import proc
from belljar.backends.linux.cgroup.plan import Hierarchy

_NAME = re.compile(r"belljar-([0-9]+)-([0-9]+)-([0-9]+)")
# SIGKILL takes effect within milliseconds; only a process stuck in the kernel takes longer.
_PATIENCE = 2.0


@dataclass(frozen=True)
class Owner:
    """The process a tree belongs to.

    A pid alone may be given out again, so its start time belongs to it. And a pid means
    something in its own pid namespace only: of a tree from another one (two containers may
    share a parent group) we cannot tell whether its owner lives.
    """

    pid: int
    start: int  # clock ticks after boot
    namespace: int

    @classmethod
    def current(cls) -> Self:
        pid = os.getpid()
        start = _start_of_living(pid)
        if start is None:
            raise ProcessLookupError(errno.ESRCH, "/proc does not show this process")
        return cls(pid, start, os.stat("/proc/self/ns/pid").st_ino)

    @classmethod
    def parse(cls, name: str) -> Self | None:
        match = _NAME.fullmatch(name)
        return cls(*map(int, match.groups())) if match else None

    @property
    def name(self) -> str:
        return f"belljar-{self.pid}-{self.start}-{self.namespace}"

    def is_dead(self, *, seen_by: "Owner") -> bool:
        if self.namespace != seen_by.namespace:
            return False
        try:
            return _start_of_living(self.pid) != self.start
        except PermissionError:
            return False  # hidden by /proc's mount options, but there


def _start_of_living(pid: int) -> int | None:
    try:
        stat = proc.read_stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if proc.has_ended(stat) else int(stat[proc.STARTED])


def write(path: str, value: str) -> None:
    """One write call: the kernel takes each as one setting."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode())
    except OSError as error:
        error.filename = path  # a failed write does not say where
        raise
    finally:
        os.close(descriptor)


def members(directory: str) -> set[int]:
    """Processes in this group (not in its children) that our pid namespace can name.

    The file is opened for each read: v1 may answer a second read of one descriptor from a list up
    to a second old.
    """
    try:
        # Those of foreign pid namespaces are listed as 0.
        return {int(pid) for pid in proc.read(f"{directory}/cgroup.procs").split()} - {0}
    except OSError as error:
        # ENODEV: removed between open and read.
        if error.errno in (errno.ENOENT, errno.ENODEV):
            return set()
        raise


def subgroups(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def walk(directory: str) -> Iterator[str]:
    """Children before parents: the order in which groups can be removed."""
    for child in subgroups(directory):
        yield from walk(child)
    yield directory


_WHILE_KILLING = {
    "pids.max": "0",  # no forks, or a fork bomb makes processes faster than we kill them
    # A process needs CPU time to exit; a group that has spent its quota has to wait for it.
    "cpu.cfs_quota_us": "-1",
    "cpu.max": "max",
}


def kill(directories: Iterable[str], *, patience: float = _PATIENCE) -> bool:
    """Kill every process in these trees; True when none is left. The groups stay usable."""
    groups = [group for directory in directories for group in walk(directory)]
    with contextlib.ExitStack() as afterwards:
        for file, value in _WHILE_KILLING.items():
            for group in groups:
                with contextlib.suppress(OSError):  # most groups have only some of these files
                    before = proc.read(f"{group}/{file}")
                    write(f"{group}/{file}", value)
                    afterwards.callback(_offer, f"{group}/{file}", before)
        for group in groups:
            _offer(f"{group}/cgroup.kill", "1")  # v2, Linux 5.14: all at once
        for _ in _attempts(patience):
            if not _signal(groups):
                return True
    return False


def freeze(directory: str) -> None:
    """Freeze a group of v2, and wait until all of it stands still. Raises OSError."""
    write(f"{directory}/cgroup.freeze", "1")
    for _ in _attempts(_PATIENCE):
        if "frozen 1" in proc.read(f"{directory}/cgroup.events").split("\n"):
            return
    thaw(directory)
    raise TimeoutError(errno.ETIMEDOUT, "the group does not freeze", directory)


def thaw(directory: str) -> None:
    _offer(f"{directory}/cgroup.freeze", "0")


def hasten(directory: str) -> None:
    """Send SIGKILL to all members that there are now, of one group. Nothing relies on it."""
    if not _offer(f"{directory}/cgroup.kill", "1"):
        with contextlib.suppress(OSError):
            _signal([directory])


def _offer(path: str, value: str) -> bool:
    """Write if the file exists and takes the value. Nothing relies on it."""
    try:
        write(path, value)
    except OSError:
        return False
    return True


def _signal(groups: Sequence[str]) -> bool:
    """Send SIGKILL to all members; False if there were no members.

    A pid may belong to another process by the time it is signalled. So the process
    is pinned by a pidfd first, and counts only if its pid is still listed after that.
    """
    listed = set[int]().union(*map(members, groups))
    if not listed:
        return False
    pinned: dict[int, int] = {}
    try:
        # A round takes no more descriptors than an ordinary process may have.
        for pid in sorted(listed)[:256]:
            with contextlib.suppress(ProcessLookupError):
                pinned[pid] = os.pidfd_open(pid)
        still = set[int]().union(*map(members, groups))
        for pid in still & pinned.keys():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(pinned[pid], signal.SIGKILL)
    finally:
        for descriptor in pinned.values():
            os.close(descriptor)
    return True


def remove(directories: Iterable[str], *, patience: float = _PATIENCE) -> bool:
    """Remove trees of groups; True when they are gone, also if another process removed them."""
    left = list(directories)
    for _ in _attempts(patience):
        # Each is tried, even if another of them will not go.
        left = [directory for directory in left if not _removed(directory)]
        if not left:
            return True
    return False


def _removed(directory: str) -> bool:
    try:
        for group in walk(directory):
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(group)
    except OSError:
        return False  # EBUSY: a process has not quite gone
    return True


def _attempts(patience: float) -> Iterator[None]:
    """Yield at once, then after longer and longer pauses, for `patience` seconds."""
    deadline = time.monotonic() + patience
    pause = 0.0005
    while True:
        yield
        if time.monotonic() >= deadline:
            return
        time.sleep(pause)
        pause = min(pause * 2, 0.02)


@dataclass(frozen=True)
class Setting:
    """One value for one file of a new group."""

    limit: str
    file: str
    value: str
    tolerate: frozenset[int] = frozenset()  # errors after which the limit still holds


_SOCKETS = 16 * 1024 * 1024  # bytes of socket buffers, beside the limit on memory
# Without swap accounting, a file about swap is missing.
_MISSING = frozenset({errno.ENOENT})


def settings(
    hierarchy: Hierarchy, *, memory: int | None, processes: int | None, cpus: float | None
) -> list[Setting]:
    """What to write for these limits, in this order."""
    v2 = hierarchy.version == 2
    wanted: list[Setting] = []
    if memory is not None and "memory" in hierarchy.controllers:
        wanted += _memory_v2(memory) if v2 else _memory_v1(memory)
    if processes is not None and "pids" in hierarchy.controllers:
        wanted.append(Setting("processes", "pids.max", str(processes)))
    if cpus is not None and "cpu" in hierarchy.controllers:
        quota, period = _quota(cpus)
        if v2:
            wanted.append(Setting("cpus", "cpu.max", f"{quota} {period}"))
        else:
            wanted.append(Setting("cpus", "cpu.cfs_period_us", str(period)))
            # EINVAL: a group above us has a smaller share already, and that one holds for us too.
            smaller = frozenset({errno.EINVAL})
            wanted.append(Setting("cpus", "cpu.cfs_quota_us", str(quota), smaller))
    return wanted


def _memory_v1(memory: int) -> list[Setting]:
    sockets = str(min(memory, _SOCKETS))
    return [
        # memsw (memory and swap together) may never be below the limit on memory: limit first.
        Setting("memory", "memory.limit_in_bytes", str(memory)),
        Setting("memory", "memory.memsw.limit_in_bytes", str(memory), _MISSING),
        Setting("memory", "memory.swappiness", "0", _MISSING),
        # Buffers of sockets have a counter of their own, which counts only once it has a limit.
        Setting("memory", "memory.kmem.tcp.limit_in_bytes", sockets, _MISSING),
    ]


def _memory_v2(memory: int) -> list[Setting]:
    return [
        Setting("memory", "memory.max", str(memory)),
        Setting("memory", "memory.swap.max", "0", _MISSING),
    ]


def _quota(cpus: float) -> tuple[int, int]:
    """Microseconds of CPU time and the period they are for.

    A group that has spent its quota stands still until the period ends: a short one keeps that
    pause short. The kernel takes no quota below a millisecond, so small shares need a long one.
    """
    period = 20_000 if cpus >= 0.1 else 100_000
    return max(round(cpus * period), 1_000), period


@dataclass(frozen=True)
class Meter:
    """Where a group's reading stands: the whole file, or the line that starts with a key."""

    controller: str
    file: str
    key: bytes | None = None
    unit: int = 1  # what one counts for


METERS: Mapping[str, Mapping[int, Meter]] = {
    "cpu": {
        1: Meter("cpuacct", "cpuacct.usage"),
        2: Meter("cpuacct", "cpu.stat", b"usage_usec", unit=1000),
    },
    "peak": {
        1: Meter("memory", "memory.max_usage_in_bytes"),
        2: Meter("memory", "memory.peak"),
    },
    "current": {
        1: Meter("memory", "memory.usage_in_bytes"),
        2: Meter("memory", "memory.current"),
    },
    "tasks": {
        1: Meter("pids", "pids.current"),
        2: Meter("pids", "pids.current"),
    },
    "oom_kills": {
        1: Meter("memory", "memory.oom_control", b"oom_kill"),
        2: Meter("memory", "memory.events", b"oom_kill"),
    },
}
