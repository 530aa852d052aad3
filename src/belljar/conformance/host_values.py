"""Settings of the whole machine that a guest may want to change, as far as they stand still."""

from __future__ import annotations

import contextlib
import ctypes
import re
from pathlib import Path

from belljar.backends.linux import identity
from belljar.conformance.setting import NOBODY

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
# Of these, the names: sizes and counts change by themselves.
_NAMES = ("/proc/swaps", "/proc/modules")
KEY = 0x0BE11  # of the System V objects that the hostile program makes
_REMOVE = {"shm": "shmctl", "sem": "semctl", "msg": "msgctl"}


def host_values() -> dict[str, object]:
    values: dict[str, object] = {"sysv": sysv()}
    for path in _FILES:
        with contextlib.suppress(OSError):
            values[path] = Path(path).read_bytes()
    for path in _NAMES:
        with contextlib.suppress(OSError):
            values[path] = frozenset(_first_words(path))
    with contextlib.suppress(OSError):
        values["keys"] = frozenset(_keys(Path("/proc/keys").read_text()))
    return values


def _first_words(path: str) -> list[str]:
    return [line.split()[0] for line in Path(path).read_text().splitlines()]


def is_of_a_guest(uid: int) -> bool:
    """Or of a control, if root runs this."""
    return uid == NOBODY or identity.UID_FIRST <= uid < identity.UID_FIRST + identity.UID_COUNT


def sysv() -> frozenset[tuple[str, int]]:
    """Kind and number of the System V objects of guests and controls. Other programs of this
    machine have theirs, and are let alone."""
    rows = set()
    for kind in ("shm", "sem", "msg"):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/sysvipc/{kind}").read_text().splitlines()
            uid = lines[0].split().index("uid")
            for fields in map(str.split, lines[1:]):
                if int(fields[0]) == KEY or is_of_a_guest(int(fields[uid])):
                    rows.add((kind, int(fields[1])))
    return frozenset(rows)


def remove_sysv(objects: frozenset[tuple[str, int]]) -> None:
    libc = ctypes.CDLL(None)
    for kind, number in objects:
        arguments = (number, 0, 0) if kind == "sem" else (number, 0, None)
        getattr(libc, _REMOVE[kind])(*arguments)  # 0: IPC_RMID


def _keys(text: str) -> list[str]:
    """Number, type and name of each key that a guest's or a control's user has, or that bears the
    name the hostile program gives. A container gets a ring of its own from its runtime; keys in it
    would be further rows."""
    found = []
    for row in text.splitlines():
        number, *rest = row.partition(":")[0].split(None, 8)
        if len(rest) < 8:
            continue
        uid, kind, name = rest[4], rest[6], rest[7]
        theirs = uid.isdigit() and is_of_a_guest(int(uid))
        runtimes = re.fullmatch(r"_ses\.[0-9a-f]{64}", name)
        if (theirs or name.startswith(("belljar", "mine"))) and not runtimes:
            found.append(f"{number} {kind} {name}")
    return found
