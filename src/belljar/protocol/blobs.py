"""Large values between two processes: memory they share, or parts that are put together again.

A sealed memfd can be neither written, grown nor shrunk by anybody, so that the other side may map
it without a copy and without fear. The mapping is private: who writes to it gets pages of his own.
"""

import errno
import fcntl
import mmap
import os
import sys
from typing import Any, Container, Dict, Iterator, List, Optional, Tuple

from . import buffers, wire

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
MAX_OPEN = 2 * wire.MAX_CALLS  # values that are being put together at once
_BLOCK = 512  # bytes, whatever the file system


class Incomplete(wire.WireError):
    """A value of which parts are missing."""


def seal(pieces: "List[Any]") -> int:
    """A descriptor of memory that holds the pieces one after the other, and will for ever."""
    fd = os.memfd_create("belljar-value", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        for piece in pieces:
            view = memoryview(piece).cast("B")
            while view:
                view = view[os.write(fd, view) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def unseal(fd: int, size: int) -> mmap.mmap:
    """Map what another process has sealed, and take over the descriptor."""
    try:
        check(fd, size)
        options: Dict[str, Any] = {"flags": mmap.MAP_PRIVATE, "prot": _READ_WRITE}
        if sys.version_info >= (3, 13):
            options["trackfd"] = False  # one descriptor less for each value
        return mmap.mmap(fd, size, **options)
    except OSError as error:
        if error.errno in (errno.ENOMEM, errno.EMFILE, errno.ENFILE):  # of ours, not of theirs
            raise MemoryError(f"no memory for a value of {size} bytes") from None
        raise wire.WireError(f"not shared memory: {type(error).__name__}") from None
    except (ValueError, OverflowError) as error:
        raise wire.WireError(f"not shared memory: {type(error).__name__}") from None
    finally:
        buffers.close(fd)


def check(fd: int, size: int) -> None:
    """Whether a descriptor is what seal() makes. Raises WireError."""
    try:
        # Only memfds have seals; without them the size could still change under a mapping.
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        how = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
    except OSError as error:
        raise wire.WireError(f"not shared memory: {type(error).__name__}") from None
    if how == os.O_WRONLY:
        raise wire.WireError("shared memory that cannot be read")
    found = os.fstat(fd)
    if seals & SEALS != SEALS or found.st_size != size:
        raise wire.WireError("shared memory that is not sealed, or not of its size")
    # Who reads a hole pays for the page.
    if found.st_blocks * _BLOCK < size or os.lseek(fd, 0, os.SEEK_HOLE) < size:
        raise wire.WireError("shared memory with holes")


_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE


def cut(pieces: "List[Any]") -> "Iterator[bytes]":
    """The same in parts of one frame each."""
    part = bytearray()
    for piece in pieces:
        view = memoryview(piece).cast("B")
        while view:
            room = wire.CHUNK - len(part)
            part += view[:room]
            view = view[room:]
            if len(part) == wire.CHUNK:
                yield bytes(part)
                part.clear()
    if part:
        yield bytes(part)


class Parts:
    """Puts values together again. The other side may be hostile: it says a size once, which is
    checked before memory is taken, and can send no more than that."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # key -> memory, and how full it is; without memory if there was none
        self._open: Dict[int, Tuple[Optional[mmap.mmap], int]] = {}

    def add(self, key: Any, size: Any, data: bytes) -> None:
        if type(key) is not int or type(size) is not int or not size > 0:
            raise wire.WireError("a malformed part")
        if key not in self._open:
            taken = sum(len(memory) for memory, _ in self._open.values() if memory is not None)
            if taken + size > self._limit or len(self._open) >= MAX_OPEN:
                raise wire.WireError("a value larger than any")
            self._open[key] = (_memory(size), 0)
        memory, full = self._open[key]
        if memory is None:
            return  # take() will say so
        if len(memory) != size or full + len(data) > size:
            raise wire.WireError("parts that are more than the whole")
        memory[full : full + len(data)] = data
        self._open[key] = (memory, full + len(data))

    def take(self, key: Any, size: Any) -> mmap.mmap:
        if key not in self._open:
            raise Incomplete("a value without its parts")
        memory, full = self._open.pop(key)
        if memory is None:
            raise MemoryError(f"no memory for a value of {size} bytes")
        if full != size or len(memory) != size:
            raise Incomplete("a value of which parts are missing")
        return memory

    def drop(self, key: Any) -> None:
        self._open.pop(key, None)

    def keep_only(self, keys: "Container[int]") -> None:
        """Let go of what was begun and will not be finished."""
        for key in [key for key in self._open if key not in keys]:
            del self._open[key]


def _memory(size: int) -> "Optional[mmap.mmap]":
    try:
        return mmap.mmap(-1, size, flags=_ANONYMOUS)
    except (OSError, MemoryError):
        return None


_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
