"""Many pieces of work under way, and their results: what `map` is made of.

At most `concurrency` run at once, and at most `window` are known at all: they wait to run, run, or
are done and not yet taken. What is finished is given before more input is asked for.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from enum import Enum

import anyio

from belljar.pool.loop_binding import Home
from belljar.pool.pooled_sandbox import Tenant
from belljar.pool.tasks import spawn
from belljar.results.execution import Execution

_log = logging.getLogger("belljar")

Run = Callable[[int, object, set[Tenant]], Awaitable[Execution]]  # its number; who works for it


class Next(Enum):
    item = "item"  # one more is wanted
    progress = "progress"  # more are done than were told
    result = "result"  # the next is there: take it
    end = "end"  # all are taken


class _Slot:
    def __init__(self, number: int, item: object) -> None:
        self.number = number  # 0 for the first
        self.item = item
        self.execution: Execution | None = None
        self.error: Exception | None = None

    @property
    def done(self) -> bool:
        return self.execution is not None or self.error is not None


class Flight:
    def __init__(
        self, run: Run, home: Home, *, concurrency: int, window: int, ordered: bool = True
    ) -> None:
        self._run = run
        self.home = home
        self._concurrency = concurrency
        self.window = window
        self._ordered = ordered
        self._slots: deque[_Slot] = deque()  # in the order of the input
        self._pending: deque[_Slot] = deque()  # those of them that wait to run
        self._read = 0
        self._running = 0
        self._feeding = False
        self._exhausted = False
        self._failure: Exception | None = None  # of the input
        self._stopped = False
        self._at_work: set[Tenant] = set()
        self._scopes: set[anyio.CancelScope] = set()
        self._news = anyio.Event()
        self.done = 0
        self.told = 0  # of those that are done: who asks for progress counts them here

    @property
    def wants(self) -> bool:
        return len(self._slots) < self.window and not self._exhausted

    @property
    def ended(self) -> bool:
        """It was stopped, or ran to its end: nothing runs, and nothing will."""
        return self._exhausted and not (self._running or self._feeding or self._pending)

    def add(self, item: object) -> None:
        """Called when one is wanted. After the end it is not taken."""
        if self._exhausted:
            return
        slot = _Slot(self._read, item)
        self._read += 1
        self._slots.append(slot)
        self._pending.append(slot)
        self._launch()
        self._tell()

    def exhaust(self, error: Exception | None = None) -> None:
        """There is no more input; or it failed, which is raised after the rest."""
        if not self._exhausted:
            self._failure = error
        self._exhausted = True
        self._tell()

    def feed(self, codes: AsyncIterable[object]) -> None:
        """Take the input from there: it is waited for beside the results, which it may need."""
        scope = anyio.CancelScope()
        self._scopes.add(scope)
        self._feeding = True
        spawn(lambda: self._feed(aiter(codes), scope))

    async def _feed(self, source: AsyncIterator[object], scope: anyio.CancelScope) -> None:
        try:
            with scope:
                while await self._wanted():
                    self.add(await anext(source))
        except StopAsyncIteration:
            self.exhaust()
        except Exception as error:
            self.exhaust(error)
        finally:
            self._scopes.discard(scope)
            self._feeding = False
            self.exhaust()
        await _close(source)

    def _launch(self) -> None:
        while self._pending and self._running < self._concurrency:
            self._begin(self._pending.popleft())

    def _begin(self, slot: _Slot) -> None:
        self._running += 1
        scope = anyio.CancelScope()
        self._scopes.add(scope)
        spawn(lambda: self._work(slot, scope))

    async def _work(self, slot: _Slot, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                slot.execution = await self._run(slot.number, slot.item, self._at_work)
        except Exception as error:
            slot.error = error
        finally:
            self._scopes.discard(scope)
            self._running -= 1
            self.done += slot.done
            self._launch()
            self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def _wanted(self) -> bool:
        """Wait until an item is wanted; False if none will be any more."""
        while not self.wants and not self._exhausted:
            await self._news.wait()
        return self.wants

    async def step(self, *, feeding: bool, telling: bool = False) -> Next:
        """What comes next. `feeding`: whoever asks brings the input; `telling`: and tells how
        many are done."""
        while not self._stopped:
            if telling and self.told < self.done:
                return Next.progress
            if self._found() is not None:
                return Next.result
            if self._exhausted and not self._slots:
                return Next.end if self._failure is None else Next.result
            if feeding and self.wants:
                return Next.item
            await self._news.wait()
        return Next.end

    def _found(self) -> _Slot | None:
        if self._ordered:
            return self._slots[0] if self._slots and self._slots[0].done else None
        return next((slot for slot in self._slots if slot.done), None)

    def take(self) -> tuple[object, Execution]:
        """The next item and its result, when there is one."""
        slot = self._found()
        if slot is None:
            assert self._failure is not None
            failure, self._failure = self._failure, None
            raise failure
        self._slots.remove(slot)
        self._tell()
        if slot.error is not None:
            raise slot.error
        assert slot.execution is not None
        return slot.item, slot.execution

    def stop(self) -> None:
        """Nothing more is wanted: what runs is ended, with its guests."""
        self._stopped = self._exhausted = True
        for tenant in self._at_work:
            tenant._lifecycle.end("was stopped")  # else its code would be asked politely first
        for scope in list(self._scopes):
            scope.cancel()
        self._slots.clear()
        self._pending.clear()
        self._tell()

    async def close(self) -> None:
        """stop(), and wait until nothing runs. May be called twice."""
        self.stop()
        with anyio.CancelScope(shield=True):
            while self._running or self._feeding:
                await self._news.wait()


async def _close(source: AsyncIterator[object]) -> None:
    """A generator that is left early has something to tidy up, maybe."""
    close = getattr(source, "aclose", None)
    if close is None:
        return
    try:
        await close()
    except Exception:
        _log.exception("the input of a map failed at its end")
