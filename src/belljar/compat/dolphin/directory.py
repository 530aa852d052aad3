"""The directory of a session on this host: its name, its files, its end.

Names come from callers and files from guests: a session's name is one plain word, and no link
below the directory is ever followed. The directory that has the sessions is /tmp/sandboxes unless
somebody says otherwise, where other users of the machine can be first: it must be our own.
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
    """Raises ValueError unless it is the name of one directory, and of no other."""
    if not isinstance(given, str) or _NAME.fullmatch(given) is None or ".." in given:
        raise ValueError(
            f"Invalid session_id {str(given)[:100]!r}: letters, digits and . _ - @ = + only, "
            "128 at most, beginning with a letter or digit"
        )
    return given


def make(base: Path, session_id: str) -> Path:
    """The session's directory, made if it is missing, for this user alone.

    Raises ValueError if it is a link, and PermissionError if somebody else could exchange it.
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
    if not _is_ours(status):
        raise PermissionError(errno.EACCES, "The session belongs to another user", str(path))
    return path


def _check_own(base: Path) -> None:
    """What is below a directory of somebody else, or that others may write, can be exchanged for
    a link at any time. In one with the sticky bit, nobody can touch what is ours."""
    status = os.stat(base)
    shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX
    if not (_is_ours(os.lstat(base)) and _is_ours(status)) or shared:
        raise PermissionError(
            errno.EACCES,
            "It belongs to, or can be written by, somebody else (use a sandbox_base_dir of your "
            "own, or chmod go-w)",
            str(base),
        )


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid in (0, os.geteuid())


def files(path: Path) -> list[str]:
    """The regular files below it, by paths relative to it."""
    try:
        with Beneath(path) as directory:
            found, _ = directory.scan(MOST_FILES)
    except FileNotFoundError:
        return []
    return sorted(name for name, entry in found.items() if entry.kind == "file")


def read(path: Path, name: str) -> str:
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


def remove(path: Path) -> None:
    """The directory and all below it; a link is removed, not followed."""
    try:
        removal.remove(str(path), seconds=REMOVE_TIMEOUT)
    except FileNotFoundError:
        return
