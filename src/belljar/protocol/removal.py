"""Remove trees that hostile code has made, without recursion and without following links.

Used inside the sandbox, and by the host for copies of workspaces.
"""

import errno
import os
import stat as modes
import time
from typing import List, Optional

TIMEOUT = 5.0  # seconds; the guest's init serves nothing else meanwhile
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove(path: str, below: Optional[int] = None, seconds: float = TIMEOUT) -> None:
    """Remove a file, or a directory with its entries. Relative to the directory `below`."""
    status = os.stat(path, dir_fd=below, follow_symlinks=False)
    if modes.S_ISDIR(status.st_mode):
        _remove_tree(path, below, time.monotonic() + seconds)
    else:
        os.unlink(path, dir_fd=below)


def _remove_tree(path: str, below: Optional[int], deadline: float) -> None:
    """By descriptors: a tree may be thousands deep, and its paths too long."""
    parent = os.open(os.path.dirname(path) or ".", DIRECTORY & ~os.O_NOFOLLOW, dir_fd=below)
    name = os.path.basename(path.rstrip("/"))
    try:
        _make_accessible(name, parent)
        top = os.open(name, DIRECTORY, dir_fd=parent)
        try:
            _empty(top, deadline)
        finally:
            os.close(top)
        os.rmdir(name, dir_fd=parent)
    finally:
        os.close(parent)


def _empty(top: int, deadline: float) -> None:
    """Empty a directory by moving every nested directory up into it, so that depth takes neither
    stack nor descriptors."""
    lifted = 0
    unused = f".belljar-removing-{os.urandom(8).hex()}"  # a name that no entry has
    while time.monotonic() < deadline:
        directories = _unlink_files(top)
        if not directories:
            return
        for name in directories:
            _make_accessible(name, top)
            inner = os.open(name, DIRECTORY, dir_fd=top)
            try:
                for child in _unlink_files(inner):
                    lifted += 1
                    _make_accessible(child, inner)  # the move writes its ".."
                    os.rename(child, f"{unused}-{lifted}", src_dir_fd=inner, dst_dir_fd=top)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=top)
    raise OSError(errno.EBUSY, "the directory is filled faster than it can be emptied")


def _make_accessible(name: str, below: int) -> None:
    """Let the owner enter a directory whose mode forbids it. By a descriptor: a process that still
    runs may replace it by a link."""
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=below)
    try:
        mode = os.fstat(fd).st_mode
        if modes.S_ISDIR(mode) and mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{fd}", 0o700)
    finally:
        os.close(fd)


def _unlink_files(directory: int) -> List[str]:
    """Unlink all that are not directories, and return the names of the directories."""
    directories = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                directories.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=directory)
    return directories
