"""Calls to a container engine: its HTTP API, in any event loop and any thread.

Every call opens a connection: nothing is shared with another caller, nothing survives a fork, and
a cancelled call only closes it.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from typing import Any

import anyio

from belljar.backends.docker.client.connect import Connection, dial
from belljar.backends.docker.client.endpoint import Endpoint
from belljar.backends.docker.client.engine_errors import (
    BrokenAnswer,
    EngineError,
    EngineUnavailable,
    broken_error,
    refusal_error,
    unreachable_error,
)
from belljar.backends.docker.client.http import Data, Exchange, Head, require_h11
from belljar.errors import SandboxError

__all__ = ["Connection", "Engine", "EngineError", "EngineUnavailable", "parsing_answer"]

# Docker 20.10 and Podman 4 speak 1.41, Docker 25 to 29 speak 1.44. Of a newer engine, 1.44 is
# requested, so that changes in newer versions of the API have no effect.
OLDEST_API = (1, 41)
NEWEST_API = (1, 44)

MAX_JSON = 16 * 1024 * 1024
MAX_LINE = 4 * 1024 * 1024
MAX_REFUSAL = 64 * 1024

PING = "/_ping"  # the only call without a version

Query = Mapping[str, object]


class Engine:
    """An engine at an endpoint. Cheap to make, holds nothing open."""

    def __init__(self, endpoint: Endpoint) -> None:
        require_h11()
        self.endpoint = endpoint
        self._version = ""  # of the API, once it is known

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: object = None,
        data: Data = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
    ) -> Any:
        """Return the parsed JSON of the answer, or None if it has no JSON.

        `path` is without the version; `body` is sent as JSON, `data` as it is. In `query`, dict and
        list become JSON, bool becomes 1 or 0, None is left out.
        """
        with anyio.move_on_after(timeout):
            async with self._exchange(method, path, query, body, data, headers) as exchange:
                head = await self._accepted(exchange)
                text = await exchange.body(MAX_JSON)
                kind = head.headers.get("content-type", "").partition(";")[0].strip().lower()
                return _json(text) if text.strip() and kind == "application/json" else None
        raise self._silent(method, path, timeout)

    @asynccontextmanager
    async def lines(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        data: Data = None,
        headers: Mapping[str, str] | None = None,
        idle_timeout: float = 300.0,
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """Give one JSON object after the other (pull, build, events).

        Not the total time is limited but the silence, to `idle_timeout`. An engine reports a later
        failure in the stream, as an object with "error".
        """
        async with AsyncExitStack() as stack:
            with anyio.move_on_after(idle_timeout) as waiting:

                def moved() -> None:
                    waiting.deadline = anyio.current_time() + idle_timeout

                exchange = await stack.enter_async_context(
                    self._exchange(method, path, query, None, data, headers, moved)
                )
                await self._accepted(exchange)
            if waiting.cancelled_caught:
                raise self._silent(method, path, idle_timeout)
            lines = self._read_lines(exchange, method, path, idle_timeout)
            yield await stack.enter_async_context(aclosing(lines))

    async def _read_lines(
        self, exchange: Exchange, method: str, path: str, idle_timeout: float
    ) -> AsyncGenerator[dict[str, Any]]:
        rest, chunk = b"", b"\n"
        try:
            while chunk:
                with anyio.move_on_after(idle_timeout) as waiting:
                    chunk = await exchange.chunk()
                if waiting.cancelled_caught:
                    raise self._silent(method, path, idle_timeout)
                # The end of the answer ends its last line too.
                *lines, rest = (rest + (chunk or b"\n")).split(b"\n")
                if len(rest) > MAX_LINE:
                    raise BrokenAnswer(f"it sent a line of more than {MAX_LINE} bytes")
                for line in filter(None, map(bytes.strip, lines)):
                    found = _json(line)
                    if not isinstance(found, dict):
                        raise BrokenAnswer("it sent a line that is not a JSON object")
                    yield found
        except BrokenAnswer as error:
            raise self._broken(method, path, error) from error

    async def upgrade(
        self, path: str, *, query: Query | None = None, body: object = None, timeout: float = 30.0
    ) -> Connection:
        """POST, and return the connection as a raw stream; the caller closes it."""
        headers = {"Connection": "Upgrade", "Upgrade": "tcp"}
        with anyio.move_on_after(timeout):
            async with self._exchange("POST", path, query, body, headers=headers) as exchange:
                head = await self._accepted(exchange)
                # Docker switches protocols (101); some versions of Podman answer 200 and do it too.
                framed = {"content-length", "transfer-encoding"} & head.headers.keys()
                if head.status != 101 and (head.status != 200 or framed):
                    raise BrokenAnswer(f"it did not open the stream (status {head.status})")
                return exchange.detach()
        raise self._silent("POST", path, timeout)

    @asynccontextmanager
    async def _exchange(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: object = None,
        data: Data = None,
        headers: Mapping[str, str] | None = None,
        moved: Callable[[], None] | None = None,
    ) -> AsyncIterator[Exchange]:
        """Send a request on a new connection; turn failures into EngineErrors."""
        if path != PING and not self._version:
            self._version = await self._negotiate()
        target = _target(path if path == PING else f"/v{self._version}{path}", query)
        fields = {"Host": self.endpoint.authority, "User-Agent": "belljar", "Connection": "close"}
        if body is not None:
            data = json.dumps(body).encode()
            fields["Content-Type"] = "application/json"
        try:
            connection = await dial(self.endpoint)
        except OSError as error:
            self._version = ""  # the next engine at this address may be another
            raise unreachable_error(self.endpoint, error) from error
        exchange = Exchange(connection)
        try:
            await exchange.send(method, target, fields | dict(headers or {}), data, moved)
            yield exchange
        except BrokenAnswer as error:
            raise self._broken(method, path, error, connection.complaint()) from error
        finally:
            exchange.close()

    def _broken(self, method: str, path: str, error: BrokenAnswer, said: str = "") -> EngineError:
        self._version = ""
        return broken_error(self.endpoint, f"{method} {path}", error, said)

    async def _negotiate(self) -> str:
        """Find the version of the API that both sides speak."""
        async with self._exchange("GET", PING) as exchange:
            head = await self._accepted(exchange)
            found = re.fullmatch(r"(\d{1,4})\.(\d{1,4})", head.headers.get("api-version", ""))
            if found is None:
                raise BrokenAnswer("it does not say which version of Docker's API it speaks")
        theirs = (int(found[1]), int(found[2]))
        if theirs < OLDEST_API:
            raise EngineUnavailable(
                f"the engine at {self.endpoint} speaks version {found[0]} of Docker's API, "
                f"too old for belljar",
                hint="version 1.41 is needed: Docker 20.10 or Podman 4, or newer",
            )
        return "{}.{}".format(*min(theirs, NEWEST_API))

    async def _accepted(self, exchange: Exchange) -> Head:
        """Return the head of the answer. Raises EngineError if the engine refused."""
        head = await exchange.head()
        if head.status < 300 or head.status == 304:  # 304: it is already in that state
            return head
        if head.status == 400:
            self._version = ""  # perhaps about the version: the engine may be another than before
        raise refusal_error(head.status, await exchange.body_start(MAX_REFUSAL))

    def _silent(self, method: str, path: str, timeout: float) -> EngineError:
        return EngineError(
            f"the engine at {self.endpoint} did not answer in {timeout:g} s ({method} {path})",
            hint="it is busy, stuck or out of reach; does `docker info` answer?",
        )


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BrokenAnswer(f"it sent invalid JSON: {error}") from error


def _target(path: str, query: Query | None) -> str:
    # Parts may be quoted already; characters that would end the path are always quoted.
    quoted = urllib.parse.quote(path, safe="/:@!$&'()*+,;=~%")
    pairs = [(name, _value(value)) for name, value in (query or {}).items() if value is not None]
    return f"{quoted}?{urllib.parse.urlencode(pairs)}" if pairs else quoted


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return json.dumps(value) if isinstance(value, (dict, list)) else str(value)


@contextmanager
def parsing_answer(engine: Engine, what: str) -> Iterator[None]:
    """Turn errors while an answer is parsed into EngineErrors: the answer may come from a proxy or
    another program."""
    try:
        yield
    except SandboxError:
        raise  # some are also ValueErrors
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise EngineError(
            f"the engine at {engine.endpoint} gave an unexpected answer {what}: {error!r}"[:500],
            hint="is it a container engine?",
        ) from error
