"""Where presence files lie: one directory for each user, that nobody else can write to.

    $BELLJAR_RUNTIME_DIR           if set, this alone
    $XDG_RUNTIME_DIR/belljar       of a user who is logged in
    /run/user/<uid>/belljar        the same, for who has no such variable (cron, services)
    /run/belljar                   of root
    <cache>/live                   where there is none of these

A process writes to the first that it can; who looks, looks at all of them.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from belljar.environment import store
from belljar.environment.store import cache_root
from belljar.errors import SandboxError

VARIABLE = "BELLJAR_RUNTIME_DIR"
SYSTEM = "/run/belljar"
USERS = "/run/user"
MOST_USERS = 1000


@dataclass(frozen=True)
class Opened:
    fd: int
    uid: int  # whose it is


def candidates(*, everybody: bool = False) -> list[str]:
    """The directories that may be there, the one to write to first."""
    if chosen := os.environ.get(VARIABLE):
        return [os.path.abspath(chosen)]
    uid = os.geteuid()
    found = []
    xdg = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(xdg):
        found.append(f"{xdg}/belljar")
    found.append(f"{USERS}/{uid}/belljar")
    if uid == 0:
        found.append(SYSTEM)
    found.append(str(cache_root() / "live"))
    if everybody:
        found += _others()
    return list(dict.fromkeys(found))


def _others() -> Iterator[str]:
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(USERS))[:MOST_USERS]:
            if name.isdigit():
                yield f"{USERS}/{name}/belljar"
    for user in pwd.getpwall()[:MOST_USERS]:
        yield f"{user.pw_dir}/.cache/belljar/live"


def prepare() -> str:
    """The directory to write to, made if need be. Raises SandboxError if there is none."""
    for path in candidates():
        if _usable(path):
            return path
    raise SandboxError(
        f"no directory for presence files can be written: {', '.join(candidates())}",
        hint=f"set {VARIABLE} to one of your own",
    )


def _usable(path: str) -> bool:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return _make(path)
    except OSError:
        return False
    return _is_private(status, os.geteuid()) and os.access(path, os.W_OK, effective_ids=True)


def _make(path: str) -> bool:
    # Only the last part, but in the cache: what /run has is the system's to make.
    try:
        if path == str(cache_root() / "live"):
            store.make_directory(cache_root(), store.CACHE_MODE)
        os.mkdir(path, 0o700)
    except FileExistsError:
        return _usable(path)
    except OSError:
        return False
    return _is_private(os.lstat(path), os.geteuid())


def _is_private(status: os.stat_result, uid: int | None) -> bool:
    """Nobody but its owner may have put files there."""
    others = stat.S_IWGRP | stat.S_IWOTH
    owned = uid is None or status.st_uid == uid
    return stat.S_ISDIR(status.st_mode) and owned and not status.st_mode & others


@contextlib.contextmanager
def opened(path: str) -> Iterator[Opened | None]:
    """The directory, to read the files in it; None if it is not there, or not private.

    Links are not followed at its end, and above it lead at most to another directory, of which
    the same is asked.
    """
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags)
    except OSError:
        yield None
        return
    try:
        status = os.fstat(descriptor)
        # An ordinary user is shown his own; root is shown whatever is its owner's alone.
        wanted = None if os.geteuid() == 0 else os.geteuid()
        private = _is_private(status, wanted)
        yield Opened(descriptor, status.st_uid) if private else None
    finally:
        os.close(descriptor)
