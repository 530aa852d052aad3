"""The directory of a session on this host: its name, its files, its removal.

Names come from callers and files from guests: a session's name is one plain word, and no link
below the directory is ever followed. The default base directory is /tmp/sandboxes, which another
user of the machine could make first: the base must belong to this user.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from pathlib import Path

from belljar.backends.linux.safe_dir import Beneath
from belljar.protocol import removal

REMOVE_TIMEOUT = 600.0  # seconds
MOST_FILES = 40_000
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@=+-]{0,127}", re.ASCII)


def check_session_id(given: object) -> str:
    """Raises ValueError unless it is a plain name of one directory."""
    if not isinstance(given, str) or _NAME.fullmatch(given) is None or ".." in given:
        raise ValueError(
            f"Invalid session_id {str(given)[:100]!r}: letters, digits and . _ - @ = + only, "
            "128 at most, beginning with a letter or digit"
        )
    return given


def make_directory(base: Path, session_id: str) -> Path:
    """The session's directory, made if it is missing, for this user alone.

    Raises ValueError if it is a link, and PermissionError if another user could replace it.
    """
    base.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        base.mkdir(mode=0o700)
    _check_own(base)
    path = base / session_id
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise ValueError(f"{path} is a link, and would lead out of {base}")
    if not _is_trusted(status):
        raise PermissionError(errno.EACCES, "The session belongs to another user", str(path))
    return path


def _check_own(base: Path) -> None:
    """In a directory that another user owns or may write, an entry can become a link at any time.
    The sticky bit prevents that: only the owner of an entry may replace it."""
    status = os.stat(base)
    shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX
    if not (_is_trusted(os.lstat(base)) and _is_trusted(status)) or shared:
        raise PermissionError(
            errno.EACCES,
            "Another user owns this directory or may write to it (give another sandbox_base_dir, "
            "or chmod go-w)",
            str(base),
        )


def _is_trusted(status: os.stat_result) -> bool:
    return status.st_uid in (0, os.geteuid())


def list_files(path: Path) -> list[str]:
    """The regular files below it, by paths relative to it."""
    try:
        with Beneath(path) as directory:
            found, _ = directory.scan(MOST_FILES)
    except FileNotFoundError:
        return []
    return sorted(name for name, entry in found.items() if entry.kind == "file")


def read_file(path: Path, name: str) -> str:
    """A file's text. Raises FileNotFoundError, and ValueError for what is not a file below it."""
    if not isinstance(name, (str, os.PathLike)):
        raise ValueError(f"the name of a file is a str, not {type(name).__name__}")
    parts = [part for part in os.fspath(name).split("/") if part not in ("", ".")]
    if os.path.isabs(name) or ".." in parts or "\0" in os.fspath(name) or not parts:
        raise ValueError(f"Path traversal attempt detected: {name!r}")
    try:
        with Beneath(path) as directory:
            fd = directory.open("/".join(parts))
    except FileNotFoundError:
        raise FileNotFoundError(f"File not found: {name}") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise ValueError(f"Path traversal attempt detected: {name!r} is a link") from None
        if error.errno in (errno.EINVAL, errno.EISDIR, errno.ENXIO):
            raise ValueError(f"Not a file: {name!r}") from None
        raise
    with open(fd, encoding="utf-8") as file:
        return file.read()


def remove_tree(path: Path) -> None:
    """Remove the directory and all below it; a link is removed, not followed."""
    with contextlib.suppress(FileNotFoundError):
        removal.remove(str(path), seconds=REMOVE_TIMEOUT)
