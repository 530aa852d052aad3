"""What happened to the files of a directory: two censuses, and what differs between them.

A census is taken around every cell, so it is cheap, and gives up where it would not be.
"""

import os
import stat as modes
import time
from typing import Dict, List, Optional, Tuple

# type ("file", "dir", "symlink", "other"), size, mtime_ns, ctime_ns, inode
Entry = Tuple[str, int, int, int, int]
Census = Dict[str, Entry]

MAX_PATH = 4000  # bytes below the root: what is longer no program opens in one go
LOOK = 64  # entries between two looks at the clock
COARSE = 100_000_000  # nanoseconds: more than the kernel's times of changes are apart
WAITING = 4  # times as long may pass as may be worked, while others have their turn
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_TYPES = {modes.S_IFREG: "file", modes.S_IFDIR: "dir", modes.S_IFLNK: "symlink"}


class Watched:
    """A directory of which many censuses are taken: if it is empty, one look tells whether it
    still is."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._empty: Optional[Tuple[int, int, int]] = None  # what it is while it is empty

    def census(self) -> Optional[Census]:
        try:
            status = os.stat(self._root)
        except OSError:
            return None
        # Whatever comes or goes changes this time, which nobody can set.
        state = status.st_dev, status.st_ino, status.st_ctime_ns
        if state == self._empty:
            return {}
        # If it changed just now, the next change might get the same time.
        settled = time.time_ns() - status.st_ctime_ns > COARSE
        found = census(self._root)
        self._empty = state if found == {} and settled else None
        return found


def census(root: str, most: int = 5000, seconds: float = 0.05) -> Optional[Census]:
    """Everything below `root` by its relative path; None if it is more than may be looked at.

    Without recursion and with two descriptors, whatever the depth. `seconds` of the processor.
    """
    found: Census = {}
    deadline = Deadline(seconds)
    try:
        top = os.open(root, _FLAGS & ~os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        pending = [""]
        while pending:
            directory = pending.pop()
            inner = _look(top, directory, found, most, deadline)
            if inner is None:
                return None
            pending += inner
    finally:
        os.close(top)
    return found


class Deadline:
    def __init__(self, seconds: float) -> None:
        self._work = time.thread_time() + seconds
        self._wait = time.monotonic() + WAITING * seconds

    @property
    def passed(self) -> bool:
        return time.thread_time() > self._work or time.monotonic() > self._wait


def _look(
    top: int, directory: str, found: Census, most: int, deadline: Deadline
) -> Optional[List[str]]:
    """Add what one directory holds, and give the directories in it; None: too much."""
    try:
        fd = os.open(directory, _FLAGS, dir_fd=top) if directory else top
    except OSError:
        return []  # gone, replaced, or not to be read: it has no content to tell of
    prefix = directory + "/" if directory else ""
    inner: List[str] = []
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue  # removed meanwhile
                path = prefix + entry.name
                kind = _TYPES.get(modes.S_IFMT(status.st_mode), "other")
                found[path] = (
                    kind,
                    status.st_size,
                    status.st_mtime_ns,
                    status.st_ctime_ns,
                    status.st_ino,
                )
                if kind == "dir":
                    inner.append(path)
                    if len(os.fsencode(path)) > MAX_PATH:
                        return None
                if len(found) > most:
                    return None
                if len(found) % LOOK == 0 and deadline.passed:
                    return None
    except OSError:
        return inner
    finally:
        if fd != top:
            os.close(fd)
    return None if deadline.passed else inner


def compare(before: Census, after: Census) -> Dict[str, List[str]]:
    """The paths that were created, changed and removed, sorted.

    A directory changes whenever something in it comes or goes, which is told by that itself.
    """
    created = [path for path in after if path not in before]
    removed = [path for path in before if path not in after]
    changed = [
        path
        for path, entry in after.items()
        if path in before
        and entry != before[path]
        and not (entry[0] == "dir" and before[path][0] == "dir")
    ]
    return {"created": sorted(created), "changed": sorted(changed), "removed": sorted(removed)}
