"""Named workspaces: `session="name"` is a directory of that name below the state directory.

    SESSIONS/<name>/          the files, as the last sandbox left them
    SESSIONS/.locks/<name>    held by the sandbox that uses it; its mtime is "last used"

Lock files are never deleted, because a process that opened one before may hold a lock on it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from dataclasses import dataclass
from pathlib import Path

from belljar.backends.linux.safe_dir import Beneath
from belljar.environment import store
from belljar.errors import InvalidOption, unknown_option
from belljar.protocol import removal

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", re.ASCII)
_LOCKS = ".locks"
MAX_FILES = 1_000_000  # that are counted
REMOVE_TIMEOUT = 600.0  # seconds


@dataclass(frozen=True, kw_only=True)
class SessionInfo:
    name: str
    path: Path
    size: int  # bytes
    files: int
    last_used: float  # seconds since the epoch
    in_use: bool


def check_session_name(name: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidOption(
            f"{name!r} is not a valid name of a session",
            hint="use up to 64 letters, digits, '-', '_' and '.', not starting with '.'",
        )
    return name


class Session:
    """The lock of one session, held until close() or the end of the process."""

    def __init__(self, name: str) -> None:
        root = _sessions_dir()
        self.path = root / check_session_name(name)
        self._lock = -1
        try:
            for directory in (root, root / _LOCKS, self.path):
                store.make_directory(directory, store.STATE_MODE)
            self._lock = _acquire_lock(root / _LOCKS / name)
        except OSError as error:
            raise InvalidOption(
                f"session {name!r} cannot be used: {error.strerror}: {error.filename}",
                hint="set $BELLJAR_STATE to another directory",
            ) from error
        if self._lock < 0:
            raise _busy_error(name, root / _LOCKS / name)

    def close(self) -> None:
        """May be called twice."""
        if self._lock >= 0:
            os.utime(self._lock)
            os.close(self._lock)
            self._lock = -1


def _sessions_dir() -> Path:
    """Below $BELLJAR_STATE, else $XDG_STATE_HOME/belljar, else ~/.local/state/belljar."""
    state = store.user_directory(os.environ, "BELLJAR_STATE", "XDG_STATE_HOME", ".local/state")
    return state / "sessions"


def _acquire_lock(path: Path) -> int:
    """The locked descriptor; -1 if another sandbox has the lock."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(fd, 0)
        os.write(fd, str(os.getpid()).encode())
    except BaseException as error:
        os.close(fd)
        if isinstance(error, BlockingIOError):
            return -1
        raise
    return fd


def _busy_error(name: str, lock: Path) -> InvalidOption:
    try:
        holder = int(lock.read_text()[:20])
    except (OSError, ValueError):
        holder = 0
    who = "a sandbox of this process" if holder == os.getpid() else f"process {holder or '?'}"
    return InvalidOption(
        f"session {name!r} is in use by {who}",
        hint="a session has one sandbox at a time: close that one, or use another name",
    )


# -- list, find, remove -----------------------------------------------------------------------


def listing() -> list[SessionInfo]:
    """All sessions, sorted by name."""
    root = _sessions_dir()
    return [_describe(root, name) for name in _names(root)]


def _names(root: Path) -> list[str]:
    if not root.is_dir():
        return []
    paths = [path for path in root.iterdir() if path.is_dir() and not path.is_symlink()]
    return sorted(path.name for path in paths if _NAME.fullmatch(path.name))


def _describe(root: Path, name: str) -> SessionInfo:
    with Beneath(root / name) as directory:
        try:
            found, _ = directory.scan(MAX_FILES)
        except OverflowError:
            found = {}
    sizes = [entry.size for entry in found.values() if entry.kind == "file"]
    lock = root / _LOCKS / name
    return SessionInfo(
        name=name,
        path=root / name,
        size=sum(sizes),
        files=len(sizes),
        last_used=lock.stat().st_mtime if lock.exists() else (root / name).stat().st_mtime,
        in_use=_in_use(lock),
    )


def _in_use(lock: Path) -> bool:
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def find(name: str) -> Path:
    """The directory of a session that exists."""
    path = _sessions_dir() / check_session_name(name)
    if not path.is_dir():
        known = _names(_sessions_dir())
        if not known:
            raise InvalidOption(f"there is no session {name!r}", hint="there are no sessions yet")
        raise unknown_option("session", name, known)
    return path


def remove(name: str) -> None:
    """Remove a session and all its files. Raises InvalidOption if a sandbox uses it."""
    path = find(name)
    with contextlib.closing(Session(name)), Beneath(path.parent) as root:
        removal.remove(name, root.fd, REMOVE_TIMEOUT)
