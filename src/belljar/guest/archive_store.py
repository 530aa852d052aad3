"""Where workspaces are kept when no mount can hide them: in memory that only init has.

In a container init and the code are one user, so no directory is out of the code's reach. What is
not at /workspace is therefore packed into memory without a name, of which init alone has
descriptors. An archive never changes: copies of it are the same one.

To exchange what is at /workspace takes as long as to copy it, and init does nothing else meanwhile:
nothing else may go on, and nobody can kill init in the middle, as the code could kill a child.
Memory is limited: what goes is cut off while it is packed, and what comes while it is unpacked.
"""

import contextlib
import errno
import os
import stat as modes
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

from ..protocol import removal
from . import memfd_segments, tree_pack, tree_unpack
from .workspace_store import CURRENT, REMOVE_TIMEOUT, Store, Then

VOLUMES = 16  # for as much as all of them may hold
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Broken(Exception):
    """What was at /workspace is packed, and what should be there is not: nothing can go on."""


class Shelf:
    """One archive. `volume`: the bytes that may be freed at once."""

    def __init__(self, volume: int) -> None:
        self._volume = volume
        self._contents: List[int] = []
        self._records = memfd_segments.memory("records")

    @property
    def size(self) -> int:
        return sum(os.fstat(fd).st_size for fd in (self._records, *self._contents))

    def reserve(self, size: int) -> None:
        """What a child of init's may fill: it cannot give init descriptors of its own."""
        while (len(self._contents) - 1) * (self._volume - memfd_segments.PIECE) < size:
            self._contents.append(self._add())

    def _add(self) -> int:
        return memfd_segments.memory("contents")

    def trim(self) -> None:
        """What was reserved and not used."""
        while self._contents and not os.fstat(self._contents[-1]).st_size:
            os.close(self._contents.pop())

    def pack(self, top: int, status: os.stat_result, room: int, move: bool = False) -> None:
        contents = memfd_segments.Writer(self._contents, self._volume, self._add if move else None)
        try:
            with open(self._records, "wb", memfd_segments.PIECE, closefd=False) as records:
                tree_pack.Packer(records, contents, room, move).pack(top, status)
        finally:
            contents.close()
            memfd_segments.seal(self._records)

    def unpack(self, top: int, consume: bool = False) -> None:
        contents = memfd_segments.Reader(self._contents, consume)
        tree_unpack.Unpacker(self._records, contents).unpack(top)

    def close(self) -> None:
        for fd in (self._records, *self._contents):
            os.close(fd)


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
        self._shelves[name] = Shelf(max(self._size // VOLUMES, memfd_segments.MIN_VOLUME))
        return name

    def copy(self, source: str, target: str, then: Then) -> None:
        """Of CURRENT, whose archive must find room beside it; or of another, for which it is
        enough that there will be room to unpack it, when nothing else is at /workspace."""
        room = self._size - sum(shelf.size for shelf in set(self._shelves.values()))
        if source == CURRENT:
            self._copy_current(self._shelves[target], max(room, 0) // 2, then)
        elif self._shelves[source].size > room:
            then(errno.ENOSPC)
        else:
            self._drop(target)
            self._shelves[target] = self._shelves[source]
            then(0)

    def _copy_current(self, shelf: Shelf, room: int, then: Then) -> None:
        status = os.fstat(self._directory)

        def done(error: int) -> None:
            shelf.trim()
            then(error)

        try:
            shelf.reserve(room)
        except OSError as error:
            then(error.errno or errno.EIO)
        else:
            self._in_child(lambda: self._pack(shelf, status, room), done, self._copying)

    def _pack(self, shelf: Shelf, status: os.stat_result, room: int) -> None:
        mode = modes.S_IMODE(status.st_mode)
        self._open_up()
        try:
            shelf.pack(self._directory, status, room)
        finally:
            if mode & 0o700 != 0o700:
                os.chmod(self._directory, mode)

    def set_aside(self) -> str:
        """Nothing is done yet: it may be removed before something else is brought."""
        self._leaving, self._spare = self._spare or self.make(), None
        return self._leaving

    def bring(self, name: str) -> None:
        """If it fails, what was set aside is at /workspace as before, and `name` is kept."""
        leaving, self._leaving = self._leaving, ""
        shelf = self._shelves[name]
        if leaving:
            self._move_to(leaving)
        alone = list(self._shelves.values()).count(shelf) == 1
        try:
            self._empty()
            shelf.unpack(self._directory, consume=bool(leaving) and alone)
        except OSError as error:
            if leaving:
                raise Broken(f"a workspace could not be brought back: {error}") from error
            raise
        self._drop(name)
        if self._spare is None:
            self._spare = self.make()

    def _move_to(self, name: str) -> None:
        status = os.fstat(self._directory)
        self._open_up()
        try:
            self._shelves[name].pack(self._directory, status, sys.maxsize, move=True)
        except OSError:
            self._move_back(name)
            raise

    def _move_back(self, name: str) -> None:
        try:
            self._shelves[name].unpack(self._directory)
        except OSError as error:
            raise Broken(f"a workspace could not be packed, nor brought back: {error}") from error
        self._drop(name)

    def _empty(self) -> None:
        self._open_up()
        for name in os.listdir(self._directory):
            with contextlib.suppress(FileNotFoundError):
                removal.remove(name, self._directory, REMOVE_TIMEOUT)

    def _open_up(self) -> None:
        """Whatever the code has made of its mode."""
        if os.fstat(self._directory).st_mode & 0o700 != 0o700:
            os.chmod(self._directory, 0o700)

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


def choose(setup: Dict[str, Any]) -> "Tuple[Optional[Store], str]":
    """Where a guest keeps workspaces, or why nowhere."""
    fork = setup.get("fork", os.fork)
    if "store" in setup:
        return Store(setup["store"], fork), ""
    if "shelves" not in setup:
        return None, "there is no place for them here"
    try:
        return Shelves(setup["workspace"], setup["shelves"], fork), ""
    except OSError as error:
        return None, f"no memory can be had for them: {error.strerror}"
