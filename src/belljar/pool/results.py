"""Map: the results of Pool.map, an iterator that any thread may use.

Not a generator: that would have to clean up, and to wait for it, also when the interpreter ends or
in a fork, where nothing of the map is left to be cleaned up.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Self

from belljar.errors import InvalidOption
from belljar.pool.flight import Flight, Next
from belljar.pool.loop_binding import in_a_loop
from belljar.pool.map import OnProgress, total_of
from belljar.pool.reader import Reader, item_of
from belljar.pool.tasks import spawn
from belljar.results.execution import Execution
from belljar.sandbox.blocking import wait

PATIENCE = 60.0  # seconds for what runs to end
LONGEST = 10.0  # the same, for a map that nobody has any more


class Map:
    """Executions, in the order of the codes unless told otherwise."""

    def __init__(
        self,
        flight: Flight,
        codes: Iterable[object],
        on_progress: OnProgress | None,
        total: int | None,
        in_thread: bool,
    ) -> None:
        if inspect.iscoroutinefunction(on_progress):
            raise InvalidOption(
                "on_progress is a coroutine function, which nothing here can await",
                hint="use AsyncPool, or an ordinary function",
            )
        self._flight = flight
        self._on_progress = on_progress
        self._total = total_of(codes, total)
        self._reader = Reader(flight, codes) if in_thread else None
        self._source = None if in_thread else iter(codes)
        self._lock = threading.RLock()
        self._begun = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Execution:
        return self._next()[1]

    def pairs(self) -> Iterator[tuple[object, Execution]]:
        """The same, each with the item that it is the result of, as it was given."""
        return _Pairs(self)

    def _next(self) -> tuple[object, Execution]:
        self._flight.home.check_process()
        with self._lock:
            begun, self._begun = self._begun, True
            if not begun and self._reader is not None:
                self._reader.start()
            try:
                return self._advance()
            except BaseException:
                self.close()
                raise

    def _advance(self) -> tuple[object, Execution]:
        flight = self._flight
        bring: Callable[[], None] = _nothing
        while True:
            next_, taken = wait(self._step, bring)
            bring = _nothing
            if next_ is Next.end:
                raise StopIteration
            if next_ is Next.item:
                assert self._source is not None
                bring = item_of(self._source, flight)  # here: the input is this thread's
            elif next_ is Next.progress:
                assert self._on_progress is not None
                flight.told += 1
                self._on_progress(flight.told, self._total)
            else:
                assert taken is not None
                return taken

    async def _step(
        self, bring: Callable[[], None]
    ) -> tuple[Next, tuple[object, Execution] | None]:
        bring()
        next_ = await self._flight.step(
            feeding=self._source is not None, telling=self._on_progress is not None
        )
        if next_ is not Next.result:
            return next_, None
        if self._reader is not None:
            self._reader.took_one()
        return next_, self._flight.take()

    def close(self) -> None:
        """Stop, and wait until nothing runs any more. May be called twice."""
        if self._reader is not None:
            self._reader.stop()
        _end(self._flight, PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_begun", False):
            return
        if self._reader is not None:
            self._reader.stop()
        if not sys.is_finalizing():
            _end(self._flight, LONGEST)


class _Pairs:
    def __init__(self, results: Map) -> None:
        self._results = results

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[object, Execution]:
        return self._results._next()


def _end(flight: Flight, longest: float) -> None:
    """Stop it, and wait. Nothing is started for this, neither in a fork nor at the end of the
    interpreter: without its event loop, nothing of it is left."""
    gone = threading.Event()

    async def end() -> None:
        try:
            await flight.close()
        finally:
            gone.set()

    waiting = not flight.ended and flight.home.call(lambda: spawn(end))
    if waiting and not in_a_loop():  # which must not be kept waiting
        gone.wait(longest)


def _nothing() -> None:
    """There is no new input."""
