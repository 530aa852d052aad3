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
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from ..protocol import removal
from . import tree_pack
from .tree_pack import SegmentReader, TreeWalk
from .workspace_store import CURRENT, REMOVE_TIMEOUT, Store, Then

SEGMENTS = 16  # for as much as all of them may hold
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class WorkspaceLost(Exception):
    """What was at /workspace is packed, and what should be there is not: nothing can go on."""


class Archive:
    """One archive. `volume`: the bytes that may be freed at once."""

    def __init__(self, volume: int) -> None:
        self._volume = volume
        self._contents: List[int] = []
        self._records = tree_pack.create_memfd("records")

    @property
    def size(self) -> int:
        return sum(os.fstat(fd).st_size for fd in (self._records, *self._contents))

    def reserve(self, size: int) -> None:
        """What a child of init's may fill: it cannot give init descriptors of its own."""
        while (len(self._contents) - 1) * (self._volume - tree_pack.MAX_PIECE) < size:
            self._contents.append(self._add())

    def _add(self) -> int:
        return tree_pack.create_memfd("contents")

    def trim(self) -> None:
        """What was reserved and not used."""
        while self._contents and not os.fstat(self._contents[-1]).st_size:
            os.close(self._contents.pop())

    def pack(self, top: int, status: os.stat_result, room: int, move: bool = False) -> None:
        contents = tree_pack.SegmentWriter(
            self._contents, self._volume, self._add if move else None
        )
        try:
            with open(self._records, "wb", tree_pack.MAX_PIECE, closefd=False) as records:
                tree_pack.Packer(records, contents, room, move).pack(top, status)
        finally:
            contents.close()
            tree_pack.seal_memfd(self._records)

    def unpack(self, top: int, consume: bool = False) -> None:
        contents = tree_pack.SegmentReader(self._contents, consume)
        Unpacker(self._records, contents).unpack(top)

    def close(self) -> None:
        for fd in (self._records, *self._contents):
            os.close(fd)


class ArchiveStore(Store):
    def __init__(self, workspace: str, size: int, fork: "Callable[[], int]") -> None:
        self._size = size  # of all archives and what is at /workspace, in bytes
        self._shelves: Dict[str, Archive] = {}
        self._leaving = ""  # for what is at /workspace still, and shall not stay
        super().__init__(-1, fork)
        self._directory = os.open(workspace, _DIRECTORY)

    def make(self) -> str:
        self._numbers += 1
        name = f"w{self._numbers}"
        self._shelves[name] = Archive(max(self._size // SEGMENTS, tree_pack.MIN_SEGMENT))
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

    def _copy_current(self, shelf: Archive, room: int, then: Then) -> None:
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

    def _pack(self, shelf: Archive, status: os.stat_result, room: int) -> None:
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
                raise WorkspaceLost(f"a workspace could not be brought back: {error}") from error
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
            raise WorkspaceLost(
                f"a workspace could not be packed, nor brought back: {error}"
            ) from error
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


def choose_store(setup: Dict[str, Any]) -> "Tuple[Optional[Store], str]":
    """Where this guest keeps workspaces; if nowhere, None and the reason."""
    fork = setup.get("fork", os.fork)
    try:
        if "store" in setup:
            return Store(setup["store"], fork), ""
        if "archive_size" in setup:
            return ArchiveStore(setup["workspace"], setup["archive_size"], fork), ""
    except OSError as error:
        return None, f"there is no room for workspaces: {error.strerror}"
    return None, "this backend has no place for workspaces"


_WINDOW = 65536  # bytes


class Record(NamedTuple):
    kind: bytes
    mode: int
    name: bytes
    link: int
    pieces: int
    size: int  # of a symbolic link: the bytes of its target, which are before the name
    times: "Tuple[int, int]"  # last access and change, in nanoseconds


class Unpacker:
    def __init__(self, records: int, contents: SegmentReader) -> None:
        self._records = _Backwards(records)
        self._contents = contents
        # A file with several names has one more at the top, until the last of them takes its place:
        # so there are never more names than in the end, and there may be room for no more.
        self._unused = f".belljar-link-{os.urandom(8).hex()}-"
        self._held: Set[int] = set()

    def unpack(self, top: int) -> None:
        """Into a directory that is empty, or has what could not be packed. It gets its mode and
        times too."""
        way = TreeWalk(top)
        levels: List[Record] = []
        try:
            while not levels or not self._records.empty:
                record = self._take()
                if not levels and record.kind != tree_pack.DIRECTORY:
                    raise _not_whole()
                if record.kind == tree_pack.DIRECTORY:
                    if levels:
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(record.name, 0o700, dir_fd=way.here)
                        way.enter(record.name)
                    levels.append(record)
                elif record.kind != tree_pack.BEGINNING:
                    self._unpack_entry(record, way.here, top)
                elif len(levels) > 1:
                    _finish_directory(way.leave(), levels.pop())
        finally:
            way.close()
        if os.fstat(top).st_uid == os.geteuid():  # else it is the engine's, and as it ever was
            _restore_metadata(top, levels[0])

    def _unpack_entry(self, record: Record, directory: int, top: int) -> None:
        name, held = record.name, os.fsencode(self._unused + str(record.link))
        if record.kind == tree_pack.FILE:
            if record.link in self._held:
                os.rename(held, name, src_dir_fd=top, dst_dir_fd=directory)
            self._unpack_file(record, directory)
        elif record.kind == tree_pack.LINK:
            if record.link not in self._held:
                os.close(_create_file(name, directory))
                os.link(name, held, src_dir_fd=directory, dst_dir_fd=top, follow_symlinks=False)
                self._held.add(record.link)
            else:
                os.link(held, name, src_dir_fd=top, dst_dir_fd=directory, follow_symlinks=False)
        elif record.kind == tree_pack.SYMLINK:
            os.symlink(self._records.take(record.size), name, dir_fd=directory)
            os.utime(name, ns=record.times, dir_fd=directory, follow_symlinks=False)
        elif record.kind == tree_pack.FIFO:
            os.mkfifo(name, 0o600, dir_fd=directory)
            os.chmod(name, record.mode, dir_fd=directory)
            os.utime(name, ns=record.times, dir_fd=directory, follow_symlinks=False)
        else:
            raise _not_whole()

    def _unpack_file(self, record: Record, directory: int) -> None:
        target = _create_file(record.name, directory)
        try:
            os.truncate(target, record.size)
            for _ in range(record.pieces):
                position, length = tree_pack.PIECE.unpack(self._records.take(tree_pack.PIECE.size))
                data = memoryview(self._contents.take(length))
                while data:
                    written = os.pwrite(target, data, position)
                    data, position = data[written:], position + written
            _restore_metadata(target, record)
        finally:
            os.close(target)

    def _take(self) -> Record:
        kind, mode, length, link, pieces, size, *times = tree_pack.RECORD.unpack(
            self._records.take(tree_pack.RECORD.size)
        )
        accessed, changed = (
            times[0] * tree_pack.SECOND + times[1],
            times[2] * tree_pack.SECOND + times[3],
        )
        name = self._records.take(length)
        if b"/" in name or name in (b".", b".."):
            raise OSError(errno.EIO, "the archive has a name that leads elsewhere")
        return Record(kind, mode, name, link, pieces, size, (accessed, changed))


class _Backwards:
    """Reads a file from its end to its beginning."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._before = os.fstat(fd).st_size  # bytes that were not read yet
        self._window = b""
        self._end = 0  # of what is in the window and was not taken yet

    @property
    def empty(self) -> bool:
        return not self._before and not self._end

    def take(self, size: int) -> bytes:
        if size > self._end:
            start = max(self._before - max(size, _WINDOW), 0)
            more = os.pread(self._fd, self._before - start, start)
            self._window = more + self._window[: self._end]
            self._end = len(self._window)
            self._before = start
        if size > self._end:
            raise _not_whole()
        self._end -= size
        return self._window[self._end : self._end + size]


def _not_whole() -> OSError:
    return OSError(errno.EIO, "the archive is not whole")


def _create_file(name: bytes, directory: int) -> int:
    """It is there already if it was moved in part, and perhaps not open to its owner."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(name, flags, 0o600, dir_fd=directory)
    except PermissionError:
        os.chmod(name, 0o600, dir_fd=directory)
        return os.open(name, flags, 0o600, dir_fd=directory)


def _finish_directory(directory: int, record: Record) -> None:
    try:
        _restore_metadata(directory, record)
    finally:
        os.close(directory)


def _restore_metadata(fd: int, record: Record) -> None:
    os.fchmod(fd, record.mode)
    os.utime(fd, ns=record.times)
