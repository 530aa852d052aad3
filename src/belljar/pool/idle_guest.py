"""A warm guest: confined, its imports done, used by nobody yet. What a pool keeps.

One tenant leases it and it is gone with that tenant: nothing that was used is used again.
"""

from __future__ import annotations

import time
from typing import Self

import anyio

from belljar.backends.base import Backend, Guest, GuestSpec
from belljar.errors import SandboxError, StartError
from belljar.limits import Limits
from belljar.protocol import wire
from belljar.sandbox.channel import Channel
from belljar.sandbox.guest_session import GuestSession
from belljar.sandbox.outcome import parse_error
from belljar.sandbox.run import Cell, Run

READY_TIMEOUT = 2.0
REHEARSAL_TIMEOUT = 30.0
REHEARSAL_OUTPUT = 64 * 1024


class Warm:
    def __init__(self, guest: Guest, spec: GuestSpec) -> None:
        self.spec = spec
        self.started = time.monotonic()
        self._guest: Guest | None = guest

    @classmethod
    async def start(cls, backend: Backend, spec: GuestSpec) -> Self:
        """On any backend; it is ready when this returns."""
        return cls(await backend.start(spec), spec)

    @property
    def age(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self.started

    @property
    def leased(self) -> bool:
        return self._guest is None

    @property
    def ended(self) -> bool:
        """Whether it is known to be gone, without asking it."""
        return self._guest is None or self._guest.stream.ended()

    async def ready(self) -> bool:
        """Whether it still answers. It may have been killed since, or its engine be gone."""
        if self.ended:
            return False
        assert self._guest is not None
        channel = Channel(self._guest.stream)
        try:
            await channel.call(wire.PING, timeout=READY_TIMEOUT)
        except SandboxError:
            return False
        return True

    async def rehearse(self, code: str) -> None:
        """Run code of our own in a namespace of its own, so that the memory which a first cell
        writes to is no longer shared, and need not be copied then. Raises if it does not end well.
        """
        assert self._guest is not None
        cell = Cell(
            limits=Limits(output=REHEARSAL_OUTPUT),
            timeout=REHEARSAL_TIMEOUT,
            header={"count": 0, "output": REHEARSAL_OUTPUT, "env": {}, "watch": True},
            payload=f"exec({code!r}, {{}})".encode(),
        )
        # Its own channel: the request before the first one of the sandbox that will have the guest.
        run = await Run(GuestSession(self._guest, 0, after=0), cell).execute()
        if run.done is None:
            raise StartError("the guest was lost in its rehearsal")
        if (status := run.done.header.get("status")) != "ok":
            error = parse_error(run.done.payload) if status == "error" else None
            why = f"{error.name}: {error.value}" if error is not None else f"it ended with {status}"
            raise StartError(f"the pool's rehearsal failed: {why}", hint="see Pool(rehearsal=...)")

    def lease(self) -> Guest:
        """Hand it to its one tenant, who closes it. Raises if it has one already."""
        guest, self._guest = self._guest, None
        if guest is None:
            raise SandboxError("this guest has been given to somebody, or is gone")
        return guest

    async def retire(self) -> None:
        """End it unused. Nothing happens to one that was leased."""
        guest, self._guest = self._guest, None
        if guest is not None:
            with anyio.CancelScope(shield=True):
                await guest.close()

    def discard(self) -> None:
        """The same without waiting, for what nobody closed. Called from any thread."""
        guest, self._guest = self._guest, None
        if guest is not None:
            guest.discard()
