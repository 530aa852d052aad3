"""What this process and its guests have on the machine: taken before and after, nothing may stay.

Only what is ours is counted: other programs of the machine come and go beside us.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from belljar.conformance.host_values import is_of_a_guest, sysv
from belljar.conformance.processes import descendants, process
from belljar.conformance.setting import Setting, temporary

_KINDS = ("net", "mnt", "pid", "user", "ipc", "uts", "cgroup")
_COUNTED = ("socket", "pipe")  # their numbers differ from time to time; how many there are does not

_TEMPORARY = tuple(temporary(kind) for kind in ("canary", "control", "check"))


@dataclass(frozen=True, kw_only=True)
class Footprint:
    processes: frozenset[tuple[int, int]]
    namespaces: frozenset[str]
    descriptors: Counter[str]
    mounts: frozenset[str]
    cgroups: frozenset[str]
    files: frozenset[str]
    objects: frozenset[str]  # System V
    containers: frozenset[str]


def take(setting: Setting) -> Footprint:
    own = f"belljar-{os.getpid()}-"
    return Footprint(
        processes=frozenset((p.pid, p.started) for p in descendants(os.getpid())),
        namespaces=frozenset(_namespaces()),
        descriptors=_descriptors(),
        mounts=frozenset(_mounts(own)),
        cgroups=frozenset(control_groups(own)),
        files=frozenset(_files()),
        objects=frozenset(f"{kind} {number}" for kind, number in sysv()),
        containers=frozenset(_containers()) if setting.docker else frozenset(),
    )


def left(before: Footprint, after: Footprint) -> list[str]:
    """What is there after that was not there before, as sentences."""
    found = []
    for pid, started in sorted(after.processes - before.processes):
        p = process(pid)
        if p is not None and p.started == started and not p.dead:
            found.append(str(p))
    for kind in ("namespaces", "mounts", "cgroups", "files", "objects", "containers"):
        new = getattr(after, kind) - getattr(before, kind)
        found += [f"{kind[:-1]} {name}" for name in sorted(new)]
    extra = after.descriptors - before.descriptors
    found += [f"{number} descriptor(s) of {kind}" for kind, number in sorted(extra.items())]
    return found


def settle(
    before: Footprint,
    setting: Setting,
    timeout: float = 30.0,
    matters: Callable[[str], bool] = bool,
) -> list[str]:
    """What stays, of what matters: what is just ending gets a moment."""
    deadline = time.monotonic() + timeout
    while True:
        found = list(filter(matters, left(before, take(setting))))
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def _namespaces() -> list[str]:
    """Not our own: those of our descendants, and those a descriptor of ours keeps alive."""
    own = {os.readlink(f"/proc/self/ns/{kind}") for kind in _KINDS}
    found = []
    for p in descendants(os.getpid()):
        for kind in _KINDS:
            with contextlib.suppress(OSError):  # it has just ended, or is not ours to look at
                found.append(os.readlink(f"/proc/{p.pid}/ns/{kind}"))
    found += [name for name in _descriptors() if name.partition(":")[0] in _KINDS]
    return [name for name in found if name not in own]


def _descriptors() -> Counter[str]:
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself
            target = os.readlink(f"/proc/self/fd/{name}")
            kind = target.partition(":")[0]
            found[kind if kind in _COUNTED else target] += 1
    return found


def _mounts(own: str) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split()[4] for line in lines if own in line]


def control_groups(own: str) -> list[str]:
    """Whose names begin so, in every hierarchy."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[fields.index("-") + 1] in ("cgroup", "cgroup2"):
            for path, names, _ in os.walk(fields[4]):
                found += [os.path.join(path, name) for name in names if name.startswith(own)]
    return found


def _files() -> list[str]:
    """Temporary files with our name that are this user's, and shared memory of guests."""
    found = []
    for directory in {tempfile.gettempdir(), "/tmp", "/dev/shm"}:
        with contextlib.suppress(OSError):
            for entry in os.scandir(directory):
                with contextlib.suppress(OSError):
                    uid = entry.stat(follow_symlinks=False).st_uid
                    ours = uid == os.getuid() and entry.name.startswith(_TEMPORARY)
                    if ours or is_of_a_guest(uid):
                        found.append(entry.path)
    return found


def _containers() -> list[str]:
    import anyio

    from belljar.backends.docker import owner
    from belljar.backends.docker.client import endpoint
    from belljar.backends.docker.client.engine import Engine, EngineError

    engine = Engine(endpoint.find_endpoint())

    async def ask() -> Any:
        label = f"{owner.PID}={os.getpid()}"
        query: dict[str, Any] = {"all": True, "filters": {"label": [label]}}
        listed = await engine.request("GET", "/containers/json", query=query) or []
        return [each for each in listed if each["State"] != "removing" or await is_there(each)]

    async def is_there(listed: dict[str, Any]) -> bool:
        """Docker 20.10 may go on listing a container that ended while it was removed."""
        try:
            await engine.request("GET", f"/containers/{listed['Id']}/json")
        except EngineError as error:
            return error.status != 404
        return True

    return [str(each["Id"])[:12] for each in anyio.run(ask)]
