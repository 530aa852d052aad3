"""Where workspaces are kept when no mount can hide them: in memory that only init has.

In a container init and the code are one user, so no directory is out of the code's reach. What is
not at /workspace is therefore packed into memory without a name, of which init alone has
descriptors. An archive never changes: copies of it are the same one.

To exchange what is at /workspace takes as long as to copy it. A child does it, and init waits:
nothing else may go on meanwhile. All that is there is packed, then removed, then the other is
unpacked; so whatever fails, there is a whole archive of each, or the files themselves.
"""

import contextlib
import errno
import os
import signal
import stat as modes
import sys
from typing import IO, Callable, Dict, Iterator, List, Optional, Tuple

from . import holes, removal, treepack
from .store import CURRENT, REMOVE_TIMEOUT, Store, Then

ATTEMPTS = 3  # the code may kill a child of init's
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Shelf:
    """One archive. In two pieces, because there may be a limit to the size of a file, by which one
    could not hold a full workspace and the names of its files."""

    def __init__(self) -> None:
        self._records = _memory("records")
        try:
            self._contents = _memory("contents")
        except OSError:
            os.close(self._records)
            raise

    @property
    def size(self) -> int:
        return os.fstat(self._records).st_size + os.fstat(self._contents).st_size

    @contextlib.contextmanager
    def opened(self, mode: str) -> "Iterator[Tuple[IO[bytes], IO[bytes]]]":
        """To be written or read from the beginning."""
        for fd in (self._records, self._contents):
            if mode == "wb":
                os.truncate(fd, 0)  # a child that was killed may have begun it
            os.lseek(fd, 0, os.SEEK_SET)  # the position is one for init and all children
        with _file(self._records, mode) as records, _file(self._contents, mode) as contents:
            yield records, contents

    def close(self) -> None:
        os.close(self._records)
        os.close(self._contents)


class Shelves(Store):
    def __init__(self, workspace: str, size: int, fork: "Callable[[], int]") -> None:
        self._size = size  # of all archives and what is at /workspace, in bytes
        self._shelves: Dict[str, Shelf] = {}
        self._leaving = ""  # for what is at /workspace still, and shall not stay
        super().__init__(-1, fork)
        self._directory = os.open(workspace, _DIRECTORY)

    def make(self) -> str:
        self._numbers += 1
        name = f"w{self._numbers}"
        self._shelves[name] = Shelf()
        return name

    def copy(self, source: str, target: str, then: Then) -> None:
        """Of CURRENT, whose archive must find room beside it; or of another, for which it is
        enough that there will be room to unpack it, when nothing else is at /workspace."""
        room = self._size - sum(shelf.size for shelf in set(self._shelves.values()))
        if source == CURRENT:
            shelf, status = self._shelves[target], os.fstat(self._directory)
            self._in_child(lambda: self._pack(shelf, status, room // 2), then, self._copying)
        elif self._shelves[source].size > room:
            then(errno.ENOSPC)
        else:
            self._drop(target)
            self._shelves[target] = self._shelves[source]
            then(0)

    def set_aside(self) -> str:
        """Nothing is done yet: it may be removed before something else is brought."""
        self._leaving, self._spare = self._spare or self.make(), None
        return self._leaving

    def bring(self, name: str) -> None:
        """If it fails, what was set aside is at /workspace as before."""
        leaving, self._leaving = self._leaving, ""
        packed = False
        try:
            if leaving:
                status = os.fstat(self._directory)
                self._wait_for(lambda: self._pack(self._shelves[leaving], status, sys.maxsize))
                packed = True
            self._wait_for(lambda: self._unpack(self._shelves[name]))
        except OSError:
            if packed:
                self._wait_for(lambda: self._unpack(self._shelves[leaving]))
            if leaving:
                self._drop(leaving)
            raise
        self._drop(name)
        if self._spare is None:
            self._spare = self.make()

    def remove(self, name: str, then: "Optional[Then]" = None) -> None:
        if name == self._leaving:
            self._leaving = ""
        self._drop(name)
        if then is not None:
            then(0)

    def _drop(self, name: str) -> None:
        shelf = self._shelves.pop(name)
        if shelf not in self._shelves.values():
            shelf.close()

    # -- what children do ---------------------------------------------------------------------

    def _pack(self, shelf: Shelf, status: os.stat_result, room: int) -> None:
        mode = modes.S_IMODE(status.st_mode)
        self._open_up()
        try:
            with shelf.opened("wb") as (records, contents):
                treepack.Packer(records, contents, room).pack(self._directory, status)
        finally:
            if mode & 0o700 != 0o700:
                os.chmod(self._directory, mode)

    def _unpack(self, shelf: Shelf) -> None:
        """Instead of whatever is there: it can be done again, wherever it was broken off."""
        self._open_up()
        for name in os.listdir(self._directory):
            with contextlib.suppress(FileNotFoundError):
                removal.remove(name, self._directory, REMOVE_TIMEOUT)
        with shelf.opened("rb") as (records, contents):
            treepack.Unpacker(records, contents).unpack(self._directory)

    def _open_up(self) -> None:
        """Whatever the code has made of its mode."""
        if os.fstat(self._directory).st_mode & 0o700 != 0o700:
            os.chmod(self._directory, 0o700)

    def _wait_for(self, work: "Callable[[], None]") -> None:
        """By a child, which may be killed and take up memory as init may not. Without one, init
        does it: what is under way must come to an end, also where the code has used up all
        processes."""
        ended: List[int] = []
        for _ in range(ATTEMPTS):
            self._in_child(work, ended.append)
            if ended:
                work()
                return
            pid = next(reversed(self._children))
            self.on_exit(pid, _end_of(pid))
            error = ended.pop()
            if error != errno.EIO:
                break
        if error:
            raise OSError(error, os.strerror(error))


def _end_of(pid: int) -> int:
    """Of a child. If somebody stops it, it is told to go on: init waits for it."""
    while True:
        _, status = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return status
        os.kill(pid, signal.SIGCONT)


def _file(fd: int, mode: str) -> "IO[bytes]":
    return open(fd, mode, holes.PIECE, closefd=False)


def _memory(name: str) -> int:
    """Without a name in any directory, and closed in what init starts."""
    create = getattr(os, "memfd_create", None)
    if create is None:
        raise OSError(errno.ENOSYS, "this Python has no memfd_create")
    return int(create(name, os.MFD_CLOEXEC))
