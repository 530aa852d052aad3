"""AsyncMap: the results of AsyncPool.map, an async iterator.

Not an async generator: one that is left early would be ended whenever the event loop pleases. This
one stops what runs as soon as nobody has it any more, and at once at the end of its `async with`.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sized
from types import TracebackType
from typing import Self

import anyio

from belljar.errors import InvalidOption
from belljar.pool.flight import Flight, Next
from belljar.pool.manager_settings import count
from belljar.pool.reader import Reader, item_of
from belljar.results.execution import Execution

OnProgress = Callable[[int, int | None], object]  # how many are done, and of how many
Codes = Iterable[object] | AsyncIterable[object]


class AsyncMap:
    """Executions, in the order of the codes unless told otherwise."""

    def __init__(
        self,
        flight: Flight,
        codes: Codes,
        on_progress: OnProgress | None,
        total: int | None,
        in_thread: bool,
    ) -> None:
        self._flight = flight
        self._total = total_of(codes, total)
        self._on_progress = on_progress
        self._source = None if isinstance(codes, AsyncIterable) or in_thread else iter(codes)
        self._reader = None
        self._codes = None
        if isinstance(codes, AsyncIterable):
            self._codes = codes
        elif in_thread:
            self._reader = Reader(flight, codes)
        self._begun = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Execution:
        return (await self._next())[1]

    def pairs(self) -> AsyncIterator[tuple[object, Execution]]:
        """The same, each with the item that it is the result of, as it was given."""
        return _Pairs(self)

    async def _next(self) -> tuple[object, Execution]:
        flight = self._flight
        flight.home.check()
        self._begin()
        telling, feeding = self._on_progress is not None, self._source is not None
        try:
            while True:
                next_ = await flight.step(feeding=feeding, telling=telling)
                if next_ is Next.end:
                    raise StopAsyncIteration
                if next_ is Next.result:
                    break
                if next_ is Next.progress:
                    await self._progress()
                else:
                    assert self._source is not None
                    item_of(self._source, flight)()
                    await anyio.sleep(0)  # what is finished meanwhile comes first
            if self._reader is not None:
                self._reader.took_one()
            return flight.take()
        except BaseException:
            self._stop()
            raise

    def _begin(self) -> None:
        begun, self._begun = self._begun, True
        if begun:
            return
        if self._codes is not None:
            self._flight.feed(self._codes)
        if self._reader is not None:
            self._reader.start()

    async def _progress(self) -> None:
        assert self._on_progress is not None
        self._flight.told += 1
        made = self._on_progress(self._flight.told, self._total)
        if inspect.isawaitable(made):
            awaitable: Awaitable[object] = made
            await awaitable

    def _stop(self) -> None:
        self._flight.stop()
        if self._reader is not None:
            self._reader.stop()

    async def aclose(self) -> None:
        """Stop, and wait until nothing runs any more. May be called twice."""
        self._stop()
        await self._flight.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if getattr(self, "_begun", False):
            self._flight.home.call(self._flight.stop)
            if self._reader is not None:
                self._reader.stop()


class _Pairs:
    def __init__(self, results: AsyncMap) -> None:
        self._results = results

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[object, Execution]:
        return await self._results._next()


def total_of(codes: object, given: int | None) -> int | None:
    if given is None:
        return len(codes) if isinstance(codes, Sized) else None
    if given != 0:
        count("total", given)
    return given


def check_input(codes: object, on_progress: object) -> None:
    if isinstance(codes, (str, bytes)) or not isinstance(codes, (Iterable, AsyncIterable)):
        raise InvalidOption(
            f"codes is an iterable of snippets, not {type(codes).__name__}",
            hint="one snippet is run by run_code()",
        )
    if on_progress is not None and not callable(on_progress):
        raise InvalidOption(f"on_progress must be callable, not {on_progress!r}")
