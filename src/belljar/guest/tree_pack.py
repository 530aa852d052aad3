"""Trees that somebody hostile has made, as two rows of bytes: all that treecopy keeps.

`records` tells of each thing, in the order of a walk: its kind, mode, times and name; of a file
also where in it there are data. `contents` has the data, one after another, without the holes.

Both are read from the end (treeunpack.py). So an archive can be freed while it is unpacked, as
files are cut off while they are moved into one: neither takes much more room than there was.
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

from ..protocol import buffers

DIRECTORY, BEGINNING = b"d", b"b"  # a directory's own record follows what is in it
FILE, LINK = b"f", b"l"  # a file's follows where its data are; a link is one more name of a file
SYMLINK, FIFO = b"s", b"p"
# Kind, mode, bytes of the name, number of the file among those with several names, pieces of
# data, size, two times. The name is before it.
RECORD = struct.Struct("<cHHIIQqIqI")
PIECE = struct.Struct("<QI")  # where in the file, and how many bytes of the contents
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
SECOND = 1_000_000_000

MIN_SEGMENT = 16 * 1024 * 1024  # bytes
MAX_PIECE = 1024 * 1024  # bytes at most that are written at once; none is in two volumes

PAGE = 4096
MAX_SEARCH = 16 * 1024 * 1024 * 1024  # bytes that are searched, where nobody tells what is a hole
_ZEROS = bytes(PAGE)

MAX_OPEN = 64  # descriptors
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def create_memfd(name: str) -> int:
    """Closed in whatever init starts."""
    create = getattr(os, "memfd_create", None)
    if create is None:
        raise OSError(errno.ENOSYS, "this Python has no memfd_create")
    return int(create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))


def seal_memfd(fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, buffers.SEALS | fcntl.F_SEAL_SEAL)


class SegmentWriter:
    """Into the given volumes; then into those that `more` gives, or all the rest into the last."""

    def __init__(
        self, volumes: List[int], size: int, more: "Optional[Callable[[], int]]" = None
    ) -> None:
        self._volumes = volumes
        self._size = size
        self._more = more
        self._next = 0
        self._file: Optional[io.BufferedWriter] = None
        self._written = 0

    def write(self, data: bytes) -> None:
        if self._file is None or self._written + len(data) > self._size:
            self._turn()
        assert self._file is not None
        self._file.write(data)
        self._written += len(data)

    def _turn(self) -> None:
        if self._next == len(self._volumes):
            if self._more is None:
                return
            self._volumes.append(self._more())
        self.close()
        raw = io.FileIO(self._volumes[self._next], "wb", closefd=False)
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
            seal_memfd(self._volumes[self._next - 1])


class SegmentReader:
    """From the last piece to the first. To `consume` is to close a volume that has been read, and
    to take it from the list."""

    def __init__(self, volumes: List[int], consume: bool) -> None:
        self._volumes = volumes
        self._consume = consume
        self._left = 0  # bytes of the volume that have not been taken
        self._next = len(volumes)

    def take(self, size: int) -> bytes:
        while size and not self._left:
            if self._consume and self._next < len(self._volumes):
                os.close(self._volumes.pop())
            if not self._next:
                raise OSError(errno.EIO, "the archive is not whole")
            self._next -= 1
            self._left = os.fstat(self._volumes[self._next]).st_size
        self._left -= size
        if self._left < 0:
            raise OSError(errno.EIO, "the archive is not whole")
        return os.pread(self._volumes[self._next], size, self._left)


class TreeWalk:
    """Only the last part of the way is held open. What is above that is found again by "..",
    and must be where we came from: somebody may have moved a directory meanwhile."""

    def __init__(self, top: int) -> None:
        self._open: Deque[int] = deque()
        self._way: List[Tuple[int, int]] = []
        self.enter(".", top)

    @property
    def here(self) -> int:
        return self._open[-1]

    def enter(self, name: Union[str, bytes], below: int = -1) -> None:
        fd = os.open(name, _DIRECTORY, dir_fd=self.here if below < 0 else below)
        self._open.append(fd)
        self._way.append(_identity(fd))
        if len(self._open) > MAX_OPEN:
            os.close(self._open.popleft())

    def leave(self) -> int:
        """Go up. The descriptor of where we were, which is the caller's from now on."""
        if len(self._open) == 1:
            above = os.open("..", _DIRECTORY, dir_fd=self.here)
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
        """Where there are data in a file, and the data: from the end to the beginning, so that
        what has been taken can be cut off."""
        told = True
        try:
            extents = _extents(source, size)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            told, extents = False, [(0, size)]  # gVisor does not tell of holes
            self._look -= size
            if self._look < 0:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG)) from None
        for start, end in reversed(extents):
            for position in reversed(range(start, end, MAX_PIECE)):
                data = os.pread(source, min(end - position, MAX_PIECE), position)
                for first, last in [(0, len(data))] if told else reversed(find_data(data)):
                    yield position + first, data[first:last]


def _extents(source: int, size: int) -> "List[Tuple[int, int]]":
    found: List[Tuple[int, int]] = []
    position = 0
    while position < size:
        try:
            start = os.lseek(source, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break  # only a hole is left
            raise
        position = min(os.lseek(source, start, os.SEEK_HOLE), size)
        found.append((start, position))
    return found


def find_data(data: bytes) -> "List[Tuple[int, int]]":
    """From where to where there are pages that are not all zeros."""
    found: List[Tuple[int, int]] = []
    if data == bytes(len(data)):
        return found  # a large hole is passed in large steps
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
    """`room`: bytes that both rows together may take. To `move` is to leave nothing behind; who
    stops it has what was packed so far as an archive that can be unpacked where it was."""

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
        """All that is in a directory. Its own mode and times are those of `status`."""
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
                with contextlib.suppress(FileNotFoundError):  # removed by what runs on
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
        """Also where its owner has forbidden himself to go. What is there."""
        if self._is_closed(found):
            os.chmod(name, modes.S_IMODE(found.st_mode) | 0o700, dir_fd=way.here)
        way.enter(name)
        try:
            return os.listdir(way.here)
        except FileNotFoundError:
            return []  # removed meanwhile

    def _leave(self, way: TreeWalk, level: _Level) -> None:
        if not level.name:
            return  # the top, which is the caller's
        os.close(way.leave())
        if self._move:
            with contextlib.suppress(OSError):  # it was broken off, or somebody makes new ones
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
        # A socket is nothing without the process that listens to it.
        if self._move:
            os.unlink(name, dir_fd=way.here)

    def _pack_file(self, name: str, directory: int, found: os.stat_result) -> None:
        link, identity = 0, (found.st_dev, found.st_ino)
        if found.st_nlink > 1 or self._move:  # the other names may be gone already
            link = self._linked.get(identity, 0)
        if link:
            self._put(LINK, name, found, link=link)
            return
        # A file with other names, which may still be there, must stay whole.
        cut = self._move and found.st_nlink == 1 and found.st_size > MAX_PIECE
        source = _open_anyhow(name, directory, found, os.O_RDWR if cut else os.O_RDONLY)
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
            if self._move:  # what was cut off belongs to what is still there
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


def _open_anyhow(name: str, directory: int, found: os.stat_result, access: int) -> int:
    """Also what its owner has forbidden himself to read."""
    try:
        return os.open(name, _OPEN | access, dir_fd=directory)
    except PermissionError:
        mode = modes.S_IMODE(found.st_mode)
        os.chmod(name, mode | 0o600, dir_fd=directory)
        try:
            return os.open(name, _OPEN | access, dir_fd=directory)
        finally:
            os.chmod(name, mode, dir_fd=directory)
