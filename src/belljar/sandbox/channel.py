"""The host's end of the wire: requests out, frames back, several at once.

There is no background task. One of the tasks that wait for an answer reads the stream and hands
each frame to the request it belongs to; when it has its own answer, the next waiting task reads on.
So a channel works under any event loop, and nothing runs while no request is open.
"""

from __future__ import annotations

import mmap
import os
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

import anyio

from belljar.backends.base import Stream
from belljar.backends.event_loop import (
    finish_in_time,
    here,
    in_use_elsewhere,
    let_others_run,
    move_to_loop,
)
from belljar.errors import GuestLost, ProtocolError
from belljar.protocol import buffers, wire

if TYPE_CHECKING:
    from belljar.sandbox.pause import Pauses

T = TypeVar("T")
SEND_TIMEOUT = 30.0
CALL_TIMEOUT = 60.0  # for requests that do not run the guest's code
MAX_QUEUED = 32 * 1024 * 1024  # bytes waiting for one request that does not read its frames
REHEARSAL = 1  # the number of the request that a pool may make before the first user's
FRAME_COST = 1024  # bytes a small frame takes as objects, beside its text
FD_COST = 256 * 1024  # descriptors are few
AT_ONCE = 500  # frames that are handed on before others have their turn
WITH_FD = (wire.CALL, wire.DONE)  # frames that may have one


class Lost(Exception):
    """The stream ended. The caller decides what that means."""


class Exchange:
    """One request and the frames that answer it."""

    def __init__(self, channel: Channel, number: int) -> None:
        self.number = number
        self.frames: deque[wire.Frame] = deque()  # that came and were not taken yet
        self.queued = 0  # bytes they take
        self.most = MAX_QUEUED
        self._channel = channel

    async def next(self) -> wire.Frame:
        """The next frame for this request. Raises Lost when the guest is gone."""
        while not self.frames:
            await self._channel.pump(self)
        return self.take()

    def take(self) -> wire.Frame:
        frame = self.frames.popleft()
        if not self.frames:
            self.queued = 0
        else:
            self.queued -= _cost(frame)
        return frame

    def close(self) -> None:
        self._channel.exchanges.pop(self.number, None)
        while self.frames:
            drop(self.frames.popleft())


def _cost(frame: wire.Frame) -> int:
    return frame.size + FRAME_COST + (FD_COST if frame.fd >= 0 else 0)


def drop(frame: wire.Frame) -> None:
    """Close the descriptor of a frame that is not used."""
    if frame.fd >= 0:
        buffers.close(frame.fd)


class Held(weakref.WeakSet[mmap.mmap]):
    """Memory that a guest handed over and that is still mapped here: it counts as the guest's."""

    @property
    def bytes(self) -> int:
        return sum(map(len, self)) if len(self) else 0


class Channel:
    def __init__(self, stream: Stream, shareable: int = 0, *, after: int = 0) -> None:
        """`shareable`: bytes in all that may be handed over as shared memory. They are the host's
        memory, and the guest may keep them for as long as it lives. `after`: the number before
        that of the first request."""
        self._stream = stream
        # Some streams can send without waiting, and need no time-out then.
        self._send_now: Callable[[bytes], bool] | None = getattr(stream, "send_now", None)
        self.polls = self._send_now is not None  # a caller's thread can wait for it
        self._shareable = shareable
        self.held = Held()
        self._reader = wire.Reader(wire.FROM_GUEST)
        self._came: Iterator[wire.Frame] | None = None  # frames that were not handed on yet
        self.exchanges: dict[int, Exchange] = {}
        self._last = after
        self._reading: object | None = None  # the event loop of the task that reads
        self._news: anyio.Event | None = None  # made by the first task that waits for the reader
        self._failed: Exception | None = None
        self.pauses: Pauses | None = None  # made by the first one

    def may_share(self, size: int) -> bool:
        """True if so many bytes may go as shared memory; if so, they count from now on."""
        if not self._stream.shares or size > self._shareable:
            return False
        self._shareable -= size
        return True

    @property
    def alive(self) -> bool:
        return self._failed is None and not self._stream.ended()

    def kill(self) -> None:
        """Refuse all further use of the stream: the guest is being killed."""
        self._fail(Lost())

    async def close(self) -> None:
        """Refuse further use, and wait until no task reads the stream, so that it can be closed.

        Called after the guest was killed: a reader meets the end of the stream at once.
        """
        self._fail(Lost())
        while self._reading is not None:
            await self._wait()

    def open(self) -> Exchange:
        self._last += 1
        exchange = self.exchanges[self._last] = Exchange(self, self._last)
        return exchange

    async def send(
        self,
        kind: int,
        request: int,
        header: Mapping[str, object] | None = None,
        payload: bytes = b"",
        fd: int = -1,
    ) -> None:
        """Shielded from cancellation. The guest's init always reads, so a send that takes long
        means that it is gone or broken. A descriptor is closed here in any case."""
        try:
            data = wire.pack(kind, request, dict(header) if header else None, payload)
            if self._failed is not None:
                raise self._failed
            if fd < 0 and self._send_now is not None:
                if self._send_now(data):
                    return
                data = b""  # the stream keeps the rest, and sends it first
        except OSError as error:
            self._fail(Lost())
            raise Lost from error
        except BaseException:
            if fd >= 0:
                os.close(fd)
            raise
        await move_to_loop()
        with anyio.CancelScope(shield=True):
            rest = [(data, fd)]

            async def push() -> bool:  # again after a pause: then the stream has what is left
                await self._stream.send(*(rest.pop() if rest else (b"", -1)))
                return True

            try:
                if await self.within(SEND_TIMEOUT, push):
                    return
            except OSError as error:
                self._fail(Lost())
                raise Lost from error
            self._fail(Lost())
            raise Lost

    async def pump(self, exchange: Exchange) -> None:
        """Bring frames to `exchange`: by reading, or by waiting for the task that reads. There are
        none if the exchange was closed meanwhile."""
        if self._failed is not None:
            raise self._failed
        if self._reading is not None:
            await self._wait()
            return
        self._reading = here()
        try:
            while not exchange.frames and self._failed is None:
                if exchange.number not in self.exchanges:
                    return
                await self._receive()
                if self._news is not None:
                    self._wake()
        finally:
            self._reading = None
            if self._news is not None:
                self._wake()
        if not exchange.frames and self._failed is not None:
            raise self._failed

    async def _receive(self) -> None:
        try:
            if self._came is None:
                data = await self._stream.receive()
                if not data:
                    self._fail(Lost())
                    return
                self._reader.feed(data)
                self._came = self._reader.frames()
            else:
                # Between frames, not while one is handed on: a task cancelled here loses none.
                await let_others_run()
            for number, frame in enumerate(self._came, start=1):
                self._hand_on(frame)
                if number == AT_ONCE:
                    return
            self._came = None
        except wire.WireError as error:
            self._fail(ProtocolError(f"the guest broke the protocol: {error}"))
        except ProtocolError as error:
            self._fail(error)

    def _hand_on(self, frame: wire.Frame) -> None:
        if "shared" in frame.header:
            if frame.kind not in WITH_FD:
                raise wire.WireError("an unexpected descriptor")
            frame = frame._replace(fd=self._stream.take_fd())
        exchange = self.exchanges.get(frame.request)
        if exchange is None:  # a late frame of a request that was closed
            drop(frame)
            return
        exchange.frames.append(frame)
        exchange.queued += _cost(frame)
        if exchange.queued > exchange.most:
            raise ProtocolError("the guest sent more than the host had asked for")

    async def _wait(self) -> None:
        if self._reading is not here():
            raise in_use_elsewhere()
        self._news = self._news or anyio.Event()
        await self._news.wait()

    def _wake(self) -> None:
        """Wake the tasks that wait for the one that reads."""
        if self._news is not None:
            self._news.set()
            self._news = None

    def _fail(self, error: Exception) -> None:
        if self._failed is None:
            self._failed = error
        self._wake()

    async def call(
        self,
        kind: int,
        header: Mapping[str, object] | None = None,
        payload: bytes = b"",
        *,
        timeout: float = CALL_TIMEOUT,
    ) -> tuple[dict[str, object], bytes]:
        """A request with one answer: its header, and the data that came before it."""
        exchange, data = self.open(), bytearray()
        try:
            await self.send(kind, exchange.number, header, payload)
            deadline, paused = time.monotonic() + timeout, self.seconds_paused
            answer = await finish_in_time(lambda: self._answer(exchange, data), timeout)
            if answer is None:
                left = deadline - time.monotonic()
                answer = await self.within(left, lambda: self._answer(exchange, data), paused)
            if answer is not None:
                return answer, bytes(data)
            self._fail(Lost())
            raise GuestLost(
                f"the guest did not answer within {timeout:.0f} s; it is not used any more"
            )
        except Lost:
            raise GuestLost("the guest died during the operation") from None
        finally:
            exchange.close()

    @property
    def seconds_paused(self) -> float:
        return 0.0 if self.pauses is None else self.pauses.seconds

    async def within(
        self, seconds: float, work: Callable[[], Awaitable[T]], paused: float | None = None
    ) -> T | None:
        """Do it for so many seconds in which the guest is not paused; None: the time is up.

        `paused`: `seconds_paused` when the time began, if that was before."""
        paused = self.seconds_paused if paused is None else paused
        while True:
            with anyio.move_on_after(seconds):
                return await work()
            if (seconds := await self.wait_for_resume(paused)) <= 0:
                return None
            paused = self.seconds_paused

    async def wait_for_resume(self, paused: float) -> float:
        """Called when a time is up: how many seconds of it the guest was paused, when it is not
        paused any more. `paused`: `seconds_paused` when the time began."""
        seconds = self.seconds_paused - paused
        if self.pauses is not None:
            await self.pauses.wait_end()
        return seconds

    async def _answer(self, exchange: Exchange, data: bytearray) -> dict[str, object]:
        """Add what comes to `data`, until the answer itself comes."""
        while True:
            frame = await exchange.next()
            if frame.kind == wire.REPLY:
                return frame.header
            if frame.kind != wire.DATA:
                drop(frame)
                raise ProtocolError(f"unexpected answer of kind {frame.kind}")
            data += frame.payload
            if len(data) > wire.MAX_PAYLOAD:
                error = ProtocolError("the guest sent a longer answer than is allowed")
                self._fail(error)
                raise error
