"""Which uid a native guest has: one of its own, or that of the process that starts it.

Root gives each guest a separate host uid from an unused range. But uid 0 of a user namespace
(rootless Podman, LXC, `unshare -Ur`) has only the few uids that the namespace maps. There, as for
an ordinary user, all guests have the uid of the process that starts them.
"""

from __future__ import annotations

import os
from pathlib import Path

from belljar.errors import BackendUnavailable

# Neither distributions nor systemd (whose containers end at 0x6fffffff) hand out these.
UID_FIRST = 0x7000_0000
UID_COUNT = 0x0FFD_0000

Map = list[tuple[int, int, int]]  # first uid here, first uid in the namespace above, how many


def check_proc() -> None:
    """Raise unless /proc shows this pid namespace: below /proc/<pid> of another one lie the files
    of some other process. Called before anything is written there."""
    try:
        shown = os.readlink("/proc/self")
    except OSError as error:
        raise BackendUnavailable(
            f"the native backend needs /proc: {error}", hint="mount -t proc proc /proc"
        ) from error
    if shown != str(os.getpid()):
        raise BackendUnavailable(
            f"/proc belongs to another pid namespace: this process is {os.getpid()}, and {shown} "
            "according to it",
            hint="mount the /proc of this pid namespace (unshare --mount-proc, or `mount -t proc "
            "proc /proc` in a mount namespace of its own)",
        )


def has_uid_for_each() -> bool:
    """Whether each guest of this process gets a host uid of its own."""
    return os.geteuid() == 0 and all(map(covers_range, map(_read, ("uid_map", "gid_map"))))


def covers_range(mapped: Map) -> bool:
    last = UID_FIRST + UID_COUNT
    return any(first <= UID_FIRST and first + count >= last for first, _, count in mapped)


def uid_above() -> int | None:
    """What our uid is in the user namespace above; None if it has none there."""
    own = os.geteuid()
    return next(
        (up + own - low for low, up, many in _read("uid_map") if low <= own < low + many), None
    )


def _read(name: str) -> Map:
    try:
        rows = Path(f"/proc/self/{name}").read_text().splitlines()
    except FileNotFoundError:  # a kernel without user namespaces
        return [(0, 0, 2**32 - 1)]
    return [(int(first), int(above), int(count)) for first, above, count in map(str.split, rows)]
