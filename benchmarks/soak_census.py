"""What this process has, seen from outside Belljar: /proc, control groups, directories.

Only what is ours is counted (our descendants, groups with our number, a temporary directory of our
own), because other programs that use Belljar may run beside.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
NAMESPACES = ("net", "mnt", "pid", "user", "ipc", "uts", "cgroup")
SETTLE = 10.0  # seconds that what is just ending may take, on a busy machine


def become_subreaper() -> None:
    """Orphans of our descendants become our children: none is missed."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    state: str
    started: int  # clock ticks since boot
    name: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.name}, {self.state})"


@dataclass(frozen=True)
class Census:
    processes: frozenset[Process]
    namespaces: frozenset[str]
    cgroups: frozenset[str]
    mounts: frozenset[str]
    files: frozenset[str]
    descriptors: Counter[str]


def take() -> Census:
    family = descendants()
    return Census(
        processes=frozenset(family),
        namespaces=frozenset(_namespaces(family)),
        cgroups=frozenset(cgroups(os.getpid(), below=True)),
        mounts=frozenset(_mounts()),
        files=frozenset(_files()),
        descriptors=_descriptors(),
    )


def leaks(before: Census, after: Census) -> list[str]:
    """What is there after that was not there before, as sentences."""
    known = {(p.pid, p.started) for p in before.processes}
    found = [str(p) for p in after.processes if (p.pid, p.started) not in known]
    for what in ("namespaces", "cgroups", "mounts", "files"):
        new = getattr(after, what) - getattr(before, what)
        found += [f"{what}: {each}" for each in new]
    extra = after.descriptors - before.descriptors
    return sorted(found) + [f"{number} descriptors: {kind}" for kind, number in extra.items()]


def settle(before: Census) -> list[str]:
    """The leaks that stay. Blocks: call it in a thread, while the event loop goes on."""
    deadline = time.monotonic() + SETTLE
    while (found := leaks(before, take())) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def left(owner: int) -> list[str]:
    """What is there of a child that has ended, when it has had its time to go."""
    deadline = time.monotonic() + SETTLE
    while True:
        found = [str(process) for process in descendants()]
        found += [f"cgroups: {path}" for path in cgroups(owner, below=False)]
        found += [f"files: {path}" for path in _files()]
        if not found or time.monotonic() > deadline:
            return sorted(found)
        time.sleep(0.05)


def descendants() -> list[Process]:
    """Everything below this process; zombies whose parent is below us are leaks, too."""
    children: dict[int, list[Process]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := _process(name)) is not None:
            children.setdefault(process.parent, []).append(process)
    found, todo = [], [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += [p.pid for p in below]
    return found


def memory(pid: int | str = "self") -> int:
    """Bytes of a process that are resident; 0 when it is gone."""
    with contextlib.suppress(OSError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


def give_back() -> None:
    """What the allocator of this process keeps free goes back to the kernel (GNU's alone can)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) - 1


def _process(pid: str) -> Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return Process(int(pid), int(fields[1]), fields[0], int(fields[19]), name)


def _namespaces(family: list[Process]) -> Iterator[str]:
    """Of descendants, and those that one of our descriptors keeps alive."""
    own = {os.readlink(f"/proc/self/ns/{kind}") for kind in NAMESPACES}
    for process in family:
        for kind in NAMESPACES:
            with contextlib.suppress(OSError):  # it has just ended
                if (name := os.readlink(f"/proc/{process.pid}/ns/{kind}")) not in own:
                    yield name
    yield from (target for target in _descriptors() if target.partition(":")[0] in NAMESPACES)


def cgroups(owner: int, *, below: bool) -> Iterator[str]:
    """Those that a process has made, in every hierarchy; `below`: only those of single sandboxes,
    whose parent stays for as long as the process."""
    mine = f"belljar-{owner}-"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[fields.index("-") + 1] not in ("cgroup", "cgroup2"):
            continue
        for path, names, _ in os.walk(fields[4]):
            if os.path.basename(path).startswith(mine):
                yield from ([f"{path}/{name}" for name in names] if below else [path])
            names[:] = [n for n in names if not n.startswith("belljar-") or n.startswith(mine)]


def _mounts() -> Iterator[str]:
    """In our own namespace, those that look like ours; guests' go with their namespaces."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place = line.split()[4]
        if place.startswith(tempfile.gettempdir()) or f"belljar-{os.getpid()}" in line:
            yield place


def _files() -> Iterator[str]:
    """In our temporary directory; and of our guests in the shared memory of the host."""
    for path, directories, files in os.walk(tempfile.gettempdir()):
        yield from (os.path.join(path, name) for name in (*directories, *files))
    for name in os.listdir("/dev/shm"):
        if f"belljar-{os.getpid()}" in name:
            yield f"/dev/shm/{name}"


def _descriptors() -> Counter[str]:
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # that of the listing itself
        # Numbers of sockets and pipes differ from time to time; their count does not.
        kind = target.partition(":")[0]
        found[kind if kind in ("socket", "pipe") else target] += 1
    return found
