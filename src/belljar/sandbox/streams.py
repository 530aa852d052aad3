"""Streams: bytes to and from the guest, in each direction as fast as the other end reads.

The reader grants credit for so many bytes, and more when it has taken some. So a stream that is not
read holds at most one window in memory, and holds up nothing but its own source.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from belljar.errors import GuestLost, ProtocolError
from belljar.protocol import wire
from belljar.sandbox.channel import Lost, drop
from belljar.sandbox.guest_session import GuestSession


class Stream:
    def __init__(self, session: GuestSession) -> None:
        self._session = session
        self._channel = session.channel
        self._exchange = session.channel.open()
        self._chunks: deque[tuple[str, bytes]] = deque()
        self._granted = wire.WINDOW  # bytes that the guest may still send
        self._taken = 0  # bytes that were taken since the last grant
        self._room = wire.WINDOW  # bytes that the guest still takes
        self._reply: Mapping[str, object] | None = None
        self.skipped = 0  # bytes that the guest dropped, because this was read too slowly
        self.end: Mapping[str, object] | None = None  # what the guest said at the end

    async def open(self, payload: bytes) -> Mapping[str, object]:
        """The guest's answer; `error` in it if there is no stream."""
        async with self._session.streaming():
            await self._send(wire.OPEN, {"credit": wire.WINDOW}, payload)
            await self._until(lambda: self._reply is not None)
        assert self._reply is not None
        if "error" in self._reply:
            self._exchange.close()
        return self._reply

    async def receive(self) -> tuple[str, bytes] | None:
        """The next bytes, and of which output they are; None at the end."""
        async with self._session.streaming():
            await self._until(lambda: bool(self._chunks) or self.end is not None)
            if not self._chunks:
                return None
            name, data = self._chunks.popleft()
            self._taken += len(data)
            if self._taken >= wire.WINDOW // 2 and self.end is None:
                size, self._taken = self._taken, 0
                self._granted += size
                await self._send(wire.CREDIT, {"size": size})
            return name, data

    async def send(self, data: bytes) -> None:
        """Waits while the other end does not read."""
        view = memoryview(data)
        async with self._session.streaming():
            while view and self.end is None:
                await self._until(lambda: self._room > 0 or self.end is not None)
                part = view[: min(self._room, wire.CHUNK)]
                self._room -= len(part)
                await self._send(wire.BYTES, None, bytes(part))
                view = view[len(part) :]

    async def end_input(self) -> None:
        if self.end is None:
            async with self._session.streaming():
                await self._send(wire.END, {"input": True})

    async def close(self) -> None:
        """Read no more. What is at the other end goes on."""
        if self.end is None and self._session.alive:
            async with self._session.streaming():
                await self._send(wire.END, None)
        self._exchange.close()

    async def _send(
        self, kind: int, header: Mapping[str, object] | None, payload: bytes = b""
    ) -> None:
        try:
            await self._channel.send(kind, self._exchange.number, header, payload)
        except Lost:
            raise GuestLost("the guest has ended") from None

    async def _until(self, reached: Callable[[], bool]) -> None:
        """Take frames until something is so. Several tasks may wait, each for something else."""
        exchange = self._exchange
        try:
            while not reached():
                if exchange.frames:
                    self._take(exchange.take())
                else:
                    await self._channel.pump(exchange)
        except Lost:
            raise GuestLost("the guest has ended") from None
        except ProtocolError:
            self._session.kill()
            raise

    def _take(self, frame: wire.Frame) -> None:
        header = frame.header
        if frame.kind == wire.BYTES:
            self._granted -= len(frame.payload)
            if self._granted < 0 or not frame.payload:
                raise ProtocolError("the guest sent more than the stream had credit for")
            name = "stderr" if header.get("name") == "stderr" else "stdout"
            self.skipped += _size(header.get("skipped", 0))
            self._chunks.append((name, frame.payload))
        elif frame.kind == wire.CREDIT:
            self._room += _size(header.get("size"))
            if self._room > wire.WINDOW:
                raise ProtocolError("the guest gave credit that it did not owe")
        elif frame.kind == wire.END:
            self.end = header
            self._exchange.close()
        elif frame.kind == wire.REPLY and self._reply is None:
            self._reply = header
        else:
            drop(frame)
            raise ProtocolError(f"unexpected frame of kind {frame.kind}")


def _size(found: object) -> int:
    if type(found) is not int or not 0 <= found < 2**48:
        raise ProtocolError("the guest sent a malformed size")
    return found
