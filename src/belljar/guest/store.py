"""Where workspaces are kept that are not at /workspace now: those of checkpoints and branches.

All lie in one file system, beside each other, and are moved by renaming. Only init can reach those
that are not at /workspace: what is mounted there is the directory CURRENT, and hides the rest.
Nothing here may block init for long: copies and removals are made by children of its.
"""

import errno
import os
import stat as modes
from typing import Any, Callable, Dict, List, Tuple

from . import removal

CURRENT = "current"
REMOVE_TIMEOUT = 60.0  # seconds
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
COPY = 8 * 1024 * 1024

Then = Callable[[int], None]  # gets an errno, 0 for success


class Store:
    def __init__(self, directory: int, fork: "Callable[[], int]") -> None:
        self._directory = directory
        self._fork = fork
        self._children: Dict[int, Then] = {}
        self._numbers = 0

    def unused(self) -> str:
        self._numbers += 1
        return f"w{self._numbers}"

    def copy(self, source: str, target: str, then: Then) -> None:
        """`then` is called when it is done, by on_exit; at once, if there is nothing to copy."""
        os.mkdir(target, 0o700, dir_fd=self._directory)
        if not self._names(source):
            then(0)
            return
        self._in_child(lambda: _copy_tree(self._open(source), self._open(target)), then)

    def move(self, source: str, target: str) -> None:
        """All that is in one workspace into another, which is empty."""
        from_, to = self._open(source), self._open(target)
        try:
            for name in os.listdir(from_):
                os.rename(name, name, src_dir_fd=from_, dst_dir_fd=to)
        finally:
            os.close(from_)
            os.close(to)

    def make(self, name: str) -> None:
        os.mkdir(name, 0o700, dir_fd=self._directory)

    def remove(self, name: str) -> None:
        """Some time soon; nobody waits for it."""
        if not self._names(name):
            os.rmdir(name, dir_fd=self._directory)
            return
        directory = self._directory
        self._in_child(lambda: removal.remove(name, directory, REMOVE_TIMEOUT), lambda error: None)

    def on_exit(self, pid: int, status: int) -> bool:
        """Whether it was one of ours. Called by init for each child that has ended."""
        then = self._children.pop(pid, None)
        if then is None:
            return False
        then(os.WEXITSTATUS(status) if os.WIFEXITED(status) else errno.EIO)
        return True

    @property
    def children(self) -> List[int]:
        return list(self._children)

    def _in_child(self, work: "Callable[[], None]", then: Then) -> None:
        try:
            pid = self._fork()
        except OSError as error:
            then(error.errno or errno.EAGAIN)
            return
        if pid == 0:
            code = errno.EIO
            try:
                work()
                code = 0
            except OSError as error:
                code = error.errno or errno.EIO
            finally:
                os._exit(code & 0xFF)
        self._children[pid] = then

    def _names(self, name: str) -> List[str]:
        fd = self._open(name)
        try:
            return os.listdir(fd)
        finally:
            os.close(fd)

    def _open(self, name: str) -> int:
        return os.open(name, _DIRECTORY, dir_fd=self._directory)


def _copy_tree(source: int, target: int) -> None:
    """Without recursion: a tree may be thousands deep. Two descriptors for each level."""
    stack: List[Tuple[int, int, Any, Any]] = [(source, target, iter(os.listdir(source)), None)]
    while stack:
        from_, to, names, status = stack[-1]
        name = next(names, None)
        if name is None:
            stack.pop()
            if status is not None:
                _dress(to, status)
            os.close(from_)
            os.close(to)
            continue
        found = os.stat(name, dir_fd=from_, follow_symlinks=False)
        if modes.S_ISDIR(found.st_mode):
            inner = _open_anyway(name, _DIRECTORY, from_, found)
            os.mkdir(name, 0o700, dir_fd=to)
            new = os.open(name, _DIRECTORY, dir_fd=to)
            stack.append((inner, new, iter(os.listdir(inner)), found))
        elif modes.S_ISREG(found.st_mode):
            _copy_file(name, from_, to, found)
        elif modes.S_ISLNK(found.st_mode):
            os.symlink(os.readlink(name, dir_fd=from_), name, dir_fd=to)
        elif modes.S_ISFIFO(found.st_mode):
            os.mkfifo(name, modes.S_IMODE(found.st_mode), dir_fd=to)
        # A socket is nothing without the process that listens to it.


def _open_anyway(name: str, flags: int, directory: int, status: os.stat_result) -> int:
    """Also what its owner has forbidden himself to read."""
    try:
        return os.open(name, flags, dir_fd=directory)
    except PermissionError:
        mode = modes.S_IMODE(status.st_mode)
        os.chmod(name, mode | 0o700, dir_fd=directory)
        try:
            return os.open(name, flags, dir_fd=directory)
        finally:
            os.chmod(name, mode, dir_fd=directory)


def _copy_file(name: str, from_: int, to: int, status: os.stat_result) -> None:
    source = _open_anyway(name, _FILE | os.O_RDONLY, from_, status)
    try:
        target = os.open(name, _FILE | os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=to)
        try:
            _copy_data(source, target, status.st_size)
            _dress(target, status)
        finally:
            os.close(target)
    finally:
        os.close(source)


def _copy_data(source: int, target: int, size: int) -> None:
    """Holes stay holes: a file may claim to be larger than any memory."""
    os.truncate(target, size)
    position = 0
    while position < size:
        try:
            position = os.lseek(source, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # only a hole is left
            raise
        end = os.lseek(source, position, os.SEEK_HOLE)
        os.lseek(target, position, os.SEEK_SET)
        while position < end:
            sent = os.sendfile(target, source, position, min(end - position, COPY))
            if not sent:
                return  # it shrank
            position += sent


def _dress(fd: int, status: os.stat_result) -> None:
    os.fchmod(fd, modes.S_IMODE(status.st_mode))
    os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))
