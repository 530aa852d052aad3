"""Bytes, descriptors and large values between two processes.

Outbox and Inbox keep bytes and the descriptors that travel with them in order. A large value is
memory that the processes share, or comes in parts.

A sealed memfd cannot be written, grown or shrunk, so the other side can map it without a copy and
without risk. The mapping is private: a process that writes to it gets its own pages.
"""

import array
import contextlib
import errno
import fcntl
import mmap
import os
import resource
import socket
import stat
import struct
import sys
from collections import deque
from typing import Any, Container, Deque, Dict, Iterable, Iterator, List, Optional, Tuple, Union

from . import wire

MAX_FDS = 8  # descriptors received and not yet taken
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
MAX_OPEN = 2 * wire.MAX_CALLS  # values that are being put together at once
_SPACE = socket.CMSG_SPACE(MAX_FDS * 4)
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)  # a plain number: flags are slow to combine
_BLOCK = 512  # bytes, on every file system
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class Outbox:
    """Bytes to send, and the descriptors that go with some of them."""

    def __init__(self) -> None:
        self.pending = bytearray()
        self._fds: Deque[Tuple[int, List[int]]] = deque()  # before which byte each must go
        self._gone = 0  # bytes sent so far

    def __len__(self) -> int:
        return len(self.pending)

    def put(self, data: "Union[bytes, memoryview]", fds: "Tuple[int, ...]" = ()) -> None:
        """The outbox owns the descriptors from now on, and closes them when they are sent."""
        if fds:
            self._fds.append((self._gone + len(self.pending), list(fds)))
        self.pending += data

    def flush(self, sock: Any) -> None:
        """Send as much as the socket takes. Raises BlockingIOError if the rest must wait, OSError
        if the peer is gone."""
        while self.pending:
            if not self._fds and len(self.pending) <= wire.CHUNK:
                sent = sock.send(self.pending)
                self._gone += sent
                del self.pending[:sent]
                continue
            most, fds = wire.CHUNK, []
            if self._fds:
                ahead = self._fds[0][0] - self._gone
                if ahead:
                    most = min(most, ahead)
                else:
                    fds = self._fds[0][1]
                    if len(self._fds) > 1:  # the bytes of one message carry the fds of one frame
                        most = min(most, self._fds[1][0] - self._gone)
            view = memoryview(self.pending)[:most]
            try:
                sent = socket.send_fds(sock, [view], fds) if fds else sock.send(view)
            finally:
                view.release()
            if fds:
                for fd in self._fds.popleft()[1]:
                    os.close(fd)  # a pipe of this process, or memory that was checked
            self._gone += sent
            del self.pending[:sent]

    def clear(self) -> None:
        self.pending.clear()
        while self._fds:
            close_all(self._fds.popleft()[1])


class Inbox:
    """Holds descriptors that came with received bytes until their frames take them."""

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
            raise wire.WireError("the peer sent descriptors that no frame names")

    def take(self) -> int:
        if not self._fds:
            raise wire.WireError("the descriptor that a frame names did not come")
        return self._fds.popleft()

    def take_shared(self, size: int) -> int:
        """Sealed memory with a value of that size. Init passes on nothing else: closing another
        object, such as a socket that lingers, may block."""
        fd = self.take()
        try:
            check_shared(fd, size)
        except wire.WireError:
            close(fd)
            raise
        return fd

    def take_some(self, most: int) -> List[int]:
        """Up to `most`: the kernel drops descriptors when this process has no number left."""
        return [self._fds.popleft() for _ in range(min(most, len(self._fds)))]

    def clear(self) -> None:
        close_all(self._fds)
        self._fds.clear()


def close_others(keep: "set[int]") -> None:
    """Close all others; the process that forks workers may have thousands."""
    first = 0
    for fd in (*sorted(keep), resource.getrlimit(resource.RLIMIT_NOFILE)[0]):
        if first < fd:  # Python 3.11 closes everything for (0, 0)
            os.closerange(first, fd)
        first = fd + 1


def close_all(fds: "Iterable[int]") -> None:
    for fd in fds:
        close(fd)


def close(fd: int) -> None:
    """Close without waiting: a socket from a hostile peer may linger (SO_LINGER)."""
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            sock = socket.socket(fileno=fd)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
            finally:
                sock.detach()
    os.close(fd)


# -- shared memory --------------------------------------------------------------------------------


def share_memory(pieces: "List[Any]") -> int:
    """A descriptor of sealed memory that holds the pieces one after another."""
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
    """Map memory that another process has sealed, and close the descriptor."""
    try:
        check_shared(fd, size)
        options: Dict[str, Any] = {"flags": mmap.MAP_PRIVATE, "prot": _READ_WRITE}
        if sys.version_info >= (3, 13):
            options["trackfd"] = False  # saves one descriptor for each value
        return mmap.mmap(fd, size, **options)
    except (OSError, ValueError, OverflowError) as error:
        # This process lacks memory or descriptors; the peer did nothing wrong.
        if getattr(error, "errno", 0) in (errno.ENOMEM, errno.EMFILE, errno.ENFILE):
            raise MemoryError(f"no memory for a value of {size} bytes") from None
        raise wire.WireError(f"not shared memory: {type(error).__name__}") from None
    finally:
        close(fd)


def check_shared(fd: int, size: int) -> None:
    """Raise WireError if a descriptor is not what share_memory() makes."""
    if type(size) is not int or size <= 0:
        raise wire.WireError("shared memory without a size")
    try:
        # Only memfds have seals; without them the size could still change under a mapping.
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        access = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
        if access == os.O_WRONLY:
            raise wire.WireError("shared memory is not readable")
        found = os.fstat(fd)
        if seals & SEALS != SEALS or found.st_size != size:
            raise wire.WireError("shared memory is not sealed, or not of the size its frame says")
        # A reader of a hole pays for the page.
        if found.st_blocks * _BLOCK < size or os.lseek(fd, 0, os.SEEK_HOLE) < size:
            raise wire.WireError("shared memory has holes")
    except OSError as error:
        raise wire.WireError(f"not shared memory: {type(error).__name__}") from None


# -- parts ----------------------------------------------------------------------------------------


class IncompleteValue(wire.WireError):
    """Parts of a value are missing."""


def cut_parts(pieces: "List[Any]") -> "Iterator[bytes]":
    """The pieces in parts of one frame each."""
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
    """Puts values together from parts. The sender may be hostile: the size that it names first is
    checked before memory is taken, and it cannot send more than that."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # key -> memory (None if there was not enough), and how many bytes have come
        self._open: Dict[int, Tuple[Optional[mmap.mmap], int]] = {}

    def add(self, key: Any, size: Any, data: bytes) -> None:
        if type(key) is not int or type(size) is not int or not size > 0:
            raise wire.WireError("a part has a malformed key or size")
        if key not in self._open:
            taken = sum(len(memory) for memory, _ in self._open.values() if memory is not None)
            if taken + size > self._limit or len(self._open) >= MAX_OPEN:
                raise wire.WireError("a value in parts is larger than allowed")
            self._open[key] = (_map_anonymous(size), 0)
        memory, full = self._open[key]
        if memory is None:
            return  # take() raises MemoryError
        if len(memory) != size or full + len(data) > size:
            raise wire.WireError("the parts of a value are larger than the value")
        memory[full : full + len(data)] = data
        self._open[key] = (memory, full + len(data))

    def take(self, key: Any, size: Any) -> mmap.mmap:
        if key not in self._open:
            raise IncompleteValue("the parts of a value did not come")
        memory, full = self._open.pop(key)
        if memory is None:
            raise MemoryError(f"no memory for a value of {size} bytes")
        if full != size or len(memory) != size:
            raise IncompleteValue("parts of a value are missing")
        return memory

    def remove(self, key: Any) -> None:
        self._open.pop(key, None)

    def keep_only(self, keys: "Container[int]") -> None:
        """Release the memory of values that will not be finished."""
        for key in [key for key in self._open if key not in keys]:
            del self._open[key]


def _map_anonymous(size: int) -> "Optional[mmap.mmap]":
    try:
        return mmap.mmap(-1, size, flags=_ANONYMOUS)
    except (OSError, MemoryError):
        return None
