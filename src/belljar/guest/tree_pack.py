"""Trees that somebody hostile has made, as two rows of bytes: all that treecopy keeps.

`records` tells of each thing, in the order of a walk: its kind, mode, times and name; of a file
also where in it there are data. `contents` has the data, one after another, without the holes.

Both are read from the end (treeunpack.py). So an archive can be freed while it is unpacked, as
files are cut off while they are moved into one: neither takes much more room than there was.
"""

import contextlib
import errno
import os
import stat as modes
import struct
from typing import IO, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

from . import sparse
from .memfd_segments import PIECE as STEP
from .memfd_segments import Writer
from .tree_walk import Descent

DIRECTORY, BEGINNING = b"d", b"b"  # a directory's own record follows what is in it
FILE, LINK = b"f", b"l"  # a file's follows where its data are; a link is one more name of a file
SYMLINK, FIFO = b"s", b"p"
# Kind, mode, bytes of the name, number of the file among those with several names, pieces of
# data, size, two times. The name is before it.
RECORD = struct.Struct("<cHHIIQqIqI")
PIECE = struct.Struct("<QI")  # where in the file, and how many bytes of the contents
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
SECOND = 1_000_000_000


class _Level(NamedTuple):
    names: "Iterator[str]"
    name: str
    status: os.stat_result


class Packer:
    """`room`: bytes that both rows together may take. To `move` is to leave nothing behind; who
    stops it has what was packed so far as an archive that can be unpacked where it was."""

    def __init__(
        self, records: "IO[bytes]", contents: Writer, room: int, move: bool = False
    ) -> None:
        self._records = records
        self._contents = contents
        self._room = room
        self._move = move
        self._finder = sparse.Finder()
        self._linked: Dict[Tuple[int, int], int] = {}  # device and inode -> its number

    def pack(self, top: int, status: os.stat_result) -> None:
        """All that is in a directory. Its own mode and times are those of `status`."""
        way = Descent(top)
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

    def _enter(self, name: str, way: Descent, found: os.stat_result) -> List[str]:
        """Also where its owner has forbidden himself to go. What is there."""
        if self._is_closed(found):
            os.chmod(name, modes.S_IMODE(found.st_mode) | 0o700, dir_fd=way.here)
        way.enter(name)
        try:
            return os.listdir(way.here)
        except FileNotFoundError:
            return []  # removed meanwhile

    def _leave(self, way: Descent, level: _Level) -> None:
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

    def _pack_entry(self, name: str, way: Descent, levels: List[_Level]) -> None:
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
        cut = self._move and found.st_nlink == 1 and found.st_size > STEP
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

    def _write(self, file: "Union[IO[bytes], Writer]", data: bytes) -> None:
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
