"""The stream attached to a container: standard input one way, output and error mixed the other.

The engine sends output in pieces, each behind eight bytes that name the stream and the size.
Standard output is the wire, sealed by the guest's init; of a build container, its plain reports.
The end of standard error is kept for error messages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import anyio.lowlevel

from belljar.backends.docker.client.connect import Connection
from belljar.backends.event_loop import Lock
from belljar.protocol import wire
from belljar.protocol.buffers import Outbox

HEADER = 8
OUTPUT, ERROR = 1, 2
LAST_WORDS = 8192  # bytes of standard error that are kept
MOST_WORDS = 16 * 1024 * 1024  # init writes little there; a flood comes from the code
MAX_UNPAUSED = 512 * 1024


class Demultiplexer:
    """Separates the engine's mixed stream into standard output and error, however it is cut."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._kind = OUTPUT
        self._left = 0  # missing bytes of the piece
        self.last_words = bytearray()
        self._said = 0

    def feed(self, data: bytes) -> bytes:
        """Take bytes from the engine; return those of standard output."""
        taken = []
        for kind, piece in self.split(data):
            if kind == OUTPUT:
                taken.append(piece)
            else:
                self._keep(piece)
        return taken[0].tobytes() if len(taken) == 1 else b"".join(taken)

    def split(self, data: bytes) -> Iterator[tuple[int, memoryview]]:
        """Take bytes from the engine; give each piece with its stream."""
        view = memoryview(data)
        while view:
            if not self._left:
                view = self._read_header(view)
                continue
            piece, view = view[: self._left], view[self._left :]
            self._left -= len(piece)
            yield self._kind, piece

    def _keep(self, piece: memoryview) -> None:
        self._said += len(piece)
        if self._said > MOST_WORDS:
            raise wire.WireError(f"more than {MOST_WORDS} bytes on standard error")
        self.last_words += piece
        del self.last_words[:-LAST_WORDS]

    def _read_header(self, view: memoryview) -> memoryview:
        missing = HEADER - len(self._header)
        self._header += view[:missing]
        if len(self._header) == HEADER:
            if self._header[0] > ERROR or any(self._header[1:4]):
                raise wire.WireError("the engine's stream has a malformed header")
            self._kind = self._header[0]
            self._left = int.from_bytes(self._header[4:], "big")
            self._header.clear()
        return view[missing:]


class AttachedStream:
    shares = False

    def __init__(self, connection: Connection, *, sealed: bool = True) -> None:
        self._connection = connection
        self._pieces = Demultiplexer()
        self.key = os.urandom(wire.KEY_SIZE)  # the guest gets it before it sends anything
        self._unseal: Callable[[bytes], bytes] = wire.SealReader(self.key).feed if sealed else bytes
        self._out = Outbox()
        self._waiting = Lock()
        self._unpaused = 0  # bytes taken without letting others run

    @property
    def last_words(self) -> str:
        return self._pieces.last_words.decode("utf-8", "replace")

    async def receive(self) -> bytes:
        while True:
            # A guest that always has more must not keep others on this event loop waiting.
            if self._unpaused > MAX_UNPAUSED:
                self._unpaused = 0
                await anyio.lowlevel.checkpoint()
            try:
                data = self._connection.recv(wire.CHUNK)
            except BlockingIOError:
                self._unpaused = 0
                await self._connection.wait_readable()
                continue
            except OSError:
                return b""
            if not data:
                return b""
            self._unpaused += len(data) + 4096
            if output := self._unseal(self._pieces.feed(data)):
                return output

    async def send(self, data: bytes, fd: int = -1) -> None:
        assert fd < 0, "an engine's stream carries only bytes"
        self._out.put(data)
        while self._out:
            try:
                self._out.flush(self._connection)
            except BlockingIOError:
                async with self._waiting:  # a socket allows one waiting task
                    await self._connection.wait_writable()

    def take_fd(self) -> int:
        raise wire.WireError("an engine's stream carries no descriptors")

    def ended(self) -> bool:
        return self._connection.ended()

    def shutdown(self) -> None:
        """Called from any thread: the reader and the guest see the end of the stream."""
        self._connection.shutdown()

    def abandon(self) -> None:
        """Close it in a fork of the process; the parent goes on using it."""
        self._connection.abandon()

    def close(self) -> None:
        self._out.clear()
        self._connection.close()
