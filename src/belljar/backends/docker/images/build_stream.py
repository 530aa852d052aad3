"""The conversation with the steps in a build container: files go in, lines of JSON come out."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, get_args

import anyio
import anyio.lowlevel

from belljar.backends.docker.client.dial import Connection
from belljar.backends.docker.images.progress import Teller
from belljar.backends.docker.stream import Demultiplexer
from belljar.environment.uv_build import Step
from belljar.errors import SandboxError
from belljar.protocol.wire import WireError

SILENCE = 120.0  # seconds; the container says at least every ten that it is alive
MAX_LINE = 4 * 1024 * 1024
MOST_SAID = 16 * 1024 * 1024  # bytes in all; a build of hundreds of packages says less than one
CHUNK = 64 * 1024

_NOT_UNDERSTOOD = "the container said what cannot be understood"
# What the steps tell at their end, and labels are made of.
_FACTS = {"python": re.compile(r"3\.[0-9a-z.+-]{1,30}"), "lock": re.compile(r"[0-9a-f]{64}")}


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
        self._said = 0  # bytes

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
            # Who always has more must not keep the event loop, and everybody's time-outs, waiting.
            await anyio.lowlevel.checkpoint()
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
            self._said += len(data)
            if self._said > MOST_SAID:
                return Failure("the container did not stop talking", "ended")
            *lines, self._rest = (self._rest + data).split(b"\n")
            if len(self._rest) > MAX_LINE:
                return Failure(_NOT_UNDERSTOOD, "ended")
            for line in lines:
                end = self._take(line)
                if end is not None:
                    return end

    def _take(self, line: bytes) -> Mapping[str, Any] | Failure | None:
        # The base image's own Python says it, or what a package's build has started.
        try:
            return self._understood(json.loads(line))
        except (ValueError, KeyError, TypeError, RecursionError):
            return Failure(_NOT_UNDERSTOOD, "ended")

    def _understood(self, event: object) -> Mapping[str, Any] | Failure | None:
        if not isinstance(event, dict):
            raise TypeError(event)
        if "line" in event:
            self._pass_on(str(event["line"]).strip())
        elif "step" in event:
            steps = get_args(Step)
            self._teller.say(steps[steps.index(event["step"])], str(event["text"]))
        elif "failed" in event:
            lines = tuple(map(str, event["lines"]))
            return Failure(str(event["failed"]), str(event["kind"]), lines)
        elif "done" in event:
            return {name: _fact(event["done"], name) for name in _FACTS}
        return None

    def _pass_on(self, line: str) -> None:
        """What one line of uv's means to people."""
        if line.startswith("Resolved "):
            self._teller.say("downloading", f"downloading ({line.split(' in ')[0].lower()})")
        elif line.startswith(("Downloading ", "Building ")):
            self._teller.say("downloading", line[0].lower() + line[1:])
        elif line.startswith("Prepared "):
            self._teller.say("installing", "installing")


def _fact(told: Mapping[str, Any], name: str) -> str:
    if _FACTS[name].fullmatch(told[name]) is None:
        raise ValueError(name)
    return str(told[name])
