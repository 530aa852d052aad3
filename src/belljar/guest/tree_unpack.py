"""Trees out of the archives that treepack.py makes of them."""

import contextlib
import errno
import os
from typing import List, NamedTuple, Set, Tuple

from . import tree_pack
from .memfd_segments import Reader
from .tree_walk import Descent

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
    def __init__(self, records: int, contents: Reader) -> None:
        self._records = _Backwards(records)
        self._contents = contents
        # A file with several names has one more at the top, until the last of them takes its place:
        # so there are never more names than in the end, and there may be room for no more.
        self._unused = f".belljar-link-{os.urandom(8).hex()}-"
        self._held: Set[int] = set()

    def unpack(self, top: int) -> None:
        """Into a directory that is empty, or has what could not be packed. It gets its mode and
        times too."""
        way = Descent(top)
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
                    _finish(way.leave(), levels.pop())
        finally:
            way.close()
        if os.fstat(top).st_uid == os.geteuid():  # else it is the engine's, and as it ever was
            _dress(top, levels[0])

    def _unpack_entry(self, record: Record, directory: int, top: int) -> None:
        name, held = record.name, os.fsencode(self._unused + str(record.link))
        if record.kind == tree_pack.FILE:
            if record.link in self._held:
                os.rename(held, name, src_dir_fd=top, dst_dir_fd=directory)
            self._unpack_file(record, directory)
        elif record.kind == tree_pack.LINK:
            if record.link not in self._held:
                os.close(_create(name, directory))
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
        target = _create(record.name, directory)
        try:
            os.truncate(target, record.size)
            for _ in range(record.pieces):
                position, length = tree_pack.PIECE.unpack(self._records.take(tree_pack.PIECE.size))
                data = memoryview(self._contents.take(length))
                while data:
                    written = os.pwrite(target, data, position)
                    data, position = data[written:], position + written
            _dress(target, record)
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


def _create(name: bytes, directory: int) -> int:
    """It is there already if it was moved in part, and perhaps not open to its owner."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(name, flags, 0o600, dir_fd=directory)
    except PermissionError:
        os.chmod(name, 0o600, dir_fd=directory)
        return os.open(name, flags, 0o600, dir_fd=directory)


def _finish(directory: int, record: Record) -> None:
    try:
        _dress(directory, record)
    finally:
        os.close(directory)


def _dress(fd: int, record: Record) -> None:
    os.fchmod(fd, record.mode)
    os.utime(fd, ns=record.times)
