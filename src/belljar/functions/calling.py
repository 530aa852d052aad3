"""Calls of one host function: how many, how many at once, how long, and in which thread.

Async functions run on the event loop, as a task of the caller; ordinary ones in a thread of their
own, which nobody can end. A call that is given up (its time is over, the cell was cancelled) is
answered at once, but its thread keeps the call's place until it returns: a guest that calls a slow
function again and again cannot fill the host with threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence

import anyio
import anyio.to_thread

from belljar.functions import signature


class Callee:
    """A function in use by one sandbox. All but the function itself runs on one event loop."""

    def __init__(
        self,
        function: Callable[..., object],
        *,
        name: str,
        timeout: float | None,
        max_calls: int | None,
        concurrency: int,
    ) -> None:
        self._function = function
        self._name = name
        self._timeout = timeout
        self._max_calls = max_calls
        self._calls = 0
        self._turns = Turns(concurrency)
        self._signature = signature.read_signature(function)
        self._bound = signature.bound_keywords(function)
        self._awaited = _is_async(function)

    async def call(self, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Call it when it is its turn. Raises what the function raises, but no BaseException."""
        self._check(args, kwargs)
        if not await self._turns.take(self._timeout):
            raise TimeoutError(f"{self._name} is busy: calls that took too long still run")
        job = Job(lambda: self._function(*args, **kwargs), self._name)
        try:
            self._count()
            with anyio.move_on_after(self._timeout):
                return await self._run(job)
            raise TimeoutError(f"{self._name} took longer than {self._timeout:g} s")
        finally:
            # A thread that still runs gives the place back itself, by way of the event loop.
            if not job.give_up(_post_later(self._turns.give)):
                self._turns.give()

    def _check(self, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Before anything is waited for or counted; the guest's stub has checked the same."""
        for name in self._bound & kwargs.keys():
            raise TypeError(f"{self._name}() got an unexpected keyword argument {name!r}")
        if self._signature is None:
            return
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._name}() {error}") from None

    def _count(self) -> None:
        if self._max_calls is not None and self._calls >= self._max_calls:
            raise RuntimeError(f"{self._name} may be called {self._max_calls} times, no more")
        self._calls += 1

    async def _run(self, job: Job) -> object:
        if self._awaited:
            made = job.call()
        else:
            # A limiter of its own: the default one is shared with the rest of the program.
            await anyio.to_thread.run_sync(
                job.in_thread, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
            )
            made = job.made
        return await self._settled(made) if inspect.isawaitable(made) else made

    async def _settled(self, made: Awaitable[object]) -> object:
        try:
            return await made
        except SystemExit as error:  # it would end the event loop, and with it the host
            raise RuntimeError(f"{self._name} raised SystemExit") from error
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            # Of something that the function awaited: to the caller it is an error like any other.
            raise RuntimeError(f"{self._name} was cancelled") from error


class Job:
    """One call of an ordinary function: in a thread, which may be given up meanwhile."""

    def __init__(self, call: Callable[[], object], name: str) -> None:
        self.call = call
        self.made: object = None
        self._name = name
        self._lock = threading.Lock()
        self._running = False
        self._given_up = False
        self._afterwards: Callable[[], object] | None = None

    def in_thread(self) -> None:
        """Call it; `made` is what it gave. Not returned: trio refuses to be given a coroutine."""
        with self._lock:
            if self._given_up:
                return
            self._running = True
        try:
            self.made = self.call()
        except (StopIteration, StopAsyncIteration) as error:  # no coroutine can raise them
            raise RuntimeError(f"{self._name} raised {type(error).__name__}") from error
        except Exception:
            raise
        except BaseException as error:  # SystemExit would end the event loop
            raise RuntimeError(f"{self._name} raised {type(error).__name__}") from error
        finally:
            self._end()

    def _end(self) -> None:
        with self._lock:
            self._running = False
            afterwards = self._afterwards
        if afterwards is not None:
            if inspect.iscoroutine(self.made):
                self.made.close()  # nobody will await it
            afterwards()

    def give_up(self, afterwards: Callable[[], object]) -> bool:
        """Whether the function still runs; then `afterwards` is called in its thread at its end.
        If it has not begun, it never will."""
        with self._lock:
            self._given_up = True
            if self._running:
                self._afterwards = afterwards
            return self._running


class Turns:
    """So many at once, the others in the order they came."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._given = 0  # so often has a turn been given back
        self._waiting: deque[anyio.Event] = deque()

    async def take(self, patience: float | None) -> bool:
        """Wait for a turn. False, if for `patience` seconds nobody has given one back."""
        if self._free:
            self._free -= 1
            return True
        turn = anyio.Event()
        self._waiting.append(turn)
        try:
            await self._wait(turn, patience)
        except BaseException:
            if turn.is_set():  # handed over just as we were cancelled
                self.give()
            raise
        finally:
            if not turn.is_set():
                self._waiting.remove(turn)
        return turn.is_set()

    async def _wait(self, turn: anyio.Event, patience: float | None) -> None:
        given = -1
        while not turn.is_set() and given != self._given:
            given = self._given
            with anyio.move_on_after(patience):
                await turn.wait()

    def give(self) -> None:
        self._given += 1
        if self._waiting:
            self._waiting.popleft().set()
        else:
            self._free += 1


def _is_async(function: Callable[..., object]) -> bool:
    """Where it is not seen here, its coroutine is awaited all the same, after a detour."""
    if inspect.iscoroutinefunction(function):
        return True
    call = None if isinstance(function, type) else getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(call)


def _is_cancelled() -> bool:
    """Whether this task was asked to end; else a CancelledError is somebody else's."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # trio: its cancellation is another class
        return False
    return task is None or task.cancelling() > 0


def _post_later(work: Callable[[], object]) -> Callable[[], None]:
    """A function that has `work` done on this event loop, and waits for nothing, from a thread."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        post = trio.lowlevel.current_trio_token().run_sync_soon
    else:
        post = asyncio.get_running_loop().call_soon_threadsafe

    def later() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and all turns with it
            post(work)

    return later
