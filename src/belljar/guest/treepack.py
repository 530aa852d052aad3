"""Trees that somebody hostile has made, as two rows of bytes and back: all that treecopy keeps.

`records` tells of each thing, in the order of a walk: its kind, mode, times and name; of a file
also where in it there are data. `contents` has the data, one after another, without the holes.
"""

import contextlib
import errno
import os
import stat as modes
import struct
from typing import IO, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from . import holes
from .descent import Descent

_DIRECTORY, _UP, _FILE, _LINK, _LAST_LINK, _SYMLINK, _FIFO = (
    b"d",
    b"u",
    b"f",
    b"l",
    b"L",
    b"s",
    b"p",
)
# Kind, mode, bytes of the name, number among the files with several names, size, two times.
_RECORD = struct.Struct("<cHHIQqIqI")
_EXTENT = struct.Struct("<QI")  # where in the file, and how many bytes of the contents; 0: no more
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_SECOND = 1_000_000_000


class Record(NamedTuple):
    kind: bytes
    mode: int
    name: bytes
    link: int
    size: int  # of a symbolic link: the bytes of its target, which follow the name
    times: "Tuple[int, int]"  # last access and change, in nanoseconds


class _Level(NamedTuple):
    names: "Iterator[str]"
    name: str
    status: os.stat_result


# -- there ------------------------------------------------------------------------------------


class Packer:
    def __init__(self, records: IO[bytes], contents: IO[bytes], room: int) -> None:
        self._records = records
        self._contents = contents
        self._room = room  # bytes that both together may still take
        self._finder = holes.Finder()
        # Device and inode -> its number, and how many names are still to come.
        self._linked: Dict[Tuple[int, int], List[int]] = {}
        self._links = 0

    def pack(self, top: int, status: os.stat_result) -> None:
        """All that is in a directory. Its own mode and times are those of `status`."""
        self._put(_DIRECTORY, "", status)
        way = Descent(top)
        levels = [_Level(iter(os.listdir(top)), "", status)]
        try:
            while True:
                name = next(levels[-1].names, None)
                if name is not None:
                    with contextlib.suppress(FileNotFoundError):  # removed by what runs on
                        self._pack_entry(name, way, levels)
                    continue
                self._put(_UP)
                if len(levels) == 1:
                    return
                _leave(way, levels.pop())
        finally:
            with contextlib.suppress(OSError):  # else it is told already what has happened
                while len(levels) > 1:
                    _leave(way, levels.pop())
            way.close()

    def _pack_entry(self, name: str, way: Descent, levels: List[_Level]) -> None:
        found = os.stat(name, dir_fd=way.here, follow_symlinks=False)
        if modes.S_ISDIR(found.st_mode):
            levels.append(_Level(iter(_enter(name, way, found)), name, found))
            self._put(_DIRECTORY, name, found)
        elif modes.S_ISREG(found.st_mode):
            self._pack_file(name, way.here, found)
        elif modes.S_ISLNK(found.st_mode):
            target = os.fsencode(os.readlink(name, dir_fd=way.here))
            self._put(_SYMLINK, name, found, size=len(target), more=target)
        elif modes.S_ISFIFO(found.st_mode):
            self._put(_FIFO, name, found)
        # A socket is nothing without the process that listens to it.

    def _pack_file(self, name: str, directory: int, found: os.stat_result) -> None:
        link = 0
        if found.st_nlink > 1:
            known = self._linked.get((found.st_dev, found.st_ino))
            if known is not None:
                self._pack_link(name, found, known)
                return
            link = self._links = self._links + 1
        source = open_to_read(name, directory, found)
        try:
            self._put(_FILE, name, found, size=found.st_size, link=link)
            for position, data in self._finder.pieces(source, found.st_size):
                self._write(self._records, _EXTENT.pack(position, len(data)))
                self._write(self._contents, data)
            self._write(self._records, _EXTENT.pack(0, 0))
        finally:
            os.close(source)
        if link:
            self._linked[found.st_dev, found.st_ino] = [link, found.st_nlink - 1]

    def _pack_link(self, name: str, found: os.stat_result, known: List[int]) -> None:
        known[1] -= 1
        if not known[1]:
            del self._linked[found.st_dev, found.st_ino]
        self._put(_LINK if known[1] else _LAST_LINK, name, found, link=known[0])

    def _put(
        self,
        kind: bytes,
        name: str = "",
        status: "Optional[os.stat_result]" = None,
        size: int = 0,
        link: int = 0,
        more: bytes = b"",
    ) -> None:
        mode, times = 0, (0, 0, 0, 0)
        if status is not None:
            mode = modes.S_IMODE(status.st_mode)
            times = (
                *divmod(status.st_atime_ns, _SECOND),
                *divmod(status.st_mtime_ns, _SECOND),
            )
        encoded = os.fsencode(name)
        record = _RECORD.pack(kind, mode, len(encoded), link, size, *times)
        self._write(self._records, record + encoded + more)

    def _write(self, file: IO[bytes], data: bytes) -> None:
        self._room -= len(data)
        if self._room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        file.write(data)


def _enter(name: str, way: Descent, found: os.stat_result) -> List[str]:
    """Also where its owner has forbidden himself to go. What is there."""
    if not _open_to_owner(found):
        os.chmod(name, modes.S_IMODE(found.st_mode) | 0o700, dir_fd=way.here)
    way.enter(name)
    try:
        return os.listdir(way.here)
    except FileNotFoundError:
        return []  # removed meanwhile


def _leave(way: Descent, level: _Level) -> None:
    os.close(way.leave())
    if not _open_to_owner(level.status):
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            os.chmod(level.name, modes.S_IMODE(level.status.st_mode), dir_fd=way.here)


def _open_to_owner(status: os.stat_result) -> bool:
    return status.st_mode & 0o500 == 0o500


def open_to_read(name: str, directory: int, found: os.stat_result) -> int:
    """Also what its owner has forbidden himself to read."""
    try:
        return os.open(name, _OPEN | os.O_RDONLY, dir_fd=directory)
    except PermissionError:
        mode = modes.S_IMODE(found.st_mode)
        os.chmod(name, mode | 0o600, dir_fd=directory)
        try:
            return os.open(name, _OPEN | os.O_RDONLY, dir_fd=directory)
        finally:
            os.chmod(name, mode, dir_fd=directory)


# -- and back -----------------------------------------------------------------------------------


class Unpacker:
    def __init__(self, records: IO[bytes], contents: IO[bytes]) -> None:
        self._records = records
        self._contents = contents
        # A file with several names has one more at the top, until its last name takes that one's
        # place: so there are never more names than in the end, and there may be room for no more.
        self._unused = f".belljar-link-{os.urandom(8).hex()}-"
        self._held: Set[int] = set()

    def unpack(self, top: int) -> None:
        """Into a directory that is empty, and gets its mode and times too."""
        way = Descent(top)
        levels: List[Record] = []
        try:
            while True:
                record = self._take()
                if record.kind == _DIRECTORY:
                    if levels:
                        os.mkdir(record.name, 0o700, dir_fd=way.here)
                        way.enter(record.name)
                    levels.append(record)
                elif record.kind != _UP:
                    self._unpack_entry(record, way.here, top)
                elif len(levels) > 1:
                    _finish(way.leave(), levels.pop())
                else:
                    break
        finally:
            way.close()
        for link in self._held:  # of which some names were removed while it was packed
            os.unlink(self._unused + str(link), dir_fd=top)
        if os.fstat(top).st_uid == os.geteuid():  # else it is the engine's, and as it ever was
            _dress(top, levels[0])

    def _unpack_entry(self, record: Record, directory: int, top: int) -> None:
        name, held = record.name, os.fsencode(self._unused + str(record.link))
        if record.kind == _FILE:
            self._unpack_file(record, directory)
            if record.link:
                os.link(name, held, src_dir_fd=directory, dst_dir_fd=top, follow_symlinks=False)
                self._held.add(record.link)
        elif record.kind == _LINK:
            os.link(held, name, src_dir_fd=top, dst_dir_fd=directory, follow_symlinks=False)
        elif record.kind == _LAST_LINK:
            os.rename(held, name, src_dir_fd=top, dst_dir_fd=directory)
            self._held.discard(record.link)
        else:
            if record.kind == _SYMLINK:
                os.symlink(_exactly(self._records, record.size), name, dir_fd=directory)
            else:
                os.mkfifo(name, 0o600, dir_fd=directory)
                os.chmod(name, record.mode, dir_fd=directory)
            os.utime(name, ns=record.times, dir_fd=directory, follow_symlinks=False)

    def _unpack_file(self, record: Record, directory: int) -> None:
        flags = _OPEN | os.O_WRONLY | os.O_CREAT | os.O_EXCL
        target = os.open(record.name, flags, 0o600, dir_fd=directory)
        try:
            os.truncate(target, record.size)
            while True:
                position, length = _EXTENT.unpack(_exactly(self._records, _EXTENT.size))
                if not length:
                    break
                data = memoryview(_exactly(self._contents, length))
                while data:
                    written = os.pwrite(target, data, position)
                    data, position = data[written:], position + written
            _dress(target, record)
        finally:
            os.close(target)

    def _take(self) -> Record:
        kind, mode, length, link, size, *times = _RECORD.unpack(
            _exactly(self._records, _RECORD.size)
        )
        name = _exactly(self._records, length)
        accessed, changed = times[0] * _SECOND + times[1], times[2] * _SECOND + times[3]
        return Record(kind, mode, name, link, size, (accessed, changed))


def _finish(directory: int, record: Record) -> None:
    try:
        _dress(directory, record)
    finally:
        os.close(directory)


def _dress(fd: int, record: Record) -> None:
    os.fchmod(fd, record.mode)
    os.utime(fd, ns=record.times)


def _exactly(file: IO[bytes], size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise OSError(errno.EIO, "the archive is not whole")
    return data
