"""Streams: bytes to and from the guest, in each direction as fast as the other end reads.

The reader grants credit for so many bytes, and more when it has taken some. So a stream that is not
read holds at most one window in memory, and holds up nothing but its own source.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping

from belljar.errors import GuestLost, ProtocolError
from belljar.protocol import wire
from belljar.sandbox.channel import Lost, drop
from belljar.sandbox.guest_session import GuestSession

NAMES = ("stdout", "stderr")


class Window:
    """What the guest may send of one stream, as the host counts it."""

    def __init__(self) -> None:
        self._granted = wire.WINDOW
        self._taken = 0

    def receive(self, frame: wire.Frame) -> tuple[str, bytes]:
        """Which output it is, and the bytes."""
        name, data = frame.header.get("name"), frame.payload
        self._granted -= len(data)
        if self._granted < 0 or not data or name not in NAMES:
            raise ProtocolError("the guest sent what the stream had no credit for")
        return str(name), data

    def take(self, size: int) -> int:
        """These bytes were taken. How much credit is due now; 0 most of the time."""
        self._taken += size
        if self._taken < wire.WINDOW // 2:
            return 0
        due, self._taken = self._taken, 0
        self._granted += due
        return due


class Input:
    """What the guest takes of one stream."""

    def __init__(self) -> None:
        self.room = wire.WINDOW

    def grant(self, frame: wire.Frame) -> None:
        size = frame.header.get("size")
        if type(size) is not int or not 0 < size <= wire.WINDOW - self.room:
            raise ProtocolError("the guest gave credit that it did not owe")
        self.room += size

    def cut(self, data: memoryview) -> memoryview:
        """The next part that may be sent."""
        part = data[: min(self.room, wire.CHUNK)]
        self.room -= len(part)
        return part


class Stream:
    def __init__(self, session: GuestSession) -> None:
        self._session, self._channel = session, session.channel
        self._exchange = session.channel.open()
        self._chunks: deque[tuple[str, bytes]] = deque()
        self._window, self._input = Window(), Input()
        self._reply: Mapping[str, object] | None = None
        self.skipped = 0  # bytes that the guest dropped, because this was read too slowly
        self.end: Mapping[str, object] | None = None  # what the guest said at the end

    async def open(self, asked: Mapping[str, object]) -> Mapping[str, object]:
        """The guest's answer; with `error` there is no stream. Call this in a turn."""
        payload = json.dumps(asked).encode("ascii")
        await self._send(wire.OPEN, {"credit": wire.WINDOW}, payload)
        await self._until(lambda: self._reply is not None)
        assert self._reply is not None
        if "error" in self._reply:
            self._exchange.close()
            self.end = {}
        return self._reply

    @property
    def session(self) -> GuestSession:
        return self._session

    async def receive(self, *, wait: bool = True) -> list[tuple[str, bytes]]:
        """What has come, and of which output it is; nothing at the end."""
        async with self._session.streaming():
            if wait:
                await self._until(lambda: bool(self._chunks) or self.end is not None)
            elif self.end is None:
                await self._channel.call(wire.PING)  # init answers after what it has sent before
            while self._exchange.frames:
                self._take(self._exchange.take())
            chunks = [*self._chunks]
            self._chunks.clear()
            due = self._window.take(sum(len(data) for _, data in chunks))
            if due and self.end is None:
                await self._send(wire.CREDIT, {"size": due})
        return chunks

    async def send(self, data: bytes) -> None:
        """Waits while the other end does not read."""
        view = memoryview(data)
        async with self._session.streaming():
            while view and self.end is None:
                await self._until(lambda: self._input.room > 0 or self.end is not None)
                part = self._input.cut(view)
                await self._send(wire.STREAM, None, bytes(part))
                view = view[len(part) :]

    async def end_input(self) -> None:
        if self.end is None:
            async with self._session.streaming():
                await self._send(wire.END, {"input": True})

    async def close(self) -> None:
        """Read no more. A process goes on, a connection ends."""
        if self.end is None and self._session.alive:
            self.end = {}
            async with self._session.streaming():
                await self._send(wire.END, None)
        self._exchange.close()

    def __del__(self) -> None:
        if self.end is None:
            self._channel.abandoned.append(self._exchange.number)

    async def _send(
        self, kind: int, header: Mapping[str, object] | None, payload: bytes = b""
    ) -> None:
        try:
            await self._channel.send(kind, self._exchange.number, header, payload)
        except Lost:
            raise self._lost() from None

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
            raise self._lost() from None
        except ProtocolError:
            self._session.kill()
            self.end = {}
            raise

    def _lost(self) -> GuestLost:
        self.end = {}
        return GuestLost("the sandbox has ended, and with it this stream")

    def _take(self, frame: wire.Frame) -> None:
        if frame.kind == wire.STREAM:
            self._chunks.append(self._window.receive(frame))
            skipped = frame.header.get("skipped", 0)
            self.skipped += skipped if type(skipped) is int and skipped > 0 else 0
        elif frame.kind == wire.CREDIT:
            self._input.grant(frame)
        elif frame.kind == wire.DONE:
            self.end = frame.header
            self._exchange.close()
        elif frame.kind == wire.REPLY and self._reply is None:
            self._reply = frame.header
        else:
            drop(frame)
            raise ProtocolError(f"unexpected frame of kind {frame.kind}")
