"""The event loop that a pool or a manager is bound to, and background tasks on it.

A pool or a manager may be used without `async with`, so it has no task group for its own work. And
closing a sandbox must not stop half-way because the caller that asked for it was cancelled.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Self

import anyio

from belljar.backends.event_loop import here, post
from belljar.backends.event_loop import spawn as spawn
from belljar.errors import PoolClosed, SandboxClosed, SandboxError
from belljar.sandbox.sandbox import AsyncSandbox

CLOSE_TIMEOUT = 15.0  # seconds for a sandbox to save its files and close, before it is killed
KILL_TIMEOUT = 15.0  # seconds

_log = logging.getLogger("belljar")


class LoopBinding:
    """The process and the event loop of the first use, and calls into it from other threads.

    `what`, `blocking` and `error` are for messages: a pool, the class for threads, and what is
    raised in a fork. `pid`: the process, if it is not that of the first use.
    """

    def __init__(
        self,
        what: str = "pool",
        blocking: str = "Pool",
        error: type[SandboxError] = PoolClosed,
        pid: int | None = None,
    ) -> None:
        self._what, self._blocking, self._error = what, blocking, error
        self._pid = pid
        self._loop: object | None = None

    @property
    def in_this_process(self) -> bool:
        return self._pid is None or os.getpid() == self._pid

    def check_process(self) -> None:
        if not self.in_this_process:
            raise self._error(
                f"this {self._what} belongs to the process that forked this one",
                hint=f"make a new {self._what} after the fork",
            )

    def check(self) -> None:
        """Bind to the running event loop at the first call; raise if it is another one later."""
        self.check_process()
        self._pid = os.getpid()
        loop = here()
        self._loop = self._loop or loop
        if self._loop is not loop:
            raise SandboxError(
                f"this {self._what} belongs to the event loop that used it first",
                hint=f"make one for each loop; or use {self._blocking}, which works in any thread",
            )

    def call(self, function: Callable[[], object]) -> bool:
        """Call the function on the loop, from any thread (also the garbage collector's). False if
        the loop has ended: then nothing that the function would change is left."""
        loop = self._loop
        if loop is None or not self.in_this_process:
            return False
        if running_loop() is loop:
            function()
            return True
        return post(loop, function)


class ThreadReader:
    """An async iterator over an iterable that its own thread reads, one item for each `anext`."""

    def __init__(self, codes: Iterable[object], binding: LoopBinding) -> None:
        self._codes = codes
        self._binding = binding
        self._asked = threading.Semaphore(0)
        self._closed = False
        self._answered: anyio.Event | None = None  # None: the thread has not begun
        self._item: object = None
        self._error: Exception | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> object:
        if self._answered is None:
            # A daemon: an input that never comes must not keep the process alive.
            threading.Thread(target=self._read, name="belljar-input", daemon=True).start()
        self._answered = anyio.Event()
        self._asked.release()
        await self._answered.wait()
        if self._error is not None:
            raise self._error
        return self._item

    async def aclose(self) -> None:
        """The thread ends as soon as the input returns."""
        self._closed = True
        self._asked.release()

    def _read(self) -> None:
        try:
            source = iter(self._codes)
            while self._asked.acquire() and not self._closed:
                self._item = next(source)
                if not self._answer():
                    return
        except StopIteration:
            self._error = StopAsyncIteration()
        except Exception as error:
            self._error = error
        self._answer()

    def _answer(self) -> bool:
        assert self._answered is not None
        return self._binding.call(self._answered.set)


def running_loop() -> object | None:
    """The event loop that this thread runs now, which must not be blocked; None: no loop."""
    try:
        return here()
    except (RuntimeError, ImportError):
        return None


def repeat(
    find: Callable[[], Callable[[], Awaitable[object]] | None],
    what: str,
    *,
    every: float,
    scope: anyio.CancelScope,
) -> None:
    """Call what `find` returns every so many seconds, in a background task. It ends when the
    scope is cancelled, or when `find` (a weak reference) returns None. `what` is for the log."""

    async def run() -> None:
        with scope:
            while True:
                await anyio.sleep(every)
                action = find()
                if action is None:
                    return
                try:
                    await action()
                except SandboxClosed:
                    return
                except Exception:
                    _log.exception("%s failed; retrying in %g s", what, every)
                del action  # a reference would keep its object alive during the pause

    spawn(run)


async def close_or_kill(sandbox: AsyncSandbox) -> SandboxError | None:
    """Close a sandbox in bounded time, or kill it. Returns what went wrong; never raises it."""
    trouble: SandboxError | None = None
    with anyio.CancelScope(shield=True):
        with anyio.move_on_after(CLOSE_TIMEOUT) as scope:
            try:
                await sandbox.close()
            except Exception as error:
                trouble = _wrap_error(error)
        if not scope.cancelled_caught and trouble is None:
            return None
        with anyio.move_on_after(KILL_TIMEOUT):
            try:
                await sandbox.kill()
            except Exception as error:
                return _wrap_error(error)
    return trouble or SandboxError(f"did not close within {CLOSE_TIMEOUT:g} s, and was killed")


def _wrap_error(error: Exception) -> SandboxError:
    if isinstance(error, SandboxError):
        return error
    made = SandboxError(f"could not be closed: {type(error).__name__}: {error}")
    made.__cause__ = error
    return made
