"""A store of workspaces that are not at /workspace now: those of checkpoints and branches.

They are directories beside each other in one file system, and are moved by renaming. Only init can
reach them: the directory CURRENT is mounted at /workspace, and the mount hides the others. Nothing
here may block init for long: children of init make copies and remove trees.

Copies keep modes, times, links and holes of trees that hostile code has made.
"""

import contextlib
import errno
import os
import signal
import stat as modes
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ..protocol import removal
from .tree_pack import DataFinder, open_forced, restore_metadata, write_at

CURRENT = "current"
LINKS = "-links"  # suffix of a directory beside a copy, for its files with several names
REMOVE_TIMEOUT = 60.0  # seconds
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY

Then = Callable[[int], None]  # gets an errno, 0 for success
Links = Callable[[], int]


class Store:
    def __init__(self, directory: int, fork: "Callable[[], int]") -> None:
        self._directory = directory
        self._fork = fork
        self._children: Dict[int, Then] = {}
        self._copying: List[int] = []
        self._unwanted: List[str] = []  # to be removed when a process can be forked again
        self._numbers = 0
        self.when_reaped: "Optional[Callable[[], None]]" = None
        # Made in advance: set_aside() needs it even if the code has used up the last inode.
        self._spare: Optional[str] = self.make()

    def make(self) -> str:
        self._numbers += 1
        name = f"w{self._numbers}"
        os.mkdir(name, 0o700, dir_fd=self._directory)
        return name

    def copy(self, source: str, target: str, then: Then) -> None:
        """`target` is from make(). on_exit() calls `then` at the end; copy() calls it if there is
        nothing to copy, or no process can be forked."""
        if self._is_empty(source):
            self._copy(source, target)
            then(0)
        else:
            self._run_in_child(lambda: self._copy(source, target), then, self._copying)

    def _copy(self, source: str, target: str) -> None:
        made: List[int] = []

        def links() -> int:
            if not made:
                os.mkdir(target + LINKS, 0o700, dir_fd=self._directory)
                made.append(os.open(target + LINKS, removal.DIRECTORY, dir_fd=self._directory))
            return made[0]

        with self._entered(source) as (from_, status), self._entered(target) as (to, _):
            copy_tree(from_, to, links)
            os.utime(to, ns=_get_times(status))
        os.chmod(target, modes.S_IMODE(status.st_mode), dir_fd=self._directory)
        if made:
            self._remove(target + LINKS)

    def set_aside(self) -> str:
        """Move the entries of CURRENT to another directory, and return its name."""
        name, self._spare = self._spare or self.make(), None
        self._move(CURRENT, name)
        return name

    def bring(self, name: str) -> None:
        """Move the entries of another directory to CURRENT, which is empty."""
        self._move(name, CURRENT)
        os.chmod(name, 0o700, dir_fd=self._directory)
        if self._spare is None:
            self._spare = name
        else:
            os.rmdir(name, dir_fd=self._directory)

    def _move(self, source: str, target: str) -> None:
        with self._entered(source) as (from_, status), self._entered(target) as (to, _):
            for name in os.listdir(from_):
                _move(name, from_, to)
            os.utime(to, ns=_get_times(status))
        os.chmod(target, modes.S_IMODE(status.st_mode), dir_fd=self._directory)

    def remove(self, name: str, then: "Optional[Then]" = None) -> None:
        """Remove it in a child, unless it is empty. `then` is called at the end."""
        os.chmod(name, 0o700, dir_fd=self._directory)
        try:
            os.rmdir(name, dir_fd=self._directory)
        except OSError:
            on_end = then or (lambda error: self._on_removed(name, error))
            self._run_in_child(lambda: self._remove(name, name + LINKS), on_end)
        else:
            if then is not None:
                then(0)

    def _remove(self, *names: str) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                removal.remove(name, self._directory, REMOVE_TIMEOUT)

    def _on_removed(self, name: str, error: int) -> None:
        if error == errno.EAGAIN:
            self._unwanted.append(name)

    def cancel(self) -> None:
        """Make the copies under way fail."""
        for pid in self._copying:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def on_exit(self, pid: int, status: int) -> bool:
        """Init calls this for each child that has ended. True if it was a child of this store."""
        then = self._children.pop(pid, None)
        if pid in self._copying:
            self._copying.remove(pid)
        if then is not None:
            then(os.WEXITSTATUS(status) if os.WIFEXITED(status) else errno.EIO)
        elif self._unwanted:
            self.remove(self._unwanted.pop())
        if self.when_reaped is not None:
            self.when_reaped()
        return then is not None

    @property
    def children(self) -> List[int]:
        return list(self._children)

    def _run_in_child(
        self, work: "Callable[[], None]", then: Then, kind: "Optional[List[int]]" = None
    ) -> None:
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
        if kind is not None:
            kind.append(pid)

    def _is_empty(self, name: str) -> bool:
        with self._entered(name) as (fd, _):
            return not os.listdir(fd)

    @contextlib.contextmanager
    def _entered(self, name: str) -> "Iterator[Tuple[int, os.stat_result]]":
        """Open a workspace, whatever mode the code has given it."""
        status = os.stat(name, dir_fd=self._directory, follow_symlinks=False)
        os.chmod(name, 0o700, dir_fd=self._directory)
        fd = os.open(name, removal.DIRECTORY, dir_fd=self._directory)
        try:
            yield fd, status
        finally:
            os.close(fd)
            os.chmod(name, modes.S_IMODE(status.st_mode), dir_fd=self._directory)


def _move(name: str, from_: int, to: int) -> None:
    try:
        os.rename(name, name, src_dir_fd=from_, dst_dir_fd=to)
    except PermissionError:
        # Moving a directory changes its "..", so it must be writable.
        mode = modes.S_IMODE(os.stat(name, dir_fd=from_, follow_symlinks=False).st_mode)
        os.chmod(name, mode | 0o700, dir_fd=from_)
        os.rename(name, name, src_dir_fd=from_, dst_dir_fd=to)
        os.chmod(name, mode, dir_fd=to)


class _Level(NamedTuple):
    source: int
    target: int
    names: "Iterator[str]"
    parent: int  # directory of the source; -1 at the top
    name: str
    status: "Optional[os.stat_result]"  # None at the top, whose mode the caller sets


def copy_tree(source: int, target: int, links: Links) -> None:
    """Copy the entries of a directory. `links` opens a directory for files with several names.

    It does not recurse, because a tree may be thousands deep. It holds two descriptors for each
    level.
    """
    stack: List[_Level] = [_Level(source, target, iter(os.listdir(source)), -1, "", None)]
    while stack:
        level = stack[-1]
        name = next(level.names, None)
        if name is None:
            stack.pop()
            _leave_directory(level)
            continue
        try:
            inner = _copy_entry(name, level, links)
        except FileNotFoundError:
            continue  # removed meanwhile, by a process that still runs
        if inner is not None:
            stack.append(inner)


def _copy_entry(name: str, level: _Level, links: Links) -> "Optional[_Level]":
    """Copy one entry; for a directory, return the level below."""
    found = os.stat(name, dir_fd=level.source, follow_symlinks=False)
    if modes.S_ISDIR(found.st_mode):
        return _enter_directory(name, level, found)
    if modes.S_ISREG(found.st_mode):
        _copy_file(name, level, found, links)
    elif modes.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(name, dir_fd=level.source), name, dir_fd=level.target)
        os.utime(name, ns=_get_times(found), dir_fd=level.target, follow_symlinks=False)
    elif modes.S_ISFIFO(found.st_mode):
        os.mkfifo(name, 0o600, dir_fd=level.target)
        os.chmod(name, modes.S_IMODE(found.st_mode), dir_fd=level.target)
        os.utime(name, ns=_get_times(found), dir_fd=level.target, follow_symlinks=False)
    # A socket is not copied: it is useless without the process that listens.
    return None


def _enter_directory(name: str, level: _Level, found: os.stat_result) -> _Level:
    """Enter a directory, even if its mode forbids it."""
    if not _open_to_owner(found):
        os.chmod(name, found.st_mode & 0o7777 | 0o700, dir_fd=level.source)
    source = os.open(name, removal.DIRECTORY, dir_fd=level.source)
    os.mkdir(name, 0o700, dir_fd=level.target)
    target = os.open(name, removal.DIRECTORY, dir_fd=level.target)
    return _Level(source, target, iter(os.listdir(source)), level.source, name, found)


def _leave_directory(level: _Level) -> None:
    if level.status is None:
        return  # the caller owns the top
    restore_metadata(level.target, modes.S_IMODE(level.status.st_mode), _get_times(level.status))
    os.close(level.source)
    os.close(level.target)
    if not _open_to_owner(level.status):
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            os.chmod(level.name, modes.S_IMODE(level.status.st_mode), dir_fd=level.parent)


def _open_to_owner(status: os.stat_result) -> bool:
    return status.st_mode & 0o500 == 0o500


def _copy_file(name: str, level: _Level, found: os.stat_result, links: Links) -> None:
    known = str(found.st_ino)
    if found.st_nlink > 1:
        try:
            os.link(known, name, src_dir_fd=links(), dst_dir_fd=level.target)
            return
        except FileNotFoundError:
            pass  # this is its first name
    source = open_forced(name, level.source, found, os.O_RDONLY)
    try:
        flags = _FILE | os.O_WRONLY | os.O_CREAT | os.O_EXCL
        target = os.open(name, flags, 0o600, dir_fd=level.target)
        try:
            # Without the holes: a file may claim to be larger than any memory.
            os.truncate(target, found.st_size)
            for position, data in DataFinder().pieces(source, found.st_size):
                write_at(target, data, position)
            restore_metadata(target, modes.S_IMODE(found.st_mode), _get_times(found))
        finally:
            os.close(target)
    finally:
        os.close(source)
    if found.st_nlink > 1:
        os.link(name, known, src_dir_fd=level.target, dst_dir_fd=links())


def _get_times(status: os.stat_result) -> "Tuple[int, int]":
    return status.st_atime_ns, status.st_mtime_ns
