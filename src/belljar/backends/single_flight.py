"""One caller makes a thing, the others wait for it: tasks of any event loop, in any thread.

The one that makes it settles a future; that wakes the loop of each waiter. No thread blocks, and
no loop polls.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar

import anyio
import anyio.lowlevel

from belljar.backends import event_loop

Made = TypeVar("Made")


async def wait_until_done(future: concurrent.futures.Future[Any]) -> None:
    """Return when the future has a result or an exception, or was cancelled."""
    if future.done():
        await anyio.lowlevel.checkpoint()
        return
    done, loop = anyio.Event(), event_loop.here()
    # If the waiter was cancelled and its loop has ended, this does nothing.
    future.add_done_callback(lambda _: event_loop.post(loop, done.set))
    await done.wait()


class SingleFlight(Generic[Made]):
    def __init__(self) -> None:
        self._making: dict[Hashable, concurrent.futures.Future[Made]] = {}

    async def once(self, key: Hashable, make: Callable[[], Awaitable[Made]]) -> Made:
        """Return or raise what `make` does. Of all callers with this key, one at a time calls it.

        When that caller is cancelled, the next one calls its own `make`.
        """
        while True:
            ours: concurrent.futures.Future[Made] = concurrent.futures.Future()
            making = self._making.setdefault(key, ours)
            if making is ours:
                break
            await wait_until_done(making)
            if not making.cancelled():
                return making.result()
        try:
            made = await make()
        except BaseException as error:
            del self._making[key]
            if isinstance(error, Exception):
                ours.set_exception(error)
            else:  # cancelled, or the program ends: this says nothing about the thing itself
                ours.cancel()
            raise
        del self._making[key]
        ours.set_result(made)
        return made

    def clear(self) -> None:
        """Forget all futures: after a fork, the tasks that would settle them do not exist."""
        self._making.clear()
