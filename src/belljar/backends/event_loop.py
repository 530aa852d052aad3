"""The event loop that runs this code, and a lock that belongs to no loop until it is used.

A sandbox may be made under one event loop and used under another, also of another kind (asyncio,
trio): a blocking Sandbox in trio's code, or two calls of asyncio.run(). Under two at the same time
it cannot be used, because neither would wake the other: that is an error.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import anyio

from belljar.errors import SandboxError


def here() -> object:
    """The running event loop, as an object to compare."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        import trio

        return trio.lowlevel.current_trio_token()


def post(loop: Any, function: Callable[[], object]) -> bool:
    """Have a loop, as `here` gives it, call a function. From any thread; False if it has ended."""
    is_asyncio = isinstance(loop, asyncio.AbstractEventLoop)
    schedule = loop.call_soon_threadsafe if is_asyncio else loop.run_sync_soon
    try:
        schedule(function)
    except RuntimeError:  # trio's error is a RuntimeError, too
        return False
    return True


def is_cancelled() -> bool:
    """True if this asyncio task was cancelled, not something that it awaited."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # trio: its cancellation is another class
        return False
    return task is None or task.cancelling() > 0


def in_use_elsewhere() -> SandboxError:
    return SandboxError(
        "this sandbox is in use under another event loop",
        hint="await it there; or use Sandbox, which any thread may use",
    )


class Lock:
    """An anyio.Lock that moves to the event loop that uses it. anyio's own lock stays with the kind
    of loop that first used it, and fails under another."""

    def __init__(self) -> None:
        self._loop: object | None = None
        self._lock: anyio.Lock | None = None

    def locked(self) -> bool:
        return self._lock is not None and self._lock.locked()

    async def __aenter__(self) -> None:
        loop = here()
        if self._lock is None or loop is not self._loop:
            if self.locked():
                raise in_use_elsewhere()
            self._lock, self._loop = anyio.Lock(fast_acquire=True), loop
        await self._lock.acquire()

    async def __aexit__(self, *exception: object) -> None:
        assert self._lock is not None
        self._lock.release()


def has_hung_up(sock: socket.socket) -> bool:
    """True if the other end of a non-blocking socket is known to be closed. Takes no bytes."""
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


async def wait_readable(sock: socket.socket) -> None:
    """Like anyio.wait_readable, for a descriptor with one waiter. Under asyncio it skips the turn
    of the loop that anyio takes first."""
    if not _in_asyncio_task():
        await anyio.wait_readable(sock)
        return
    loop, number = asyncio.get_running_loop(), sock.fileno()
    news: asyncio.Future[None] = loop.create_future()
    loop.add_reader(number, _wake, news)
    try:
        await news
    finally:
        loop.remove_reader(number)


def _in_asyncio_task() -> bool:
    """False under trio, also when trio runs as a guest of asyncio's loop."""
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


def _wake(news: asyncio.Future[None]) -> None:
    if not news.done():
        news.set_result(None)
