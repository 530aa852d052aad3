"""The host's end of the wire: requests out, frames back, several at once.

There is no background task. Whoever waits for an answer reads the stream for all: one waiter is
the reader, and hands each frame to the request it belongs to; when it has its own answer, the
next waiter reads on. So a channel works under any event loop, and nothing runs when nobody asks.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping

import anyio
import anyio.lowlevel

from belljar.backends.base import Stream
from belljar.backends.event_loop import here, in_use_elsewhere
from belljar.errors import GuestLost, ProtocolError
from belljar.protocol import buffers, wire

SEND_TIMEOUT = 30.0
CALL_TIMEOUT = 60.0  # for requests that do not run the guest's code
MAX_QUEUED = 32 * 1024 * 1024  # bytes waiting for one request that does not read its frames
REHEARSAL = 1  # the number of a request before the first tenant's
FRAME_COST = 1024  # bytes a small frame takes as objects, beside its text
FD_COST = 256 * 1024  # descriptors are few
AT_ONCE = 500  # frames that are handed on before others have their turn
WITH_FD = (wire.CALL, wire.DONE)  # frames that may have one


class Lost(Exception):
    """The stream ended. What that means is for the sandbox to say."""


class Exchange:
    """One request and the frames that answer it."""

    def __init__(self, channel: Channel, number: int) -> None:
        self.number = number
        self._channel = channel
        self._frames: deque[wire.Frame] = deque()
        self.queued = 0

    def push(self, frame: wire.Frame) -> None:
        self._frames.append(frame)
        self.queued += _cost(frame)
        if self.queued > MAX_QUEUED:
            raise ProtocolError("the guest sent more than anybody asked for")

    async def next(self) -> wire.Frame:
        """The next frame for this request. Raises Lost when the guest is gone."""
        while not self._frames:
            await self._channel.pump(self)
        frame = self._frames.popleft()
        self.queued -= _cost(frame)
        return frame

    @property
    def waiting(self) -> bool:
        return not self._frames

    def close(self) -> None:
        self._channel.forget(self)
        while self._frames:
            drop(self._frames.popleft())


def _cost(frame: wire.Frame) -> int:
    return frame.size + FRAME_COST + (FD_COST if frame.fd >= 0 else 0)


def drop(frame: wire.Frame) -> None:
    """Let go of a frame that nobody will look at."""
    if frame.fd >= 0:
        buffers.close(frame.fd)


class Held:
    """Memory that guests gave away and that is still mapped here: it counts as theirs."""

    def __init__(self) -> None:
        self._mapped: list[weakref.ref[mmap.mmap]] = []

    def add(self, memory: mmap.mmap) -> None:
        self._mapped.append(weakref.ref(memory))

    @property
    def bytes(self) -> int:
        if not self._mapped:
            return 0
        alive = [memory for ref in self._mapped if (memory := ref()) is not None]
        self._mapped = [weakref.ref(memory) for memory in alive]
        return sum(map(len, alive))


class Channel:
    def __init__(self, stream: Stream, shareable: int = 0, *, after: int = 0) -> None:
        """`shareable`: bytes that may be handed over as shared memory, all in all. They are the
        host's, and the guest may keep them for as long as it lives. `after`: the number before
        that of the first request."""
        self._stream = stream
        # Of streams that can tell whether there is any need to wait, and so for a time-out.
        self._send_now: Callable[[bytes], bool] | None = getattr(stream, "send_now", None)
        self._shareable = shareable
        self.held = Held()
        self._reader = wire.Reader(wire.FROM_GUEST)
        self._came: Iterator[wire.Frame] | None = None  # frames that were not handed on yet
        self._exchanges: dict[int, Exchange] = {}
        self._last = after
        self._reading: object | None = None  # the event loop of the one who reads
        self._news: anyio.Event | None = None  # made by the first who waits for the one who reads
        self._failed: Exception | None = None

    def may_share(self, size: int) -> bool:
        """Whether this much memory may be handed over as it is; if so, it counts from now on."""
        if not self._stream.shares or size > self._shareable:
            return False
        self._shareable -= size
        return True

    @property
    def alive(self) -> bool:
        return self._failed is None and not self._stream.ended()

    def abandon(self) -> None:
        """Use the stream no more: the guest is being killed."""
        self._fail(Lost())

    async def retire(self) -> None:
        """Use the stream no more, and wait until nobody reads it, so that it can be closed.

        Called after the guest was killed: a reader meets the end of the stream at once.
        """
        self._fail(Lost())
        while self._reading is not None:
            await self._wait()

    def open(self) -> Exchange:
        self._last += 1
        exchange = self._exchanges[self._last] = Exchange(self, self._last)
        return exchange

    def forget(self, exchange: Exchange) -> None:
        self._exchanges.pop(exchange.number, None)

    async def send(
        self,
        kind: int,
        request: int,
        header: Mapping[str, object] | None = None,
        payload: bytes = b"",
        fd: int = -1,
    ) -> None:
        """Shielded. The guest's init always reads, so a send that takes long means that it is
        gone or broken. A descriptor is closed here in any case."""
        try:
            data = wire.pack(kind, request, dict(header) if header else None, payload)
            self._check()
            if fd < 0 and self._send_now is not None:
                if self._send_now(data):
                    return
                data = b""  # what is left of it is the stream's
        except OSError as error:
            self._fail(Lost())
            raise Lost from error
        except BaseException:
            if fd >= 0:
                os.close(fd)
            raise
        with anyio.CancelScope(shield=True):
            try:
                with anyio.fail_after(SEND_TIMEOUT):
                    await self._stream.send(data, fd)
            except (OSError, TimeoutError) as error:
                self._fail(Lost())
                raise Lost from error

    async def pump(self, exchange: Exchange) -> None:
        """Bring news to `exchange`: by reading, or by waiting for the one who reads."""
        self._check()
        if self._reading is not None:
            await self._wait()
            return
        self._reading = here()
        try:
            while exchange.waiting and self._failed is None:
                await self._receive()
                self._tell()
        finally:
            self._reading = None
            self._tell()
        self._check_for(exchange)

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
                # Between frames, not while one is handed on: who is cancelled here loses none.
                await anyio.lowlevel.checkpoint()
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
                raise wire.WireError("a descriptor that nobody asked for")
            frame = frame._replace(fd=self._stream.take_fd())
        exchange = self._exchanges.get(frame.request)
        # A request that was given up: its late frames are nobody's.
        if exchange is not None:
            exchange.push(frame)
        else:
            drop(frame)

    async def _wait(self) -> None:
        if self._reading is not here():
            raise in_use_elsewhere()
        self._news = self._news or anyio.Event()
        await self._news.wait()

    def _tell(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None

    def _fail(self, error: Exception) -> None:
        if self._failed is None:
            self._failed = error
        self._tell()

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _check_for(self, exchange: Exchange) -> None:
        if exchange.waiting:
            self._check()

    async def call(
        self,
        kind: int,
        header: Mapping[str, object] | None = None,
        payload: bytes = b"",
        *,
        timeout: float = CALL_TIMEOUT,
    ) -> tuple[dict[str, object], bytes]:
        """A request with one answer: its header, and the data that came before it."""
        exchange = self.open()
        try:
            await self.send(kind, exchange.number, header, payload)
            with anyio.fail_after(timeout):
                return await self._answer(exchange)
        except Lost:
            raise GuestLost("the guest died during the operation") from None
        except TimeoutError:
            self._fail(Lost())
            raise GuestLost(
                f"the guest did not answer in {timeout:.0f} s, and was given up"
            ) from None
        finally:
            exchange.close()

    async def _answer(self, exchange: Exchange) -> tuple[dict[str, object], bytes]:
        data = bytearray()
        while True:
            frame = await exchange.next()
            if frame.kind == wire.REPLY:
                return frame.header, bytes(data)
            if frame.kind != wire.DATA:
                drop(frame)
                raise ProtocolError(f"unexpected answer of kind {frame.kind}")
            data += frame.payload
            if len(data) > wire.MAX_PAYLOAD:
                error = ProtocolError("the guest sent more than it was asked for")
                self._fail(error)
                raise error
