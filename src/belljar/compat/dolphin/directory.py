"""The directory of a session on this host: its name, its files, its end.

Names come from callers and files from guests: a session's name is one plain word, and no link
below the directory is ever followed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

from belljar.beneath import Beneath
from belljar.guest import removal

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
    """The session's directory, made if it is missing. Raises ValueError if it is a link."""
    path = base / session_id
    path.mkdir(parents=True, exist_ok=True)
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise ValueError(f"{path} is a link, and would lead out of {base}")
    return path


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
