"""Processes of this host and of a live sandbox, and what the kernel counts for them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from belljar.sandbox.blocking import Sandbox
from belljar.sandbox.sandbox import AsyncSandbox

T = TypeVar("T")
_PF_EXITING = 4


@dataclasses.dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    state: str
    started: int  # clock ticks since boot
    name: str
    flags: int = 0  # of the kernel
    ticks: int = 0  # of processor time, with its ended children's

    @property
    def dead(self) -> bool:
        return self.state in "ZX"

    def __str__(self) -> str:
        return f"process {self.pid} ({self.name}, {self.state}): {command_line(self.pid)}"


def process(pid: int) -> Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    state, *fields = rest.split()
    numbers = [int(field) for field in fields]
    if state == "Z" and numbers[16] > 1:
        state = "R"  # its first thread has ended; others are running
    return Process(
        pid=int(pid),
        parent=numbers[0],
        state=state,
        started=numbers[18],
        name=name,
        flags=numbers[5],
        ticks=sum(numbers[10:14]),
    )


def command_line(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return ""
    return text.decode(errors="replace")[:120].replace("\n", " ")


def processes() -> dict[int, Process]:
    """Every visible process, by number."""
    found = (process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {p.pid: p for p in found if p is not None}


def descendants(pid: int) -> list[Process]:
    """Every process below `pid`, without zombies. Below PID 1 of another pid namespace is all that
    lives in it: natively, the parent of a worker is outside."""
    children: dict[int, list[Process]] = {}
    every = processes()
    for p in every.values():
        children.setdefault(p.parent, []).append(p)
    found = {}
    if (namespace := pid_namespace(pid)) not in ("", pid_namespace(os.getpid())):
        found = {n: p for n, p in every.items() if n != pid and pid_namespace(n) == namespace}
    todo = [pid, *found]
    while todo:
        below = {p.pid: p for p in children.get(todo.pop(), []) if p.pid not in found}
        found |= below
        todo += below
    return [p for p in found.values() if not p.dead]


def pid_namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def family(pid: int) -> list[Process]:
    """Every living process at and below `pid`."""
    return [p for p in (process(pid), *descendants(pid)) if p and not p.dead]


def tree(pid: int) -> list[int]:
    return [p.pid for p in family(pid)]


def mounts(pid: int | str) -> tuple[tuple[str, str, str, str], ...]:
    """Mount point, options, type and the type's own options of everything mounted, in order."""
    rows = []
    for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        rows.append((fields[4], fields[5], after.split()[0], after.split()[2]))
    return tuple(rows)


def threads(pid: int) -> list[int]:
    return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))


def alive(pid: int, started: int | None = None) -> bool:
    p = process(pid)
    return p is not None and not p.dead and started in (None, p.started)


def is_ending(pid: int) -> bool:
    """True if it is gone or has begun to exit and has already lost some of its resources."""
    p = process(pid)
    return p is None or bool(p.flags & _PF_EXITING)


class TooLate(AssertionError):
    """Something did not happen in time."""


def wait_until(condition: Callable[[], T | None], timeout: float = 30.0, what: str = "it") -> T:
    """Poll for an event that cannot be awaited, such as the end of a foreign process."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TooLate(f"{what} did not happen within {timeout:g} s")
        time.sleep(0.01)


def settle(read: Callable[[], T], timeout: float = 30.0) -> T:
    """Poll until `read` returns nothing, or for so long; gives what it returned last."""
    deadline = time.monotonic() + timeout
    while (found := read()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def init_of(sandbox: Sandbox | AsyncSandbox) -> int:
    """The guest's first process; with gVisor, its kernel. 0: it is not on this machine."""
    inner = sandbox._sandbox if isinstance(sandbox, Sandbox) else sandbox
    place = inner._session
    return int(getattr(place.guest, "pid", 0)) if place is not None else 0


def worker_of(sandbox: Sandbox | AsyncSandbox, *, gvisor: bool = False) -> int:
    """The process that runs the cells: the oldest beside init. With gVisor the host sees only
    gVisor's kernel, the process of `init_of`."""
    init = init_of(sandbox)
    if gvisor:
        return init
    others = wait_until(lambda: descendants(init), what="a worker")
    return min(others, key=lambda p: (p.started, p.pid)).pid


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
    def cpu_seconds(self) -> float:
        text = self._read("cpuacct", "cpuacct.usage", "cpu.stat")
        return int(text) / 1e9 if text.strip().isdigit() else int(text.split()[1]) / 1e6


def _mounted() -> dict[str, str]:
    """The mount point of each controller's hierarchy; "" is the unified one."""
    found = {}
    for point, _, kind, options in mounts("self"):
        if kind == "cgroup2":
            found[""] = point
        elif kind == "cgroup":
            found.update(dict.fromkeys(options.split(","), point))
    return found


def tasks_below(pid: int) -> int:
    """Tasks that exist at one moment: a task seen in two scans existed between them."""
    return len(_tasks(pid) & _tasks(pid))


def _tasks(pid: int) -> set[int]:
    found: set[int] = set()
    for each in tree(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            found.update(threads(each))
    return found


def own_memory() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def shared_memory() -> int:
    """Bytes of shared memory and tmpfs files on the whole machine."""
    found = re.search(r"Shmem: +(\d+)", Path("/proc/meminfo").read_text())
    return int(found[1]) * 1024 if found else 0
