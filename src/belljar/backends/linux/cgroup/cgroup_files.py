"""The files of a group, as data: what is written for a limit, what is read for a reading."""

import errno
from collections.abc import Mapping
from dataclasses import dataclass

from belljar.backends.linux.cgroup.plan import Hierarchy


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One value for one file of a new group."""

    limit: str
    file: str
    value: str
    tolerate: frozenset[int] = frozenset()  # errors after which the limit still holds


def settings(
    hierarchy: Hierarchy, *, memory: int | None, processes: int | None, cpus: float | None
) -> list[Setting]:
    """What to write for these limits, in this order."""
    v2 = hierarchy.version == 2
    wanted: list[Setting] = []
    if memory is not None and "memory" in hierarchy.controllers:
        wanted += _memory_v2(memory) if v2 else _memory_v1(memory)
    if processes is not None and "pids" in hierarchy.controllers:
        wanted.append(Setting(limit="processes", file="pids.max", value=str(processes)))
    if cpus is not None and "cpu" in hierarchy.controllers:
        wanted += _cpu_v2(cpus) if v2 else _cpu_v1(cpus)
    return wanted


# Without swap accounting, a file about swap is missing.
_MISSING = frozenset({errno.ENOENT})


_SOCKETS = 16 * 1024 * 1024  # bytes of socket buffers, beside the limit on memory


def _memory_v1(memory: int) -> list[Setting]:
    value = str(memory)
    return [
        # memsw (memory and swap together) may never be below the limit on memory: limit first.
        Setting(limit="memory", file="memory.limit_in_bytes", value=value),
        Setting(limit="memory", file="memory.memsw.limit_in_bytes", value=value, tolerate=_MISSING),
        Setting(limit="memory", file="memory.swappiness", value="0", tolerate=_MISSING),
        # Buffers of sockets have a counter of their own, which counts only once it has a limit.
        Setting(
            limit="memory",
            file="memory.kmem.tcp.limit_in_bytes",
            value=str(min(memory, _SOCKETS)),
            tolerate=_MISSING,
        ),
    ]


def _memory_v2(memory: int) -> list[Setting]:
    return [
        Setting(limit="memory", file="memory.max", value=str(memory)),
        Setting(limit="memory", file="memory.swap.max", value="0", tolerate=_MISSING),
    ]


def _quota(cpus: float) -> tuple[int, int]:
    """Microseconds of CPU time and the period they are for.

    A group that has spent its quota stands still until the period ends: a short one keeps that
    pause short. The kernel takes no quota below a millisecond, so small shares need a long one.
    """
    period = 20_000 if cpus >= 0.1 else 100_000
    return max(round(cpus * period), 1_000), period


def _cpu_v1(cpus: float) -> list[Setting]:
    quota, period = _quota(cpus)
    return [
        Setting(limit="cpus", file="cpu.cfs_period_us", value=str(period)),
        # EINVAL: a group above us has a smaller share already, and that one holds for us too.
        Setting(
            limit="cpus",
            file="cpu.cfs_quota_us",
            value=str(quota),
            tolerate=frozenset({errno.EINVAL}),
        ),
    ]


def _cpu_v2(cpus: float) -> list[Setting]:
    quota, period = _quota(cpus)
    return [Setting(limit="cpus", file="cpu.max", value=f"{quota} {period}")]


@dataclass(frozen=True)
class Meter:
    """Where a group's reading stands: the whole file, or the line that starts with a key."""

    controller: str
    file: str
    key: bytes | None = None
    unit: float = 1  # what one counts for


METERS: Mapping[str, Mapping[int, Meter]] = {
    "cpu": {
        1: Meter("cpuacct", "cpuacct.usage", unit=1e-9),
        2: Meter("cpuacct", "cpu.stat", b"usage_usec", unit=1e-6),
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
    "pids_max_hits": {
        1: Meter("pids", "pids.events", b"max"),
        2: Meter("pids", "pids.events", b"max"),
    },
}
