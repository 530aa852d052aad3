"""AsyncMap: the results of AsyncPool.map, an async iterator.

Not an async generator: one that is left early would be ended whenever the event loop pleases. This
one stops what runs as soon as nobody has it any more, and at once at the end of its `async with`.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator, Sized
from types import TracebackType
from typing import Self

from belljar.errors import InvalidOption
from belljar.execution import Execution
from belljar.pooling.flight import Flight, Next

OnProgress = Callable[[int, int | None], object]  # how many are done, and of how many
Codes = Iterable[object] | AsyncIterable[object]


class AsyncMap:
    """Executions in the order of the codes."""

    def __init__(self, flight: Flight, codes: Codes, on_progress: OnProgress | None) -> None:
        check_input(codes, on_progress)
        self._flight = flight
        self._total = len(codes) if isinstance(codes, Sized) else None
        self._on_progress = on_progress
        self._source: Iterator[object] | None = None
        if isinstance(codes, AsyncIterable):
            self._codes: AsyncIterable[object] | None = codes
        else:
            self._codes, self._source = None, iter(codes)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Execution:
        flight = self._flight
        flight.home.check()
        if self._codes is not None:
            codes, self._codes = self._codes, None
            flight.feed(codes)
        try:
            while (next_ := await flight.step(feeding=self._source is not None)) is Next.item:
                self._bring()
            if next_ is Next.end:
                raise StopAsyncIteration
            execution = flight.take()
            await self._progress()
            return execution
        except BaseException:
            flight.stop()
            raise

    def _bring(self) -> None:
        assert self._source is not None
        bring(self._flight, self._source)

    async def _progress(self) -> None:
        if self._on_progress is not None:
            made = self._on_progress(self._flight.taken, self._total)
            if inspect.isawaitable(made):
                awaitable: Awaitable[object] = made
                await awaitable

    async def aclose(self) -> None:
        """Stop, and wait until nothing runs any more. May be called twice."""
        self._source = None
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
        flight: Flight | None = getattr(self, "_flight", None)
        if flight is not None:
            flight.home.call(flight.stop)


def bring(flight: Flight, source: Iterator[object]) -> None:
    """One more item of the input, here and now; what the input raises comes after the results of
    what it gave before."""
    try:
        item = next(source)
    except StopIteration:
        flight.exhaust()
    except Exception as error:
        flight.exhaust(error)
    else:
        flight.add(item)


def check_input(codes: object, on_progress: object) -> None:
    if isinstance(codes, (str, bytes)) or not isinstance(codes, (Iterable, AsyncIterable)):
        raise InvalidOption(
            f"codes is an iterable of snippets, not {type(codes).__name__}",
            hint="one snippet is run by run_code()",
        )
    if on_progress is not None and not callable(on_progress):
        raise InvalidOption(f"on_progress must be callable, not {on_progress!r}")
