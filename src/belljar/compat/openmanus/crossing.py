"""From whatever event loop the caller has to the runtime's own, and back.

OpenManus' objects outlive event loops: SANDBOX_CLIENT is made at import, and may be used by one
`asyncio.run` after the other, or by a test's loop when a fixture's has made it. So their sandboxes
live on the loop of Belljar's runtime, as those of the blocking API do, and callers only wait.
"""

from __future__ import annotations

import queue
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

import anyio
import anyio.lowlevel

from belljar import runtime
from belljar.sandbox.blocking import Work

P = ParamSpec("P")
T = TypeVar("T")


async def across(function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Await it on the runtime's loop. Cancelled here, it is cancelled there, and has come to its
    end when this returns."""
    bell = _Bell()
    work: Work[T] = Work(lambda: function(*args, **kwargs), bell)
    current = runtime.current()
    current.submit(work.run)
    try:
        await bell.rung.wait()
    except anyio.get_cancelled_exc_class():
        current.call_soon(work.cancel)
        with anyio.CancelScope(shield=True):
            await bell.rung.wait()
        raise
    return work.result()


class _Bell(queue.SimpleQueue[Any]):
    """What a Work rings at its end, heard on the loop that made it."""

    def __init__(self) -> None:
        self.rung = anyio.Event()
        self._soon = _soon()

    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        try:
            self._soon(self.rung.set)
        except RuntimeError:
            return  # that loop has ended: nobody waits any more


def _soon() -> Callable[[Callable[[], object]], object]:
    """How to call something on this loop from another thread."""
    try:
        import asyncio

        return asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        import trio

        return trio.lowlevel.current_trio_token().run_sync_soon
