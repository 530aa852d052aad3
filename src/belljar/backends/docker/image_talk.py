"""The conversation with the steps in a build container: files go in, lines of JSON come out."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

import anyio

from belljar.backends.docker.dial import Connection
from belljar.backends.docker.image_progress import Teller
from belljar.backends.docker.stream import Demultiplexer
from belljar.build_progress import Step
from belljar.errors import SandboxError
from belljar.guest.wire import WireError

SILENCE = 120.0  # seconds; the container says at least every ten that it is alive
MAX_LINE = 4 * 1024 * 1024
CHUNK = 64 * 1024


@dataclass(frozen=True)
class Failure:
    """Why there will be no image."""

    message: str
    kind: str = ""  # "python", "root", "uv", "install", "start", "ended" or ""
    lines: tuple[str, ...] = ()  # what uv said


class Talk:
    def __init__(self, connection: Connection, teller: Teller) -> None:
        self._connection = connection
        self._pieces = Demultiplexer()
        self._teller = teller
        self._error: SandboxError | None = None  # in what is sent
        self._rest = b""

    async def run(self, pieces: AsyncGenerator[bytes]) -> Mapping[str, Any] | Failure:
        """Send everything, listen to the end: the facts that the steps told, or why there are
        none."""
        end: Mapping[str, Any] | Failure = Failure("it broke off", "ended")
        async with anyio.create_task_group() as group:
            group.start_soon(self._send, pieces, group.cancel_scope)
            end = await self._listen()
            group.cancel_scope.cancel()
        if self._error is not None:
            raise self._error
        return end

    async def _send(self, pieces: AsyncGenerator[bytes], scope: anyio.CancelScope) -> None:
        try:
            async with aclosing(pieces):  # it has files open
                async for piece in pieces:
                    await self._send_all(memoryview(piece))
        except OSError:
            return  # the container has ended, and what it said last tells why
        except SandboxError as error:
            # Kept, because a task group would wrap it into a group.
            self._error = error
            scope.cancel()

    async def _send_all(self, data: memoryview) -> None:
        while data:
            try:
                data = data[self._connection.send(data) :]
            except BlockingIOError:
                await self._connection.wait_writable()

    async def _receive(self) -> bytes | None:
        """Some of what the steps say; None when they have ended."""
        while True:
            try:
                data = self._connection.recv(CHUNK)
            except BlockingIOError:
                await self._connection.wait_readable()
                continue
            except OSError:
                return None
            if not data:
                return None
            if said := self._pieces.feed(data):
                return said

    async def _listen(self) -> Mapping[str, Any] | Failure:
        while True:
            with anyio.move_on_after(SILENCE) as waiting:
                try:
                    data = await self._receive()
                except WireError as error:
                    return Failure(str(error), "ended")
            if waiting.cancelled_caught:
                return Failure(f"the container said nothing for {SILENCE:g} s", "ended")
            if data is None:
                words = self._pieces.last_words.decode("utf-8", "replace")
                return Failure("the container ended", "ended", tuple(words.splitlines()))
            *lines, self._rest = (self._rest + data).split(b"\n")
            if len(self._rest) > MAX_LINE:
                return Failure("the container said what cannot be understood", "ended")
            for line in lines:
                end = self._take(line)
                if end is not None:
                    return end

    def _take(self, line: bytes) -> Mapping[str, Any] | Failure | None:
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            return Failure("the container said what cannot be understood", "ended")
        if "line" in event:
            self._pass_on(str(event["line"]).strip())
        elif "step" in event:
            self._teller.say(cast(Step, event["step"]), str(event["text"]))
        elif "failed" in event:
            lines = tuple(map(str, event["lines"]))
            return Failure(str(event["failed"]), str(event["kind"]), lines)
        elif "done" in event:
            return dict(event["done"])
        return None

    def _pass_on(self, line: str) -> None:
        """What one line of uv's means to people."""
        if line.startswith("Resolved "):
            self._teller.say("downloading", f"downloading ({line.split(' in ')[0].lower()})")
        elif line.startswith(("Downloading ", "Building ")):
            self._teller.say("downloading", line[0].lower() + line[1:])
        elif line.startswith("Prepared "):
            self._teller.say("installing", "installing")
