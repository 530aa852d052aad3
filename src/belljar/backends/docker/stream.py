"""The stream attached to a container: standard input one way, output and error mixed the other.

The engine cuts what comes into pieces, each behind eight bytes: which stream, and how much.
Standard output is the wire, sealed by the guest's init; what comes on standard error are last
words, kept for messages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import anyio.lowlevel

from belljar.backends.docker.client.dial import Connection
from belljar.backends.event_loop import Lock
from belljar.protocol import wire
from belljar.protocol.buffers import Outbox

HEADER = 8
OUTPUT, ERROR = 1, 2
LAST_WORDS = 8192  # bytes of standard error that are kept
MOST_WORDS = 16 * 1024 * 1024  # init says little there; what comes in floods is the code's
MAX_UNPAUSED = 512 * 1024


class Demultiplexer:
    """Bytes as the engine sends them in, the guest's own out, however they are cut."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._kind = OUTPUT
        self._left = 0  # bytes of the piece that have not come yet
        self.last_words = bytearray()
        self._said = 0

    def feed(self, data: bytes) -> bytes:
        """What of it came on standard output."""
        taken = []
        for kind, piece in self.split(data):
            if kind == OUTPUT:
                taken.append(piece)
            else:
                self._keep(piece)
        return taken[0].tobytes() if len(taken) == 1 else b"".join(taken)

    def split(self, data: bytes) -> Iterator[tuple[int, memoryview]]:
        """What came on which stream."""
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
            raise wire.WireError("a flood on standard error")
        self.last_words += piece
        del self.last_words[:-LAST_WORDS]

    def _read_header(self, view: memoryview) -> memoryview:
        missing = HEADER - len(self._header)
        self._header += view[:missing]
        if len(self._header) == HEADER:
            if self._header[0] > ERROR or any(self._header[1:4]):
                raise wire.WireError("the engine's stream is not what it should be")
            self._kind = self._header[0]
            self._left = int.from_bytes(self._header[4:], "big")
            self._header.clear()
        return view[missing:]


class AttachedStream:
    shares = False

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pieces = Demultiplexer()
        self.key = os.urandom(wire.KEY_SIZE)  # to be sent before anything comes back
        self._opener = wire.SealReader(self.key)
        self._out = Outbox()
        self._waiting = Lock()
        self._unpaused = 0  # bytes taken without letting others run

    @property
    def last_words(self) -> str:
        return self._pieces.last_words.decode("utf-8", "replace")

    async def receive(self) -> bytes:
        while True:
            # Who always has more must not keep the event loop, and its time-outs, waiting.
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
            if output := self._opener.feed(self._pieces.feed(data)):
                return output

    async def send(self, data: bytes, fd: int = -1) -> None:
        assert fd < 0, "nothing but bytes can go this way"
        self._out.put(data)
        while self._out:
            try:
                self._out.flush(self._connection)
            except BlockingIOError:
                async with self._waiting:  # one at a time may
                    await self._connection.wait_writable()

    def take_fd(self) -> int:
        raise wire.WireError("a descriptor cannot have come this way")

    def ended(self) -> bool:
        return self._connection.ended()

    def hang_up(self) -> None:
        """From any thread: whoever reads meets the end, and so does the guest."""
        self._connection.shutdown()

    def abandon(self) -> None:
        """Let go of it in a fork of the process, whose parent goes on using it."""
        self._connection.abandon()

    def close(self) -> None:
        self._out.clear()
        self._connection.close()
