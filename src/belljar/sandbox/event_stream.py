"""A cell as an iterator of what happens: output and results as they come, and how it ended.

The cell runs in a background task of the same event loop. A slow reader delays nothing: what waits
for it is bounded by the output limit of the cell.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal, Self

import anyio

from belljar.backends.event_loop import here, move_to_loop, post, spawn
from belljar.errors import unknown_option
from belljar.results.execution import Execution, Result

CALLBACKS = {"on_stdout", "on_stderr", "on_result"}


@dataclass(frozen=True, kw_only=True)
class OutputEvent:
    """A piece of output."""

    type: Literal["stdout", "stderr"]
    text: str


@dataclass(frozen=True, kw_only=True)
class ResultEvent:
    """Something that the code displayed, or its value."""

    result: Result
    type: Literal["result"] = "result"


@dataclass(frozen=True, kw_only=True)
class EndEvent:
    """The last event, however the code ended."""

    execution: Execution
    type: Literal["end"] = "end"


StreamEvent = OutputEvent | ResultEvent | EndEvent
"""What a stream gives."""

RunCode = Callable[..., Coroutine[Any, Any, Execution]]


def check_options(run_code: RunCode, given: dict[str, Any]) -> dict[str, Any]:
    """The options of `run_code`, except its callbacks."""
    parameters = inspect.signature(run_code).parameters.values()
    known = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY} - CALLBACKS
    for name in given:
        if name not in known:
            raise unknown_option("option", name, sorted(known))
    return given


class AsyncStream:
    """The events of one cell. It runs from the first one on; `aclose()` interrupts it."""

    def __init__(self, run: RunCode) -> None:
        self._cell = _Cell(run)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        await move_to_loop()
        event = await self._cell.next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Interrupt the code if it still runs, and wait for its end. May be called twice."""
        await move_to_loop()
        await self._cell.close()

    def __del__(self) -> None:
        # A loop that was left by `break` or by an error has dropped its iterator.
        if (cell := getattr(self, "_cell", None)) is not None:
            cell.discard()


class _Cell:
    """What the task knows. It does not know the stream, which can be collected meanwhile."""

    def __init__(self, run: RunCode) -> None:
        self._function: RunCode | None = run  # until it has begun
        self._events: deque[StreamEvent] = deque()
        self._error: Exception | None = None
        self._loop: object = None

    async def next(self) -> StreamEvent | None:
        """The next event; None at the end. Raises what `run_code` raises."""
        if self._loop is None and self._function is not None:
            self._loop, self._scope = here(), anyio.CancelScope()
            self._ended, self._news = anyio.Event(), anyio.Event()
            spawn(self._run)
        while not self._events and self._loop is not None and not self._ended.is_set():
            await self._news.wait()
            self._news = anyio.Event()
        if self._events:
            return self._events.popleft()
        error, self._error = self._error, None
        if error is not None:
            raise error
        return None

    async def _run(self) -> None:
        function, self._function = self._function, None
        assert function is not None
        try:
            with self._scope:
                execution = await function(
                    on_stdout=lambda text: self._put(OutputEvent(type="stdout", text=text)),
                    on_stderr=lambda text: self._put(OutputEvent(type="stderr", text=text)),
                    on_result=lambda result: self._put(ResultEvent(result=result)),
                )
                self._put(EndEvent(execution=execution))
        except Exception as error:  # raised where the events are read
            self._error = error
        finally:
            self._ended.set()
            self._news.set()

    def _put(self, event: StreamEvent) -> None:
        self._events.append(event)
        self._news.set()

    async def close(self) -> None:
        self._function = None
        if self._loop is not None:
            self._scope.cancel()
            with anyio.CancelScope(shield=True):
                await self._ended.wait()
        self._events.clear()

    def discard(self) -> None:
        """Interrupt it without waiting. From any thread."""
        if self._loop is not None and not self._ended.is_set():
            post(self._loop, self._scope.cancel)
