"""Signs of life: an engine that hangs is found out within seconds, whoever waits for it.

An engine that dies closes its connections, and everybody notices. One that hangs (stopped, out of
memory, behind a network that went away) says nothing, and a call that may rightly take a minute,
or a stream that may rightly be silent for an hour, would wait for it. So it is pinged meanwhile:
that takes an engine no work and no lock.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import anyio

from belljar.backends.base import Host
from belljar.backends.docker.client.engine import Engine, EngineError

INTERVAL = 3.0  # seconds between two pings
INTERVAL_BY_SSH = 15.0  # where each is a process and a handshake
PING_TIMEOUT = 5.0
MISSES = 2  # in a row: one may be missed because this process itself was stopped

T = TypeVar("T")


async def answers(engine: Engine, timeout: float | None = None) -> bool:
    """Whether it says anything at all."""
    try:
        await engine.request("GET", "/_ping", timeout=timeout or PING_TIMEOUT)
    except EngineError as error:
        return error.status != 0
    return True


async def unless_it_hangs(engine: Engine, call: Callable[[], Awaitable[T]]) -> T:
    """What `call` gives. Raises EngineError as soon as the engine gives no sign of life."""
    result: list[T] = []
    failure: Exception | None = None
    hangs = False

    async def watch() -> None:
        nonlocal hangs
        hangs = await _falls_silent(engine, lambda: True)
        group.cancel_scope.cancel()

    with anyio.CancelScope() as cover:
        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            try:
                result.append(await call())
            except Exception as error:
                failure = error  # raised below, as it is: a task group would wrap it
            cover.shield = True  # what has been made must reach the caller, who else would end it
            group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if hangs and not result:
        raise hung(engine)
    return result[0]


def hung(engine: Engine) -> EngineError:
    return EngineError(
        f"the engine at {engine.endpoint} gives no sign of life",
        hint="it is stuck or out of reach; does `docker info` answer?",
    )


async def _falls_silent(engine: Engine, wanted: Callable[[], bool]) -> bool:
    """Ping it until it has not answered several times in a row, or nobody wants to know."""
    pause = INTERVAL_BY_SSH if engine.endpoint.kind == "ssh" else INTERVAL
    missed = 0
    while wanted():
        if not missed:
            await anyio.sleep(pause)
        missed = 0 if await answers(engine) else missed + 1
        if missed == MISSES:
            return True
    return False


class Watched(Protocol):
    """A guest that depends on an engine."""

    @property
    def closed(self) -> bool:
        """Whether it needs no watching any more."""

    def lose(self) -> None:
        """The engine hangs: end the guest without it, as far as that is possible. Never waits."""


class Vigil:
    """Watches an engine for as long as it has guests. One for each engine of a process."""

    def __init__(self, host: Host, engine: Engine) -> None:
        self._host = host
        self._engine = engine
        self._lock = threading.Lock()
        self._watched: list[Watched] = []
        self._running = False

    def watch(self, guest: Watched) -> None:
        """Called once for each guest, from any thread, as soon as it has its stream."""
        with self._lock:
            self._watched.append(guest)
            start, self._running = not self._running, True
        if start:
            self._host.submit(self._run)

    async def _run(self) -> None:
        while await _falls_silent(self._engine, self._has_any):
            for guest in self._take():
                guest.lose()

    def _has_any(self) -> bool:
        with self._lock:
            self._watched = [guest for guest in self._watched if not guest.closed]
            self._running = bool(self._watched)
            return self._running

    def _take(self) -> list[Watched]:
        with self._lock:
            taken, self._watched = self._watched, []
        return taken
