"""AsyncMap and Map: the results of AsyncPool.map and Pool.map.

`MapRun` runs the items in one background task of the pool's event loop: a task group in which each
item waits for its turn at a capacity limiter. The group is not in the iterators, which callers keep
across their own scopes; nor are these generators, which would wait for a loop that is gone.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Self

import anyio
from anyio.abc import TaskGroup

from belljar.backends.event_loop import is_cancelled, spawn
from belljar.errors import SandboxError
from belljar.pool.loop_binding import LoopBinding, ThreadReader, running_loop
from belljar.pool.pooled_sandbox import PooledSandbox
from belljar.results.execution import Execution
from belljar.runtime import wait

CLOSE_TIMEOUT = 60.0  # seconds for running items to end
DISCARD_TIMEOUT = 10.0  # the same, if the caller dropped the map without closing it

OnProgress = Callable[[int, int | None], object]  # how many are done, and of how many
Codes = Iterable[object] | AsyncIterable[object]
# Runs one item: its number, the item, and a set that holds its sandbox while it works.
RunItem = Callable[[int, object, set[PooledSandbox]], Awaitable[Execution]]
_log = logging.getLogger("belljar")


class Step(Enum):
    """What the consumer of a MapRun has to do next."""

    item = "item"  # read an item of the input, and add it
    progress = "progress"  # report that one more item is done
    result = "result"  # take the next result
    end = "end"  # stop: everything was taken


@dataclass(eq=False)
class _Job:
    number: int  # 0 for the first
    item: object
    execution: Execution | None = None
    error: Exception | None = None

    @property
    def done(self) -> bool:
        return self.execution is not None or self.error is not None


class MapRun:
    """The items of one map under way. At most `concurrency` run, and at most `window` are known:
    they wait to run, run, or wait to be taken. All of it happens on the pool's event loop."""

    def __init__(
        self, run_item: RunItem, binding: LoopBinding, concurrency: int, window: int, ordered: bool
    ) -> None:
        self.binding = binding
        self.feeding = False  # the consumer reads the input
        self.reporting = False  # the consumer reports progress
        self.reported = 0
        self._run_item = run_item
        self._ordered = ordered
        self._limiter = anyio.CapacityLimiter(concurrency)
        self._room = anyio.Semaphore(window)
        self._jobs: deque[_Job] = deque()  # in the order of the input
        self._read = self._done = 0
        self._failure: Exception | None = None  # of the input
        self._at_work: set[PooledSandbox] = set()
        self._scope = anyio.CancelScope()
        self._group: TaskGroup | None = None
        self._exhausted, self._ended = anyio.Event(), anyio.Event()
        self._news = anyio.Event()
        self._started = self._stopped = False

    @property
    def ended(self) -> bool:
        return not self._started or self._ended.is_set()

    async def start(self, source: AsyncIterator[object] | None) -> None:
        """Begin, unless it has begun. Without a source the consumer reads the input."""
        if not self._started:
            self._started = True
            spawn(lambda: self._run(source))
        while self._group is None and not self._ended.is_set():
            await self._news.wait()

    async def _run(self, source: AsyncIterator[object] | None) -> None:
        try:
            with self._scope:
                async with anyio.create_task_group() as self._group:
                    self._notify()
                    if source is not None:
                        self._group.start_soon(self._feed, source)
                    await self._exhausted.wait()
        finally:
            self._ended.set()
            self._notify()
            if source is not None:
                with anyio.CancelScope(shield=True):
                    await _close_source(source)

    async def _feed(self, source: AsyncIterator[object]) -> None:
        try:
            while not self._exhausted.is_set():
                await self._room.acquire()
                item = await anext(source)
                self._begin(item)
        except StopAsyncIteration:
            self.exhaust()
        except Exception as error:
            self.exhaust(error)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            self.exhaust()  # the input itself has raised it, and has ended so

    def add(self, item: object) -> None:
        """Run one more item. Called after Step.item; ignored after the end."""
        if not self._exhausted.is_set():
            self._room.acquire_nowait()
            self._begin(item)

    def exhaust(self, error: Exception | None = None) -> None:
        """The input has ended, or failed: its error is raised after the results before it."""
        if not self._exhausted.is_set():
            self._failure = error
            self._exhausted.set()
        self._notify()

    def _begin(self, item: object) -> None:
        assert self._group is not None
        job = _Job(self._read, item)
        self._read += 1
        self._jobs.append(job)
        self._group.start_soon(self._work, job)

    async def _work(self, job: _Job) -> None:
        try:
            async with self._limiter:
                job.execution = await self._run_item(job.number, job.item, self._at_work)
        except Exception as error:
            job.error = error
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            job.error = SandboxError("the item was cancelled")
        self._done += 1
        self._notify()

    def _notify(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def next_step(self) -> Step:
        """Wait for what the consumer has to do. Finished results come before more input."""
        while not self._stopped:
            if self.reporting and self.reported < self._done:
                self.reported += 1
                return Step.progress
            if self._find_done() is not None:
                return Step.result
            if self._exhausted.is_set() and not self._jobs:
                return Step.end if self._failure is None else Step.result
            if self.feeding and self._room.value and not self._exhausted.is_set():
                return Step.item
            if self._ended.is_set():
                raise SandboxError("the map was cancelled before all of its items had run")
            await self._news.wait()
        return Step.end

    def _find_done(self) -> _Job | None:
        if self._ordered:
            return self._jobs[0] if self._jobs and self._jobs[0].done else None
        return next((job for job in self._jobs if job.done), None)

    def take(self) -> tuple[object, Execution]:
        """The next item and its result; or raise its error, or that of the input."""
        job = self._find_done()
        if job is None:
            assert self._failure is not None
            failure, self._failure = self._failure, None
            raise failure
        self._jobs.remove(job)
        self._room.release()
        if job.error is not None:
            raise job.error
        assert job.execution is not None
        return job.item, job.execution

    def stop(self) -> None:
        """Kill what runs, with its guests. May be called twice."""
        self._stopped = True
        for sandbox in self._at_work:
            sandbox._lifecycle.end("was stopped")  # kills it; a cancelled cell is interrupted first
        self._scope.cancel()
        self._jobs.clear()
        self.exhaust()

    async def close(self) -> None:
        """stop(), and wait until nothing runs. May be called twice."""
        self.stop()
        if self._started:
            with anyio.CancelScope(shield=True):
                await self._ended.wait()


async def _close_source(source: AsyncIterator[object]) -> None:
    close = getattr(source, "aclose", None)  # a generator may have a `finally`
    if close is not None:
        try:
            await close()
        except Exception:
            _log.exception("closing the input of a map failed")


class _Results:
    """What AsyncMap and Map share: where the input comes from, and the progress report."""

    def __init__(
        self,
        run: MapRun,
        codes: Codes,
        on_progress: OnProgress | None,
        total: int | None,
        read_in_thread: bool,
    ) -> None:
        self._lock = threading.RLock()
        self._run = run
        self._on_progress = on_progress
        self._total = total
        self._source: Iterator[object] | None = None
        self._async_source: AsyncIterator[object] | None = None
        if isinstance(codes, AsyncIterable):
            self._async_source = aiter(codes)
        elif read_in_thread:
            self._async_source = ThreadReader(codes, run.binding)
        else:
            self._source = iter(codes)
        run.feeding = self._source is not None
        run.reporting = on_progress is not None

    def _read_item(self) -> Callable[[], None]:
        """Read the input here and now; returns the call that is to be made on the loop."""
        assert self._source is not None
        try:
            item = next(self._source)
        except StopIteration:
            return self._run.exhaust
        except Exception as error:
            failure = error
            return lambda: self._run.exhaust(failure)
        return lambda: self._run.add(item)

    def _report(self) -> object:
        assert self._on_progress is not None
        return self._on_progress(self._run.reported, self._total)


class AsyncMap(_Results):
    """Executions, in the order of the codes unless told otherwise."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Execution:
        return (await self._next())[1]

    def pairs(self) -> AsyncIterator[tuple[object, Execution]]:
        """The same, each with its item, as it was given."""
        return _AsyncPairs(self)

    async def _next(self) -> tuple[object, Execution]:
        run = self._run
        run.binding.check()
        try:
            await run.start(self._async_source)
            while (step := await run.next_step()) is not Step.result:
                if step is Step.end:
                    raise StopAsyncIteration
                if step is Step.item:
                    self._read_item()()
                    await anyio.sleep(0)  # let items finish: results come before more input
                elif inspect.isawaitable(made := self._report()):
                    await made
            return run.take()
        except BaseException:
            run.stop()
            raise

    async def aclose(self) -> None:
        """Stop, and wait until nothing runs any more. May be called twice."""
        await self._run.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if hasattr(self, "_run") and not self._run.ended:
            self._run.binding.call(self._run.stop)


class _AsyncPairs:
    def __init__(self, results: AsyncMap) -> None:
        self._results = results

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[object, Execution]:
        return await self._results._next()


class Map(_Results):
    """Executions, in the order of the codes unless told otherwise. Any thread may iterate."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Execution:
        return self._next()[1]

    def pairs(self) -> Iterator[tuple[object, Execution]]:
        """The same, each with its item, as it was given."""
        return iter(self._next, None)

    def _next(self) -> tuple[object, Execution]:
        self._run.binding.check_process()
        with self._lock:
            try:
                return self._advance()
            except BaseException:
                self.close()
                raise

    def _advance(self) -> tuple[object, Execution]:
        bring: Callable[[], None] | None = None
        while True:
            step, taken = wait(self._step, bring)
            bring = None
            if taken is not None:
                return taken
            if step is Step.end:
                raise StopIteration
            if step is Step.item:
                bring = self._read_item()  # in this thread, as the caller expects
            else:
                self._report()

    async def _step(
        self, bring: Callable[[], None] | None
    ) -> tuple[Step, tuple[object, Execution] | None]:
        await self._run.start(self._async_source)
        if bring is not None:
            bring()
        step = await self._run.next_step()
        return step, self._run.take() if step is Step.result else None

    def close(self) -> None:
        """Stop, and wait until nothing runs any more. May be called twice."""
        self._close(CLOSE_TIMEOUT)

    def _close(self, timeout: float) -> None:
        """Neither in a fork nor at the end of the interpreter does this start anything: the event
        loop is gone, and everything that ran went with it."""
        run, gone = self._run, threading.Event()

        async def close() -> None:
            try:
                await run.close()
            finally:
                gone.set()

        called = not run.ended and run.binding.call(lambda: spawn(close))
        if called and running_loop() is None:  # a loop must not be blocked
            gone.wait(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_run") and not sys.is_finalizing():
            self._close(DISCARD_TIMEOUT)
