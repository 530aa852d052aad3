"""Streams: bytes to and from the guest, in each direction as fast as the other end reads.

The reader grants credit for so many bytes, and more when it has taken some. So a stream that is not
read holds at most one window in memory, and holds up nothing but its own source.
"""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping

import anyio

from belljar.errors import GuestLost, ProtocolError
from belljar.protocol import wire
from belljar.sandbox.channel import CALL_TIMEOUT, Lost, drop
from belljar.sandbox.guest_session import GuestSession

NAMES = ("stdout", "stderr")
MAX_QUEUED = 4 * wire.WINDOW  # bytes of frames that were not taken, with what they take as objects
TURN = 0.1  # seconds between turns of a fork that waits for its programs


class Window:
    """What the guest may send of one stream, as the host counts it."""

    def __init__(self) -> None:
        self._granted = wire.WINDOW
        self._taken = 0

    def receive(self, frame: wire.Frame) -> tuple[str, bytes]:
        """Which output it is, and the bytes."""
        name, data = frame.header.get("name"), frame.payload
        self._granted -= len(data) + wire.STREAM_COST
        if self._granted < 0 or not data or name not in NAMES:
            raise ProtocolError("the guest sent what the stream had no credit for")
        return str(name), data

    def take(self, *chunks: bytes) -> int:
        """These were taken. How much credit is due now; 0 most of the time."""
        self._taken += sum(map(len, chunks)) + wire.STREAM_COST * len(chunks)
        if self._taken < wire.WINDOW // 2:
            return 0
        due, self._taken = self._taken, 0
        self._granted += due
        return due


class Input:
    """What the guest takes of one stream."""

    def __init__(self) -> None:
        self._credit = wire.WINDOW

    @property
    def room(self) -> int:
        """Bytes that may be sent in the next frame; 0 or less: none."""
        return min(self._credit - wire.STREAM_COST, wire.CHUNK)

    @property
    def taken(self) -> bool:
        """True if the guest has taken all that was sent."""
        return self._credit == wire.WINDOW

    def grant(self, frame: wire.Frame) -> None:
        size = frame.header.get("size")
        if type(size) is not int or not 0 < size <= wire.WINDOW - self._credit:
            raise ProtocolError("the guest gave credit that it did not owe")
        self._credit += size

    def cut(self, data: memoryview) -> memoryview:
        """The next part that may be sent."""
        part = data[: self.room]
        self._credit -= len(part) + wire.STREAM_COST
        return part


class Stream:
    """One of `branch`: what a program of a fork writes comes only while that fork has its turn."""

    def __init__(self, session: GuestSession, branch: int) -> None:
        self._session, self._channel, self._branch = session, session.channel, branch
        self._exchange = session.channel.open()
        self._exchange.most = MAX_QUEUED
        self._chunks: deque[tuple[str, bytes]] = deque()
        self._window, self._input = Window(), Input()
        self._reply: Mapping[str, object] | None = None
        self._waiting = 0  # tasks
        self._connects = False  # to a port: the server may end its output alone
        self._over = False  # it has
        self._lost = False  # with the guest
        self.skipped = 0  # bytes that the guest dropped, because this was read too slowly
        self.end: Mapping[str, object] | None = None  # what the guest said at the end

    async def open(self, asked: Mapping[str, object]) -> Mapping[str, object]:
        """The guest's answer; with `error` there is no stream. Call this in a turn."""
        payload = json.dumps(asked).encode("ascii")
        self._connects = "port" in asked
        await self._send(wire.OPEN, {"credit": wire.WINDOW}, payload)
        try:
            if self._connects:
                await self._until(lambda: self._reply is not None)
            else:
                await self._channel.within(CALL_TIMEOUT, self._wait_for_reply)
        except anyio.get_cancelled_exc_class():
            if "argv" in asked:  # no caller will know this program
                await self._send(wire.KILL)
            raise
        if self._reply is None:
            self._session.kill()
            raise GuestLost("the guest did not answer, and was killed")
        if "error" in self._reply:
            self._exchange.close()
            self.end = {}
        return self._reply

    async def _wait_for_reply(self) -> None:
        await self._until(lambda: self._reply is not None)

    @property
    def session(self) -> GuestSession:
        return self._session

    async def receive(self, *, wait: bool = True) -> list[tuple[str, bytes]]:
        """What has come, and of which output it is; nothing at the end."""
        if self._lost:
            raise _lost()
        while wait and not self._has_news() and self._session.takes_turns(self._branch):
            async with self._session.turn(self._branch):
                pass  # other forks stop the programs of this one
            with anyio.move_on_after(TURN):
                async with self._session.streaming():
                    await self._until(self._has_news)
        async with self._session.streaming():
            if wait:
                await self._until(self._has_news)
            elif self.end is None:
                with self._guard():
                    await self._channel.call(wire.PING)  # answered after what was sent before
            self._take_all()
            chunks = [*self._chunks]
            self._chunks.clear()
            due = self._window.take(*(data for _, data in chunks))
            if due and self.end is None:
                await self._send(wire.CREDIT, {"size": due})
        return chunks

    def _has_news(self) -> bool:
        return bool(self._chunks) or self._over or self.end is not None

    async def send(self, data: bytes) -> None:
        """Waits while the other end does not read."""
        view = memoryview(data)
        async with self._session.streaming():
            while view and self.end is None:
                self._take_all()
                await self._until(lambda: self._input.room > 0 or self.end is not None)
                if self.end is None:
                    part = self._input.cut(view)
                    await self._send(wire.STREAM, None, bytes(part))
                    view = view[len(part) :]

    @property
    def room(self) -> int:
        """Bytes that `send` takes without waiting."""
        return max(self._input.room, 0)

    async def wait_for_room(self) -> int:
        """The room when there is some. 0: the stream has ended."""
        async with self._session.streaming():
            await self._until(lambda: self.room > 0 or self.end is not None)
        return self.room

    async def drain(self) -> None:
        """Wait until the other end has taken all that was sent."""
        async with self._session.streaming():
            await self._until(lambda: self._input.taken or self.end is not None)

    async def end_input(self) -> None:
        if self.end is None:
            async with self._session.streaming():
                await self._send(wire.END, {"input": True})

    async def close(self) -> None:
        """Read no more. A process goes on, a connection ends."""
        if self.end is None and self._session.alive:
            self.end = {}
            async with self._session.streaming():
                await self._send(wire.END)
                self._exchange.close()
                if self._waiting:  # the answer wakes those who wait
                    await self._channel.call(wire.PING)
        self._exchange.close()

    def __del__(self) -> None:
        if self.end is None:
            self._session.abandon(self._exchange)

    async def _send(
        self, kind: int, header: Mapping[str, object] | None = None, payload: bytes = b""
    ) -> None:
        with self._guard():
            await self._channel.send(kind, self._exchange.number, header, payload)

    async def _until(self, reached: Callable[[], bool]) -> None:
        """Take frames until something is so. Several tasks may wait, each for something else."""
        self._waiting += 1
        try:
            while not reached():
                if self._exchange.frames:
                    self._take_all()
                else:
                    with self._guard():
                        await self._channel.pump(self._exchange)
        finally:
            self._waiting -= 1

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except Lost:
            self._lost, self.end = True, {}
            self._exchange.close()
            raise _lost() from None
        except ProtocolError:
            self._session.kill()
            self.end = {}
            self._exchange.close()
            raise

    def _take_all(self) -> None:
        with self._guard():
            while self._exchange.frames:
                self._take(self._exchange.take())

    def _take(self, frame: wire.Frame) -> None:
        if frame.kind == wire.STREAM and self._reply is not None and not self._over:
            self._chunks.append(self._window.receive(frame))
            skipped = frame.header.get("skipped", 0)
            self.skipped += skipped if type(skipped) is int and 0 < skipped < 2**53 else 0
        elif frame.kind == wire.CREDIT:
            self._input.grant(frame)
        elif frame.kind == wire.DONE and self._reply is not None:
            drop(frame)
            self.end = frame.header
            self._exchange.close()
        elif frame.kind == wire.REPLY and self._reply is None:
            self._reply = frame.header
        elif frame.kind == wire.END and self._connects and not self._over:
            self._over = True
        else:
            drop(frame)
            raise ProtocolError(f"unexpected frame of kind {frame.kind}")


def _lost() -> GuestLost:
    return GuestLost("the sandbox has ended, and with it this stream")
