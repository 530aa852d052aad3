"""Calls of one host function: how many, how many at once, how long, and in which thread.

Async functions run on the event loop, in the caller's task; ordinary ones run in a new thread,
which Python cannot end. An abandoned call (its time is over, the cell was cancelled) is answered at
once, but it occupies its slot until its thread returns: a guest that calls a slow function again
and again cannot fill the host with threads.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from belljar.backends.event_loop import is_cancelled, post
from belljar.functions import signature

if TYPE_CHECKING:
    from belljar.functions.registry import HostFunction


class Callee:
    """One function of a sandbox. Everything but the function itself runs on one event loop."""

    def __init__(self, host: HostFunction, name: str) -> None:
        self._host = host
        self._name = name
        self._calls = 0
        assert host.concurrency is not None  # it was chosen when the HostFunction was made
        self._slots = Slots(host.concurrency)
        self._signature = signature.read_signature(host.function)
        self._bound = signature.bound_keywords(host.function)
        self._awaited = signature.is_async(host.function)

    async def call(self, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Wait for a slot and call it. Raises what the function raises, but no BaseException."""
        timeout = self._host.timeout
        self._check(args, kwargs)
        if not await self._slots.acquire(timeout):
            raise TimeoutError(f"{self._name} is busy: calls that timed out are still running")
        job = Job(lambda: self._host.function(*args, **kwargs), self._name)
        try:
            self._count()
            with anyio.move_on_after(timeout):
                return await self._run(job)
            raise TimeoutError(f"{self._name} took longer than {timeout:g} s")
        finally:
            # A thread that still runs releases the slot at its end, on the event loop.
            if not job.abandon(_post_later(self._slots.release)):
                self._slots.release()

    def _check(self, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Check the arguments before the call waits or counts. The guest's stub does the same."""
        for name in self._bound & kwargs.keys():
            raise TypeError(f"{self._name}() got an unexpected keyword argument {name!r}")
        if self._signature is None:
            return
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._name}() {error}") from None

    def _count(self) -> None:
        limit = self._host.max_calls
        if limit is not None and self._calls >= limit:
            raise RuntimeError(f"{self._name} may be called {limit} times, no more")
        self._calls += 1

    async def _run(self, job: Job) -> object:
        if self._awaited:
            made = job.call()
        else:
            # A new limiter, because the default one is shared with the rest of the program.
            await anyio.to_thread.run_sync(
                job.run_in_thread, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
            )
            made = job.made
        return await self._await(made) if inspect.isawaitable(made) else made

    async def _await(self, made: Awaitable[object]) -> object:
        try:
            return await made
        except SystemExit as error:  # it would end the event loop, and with it the host
            raise RuntimeError(f"{self._name} raised SystemExit") from error
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            # Something that the function awaited was cancelled, not this task.
            raise RuntimeError(f"{self._name} was cancelled") from error


_STOPS = (StopIteration, StopAsyncIteration)


class Job:
    """One call of an ordinary function in a thread, which the caller may abandon."""

    def __init__(self, call: Callable[[], object], name: str) -> None:
        self.call = call
        self.made: object = None
        self._name = name
        self._lock = threading.Lock()
        self._running = False
        self._abandoned = False
        self._afterwards: Callable[[], object] | None = None

    def run_in_thread(self) -> None:
        """Call it and keep the result in `made`; trio does not let a thread return a coroutine."""
        with self._lock:
            if self._abandoned:
                return
            self._running = True
        try:
            self.made = self.call()
        except BaseException as error:
            # A coroutine cannot raise StopIteration, and SystemExit would end the event loop.
            if isinstance(error, Exception) and not isinstance(error, _STOPS):
                raise
            raise RuntimeError(f"{self._name} raised {type(error).__name__}") from error
        finally:
            self._end()

    def _end(self) -> None:
        with self._lock:
            self._running = False
            afterwards = self._afterwards
        if afterwards is not None:
            if inspect.iscoroutine(self.made):
                self.made.close()  # it will not be awaited
            afterwards()

    def abandon(self, afterwards: Callable[[], object]) -> bool:
        """True if the function still runs; its thread then calls `afterwards` at its end.
        If the function has not started, it never will."""
        with self._lock:
            self._abandoned = True
            if self._running:
                self._afterwards = afterwards
            return self._running


class Slots:
    """A number of slots; waiting calls get them in the order of their arrival."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._released = 0  # how often a slot was released
        self._waiting: deque[anyio.Event] = deque()

    async def acquire(self, patience: float | None) -> bool:
        """Wait for a slot. False if no slot was released for `patience` seconds."""
        if self._free:
            self._free -= 1
            return True
        turn = anyio.Event()
        self._waiting.append(turn)
        try:
            released = -1
            while not turn.is_set() and released != self._released:
                released = self._released
                with anyio.move_on_after(patience):
                    await turn.wait()
        except BaseException:
            if turn.is_set():  # it got the slot just as it was cancelled
                self.release()
            raise
        finally:
            if not turn.is_set():
                self._waiting.remove(turn)
        return turn.is_set()

    def release(self) -> None:
        self._released += 1
        if self._waiting:
            self._waiting.popleft().set()
        else:
            self._free += 1


def _post_later(work: Callable[[], object]) -> Callable[[], object]:
    """A function for a thread: it schedules `work` on this event loop and does not wait."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        loop = trio.lowlevel.current_trio_token()
    else:
        loop = asyncio.get_running_loop()
    return lambda: post(loop, work)  # if the loop has ended, all slots have with it
