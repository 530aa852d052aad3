"""One HTTP/1.1 exchange over a `Connection`: h11 parses, this moves the bytes.

The answer is read while the request is still being sent: an engine may refuse a large upload early,
and reports progress during one.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel

from belljar.backends.docker.client.connect import Connection
from belljar.backends.docker.client.engine_errors import BrokenAnswer
from belljar.errors import BackendUnavailable, InvalidOption

CHUNK = 64 * 1024
MAX_HEADER = 64 * 1024
MAX_WAITING = 16 * 1024 * 1024  # of the answer, while the request is still being sent

Data = bytes | AsyncIterator[bytes] | None


@dataclass(frozen=True)
class Head:
    status: int
    headers: Mapping[str, str]  # names in lower case


def require_h11() -> None:
    """Raise BackendUnavailable if the parser is not installed."""
    try:
        import h11  # noqa: F401
    except ImportError as error:
        raise BackendUnavailable(
            "the docker backend needs the package h11", hint="pip install h11"
        ) from error


class Exchange:
    """One request and its answer, on one connection."""

    def __init__(self, connection: Connection) -> None:
        import h11  # only here: without an engine it need not be installed

        self._h11 = h11
        self._connection = connection
        self._detached = False
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEADER)
        self._events: deque[Any] = deque()  # of the answer, not read yet
        self._waiting = 0  # bytes in them
        self._head: Head | None = None
        self._received = False
        self._moved: Callable[[], None] | None = None

    async def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        data: Data = None,
        moved: Callable[[], None] | None = None,
    ) -> None:
        """Send the request; stop early if the engine refuses it.

        `moved` is called whenever some bytes were sent.
        """
        self._moved = moved
        fields = dict(headers)
        if isinstance(data, bytes):
            fields["Content-Length"] = str(len(data))
        elif data is not None:
            fields["Transfer-Encoding"] = "chunked"
        elif method not in ("GET", "HEAD", "DELETE"):
            fields["Content-Length"] = "0"
        try:
            request = self._h11.Request(method=method, target=target, headers=list(fields.items()))
        except (self._h11.LocalProtocolError, UnicodeEncodeError) as error:
            raise InvalidOption(
                f"this request is not valid HTTP: {error}", hint="headers are plain ASCII text"
            ) from error
        going = await self._push(self._http.send(request))
        if isinstance(data, bytes):
            going = going and await self._push(self._http.send(self._h11.Data(data=data)))
        elif data is not None:
            going = going and await self._push_all(data)
        if going:
            await self._push(self._http.send(self._h11.EndOfMessage()))

    async def _push_all(self, data: AsyncIterator[bytes]) -> bool:
        try:
            async for chunk in data:
                if chunk and not await self._push(self._http.send(self._h11.Data(data=chunk))):
                    return False
            return True
        finally:
            # Closes a generator that was not read to its end, before the garbage collector does.
            if isinstance(data, AsyncGenerator):
                with anyio.CancelScope(shield=True):
                    await data.aclose()

    async def _push(self, data: bytes | None) -> bool:
        """Send all of it; False if the engine takes no more."""
        rest = memoryview(data or b"")
        while rest:
            try:
                sent = self._connection.send(rest)
            except BlockingIOError:
                await _first_of(self._connection.wait_readable, self._connection.wait_writable)
            except OSError:
                return False  # the answer, which is read next, may say why
            else:
                rest = rest[sent:]
                if self._moved is not None:
                    self._moved()
                await anyio.lowlevel.checkpoint()
            if rest and self._refused():
                return False
        return True

    def _refused(self) -> bool:
        """Read the answer as far as it has come; True if the rest of the request is pointless."""
        over = (self._h11.DONE, self._h11.MUST_CLOSE, self._h11.CLOSED)
        while self._http.their_state not in over:
            try:
                self._feed()
            except BlockingIOError:
                return self._head is not None and self._head.status >= 400
            if self._waiting > MAX_WAITING:
                raise BrokenAnswer(f"it sent {MAX_WAITING} bytes before it had the whole request")
        return True

    def _feed(self) -> None:
        """Parse what has come; raises BlockingIOError if nothing has."""
        try:
            data = self._connection.recv(CHUNK)
        except BlockingIOError:
            raise
        except OSError as error:
            raise BrokenAnswer(
                f"the connection broke: {error}", nothing=not self._received
            ) from error
        self._received = self._received or bool(data)
        if not self._received:
            raise BrokenAnswer("it closed the connection without an answer", nothing=True)
        self._http.receive_data(data)
        self._parse()

    def _parse(self) -> None:
        while True:
            try:
                event = self._http.next_event()
            except self._h11.RemoteProtocolError as error:
                raise BrokenAnswer(str(error)) from error
            if event is self._h11.NEED_DATA or event is self._h11.PAUSED:
                return
            if isinstance(event, self._h11.InformationalResponse) and event.status_code != 101:
                continue
            if isinstance(event, (self._h11.Response, self._h11.InformationalResponse)):
                self._head = Head(
                    event.status_code,
                    {
                        name.decode("latin-1"): value.decode("latin-1")
                        for name, value in event.headers
                    },
                )
                return  # after an upgrade, what follows is not HTTP
            if isinstance(event, self._h11.ConnectionClosed):
                return
            self._events.append(event)
            self._waiting += len(getattr(event, "data", b""))
            if isinstance(event, self._h11.EndOfMessage):
                return

    async def _more(self) -> None:
        while True:
            try:
                self._feed()
            except BlockingIOError:
                await self._connection.wait_readable()
            else:
                await anyio.lowlevel.checkpoint()
                return

    async def head(self) -> Head:
        while self._head is None:
            await self._more()
        return self._head

    async def chunk(self) -> bytes:
        """The next piece of the body; b"" at its end."""
        if self._head is None:
            await self.head()
        self._parse()
        while True:
            while self._events:
                event = self._events.popleft()
                if isinstance(event, self._h11.EndOfMessage):
                    self._events.append(event)  # for the next call
                    return b""
                self._waiting -= len(event.data)
                if event.data:
                    return bytes(event.data)
            await self._more()

    async def body(self, limit: int) -> bytes:
        """All of it; raises BrokenAnswer if that is more than `limit` bytes."""
        parts = bytearray()
        while chunk := await self.chunk():
            parts += chunk
            if len(parts) > limit:
                raise BrokenAnswer(f"its answer is larger than {limit} bytes")
        return bytes(parts)

    async def body_start(self, size: int) -> bytes:
        """The first bytes of it, about `size`, even if it breaks off."""
        parts = bytearray()
        with contextlib.suppress(BrokenAnswer):
            while len(parts) < size and (chunk := await self.chunk()):
                parts += chunk
        return bytes(parts)

    def detach(self) -> Connection:
        """After the head of an upgrade: the connection, with bytes that were read too far."""
        self._detached = True
        self._connection.unread(self._http.trailing_data[0])
        return self._connection

    def close(self) -> None:
        if not self._detached:
            self._connection.close()


async def _first_of(*waits: Callable[[], Awaitable[None]]) -> None:
    async with anyio.create_task_group() as group:

        async def wait_for(wait: Callable[[], Awaitable[None]]) -> None:
            await wait()
            group.cancel_scope.cancel()

        for wait in waits:
            group.start_soon(wait_for, wait)
