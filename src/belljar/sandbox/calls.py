"""Calls of host functions out of one cell: each a task of its own, all ended with the cell."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.abc

from belljar.errors import ProtocolError
from belljar.files.script import Input
from belljar.functions.calling import Callee
from belljar.functions.registry import HostFunction, Registry
from belljar.functions.signature import describe_error
from belljar.protocol import messages, wire
from belljar.protocol.values import Encoded
from belljar.results.execution import Call
from belljar.sandbox import value_transfer

MAX_RECORDED = 10_000
MAX_ARGUMENTS = 1000  # of one call: each takes the event loop's time

Answer = Callable[[int, dict[str, object], Encoded | None], Awaitable[None]]


class Calls:
    """An async context, so that no call outlives the cell it belongs to."""

    def __init__(
        self,
        registry: Registry | None,
        answer: Answer,
        limit: int,
        pause: Callable[[bool], None],
        stdin: Input | None = None,
    ) -> None:
        self._registry = registry
        self._stdin = stdin
        # The code reads it by calls that are in no list: nobody gave it such a function.
        self._read = None if stdin is None else _reader(stdin)
        self._answer = answer
        self._limit = limit  # bytes of one value, and of all arguments and results that wait
        self._pause = pause
        self._tasks: anyio.abc.TaskGroup | None = None
        self._held = 0
        self._under_way: set[int] = set()
        self.made: list[Call] = []
        self.unrecorded = 0

    @property
    def possible(self) -> bool:
        """Without functions there is nothing to call, and no cost: no task, no context."""
        if self._read is not None:
            return True
        return self._registry is not None and bool(self._registry.names)

    async def __aenter__(self) -> Self:
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        assert self._tasks is not None
        try:
            self._tasks.cancel_scope.cancel()
            return await self._tasks.__aexit__(kind, error, traceback)
        finally:
            self.end()

    def end(self) -> None:
        """Let go of the run, whose values shall not wait for the garbage collector."""
        self._answer, self._pause = _nobody, _nothing

    def look_after(self, watch: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run it as long as calls may come."""
        assert self._tasks is not None
        self._tasks.start_soon(watch)

    def start(self, frame: wire.Frame, blob: value_transfer.Blob) -> None:
        """Answer a call. Called by the run for each CALL frame, which a hostile guest may make."""
        call, name = frame.header.get("call"), frame.header.get("function")
        if type(call) is not int or not 0 <= call < 2**32:
            raise ProtocolError("a malformed call")
        if not isinstance(name, str) or len(name) > messages.MAX_NAME:
            raise ProtocolError("a call of what is no name")
        if self._tasks is None or len(self._under_way) >= wire.MAX_CALLS:
            raise ProtocolError("a call that cannot be")
        if call in self._under_way:
            raise ProtocolError("two calls of one number")
        self._under_way.add(call)
        self._held += len(blob)
        self._tasks.start_soon(self._serve, call, name, blob)

    async def _serve(self, call: int, name: str, blob: value_transfer.Blob) -> None:
        making = self._make(name, blob)
        del blob  # an answer may take its time, and needs no arguments
        header, value = await making
        size = value.size if value is not None else 0
        self._held += size
        try:
            await self._answer(call, {"call": call, **header}, value)
        finally:
            self._under_way.discard(call)
            self._held -= size

    async def _make(
        self, name: str, blob: value_transfer.Blob
    ) -> tuple[dict[str, object], Encoded | None]:
        """The answer: that it went well and what came of it, or what the guest may know."""
        size, began = len(blob), time.perf_counter()
        assert self._registry is not None
        stdin = self._stdin if name == wire.STDIN else None
        counts = self._registry.counts_time(name) if stdin is None else stdin.counts_time
        excused = not counts
        failure = "it was still running when the cell ended"
        if excused:
            self._pause(True)
        try:
            value = await self._run(name, blob)
            failure = ""
            return {"ok": True}, value
        except Exception as error:
            kind, message = describe_error(error)
            failure = f"{kind}: {message}"
            return {"ok": False, "name": kind, "message": message}, None
        finally:
            self._held -= size
            if stdin is None:
                self._record(
                    Call(
                        name=name,
                        duration=time.perf_counter() - began,
                        ok=not failure,
                        argument_bytes=size,
                        error=failure or None,
                    )
                )
            if excused:
                self._pause(False)

    async def _run(self, name: str, blob: value_transfer.Blob) -> Encoded:
        if self._held > self._limit:
            raise ValueError("the arguments of all calls under way take too much memory")
        if not blob:
            raise ValueError("the arguments were cut off by the end of a cell: call it again")
        given = await value_transfer.decode(blob, self._limit)
        del blob
        if not isinstance(given, dict):
            raise TypeError("malformed arguments")
        args, kwargs = given.get("args"), given.get("kwargs")
        if not isinstance(args, list) or not isinstance(kwargs, dict):
            raise TypeError("malformed arguments")
        if len(args) + len(kwargs) > MAX_ARGUMENTS:
            raise TypeError(f"more than {MAX_ARGUMENTS} arguments")
        assert self._registry is not None
        if name == wire.STDIN and self._read is not None:
            made = await self._read.call(args, kwargs)
        else:
            made = await self._registry.call(name, tuple(args), kwargs)
        value = await value_transfer.encode(made, self._limit)
        if self._held + value.size > self._limit:
            raise ValueError("the results of all calls under way take too much memory")
        return value

    def _record(self, call: Call) -> None:
        if len(self.made) < MAX_RECORDED:
            self.made.append(call)
        else:
            self.unrecorded += 1


def _reader(stdin: Input) -> Callee:
    return Callee(HostFunction(stdin.read, timeout=None, concurrency=1), "stdin")


async def _nobody(call: int, header: dict[str, object], value: Encoded | None) -> None:
    """Takes an answer when the run has ended."""


def _nothing(paused: bool) -> None:
    """There is no clock any more."""
