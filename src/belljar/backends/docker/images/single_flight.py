"""Many who want the same thing at once: one makes it, the others wait.

They may be tasks of different event loops in different threads. Nobody blocks a thread, and the
work belongs to the task that began it: when that is cancelled, the next in line begins anew.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import anyio

Made = TypeVar("Made")
LOOK_INTERVAL = 0.02  # seconds


class Shared(Generic[Made]):
    def __init__(self) -> None:
        self._making: dict[Hashable, concurrent.futures.Future[Made]] = {}

    async def once(self, key: Hashable, make: Callable[[], Awaitable[Made]]) -> Made:
        """What `make` gives, or raises; called by one of those who ask for `key` at a time."""
        while True:
            ours: concurrent.futures.Future[Made] = concurrent.futures.Future()
            making = self._making.setdefault(key, ours)
            if making is ours:
                return await self._make(key, ours, make)
            # Looked at now and then: a thread for each waiter would soon leave none.
            while not making.done():
                await anyio.sleep(LOOK_INTERVAL)
            if not making.cancelled():
                return making.result()

    async def _make(
        self,
        key: Hashable,
        ours: concurrent.futures.Future[Made],
        make: Callable[[], Awaitable[Made]],
    ) -> Made:
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

    def forget(self) -> None:
        """In a fork of the process, those who were making something are not there."""
        self._making.clear()
