"""A connection that no event loop owns.

It is a plain non-blocking socket, used by whichever thread and loop has it now, which the stream
classes of asyncio, trio and anyio do not allow: a guest outlives the loop that started it, and is
killed from any thread.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

import anyio
import anyio.lowlevel

# A program may have given SIGPIPE its default action back, which would end it.
SEND_FLAGS = getattr(socket, "MSG_NOSIGNAL", 0)


class Connection:
    """A byte stream to an engine: one reader and one writer at a time, from anywhere."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        on_close: Callable[[], None] | None = None,
        complaint: Callable[[], str] | None = None,
    ) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._ahead = b""
        self._ended = False
        self._on_close = on_close
        self._complaint = complaint

    def recv(self, size: int) -> bytes:
        """Up to `size` bytes; b"" at the end. Raises BlockingIOError when there is nothing yet."""
        if self._ahead:
            data, self._ahead = self._ahead[:size], self._ahead[size:]
            return data
        try:
            return self._receive(size)
        except OSError:  # nothing yet, too: shutdown() may be about to come to the socket
            if self._ended:
                return b""
            raise

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Some of `data`; how much. After a BlockingIOError, come again with the same bytes."""
        return self._socket.send(data, SEND_FLAGS)

    def _receive(self, size: int) -> bytes:
        return self._socket.recv(size)

    def give_back(self, data: bytes) -> None:
        """What was read too far: it comes first in the next recv()."""
        self._ahead = data + self._ahead

    def fileno(self) -> int:
        """For polling, which does not see what was given back: try recv() before."""
        return self._socket.fileno()

    def _has_more(self) -> bool:
        """Whether recv() has something that polling would not show."""
        return bool(self._ahead) or self._ended

    async def wait_readable(self) -> None:
        if self._has_more():
            await anyio.lowlevel.checkpoint()
        else:
            await anyio.wait_readable(self._socket)

    async def wait_writable(self) -> None:
        if self._ended:
            await anyio.lowlevel.checkpoint()
        else:
            await anyio.wait_writable(self._socket)

    def ended(self) -> bool:
        """Whether it is known to have ended, without waiting and without taking anything."""
        if self._ended or self._ahead:
            return self._ended
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def complaint(self) -> str:
        """What a program in between said about why it ended, if there is one."""
        return self._complaint() if self._complaint is not None else ""

    def shutdown(self) -> None:
        """End it both ways at once, from any thread: who waits in it wakes, and reads b""."""
        self._ended = True
        with contextlib.suppress(OSError):  # the other side may have ended it, or close() has
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """shutdown(), and give the descriptor back. By the last user: nobody may wait in it."""
        # Without the shutdown, a fork of this process would keep the connection open.
        self.shutdown()
        self._socket.close()
        if self._on_close is not None:
            self._on_close()
        self._on_close = self._complaint = None

    def abandon(self) -> None:
        """Let go of it in a fork of the process, whose parent goes on using it."""
        self._ended = True
        self._socket.close()
        self._on_close = self._complaint = None
