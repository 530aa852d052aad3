"""Calls of host functions by one cell: each call is a task, and all end with the cell."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Self

import anyio
import anyio.abc

from belljar.backends.base import Guest
from belljar.errors import ProtocolError
from belljar.files.script import Input
from belljar.functions.calling import Callee
from belljar.functions.registry import HostFunction, Registry
from belljar.functions.signature import describe_error
from belljar.protocol import messages, values, wire
from belljar.protocol.values import Encoded
from belljar.results.execution import Call
from belljar.sandbox import value_transfer
from belljar.sandbox.outcome import FinalValue

MAX_RECORDED = 10_000
CPU_INTERVAL = 0.25  # seconds between readings of the guest's CPU time
MAX_ARGUMENTS = 1000  # of one call: each takes the event loop's time

Answer = Callable[[int, dict[str, object], Encoded | None], Awaitable[None]]


class Deadline:
    """The time-out of a cell. It stands still while the host works for the cell: in all no longer
    than `host_time`, so that code which calls again and again comes to its end."""

    def __init__(self, scope: anyio.CancelScope, host_time: float | None) -> None:
        self._scope = scope
        self._pauses = 0  # calls under way whose time does not count
        self._paused_at = 0.0
        self._left = math.inf  # seconds of the code's own time when it was paused
        self.excuse = math.inf if host_time is None else host_time

    def pause(self) -> None:
        self._pauses += 1
        if self._pauses == 1:
            self._paused_at = now = anyio.current_time()
            self._left = self._scope.deadline - now
            self._scope.deadline += self.excuse

    def resume(self) -> None:
        self._pauses -= 1
        if self._pauses == 0:
            excused = min(anyio.current_time() - self._paused_at, self.excuse)
            self.excuse -= excused
            self._scope.deadline = self._paused_at + self._left + excused

    async def watch_cpu(self, guest: Guest, before: float | None, seconds: float) -> None:
        """End code that computes while the host works for it: with calls it may use as much CPU
        time as it could have used without them. `before`: the guest's CPU time at the start."""
        while True:
            await anyio.sleep(min(CPU_INTERVAL, seconds))
            cpu = (await guest.read_usage()).cpu
            before = cpu if before is None else before  # the first reading that could be taken
            if cpu is not None and before is not None and cpu - before > seconds:
                self._pauses += 1  # for good: no call may move the deadline any more
                self._scope.deadline = -math.inf
                return


class Calls:
    """An async context, so that no call outlives the cell it belongs to."""

    def __init__(
        self,
        registry: Registry,
        answer: Answer,
        limit: int,
        deadline: Deadline,
        stdin: Input | None = None,
        final: list[FinalValue] | None = None,
    ) -> None:
        self._registry = registry
        # Gets what a function with `ends_cell` returned.
        self._final: list[FinalValue] = [] if final is None else final
        self._stdin = stdin
        # The code reads standard input by calls, which `made` does not list.
        self._read: Callee | None = None
        if stdin is not None:
            self._read = Callee(HostFunction(stdin.read, timeout=None, concurrency=1), "stdin")
        self._answer = answer
        self._limit = limit  # bytes of one value, and of all arguments and results that wait
        self.deadline = deadline
        self._tasks: anyio.abc.TaskGroup | None = None
        self._held = 0
        self._under_way: set[int] = set()
        self.made: list[Call] = []
        self.unrecorded = 0

    async def __aenter__(self) -> Self:
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(self, *exception: Any) -> bool | None:
        assert self._tasks is not None
        try:
            self._tasks.cancel_scope.cancel()
            return await self._tasks.__aexit__(*exception)
        finally:
            # Do not refer to the run any more: its values must not wait for the garbage collector.
            self._answer = _ignore_answer

    def start_task(self, function: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        """Run it as long as calls may come."""
        assert self._tasks is not None
        self._tasks.start_soon(function, *args)

    def start(self, frame: wire.Frame, blob: value_transfer.Blob) -> None:
        """Answer a call. Called by the run for each CALL frame, which a hostile guest may make."""
        call, name = frame.header.get("call"), frame.header.get("function")
        if type(call) is not int or not 0 <= call < 2**32:
            raise ProtocolError("a call of a host function has no valid number")
        if not isinstance(name, str) or len(name) > messages.MAX_NAME:
            raise ProtocolError("a call of a host function has no valid name")
        if self._tasks is None or len(self._under_way) >= wire.MAX_CALLS:
            raise ProtocolError("more calls of host functions at once than are allowed")
        if call in self._under_way:
            raise ProtocolError("two calls of host functions have the same number")
        self._under_way.add(call)
        self._held += len(blob)
        self._tasks.start_soon(self._serve, call, name, blob)

    async def _serve(self, call: int, name: str, blob: value_transfer.Blob) -> None:
        making = self._make(name, blob)
        del blob  # the answer may take long, and does not need the arguments
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
        """The answer: the result, or what the guest may know of the error."""
        size, began = len(blob), time.perf_counter()
        stdin = self._stdin if name == wire.STDIN else None
        counts = self._registry.counts_time(name) if stdin is None else stdin.counts_time
        failure = "it was still running when the cell ended"
        if not counts:
            self.deadline.pause()
        try:
            value = await self._run(name, blob)
            failure = ""
            return {"ok": True, "end": value is None}, value
        except Exception as error:
            kind, message = describe_error(error)
            failure = f"{kind}: {message}"
            return {"ok": False, "name": kind, "message": message}, None
        finally:
            self._held -= size
            if stdin is None and len(self.made) >= MAX_RECORDED:
                self.unrecorded += 1
            elif stdin is None:
                call = Call(
                    name=name,
                    duration=time.perf_counter() - began,
                    ok=not failure,
                    argument_bytes=size,
                    error=failure or None,
                )
                self.made.append(call)
            if not counts:
                self.deadline.resume()

    async def _run(self, name: str, blob: value_transfer.Blob) -> Encoded | None:
        """The result for the guest; None if it ends the cell, and stays here."""
        if self._held > self._limit:
            raise ValueError("the arguments of all calls under way take too much memory")
        if not blob:
            raise ValueError("the arguments were cut off by the end of a cell: call it again")
        reception = values.Reception(self._registry.class_finder(name), lenient=True)
        given = await value_transfer.decode(blob, self._limit, reception=reception)
        del blob
        if not isinstance(given, dict):
            raise TypeError("malformed arguments")
        args, kwargs = given.get("args"), given.get("kwargs")
        if not isinstance(args, list) or not isinstance(kwargs, dict):
            raise TypeError("malformed arguments")
        if len(args) + len(kwargs) > MAX_ARGUMENTS:
            raise TypeError(f"more than {MAX_ARGUMENTS} arguments")
        if name == wire.STDIN and self._read is not None:
            made = await self._read.call(args, kwargs)
        else:
            made = await self._registry.call(name, tuple(args), kwargs)
            if self._registry.ends_cell(name):
                if not self._final:
                    self._final.append(FinalValue(made))
                return None
        value = await value_transfer.encode(made, self._limit)
        if self._held + value.size > self._limit:
            raise ValueError("the results of all calls under way take too much memory")
        return value


async def _ignore_answer(call: int, header: dict[str, object], value: Encoded | None) -> None:
    """In place of the run that has ended."""
