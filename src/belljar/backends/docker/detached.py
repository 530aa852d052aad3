"""Errands: what is begun with an engine is brought to its end, whatever becomes of the caller.

An engine goes on with what its caller has given up. A cancellation of asyncio's own
(`task.cancel()`, `asyncio.timeout`, Ctrl-C) goes through every shield, and would leave a container
that nobody knows of. So such work is done by a task of the runtime's own thread; the caller only
waits for it, and when it waits no more the task is told, and cleans up.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import anyio

from belljar.backends.base import Host

LOOK = 0.002  # seconds: the caller may be in another event loop, under asyncio or trio
PATIENCE = 30.0  # seconds that a caller who was cancelled waits for the end all the same

T = TypeVar("T")


async def run(
    host: Host, work: Callable[[], Awaitable[T]], *, undo: Callable[[T], object] | None = None
) -> T:
    """What `work` gives. `undo` gets what was made when the caller has left meanwhile."""
    errand = _Errand(work, undo)
    host.submit(errand.run)
    try:
        await errand.end()
    except BaseException:
        host.submit(errand.leave)
        with anyio.CancelScope(shield=True), anyio.move_on_after(PATIENCE):
            await errand.end()
        raise
    return errand.made.result()


class _Errand(Generic[T]):
    def __init__(
        self, work: Callable[[], Awaitable[T]], undo: Callable[[T], object] | None
    ) -> None:
        self.made: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._work = work
        self._undo = undo
        self._scope: anyio.CancelScope | None = None
        self._left = False
        self._lock = threading.Lock()

    async def end(self) -> None:
        while not self.made.done():
            await anyio.sleep(LOOK)

    async def run(self) -> None:
        """On the runtime's thread, as leave()."""
        failure: BaseException | None = None
        try:
            with anyio.CancelScope() as scope:
                self._scope = scope
                if self._left:
                    scope.cancel()
                try:
                    made = await self._work()
                except Exception as error:
                    failure = error
            if not scope.cancelled_caught:
                self._give(made) if failure is None else self.made.set_exception(failure)
        finally:  # whatever happens to the runtime: somebody waits
            self.made.cancel()

    def _give(self, made: T) -> None:
        with self._lock:
            self.made.set_result(made)
            unwanted = self._left
        if unwanted and self._undo is not None:
            self._undo(made)

    async def leave(self) -> None:
        """The caller wants it no more."""
        with self._lock:
            made = self.made.done() and not self.made.cancelled() and not self.made.exception()
            self._left = True
        if made and self._undo is not None:
            self._undo(self.made.result())
        elif self._scope is not None:
            self._scope.cancel()
