"""Pack a directory tree that hostile code has made into two byte streams.

`records` describes each entry in the order of a walk: kind, mode, times and name, and for a file
where its data are. `contents` has the data of all files, without the holes.

Both are read from the end (archive_store.py). So segments can be freed while they are unpacked, as
files are truncated while they are packed: neither takes much more room than the tree did.

The streams are memfds in segments. Each segment is sealed when it is full, because not every kernel
keeps the code from opening init's descriptors (gVisor does not): the code may read its own files
there, but must not change them.
"""

import contextlib
import errno
import fcntl
import io
import os
import stat as modes
import struct
from collections import deque
from typing import IO, Callable, Deque, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

from ..protocol import buffers, removal

DIRECTORY, BEGINNING = b"d", b"b"  # the record of a directory follows those of its entries
FILE, LINK = b"f", b"l"  # the record of a file follows its pieces; LINK: another name of a file
SYMLINK, FIFO = b"s", b"p"
# Kind, mode, bytes of the name, number of the file among those with several names, pieces of
# data, size, two times. The name precedes it.
RECORD = struct.Struct("<cHHIIQqIqI")
PIECE = struct.Struct("<QI")  # position in the file, and how many bytes of the contents
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
SECOND = 1_000_000_000

MIN_SEGMENT = 16 * 1024 * 1024  # bytes
MAX_PIECE = 1024 * 1024  # bytes written at once; a piece is in one segment

PAGE = 4096
MAX_SEARCH = 16 * 1024 * 1024 * 1024  # bytes to search where the kernel reports no holes
_ZEROS = bytes(PAGE)

MAX_OPEN = 64  # descriptors


def create_memfd(name: str) -> int:
    """Programs that init starts do not inherit it."""
    create = getattr(os, "memfd_create", None)
    if create is None:
        raise OSError(errno.ENOSYS, "this Python has no memfd_create")
    return int(create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))


def seal_memfd(fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, buffers.SEALS | fcntl.F_SEAL_SEAL)


class SegmentWriter:
    """Writes into the given segments, then into those that `more` makes. Without `more`, the last
    segment takes the rest."""

    def __init__(
        self, segments: List[int], size: int, more: "Optional[Callable[[], int]]" = None
    ) -> None:
        self._segments = segments
        self._size = size
        self._more = more
        self._next = 0
        self._file: Optional[io.BufferedWriter] = None
        self._written = 0

    def write(self, data: bytes) -> None:
        if self._file is None or self._written + len(data) > self._size:
            self._next_segment()
        assert self._file is not None
        self._file.write(data)
        self._written += len(data)

    def _next_segment(self) -> None:
        if self._next == len(self._segments):
            if self._more is None:
                return
            self._segments.append(self._more())
        self.close()
        raw = io.FileIO(self._segments[self._next], "wb", closefd=False)
        self._file = io.BufferedWriter(raw, MAX_PIECE)
        self._written = 0
        self._next += 1

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            file.close()
            seal_memfd(self._segments[self._next - 1])


class SegmentReader:
    """Reads from the last piece to the first. `consume`: close segments that have been read, and
    remove them from the list."""

    def __init__(self, segments: List[int], consume: bool) -> None:
        self._segments = segments
        self._consume = consume
        self._left = 0  # bytes of the segment that are not taken yet
        self._next = len(segments)

    def take(self, size: int) -> bytes:
        while size and not self._left:
            if self._consume and self._next < len(self._segments):
                os.close(self._segments.pop())
            if not self._next:
                raise OSError(errno.EIO, "the archive is incomplete")
            self._next -= 1
            self._left = os.fstat(self._segments[self._next]).st_size
        self._left -= size
        if self._left < 0:
            raise OSError(errno.EIO, "the archive is incomplete")
        return os.pread(self._segments[self._next], size, self._left)


class TreeWalk:
    """The way down into a tree, which may be thousands of directories deep. Only the last part is
    held open. A directory above is opened again by "..", and its identity is checked, because the
    code may have moved a directory meanwhile."""

    def __init__(self, top: int) -> None:
        self._open: Deque[int] = deque()
        self._way: List[Tuple[int, int]] = []
        self.enter(".", top)

    @property
    def here(self) -> int:
        return self._open[-1]

    def enter(self, name: Union[str, bytes], below: int = -1) -> None:
        fd = os.open(name, removal.DIRECTORY, dir_fd=self.here if below < 0 else below)
        self._open.append(fd)
        self._way.append(_identity(fd))
        if len(self._open) > MAX_OPEN:
            os.close(self._open.popleft())

    def leave(self) -> int:
        """Go up. The caller owns the returned descriptor of the directory that was left."""
        if len(self._open) == 1:
            above = os.open("..", removal.DIRECTORY, dir_fd=self.here)
            self._open.appendleft(above)
            if _identity(above) != self._way[-2]:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        self._way.pop()
        return self._open.pop()

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop())


def _identity(fd: int) -> "Tuple[int, int]":
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


class DataFinder:
    def __init__(self) -> None:
        self._look = MAX_SEARCH

    def pieces(self, source: int, size: int) -> "Iterator[Tuple[int, bytes]]":
        """Positions and data of a file, from its end to its start, so that the caller can truncate
        what it has taken. A file may claim to be larger than any memory: holes are left out."""
        reported = True
        try:
            extents = _extents(source, size)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            reported, extents = False, [(0, size)]  # gVisor does not report holes
            self._look -= size
            if self._look < 0:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG)) from None
        for start, end in reversed(extents):
            for position in reversed(range(start, end, MAX_PIECE)):
                data = os.pread(source, min(end - position, MAX_PIECE), position)
                for first, last in [(0, len(data))] if reported else reversed(find_data(data)):
                    yield position + first, data[first:last]


def _extents(source: int, size: int) -> "List[Tuple[int, int]]":
    found: List[Tuple[int, int]] = []
    position = 0
    while position < size:
        try:
            start = os.lseek(source, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break  # the rest is a hole
            raise
        position = min(os.lseek(source, start, os.SEEK_HOLE), size)
        found.append((start, position))
    return found


def find_data(data: bytes) -> "List[Tuple[int, int]]":
    """Start and end of the ranges of pages that are not all zeros."""
    found: List[Tuple[int, int]] = []
    if data == bytes(len(data)):
        return found  # fast for a large hole
    for start in range(0, len(data), PAGE):
        piece = data[start : start + PAGE]
        if piece == _ZEROS[: len(piece)]:
            continue
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], start + len(piece))
        else:
            found.append((start, start + len(piece)))
    return found


class _Level(NamedTuple):
    names: "Iterator[str]"
    name: str
    status: os.stat_result


class Packer:
    """`room`: bytes that both streams together may take. `move`: remove what is packed. If that
    fails, what was packed so far can be unpacked where it was."""

    def __init__(
        self, records: "IO[bytes]", contents: SegmentWriter, room: int, move: bool = False
    ) -> None:
        self._records = records
        self._contents = contents
        self._room = room
        self._move = move
        self._finder = DataFinder()
        self._linked: Dict[Tuple[int, int], int] = {}  # device and inode -> its number

    def pack(self, top: int, status: os.stat_result) -> None:
        """Pack the entries of a directory. Its own mode and times are those of `status`."""
        way = TreeWalk(top)
        levels = [_Level(iter(os.listdir(top)), "", status)]
        self._put(BEGINNING)
        try:
            while levels:
                name = next(levels[-1].names, None)
                if name is None:
                    self._put(DIRECTORY, levels[-1].name, levels[-1].status)
                    self._leave(way, levels.pop())
                    continue
                with contextlib.suppress(FileNotFoundError):  # removed by a process that still runs
                    self._pack_entry(name, way, levels)
        except OSError:
            for level in reversed(levels):
                if self._move:
                    self._put(DIRECTORY, level.name, level.status)
                self._leave(way, level)
            raise
        finally:
            way.close()

    def _enter(self, name: str, way: TreeWalk, found: os.stat_result) -> List[str]:
        """Enter a directory, even if its mode forbids it; returns the names in it."""
        if self._is_closed(found):
            os.chmod(name, modes.S_IMODE(found.st_mode) | 0o700, dir_fd=way.here)
        way.enter(name)
        try:
            return os.listdir(way.here)
        except FileNotFoundError:
            return []  # removed meanwhile

    def _leave(self, way: TreeWalk, level: _Level) -> None:
        if not level.name:
            return  # the caller owns the top
        os.close(way.leave())
        if self._move:
            with contextlib.suppress(OSError):  # packing failed, or a process makes new files
                os.rmdir(level.name, dir_fd=way.here)
        elif self._is_closed(level.status):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                os.chmod(level.name, modes.S_IMODE(level.status.st_mode), dir_fd=way.here)

    def _is_closed(self, status: os.stat_result) -> bool:
        needed = 0o700 if self._move else 0o500
        return status.st_mode & needed != needed

    def _pack_entry(self, name: str, way: TreeWalk, levels: List[_Level]) -> None:
        found = os.stat(name, dir_fd=way.here, follow_symlinks=False)
        if modes.S_ISDIR(found.st_mode):
            names = self._enter(name, way, found)
            levels.append(_Level(iter(names), name, found))
            self._put(BEGINNING)
            return
        if modes.S_ISREG(found.st_mode):
            self._pack_file(name, way.here, found)
        elif modes.S_ISLNK(found.st_mode):
            target = os.fsencode(os.readlink(name, dir_fd=way.here))
            self._put(SYMLINK, name, found, size=len(target), before=target)
        elif modes.S_ISFIFO(found.st_mode):
            self._put(FIFO, name, found)
        # A socket is not packed: it is useless without the process that listens.
        if self._move:
            os.unlink(name, dir_fd=way.here)

    def _pack_file(self, name: str, directory: int, found: os.stat_result) -> None:
        link, identity = 0, (found.st_dev, found.st_ino)
        if found.st_nlink > 1 or self._move:  # its other names may be removed already
            link = self._linked.get(identity, 0)
        if link:
            self._put(LINK, name, found, link=link)
            return
        # A file whose other names may still exist must not be truncated.
        cut = self._move and found.st_nlink == 1 and found.st_size > MAX_PIECE
        source = open_forced(name, directory, found, os.O_RDWR if cut else os.O_RDONLY)
        if found.st_nlink > 1:
            link = self._linked[identity] = len(self._linked) + 1
        pieces = 0
        try:
            for position, data in self._finder.pieces(source, found.st_size):
                self._write(self._contents, data)
                self._write(self._records, PIECE.pack(position, len(data)))
                pieces += 1
                if cut:
                    self._contents.flush()
                    os.truncate(source, position)
        except OSError:
            if self._move:  # the rest of the truncated file is still in the tree
                self._put(FILE, name, found, size=found.st_size, link=link, pieces=pieces)
            raise
        finally:
            os.close(source)
        self._put(FILE, name, found, size=found.st_size, link=link, pieces=pieces)

    def _put(
        self,
        kind: bytes,
        name: str = "",
        status: "Optional[os.stat_result]" = None,
        size: int = 0,
        link: int = 0,
        pieces: int = 0,
        before: bytes = b"",
    ) -> None:
        mode, times = 0, (0, 0, 0, 0)
        if status is not None:
            mode = modes.S_IMODE(status.st_mode)
            times = (
                *divmod(status.st_atime_ns, SECOND),
                *divmod(status.st_mtime_ns, SECOND),
            )
        encoded = os.fsencode(name)
        record = RECORD.pack(kind, mode, len(encoded), link, pieces, size, *times)
        self._write(self._records, before + encoded + record)

    def _write(self, file: "Union[IO[bytes], SegmentWriter]", data: bytes) -> None:
        self._room -= len(data)
        if self._room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        file.write(data)


def write_at(fd: int, data: "Union[bytes, memoryview]", position: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, position)
        view, position = view[written:], position + written


def open_regular(path: str, flags: int, below: Optional[int] = None, follow: bool = True) -> int:
    """Open without waiting; anything but a regular file is an error."""
    flags |= _OPEN & ~os.O_NOFOLLOW if follow else _OPEN
    fd = os.open(path, flags, 0o666, dir_fd=below)
    status = os.fstat(fd)
    if modes.S_ISREG(status.st_mode):
        return fd
    os.close(fd)
    if modes.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a directory")
    raise OSError(errno.EINVAL, "it is not a regular file")


def restore_metadata(fd: int, mode: int, times: "Tuple[int, int]") -> None:
    os.fchmod(fd, mode)
    os.utime(fd, ns=times)


def open_forced(name: str, directory: int, found: os.stat_result, access: int) -> int:
    """Open a file even if its mode forbids it."""
    try:
        return os.open(name, _OPEN | access, dir_fd=directory)
    except PermissionError:
        mode = modes.S_IMODE(found.st_mode)
        os.chmod(name, mode | 0o600, dir_fd=directory)
        try:
            return os.open(name, _OPEN | access, dir_fd=directory)
        finally:
            os.chmod(name, mode, dir_fd=directory)
