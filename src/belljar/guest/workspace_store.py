"""Where workspaces are kept that are not at /workspace now: those of checkpoints and branches.

All lie in one file system, beside each other, and are moved by renaming. Only init can reach those
that are not at /workspace: what is mounted there is the directory CURRENT, and hides the rest.
Nothing here may block init for long: copies and removals are made by children of its.
"""

import contextlib
import errno
import os
import signal
import stat as modes
from typing import Callable, Dict, Iterator, List, Optional, Tuple

from ..protocol import removal
from . import tree_copy

CURRENT = "current"
LINKS = "-links"  # beside a copy in the making: the files in it that have several names
REMOVE_TIMEOUT = 60.0  # seconds
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Then = Callable[[int], None]  # gets an errno, 0 for success


class Store:
    def __init__(self, directory: int, fork: "Callable[[], int]") -> None:
        self._directory = directory
        self._fork = fork
        self._children: Dict[int, Then] = {}
        self._copying: List[int] = []
        self._unwanted: List[str] = []  # for whose removal there was no process
        self._numbers = 0
        self.when_reaped: "Callable[[], None]" = _nothing
        # Made now: the code may use up the last inode, and must be put aside all the same.
        self._spare: Optional[str] = self.make()

    def make(self) -> str:
        self._numbers += 1
        name = f"w{self._numbers}"
        os.mkdir(name, 0o700, dir_fd=self._directory)
        return name

    def copy(self, source: str, target: str, then: Then) -> None:
        """Into one that was made for it. `then` is called when it is done, by on_exit; at once, if
        there is nothing to copy, or no process for it."""
        if self._is_empty(source):
            self._copy(source, target)
            then(0)
        else:
            self._in_child(lambda: self._copy(source, target), then, self._copying)

    def _copy(self, source: str, target: str) -> None:
        made: List[int] = []

        def links() -> int:
            if not made:
                os.mkdir(target + LINKS, 0o700, dir_fd=self._directory)
                made.append(os.open(target + LINKS, _DIRECTORY, dir_fd=self._directory))
            return made[0]

        with self._entered(source) as (from_, status), self._entered(target) as (to, _):
            tree_copy.copy(from_, to, links)
            os.utime(to, ns=(status.st_atime_ns, status.st_mtime_ns))
        os.chmod(target, modes.S_IMODE(status.st_mode), dir_fd=self._directory)
        if made:
            self._remove(target + LINKS)

    def set_aside(self) -> str:
        """Empty CURRENT: the name of where all that was in it is now."""
        name, self._spare = self._spare or self.make(), None
        self._move(CURRENT, name)
        return name

    def bring(self, name: str) -> None:
        """All that is in another workspace into CURRENT, which is empty."""
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
            os.utime(to, ns=(status.st_atime_ns, status.st_mtime_ns))
        os.chmod(target, modes.S_IMODE(status.st_mode), dir_fd=self._directory)

    def remove(self, name: str, then: "Optional[Then]" = None) -> None:
        """Some time soon."""
        os.chmod(name, 0o700, dir_fd=self._directory)
        try:
            os.rmdir(name, dir_fd=self._directory)
        except OSError:
            on_end = then or (lambda error: self._on_removed(name, error))
            self._in_child(lambda: self._remove(name, name + LINKS), on_end)
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
        """Whoever waits for a copy waits no more: it has failed."""
        for pid in self._copying:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def on_exit(self, pid: int, status: int) -> bool:
        """Whether it was one of ours. Called by init for each child that has ended."""
        then = self._children.pop(pid, None)
        if pid in self._copying:
            self._copying.remove(pid)
        if then is not None:
            then(os.WEXITSTATUS(status) if os.WIFEXITED(status) else errno.EIO)
        elif self._unwanted:
            self.remove(self._unwanted.pop())
        self.when_reaped()
        return then is not None

    @property
    def children(self) -> List[int]:
        return list(self._children)

    def _in_child(
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
        """A workspace, open to us whatever the code has made of its mode."""
        status = os.stat(name, dir_fd=self._directory, follow_symlinks=False)
        os.chmod(name, 0o700, dir_fd=self._directory)
        fd = os.open(name, _DIRECTORY, dir_fd=self._directory)
        try:
            yield fd, status
        finally:
            os.close(fd)
            os.chmod(name, modes.S_IMODE(status.st_mode), dir_fd=self._directory)


def _move(name: str, from_: int, to: int) -> None:
    try:
        os.rename(name, name, src_dir_fd=from_, dst_dir_fd=to)
    except PermissionError:
        # A directory gets another "..", for which it must be writable.
        mode = modes.S_IMODE(os.stat(name, dir_fd=from_, follow_symlinks=False).st_mode)
        os.chmod(name, mode | 0o700, dir_fd=from_)
        os.rename(name, name, src_dir_fd=from_, dst_dir_fd=to)
        os.chmod(name, mode, dir_fd=to)


def _nothing() -> None:
    """Nobody wants to know."""
