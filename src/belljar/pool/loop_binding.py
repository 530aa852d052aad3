"""The event loop that a pool lives on, and the way to it from other threads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from belljar.backends.event_loop import here
from belljar.errors import PoolClosed, SandboxError


class Home:
    def __init__(self) -> None:
        self._pid: int | None = None  # that of its first use
        self._loop: object | None = None  # that, too

    @property
    def of_this_process(self) -> bool:
        return self._pid is None or os.getpid() == self._pid

    def check_process(self) -> None:
        if not self.of_this_process:
            raise PoolClosed(
                "this pool, with its maps, belongs to the process that used it first",
                hint="make a new one after the fork",
            )

    def check(self) -> None:
        """Called on an event loop: raises unless it is the pool's own."""
        self.check_process()
        self._pid = os.getpid()
        loop = here()
        self._loop = self._loop or loop
        if self._loop is not loop:
            raise SandboxError(
                "this pool belongs to the event loop that used it first",
                hint="one pool for each loop; or Pool, which any thread may use",
            )

    def call(self, function: Callable[[], object]) -> bool:
        """Have it called on the loop, from whichever thread (the garbage collector's, too). If
        the loop has ended, there is nobody left whom it would concern: False."""
        loop = self._loop
        if loop is None or not self.of_this_process:
            return False
        if _running() is loop:
            function()
            return True
        try:
            if isinstance(loop, asyncio.AbstractEventLoop):
                loop.call_soon_threadsafe(function)
            else:
                loop.run_sync_soon(function)  # type: ignore[attr-defined]  # a trio token
        except RuntimeError:  # it has ended; trio's own error is one, too
            return False
        return True


def in_a_loop() -> bool:
    """Whether this thread runs an event loop now, which must not be kept waiting."""
    return _running() is not None


def _running() -> object | None:
    try:
        return here()
    except (RuntimeError, ImportError):
        return None
