"""What waits to be sent: bytes, and the descriptors that travel with some of them, in order."""

import array
import contextlib
import os
import socket
import stat
import struct
from collections import deque
from typing import Any, Deque, List, Tuple, Union

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
