"""Work with an engine that may hang, and work that must end although its caller has left.

An engine that dies closes its connections, so every waiting call fails. An engine that hangs
(stopped, out of memory, behind a dead network) stays silent, and a call that may take a minute,
or a stream that may be silent for an hour, would wait for it. So it is pinged meanwhile: a ping
needs no lock and almost no work in the engine.

An engine also completes a request whose caller has given up. A cancellation by asyncio itself
(`task.cancel()`, `asyncio.timeout`, Ctrl-C) passes every shield and would leave a container that
no process knows. So `run_detached` does such work in a task of the runtime's thread. The caller
only waits; when it is cancelled, the task is told to clean up.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio

from belljar.backends.base import Host
from belljar.backends.docker.client.engine import Engine, EngineError
from belljar.backends.single_flight import wait_until_done

if TYPE_CHECKING:
    from belljar.backends.docker.guest import DockerGuest

INTERVAL = 3.0  # seconds between two pings
INTERVAL_BY_SSH = 15.0  # where each ping is a process and a handshake
PING_TIMEOUT = 5.0
MISSES = 2  # in a row: one may be missed because this process itself was stopped
PATIENCE = 30.0  # seconds that a cancelled caller still waits for the end of its work

T = TypeVar("T")


async def is_answering(engine: Engine) -> bool:
    """True if the engine answers a ping, even with an error."""
    try:
        await engine.request("GET", "/_ping", timeout=PING_TIMEOUT)
    except EngineError as error:
        return error.status != 0
    return True


async def run_while_answering(engine: Engine, call: Callable[[], Awaitable[T]]) -> T:
    """Return what `call` does. Raises EngineError as soon as the engine stops answering pings."""
    result: list[T] = []
    failure: Exception | None = None
    hangs = False

    async def watch() -> None:
        nonlocal hangs
        hangs = await _stops_answering(engine, lambda: True)
        group.cancel_scope.cancel()

    with anyio.CancelScope() as cover:
        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            try:
                result.append(await call())
            except Exception as error:
                failure = error  # raised below, as it is: a task group would wrap it
            cover.shield = True  # the caller must get what was made: only it can remove it
            group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if hangs and not result:
        raise EngineError(
            f"the engine at {engine.endpoint} does not answer pings",
            hint="it is stuck or out of reach; does `docker info` answer?",
        )
    return result[0]


async def _stops_answering(engine: Engine, wanted: Callable[[], bool]) -> bool:
    """Ping while `wanted()`; True when several pings in a row had no answer."""
    pause = INTERVAL_BY_SSH if engine.endpoint.kind == "ssh" else INTERVAL
    missed = 0
    while wanted():
        if not missed:
            await anyio.sleep(pause)
        missed = 0 if await is_answering(engine) else missed + 1
        if missed == MISSES:
            return True
    return False


class EngineWatch:
    """Pings an engine while it has guests, and kills them when it hangs. One for each engine."""

    def __init__(self, host: Host, engine: Engine) -> None:
        self._host = host
        self._engine = engine
        self._lock = threading.Lock()
        self._watched: list[DockerGuest] = []
        self._running = False

    def watch(self, guest: DockerGuest) -> None:
        """Called once for each guest, from any thread, as soon as it has its stream."""
        with self._lock:
            self._watched.append(guest)
            start, self._running = not self._running, True
        if start:
            self._host.submit(self._run)

    async def _run(self) -> None:
        while await _stops_answering(self._engine, self._has_guests):
            with self._lock:
                lost, self._watched = self._watched, []
            for guest in lost:
                guest.kill()

    def _has_guests(self) -> bool:
        with self._lock:
            self._watched = [guest for guest in self._watched if not guest.closed]
            self._running = bool(self._watched)
            return self._running


async def run_detached(
    host: Host, work: Callable[[], Awaitable[T]], *, undo: Callable[[T], object] | None = None
) -> T:
    """Return what `work` does, which runs on the runtime's thread.

    When the caller is cancelled, so is the work; if it was done already, `undo` gets its result.
    """
    task = _DetachedWork(work, undo)
    host.submit(task.run)
    try:
        await wait_until_done(task.made)
    except BaseException:
        host.submit(task.cancel)
        with anyio.CancelScope(shield=True), anyio.move_on_after(PATIENCE):
            await wait_until_done(task.made)
        raise
    return task.made.result()


class _DetachedWork(Generic[T]):
    """Its methods run on the runtime's thread."""

    def __init__(
        self, work: Callable[[], Awaitable[T]], undo: Callable[[T], object] | None
    ) -> None:
        self.made: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._work = work
        self._undo = undo
        self._scope: anyio.CancelScope | None = None
        self._cancelled = False

    async def run(self) -> None:
        failure: BaseException | None = None
        try:
            with anyio.CancelScope() as scope:
                self._scope = scope
                if self._cancelled:
                    scope.cancel()
                try:
                    made = await self._work()
                except Exception as error:
                    failure = error
            if not scope.cancelled_caught:
                self._settle(made) if failure is None else self.made.set_exception(failure)
        finally:  # also when the runtime's loop ends: the caller waits for this future
            self.made.cancel()

    def _settle(self, made: T) -> None:
        self.made.set_result(made)
        if self._cancelled and self._undo is not None:
            self._undo(made)

    async def cancel(self) -> None:
        self._cancelled = True
        if self.made.done() and not self.made.cancelled() and not self.made.exception():
            if self._undo is not None:
                self._undo(self.made.result())
        elif self._scope is not None:
            self._scope.cancel()
