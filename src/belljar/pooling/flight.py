"""Many pieces of work under way, their results in order: what `map` is made of.

At most `concurrency` run at once, and at most `window` are known at all: running, or done and not
yet taken. Whoever takes results also brings the input, when it is wanted and not before.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from enum import Enum

import anyio

from belljar.execution import Execution
from belljar.managing.tasks import spawn
from belljar.pooling.home import Home
from belljar.pooling.tenant import Tenant

_log = logging.getLogger("belljar")

Run = Callable[[object, set[Tenant]], Awaitable[Execution]]  # the item; who works for it now


class Next(Enum):
    item = "item"  # one more is wanted
    result = "result"  # the next is there: take it
    end = "end"  # all are taken


class _Slot:
    def __init__(self) -> None:
        self.execution: Execution | None = None
        self.error: Exception | None = None

    @property
    def done(self) -> bool:
        return self.execution is not None or self.error is not None


class Flight:
    def __init__(self, run: Run, home: Home, *, concurrency: int, window: int) -> None:
        self._run = run
        self.home = home
        self._concurrency = concurrency
        self._window = window
        self._slots: deque[_Slot] = deque()  # in the order of the input
        self._running = 0
        self._feeding = False
        self._exhausted = False
        self._stopped = False
        self._at_work: set[Tenant] = set()
        self._scopes: set[anyio.CancelScope] = set()
        self._news = anyio.Event()
        self.taken = 0

    @property
    def wants(self) -> bool:
        room = self._running < self._concurrency and len(self._slots) < self._window
        return room and not self._exhausted

    def add(self, item: object) -> None:
        """Called when one is wanted."""
        slot = _Slot()
        self._slots.append(slot)
        self._running += 1
        scope = anyio.CancelScope()
        self._scopes.add(scope)
        spawn(lambda: self._work(slot, item, scope))
        self._tell()

    def exhaust(self, error: Exception | None = None) -> None:
        """There is no more input; or it failed, which is raised in its place."""
        self._exhausted = True
        if error is not None:
            slot = _Slot()
            slot.error = error
            self._slots.append(slot)
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
                while await self.wanted():
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

    async def _work(self, slot: _Slot, item: object, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                slot.execution = await self._run(item, self._at_work)
        except Exception as error:
            slot.error = error
        finally:
            self._scopes.discard(scope)
            self._running -= 1
            self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def wanted(self) -> bool:
        """Wait until an item is wanted; False if none will be any more."""
        while not self.wants and not self._exhausted and not self._stopped:
            await self._news.wait()
        return self.wants and not self._stopped

    async def step(self, *, feeding: bool) -> Next:
        """What comes next. `feeding`: whoever asks brings the input, too."""
        while not self._stopped:
            if feeding and self.wants:
                return Next.item
            if self._slots and self._slots[0].done:
                return Next.result
            if self._exhausted and not self._slots:
                return Next.end
            await self._news.wait()
        return Next.end

    def take(self) -> Execution:
        """The next result, when there is one."""
        slot = self._slots.popleft()
        self.taken += 1
        self._tell()
        if slot.error is not None:
            raise slot.error
        assert slot.execution is not None
        return slot.execution

    def stop(self) -> None:
        """Nothing more is wanted: what runs is ended, with its guests."""
        self._stopped = self._exhausted = True
        for tenant in self._at_work:
            tenant.end("was stopped")  # else its code would be asked politely first
        for scope in list(self._scopes):
            scope.cancel()
        self._slots.clear()
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
