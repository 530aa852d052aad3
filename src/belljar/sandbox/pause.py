"""Pause a guest and let it go on: its processes stand still, and so do the host's clocks for it.

A sandbox and its forks share a guest, so they are paused together.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING

import anyio

from belljar import runtime
from belljar.backends.base import Periodic
from belljar.backends.event_loop import Lock, here, move_to_loop, post, see_through
from belljar.errors import GuestLost, SandboxClosed, SandboxError
from belljar.protocol import wire
from belljar.sandbox.channel import Lost

if TYPE_CHECKING:
    from belljar.sandbox.guest_session import GuestSession
    from belljar.sandbox.lifecycle import Lifecycle


class Pauses:
    """Of one guest: whether it is paused, and for how long it was so far."""

    def __init__(self) -> None:
        self.changing = Lock()
        self.frozen = False  # its processes stand still
        self.watched: Periodic | None = None  # what keeps them so
        self._since: float | None = None
        self._before = 0.0  # seconds of the pauses that are over
        self._waiting: list[tuple[object, anyio.Event]] = []

    @property
    def under_way(self) -> bool:
        return self._since is not None

    @property
    def seconds(self) -> float:
        """Of all pauses, with that under way."""
        now = 0.0 if self._since is None else time.monotonic() - self._since
        return self._before + now

    def begin(self) -> None:
        self._since = time.monotonic()

    def end(self) -> None:
        """From any thread, also if it is not paused."""
        self._before, self._since = self.seconds, None
        if self.watched is not None:
            self.watched.stopped = True
        waiting, self._waiting = self._waiting, []
        for loop, event in waiting:
            post(loop, event.set)

    async def wait_end(self) -> None:
        """Called under an event loop, when a time-out is over: time in a pause does not count."""
        while self._since is not None:
            event = anyio.Event()
            self._waiting.append((here(), event))
            if self._since is not None:  # it may have ended in another thread just now
                await event.wait()


async def pause(lifecycle: Lifecycle) -> None:
    """Stop every process of the guest. Nothing happens if it is paused, or was not started."""
    await move_to_loop()
    async with lifecycle.starting:
        lifecycle.check_usable()
        session = lifecycle.session
        if session is None:
            raise SandboxClosed(
                "the sandbox has no guest to pause",
                hint="start it: enter its `with` block, or use create()",
            )
        channel = session.channel
        pauses = channel.pauses = channel.pauses or Pauses()
        async with pauses.changing:
            if pauses.frozen:
                return
            try:
                await channel.call(wire.PING, {"paused": True})  # for init's own time-outs
                # First: what is under way must not be ended for its time while this takes its own.
                pauses.begin()
                await see_through(partial(_freeze, session, pauses))
            finally:
                if not pauses.frozen:
                    pauses.end()
                    await see_through(partial(_start_clocks, session))


async def _freeze(session: GuestSession, pauses: Pauses) -> None:
    pauses.watched = await session.guest.freeze()
    pauses.frozen = True
    if pauses.watched is not None:
        runtime.current().mind(pauses.watched)


async def _start_clocks(session: GuestSession) -> None:
    """Init's. It died in the pause if it cannot be told, which the next use says."""
    exchange = session.channel.open()
    with contextlib.suppress(Lost):
        await session.channel.send(wire.PING, exchange.number, {"paused": False})
    exchange.close()


async def resume(lifecycle: Lifecycle) -> None:
    """Let the guest go on. Nothing happens if it is not paused."""
    await move_to_loop()
    lifecycle.check_usable()
    session = lifecycle.session
    if session is not None:
        await thaw(session)
        lifecycle.note_use()


async def thaw(session: GuestSession) -> None:
    pauses = session.channel.pauses
    if pauses is None:
        return
    async with pauses.changing:
        if not pauses.frozen:
            return
        await see_through(partial(_thaw, session, pauses))


async def _thaw(session: GuestSession, pauses: Pauses) -> None:
    if pauses.watched is not None:
        pauses.watched.stopped = True
    try:
        await session.guest.thaw()
    except SandboxError as error:
        session.kill()
        raise GuestLost(f"the paused guest could not go on: {error.message}") from error
    finally:
        pauses.frozen = False
        pauses.end()
    await _start_clocks(session)
