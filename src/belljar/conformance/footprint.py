"""What this process and its guests have on the machine, compared before and after the suite; and
the settings of the machine that a guest may want to change.

Only objects of this process, of guests and of controls count: other programs come and go.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from belljar.backends.linux import identity
from belljar.conformance.processes import descendants, mounts, process, settle
from belljar.conformance.setting import NOBODY, Setting, temp_prefix

_KINDS = ("net", "mnt", "pid", "user", "ipc", "uts", "cgroup")
_COUNTED = ("socket", "pipe")  # compared by count: their inode numbers vary

_TEMPORARY = tuple(temp_prefix(kind) for kind in ("canary", "control", "check"))


Footprint = dict[str, Counter[str]]  # by kind


def take_footprint(setting: Setting) -> Footprint:
    own = f"belljar-{os.getpid()}-"
    found = {
        "process": [f"{p.pid} {p.started}" for p in descendants(os.getpid())],
        "namespace": _namespaces(),
        "mount": [line.split()[4] for line in _read_lines("/proc/self/mountinfo") if own in line],
        "cgroup": list_control_groups(own),
        "file": _files(),
        "object": [f"{kind} {number}" for kind, number in list_sysv()],  # System V
        "container": _containers() if setting.docker else [],
    }
    once = {kind: Counter(set(names)) for kind, names in found.items()}
    return once | {"descriptor": _descriptors()}


def list_leftovers(before: Footprint, after: Footprint) -> list[str]:
    """What exists now and did not exist before, as sentences."""
    found = []
    for kind, now in after.items():
        for name, number in sorted((now - before[kind]).items()):
            if kind == "process":
                pid, started = map(int, name.split())
                p = process(pid)
                if p is not None and p.started == started and not p.dead:
                    found.append(str(p))
            elif kind == "descriptor":
                found.append(f"{number} descriptor(s) of {name}")
            else:
                found.append(f"{kind} {name}")
    return found


def find_leftovers(
    before: Footprint,
    setting: Setting,
    timeout: float = 30.0,
    matters: Callable[[str], bool] = bool,
) -> list[str]:
    """Leftovers that `matters` selects, after waiting for those that are just ending."""
    return settle(
        lambda: list(filter(matters, list_leftovers(before, take_footprint(setting)))), timeout
    )


def _namespaces() -> list[str]:
    """Namespaces of descendants, and those that a descriptor of this process keeps alive."""
    own = {os.readlink(f"/proc/self/ns/{kind}") for kind in _KINDS}
    found = []
    for p in descendants(os.getpid()):
        for kind in _KINDS:
            with contextlib.suppress(OSError):  # it has just ended, or may not be inspected
                found.append(os.readlink(f"/proc/{p.pid}/ns/{kind}"))
    found += [name for name in _descriptors() if name.partition(":")[0] in _KINDS]
    return [name for name in found if name not in own]


def _descriptors() -> Counter[str]:
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            target = os.readlink(f"/proc/self/fd/{name}")
            kind = target.partition(":")[0]
            found[kind if kind in _COUNTED else target] += 1
    return found


def _read_lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def list_control_groups(own: str) -> list[str]:
    """Control groups in every hierarchy whose names begin with `own`."""
    found = []
    for point, _, kind, _ in mounts("self"):
        if kind in ("cgroup", "cgroup2"):
            for path, names, _ in os.walk(point):
                found += [os.path.join(path, name) for name in names if name.startswith(own)]
    return found


def _files() -> list[str]:
    """This process's temporary files, and temporary files and shared memory of guests."""
    found = []
    for directory in {tempfile.gettempdir(), "/tmp", "/dev/shm"}:
        with contextlib.suppress(OSError):
            for entry in os.scandir(directory):
                with contextlib.suppress(OSError):
                    uid = entry.stat(follow_symlinks=False).st_uid
                    ours = uid == os.getuid() and entry.name.startswith(_TEMPORARY)
                    if ours or is_guest_uid(uid):
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
        """Docker 20.10 may still list a container that ended while it was being removed."""
        try:
            await engine.request("GET", f"/containers/{listed['Id']}/json")
        except EngineError as error:
            return error.status != 404
        return True

    return [str(each["Id"])[:12] for each in anyio.run(ask)]


_FILES = (
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/domainname",
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/sysrq",
    "/proc/sys/kernel/random/boot_id",
    "/sys/kernel/uevent_helper",
    "/etc/hosts",
)
# Compared by name only: sizes and counts change by themselves.
_NAMES = ("/proc/swaps", "/proc/modules")
KEY = 0x0BE11  # key of the System V objects that the hostile program creates


def host_values() -> dict[str, object]:
    values: dict[str, object] = {"sysv": list_sysv()}
    for path in _FILES:
        with contextlib.suppress(OSError):
            values[path] = Path(path).read_bytes()
    for path in _NAMES:
        with contextlib.suppress(OSError):
            values[path] = frozenset(line.split()[0] for line in _read_lines(path))
    with contextlib.suppress(OSError):
        values["keys"] = frozenset(_keys(_read_lines("/proc/keys")))
    return values


def is_guest_uid(uid: int) -> bool:
    """True for the uids of guests, and of controls if root runs the suite."""
    return uid == NOBODY or identity.UID_FIRST <= uid < identity.UID_FIRST + identity.UID_COUNT


def list_sysv() -> frozenset[tuple[str, int]]:
    """Kind and number of the System V objects of guests and controls, not of other programs."""
    rows = set()
    for kind in ("shm", "sem", "msg"):
        with contextlib.suppress(OSError):
            lines = _read_lines(f"/proc/sysvipc/{kind}")
            uid = lines[0].split().index("uid")
            for fields in map(str.split, lines[1:]):
                if int(fields[0]) == KEY or is_guest_uid(int(fields[uid])):
                    rows.add((kind, int(fields[1])))
    return frozenset(rows)


def remove_sysv(objects: frozenset[tuple[str, int]]) -> None:
    libc = ctypes.CDLL(None)
    for kind, number in objects:
        arguments = (number, 0, 0) if kind == "sem" else (number, 0, None)
        getattr(libc, f"{kind}ctl")(*arguments)  # 0: IPC_RMID


def _keys(lines: list[str]) -> list[str]:
    """Number, type and name of each key that belongs to a guest or a control, or has a name that
    the hostile program uses. A container's runtime gives it a keyring, which is left out; keys in
    that ring would be further lines."""
    found = []
    for row in lines:
        number, *rest = row.partition(":")[0].split(None, 8)
        if len(rest) < 8:
            continue
        uid, kind, name = rest[4], rest[6], rest[7]
        theirs = uid.isdigit() and is_guest_uid(int(uid))
        runtimes = re.fullmatch(r"_ses\.[0-9a-f]{64}", name)
        if (theirs or name.startswith(("belljar", "mine"))) and not runtimes:
            found.append(f"{number} {kind} {name}")
    return found
