"""What waits to be sent: bytes, and the descriptors that travel with some of them, in order."""

import array
import contextlib
import errno
import fcntl
import mmap
import os
import socket
import stat
import struct
import sys
from collections import deque
from typing import Any, Container, Deque, Dict, Iterator, List, Optional, Tuple, Union

from . import wire

MAX_FDS = 8  # descriptors received and not yet taken
_SPACE = socket.CMSG_SPACE(MAX_FDS * 4)
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)  # a plain number: flags are slow to put together


class Outbox:
    def __init__(self) -> None:
        self._bytes = bytearray()
        self._fds: Deque[Tuple[int, List[int]]] = deque()  # before which byte each must go
        self._gone = 0  # bytes sent so far

    def __len__(self) -> int:
        return len(self._bytes)

    def put(self, data: "Union[bytes, memoryview]", fds: "Tuple[int, ...]" = ()) -> None:
        """The descriptors become the outbox's own: it closes them when they are sent."""
        if fds:
            self._fds.append((self._gone + len(self._bytes), list(fds)))
        self._bytes += data

    def flush(self, sock: Any) -> None:
        """As much as goes. Raises BlockingIOError when the rest must wait, OSError at the end."""
        while self._bytes:
            if not self._fds and len(self._bytes) <= wire.CHUNK:
                sent = sock.send(self._bytes)
                self._gone += sent
                del self._bytes[:sent]
                continue
            most, fds = wire.CHUNK, []
            if self._fds:
                ahead = self._fds[0][0] - self._gone
                if ahead:
                    most = min(most, ahead)
                else:
                    fds = self._fds[0][1]
                    if len(self._fds) > 1:  # bytes of one message carry the fds of one
                        most = min(most, self._fds[1][0] - self._gone)
            view = memoryview(self._bytes)[:most]
            try:
                sent = socket.send_fds(sock, [view], fds) if fds else sock.send(view)
            finally:
                view.release()
            if fds:
                for fd in self._fds.popleft()[1]:
                    os.close(fd)  # our own: a pipe, or memory that was looked at
            self._gone += sent
            del self._bytes[:sent]

    def clear(self) -> None:
        self._bytes.clear()
        while self._fds:
            close_all(self._fds.popleft()[1])


class Inbox:
    """Descriptors that came with received bytes, until the frames that they belong to take them."""

    def __init__(self) -> None:
        self._fds: Deque[int] = deque()

    def receive(self, sock: Any, size: int = wire.CHUNK, flags: int = 0) -> bytes:
        received = sock.recvmsg(size, _SPACE, flags | _CLOSE_ON_EXEC)
        data: bytes = received[0]
        if received[1]:
            self._keep(received[1])
        return data

    def _keep(self, ancillary: "List[Tuple[int, int, bytes]]") -> None:
        for level, kind, body in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(body[: len(body) - len(body) % fds.itemsize])
                self._fds.extend(fds)
        if len(self._fds) > MAX_FDS:
            self.clear()
            raise wire.WireError("descriptors that nobody asked for")

    def take(self) -> int:
        if not self._fds:
            raise wire.WireError("a frame without the descriptor it speaks of")
        return self._fds.popleft()

    def take_some(self, most: int) -> List[int]:
        """Those that have come: the kernel drops what this process has no more numbers for."""
        return [self._fds.popleft() for _ in range(min(most, len(self._fds)))]

    def clear(self) -> None:
        close_all(self._fds)
        self._fds.clear()


def close_all(fds: "object") -> None:
    for fd in fds:  # type: ignore[attr-defined]
        close(fd)


def close(fd: int) -> None:
    """Without waiting, whatever it is: a socket from a hostile peer may linger (SO_LINGER)."""
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            sock = socket.socket(fileno=fd)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
            finally:
                sock.detach()
    os.close(fd)


SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
MAX_OPEN = 2 * wire.MAX_CALLS  # values that are being put together at once
_BLOCK = 512  # bytes, whatever the file system


class IncompleteValue(wire.WireError):
    """A value of which parts are missing."""


def share_memory(pieces: "List[Any]") -> int:
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


def map_shared(fd: int, size: int) -> mmap.mmap:
    """Map what another process has sealed, and take over the descriptor."""
    try:
        check_shared(fd, size)
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
        close(fd)


def check_shared(fd: int, size: int) -> None:
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


def cut_parts(pieces: "List[Any]") -> "Iterator[bytes]":
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
            self._open[key] = (_map_anonymous(size), 0)
        memory, full = self._open[key]
        if memory is None:
            return  # take() will say so
        if len(memory) != size or full + len(data) > size:
            raise wire.WireError("parts that are more than the whole")
        memory[full : full + len(data)] = data
        self._open[key] = (memory, full + len(data))

    def take(self, key: Any, size: Any) -> mmap.mmap:
        if key not in self._open:
            raise IncompleteValue("a value without its parts")
        memory, full = self._open.pop(key)
        if memory is None:
            raise MemoryError(f"no memory for a value of {size} bytes")
        if full != size or len(memory) != size:
            raise IncompleteValue("a value of which parts are missing")
        return memory

    def drop(self, key: Any) -> None:
        self._open.pop(key, None)

    def keep_only(self, keys: "Container[int]") -> None:
        """Let go of what was begun and will not be finished."""
        for key in [key for key in self._open if key not in keys]:
            del self._open[key]


def _map_anonymous(size: int) -> "Optional[mmap.mmap]":
    try:
        return mmap.mmap(-1, size, flags=_ANONYMOUS)
    except (OSError, MemoryError):
        return None


_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
