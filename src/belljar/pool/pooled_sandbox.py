"""A tenant of a pool: a sandbox whose guest was warm, and the place that it takes.

The place is free when nobody uses the guest any more: the sandbox and its forks are gone, and the
guest itself is. A guest that is lost and started anew by its sandbox stays in the same place.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Self

from belljar.backends.base import Guest, GuestSpec, Location, Stream, UsageSample
from belljar.backends.isolation import Isolation
from belljar.errors import GuestLost
from belljar.sandbox.sandbox import AsyncSandbox


class NotBegun(GuestLost):
    """The guest was lost before any code ran in it: it may be tried on another."""


class Lease:
    """One guest in use. `over` is called once, on the pool's loop, when its place is free."""

    def __init__(
        self,
        guest: Guest,
        call: Callable[[Callable[[], object]], object],
        over: Callable[[Lease], None],
    ) -> None:
        self.guest = LeasedGuest(guest, self)
        self.ending = False  # its tenants are being ended
        self.tenants: weakref.WeakSet[Tenant] = weakref.WeakSet()
        self._call = call
        self._over = over
        self._holders = 0
        self._there = True  # the guest
        self._told = False

    def hold(self, tenant: Tenant) -> None:
        self._holders += 1
        self.tenants.add(tenant)

    def let_go(self) -> None:
        """Called for each who holds it, from any thread."""
        self._call(self._one_less)

    def guest_gone(self) -> None:
        """Called from any thread, also twice."""
        self._call(self._no_guest)

    def _one_less(self) -> None:
        self._holders -= 1
        self._look()

    def _no_guest(self) -> None:
        self._there = False
        self._look()

    def _look(self) -> None:
        if self._holders > 0 or self._told:
            return
        if self._there:  # whoever should have closed it was cut short
            self.guest.discard()
        else:
            self._told = True
            self._over(self)

    @property
    def shared(self) -> bool:
        """Whether it is used by a sandbox and forks of it."""
        return self._holders > 1


class LeasedGuest:
    """A guest that says when it is gone."""

    def __init__(self, guest: Guest, lease: Lease) -> None:
        self._guest = guest
        self._lease = lease

    @property
    def stream(self) -> Stream:
        return self._guest.stream

    @property
    def isolation(self) -> Isolation:
        return self._guest.isolation

    @property
    def whereabouts(self) -> Location:
        return self._guest.whereabouts

    async def reading(self, *, from_now: bool = False, now: bool = False) -> UsageSample:
        return await self._guest.reading(from_now=from_now, now=now)

    def kill(self) -> None:
        self._guest.kill()

    async def close(self) -> None:
        try:
            await self._guest.close()
        finally:
            self._lease.guest_gone()

    def discard(self) -> None:
        self._guest.discard()
        self._lease.guest_gone()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._guest, name)  # what only some backends have


class Tenant(AsyncSandbox):
    """A sandbox out of a pool. Its end is the end of its guest."""

    lease: Lease | None = None
    once = False  # it is for one piece of work: a guest that is lost is not started anew
    _guests_wanted = 0

    def move_in(self, lease: Lease) -> None:
        """Called once, before it is started."""
        lease.hold(self)
        self.lease = lease
        self.adopt(lease.guest)

    @property
    def keeps_files(self) -> bool:
        """Whether there is a directory of the host that another may wait for."""
        return self._keeping.mirrors

    def spec(self) -> GuestSpec:
        """What a backend must know of its next guest."""
        self._guests_wanted += 1
        if self.once and self._guests_wanted > 1:
            raise NotBegun("the guest was lost before the code began")
        if self.lease is not None and self.lease.shared:
            # One place, one guest: each of them would start one.
            raise GuestLost(
                "the guest was lost, which this sandbox shared with its forks",
                hint="close them; one that is alone starts anew",
            )
        return super().spec()

    async def kill(self) -> None:
        """End it at once, whatever runs in it. Afterwards it is gone."""
        try:
            await super().kill()
        finally:
            self._move_out()

    async def fork(self) -> Self:
        """A second sandbox that goes on from here, independent from now on.

        It has variables and files of its own, but shares the guest, and so the limits, with this
        one: the two take turns. Each must be closed.
        """
        twin = await super().fork()
        if self.lease is not None:
            self.lease.hold(twin)
            twin.lease = self.lease
        return twin

    def _move_out(self) -> None:
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.let_go()

    def __del__(self) -> None:
        try:
            super().__del__()
        finally:
            self._move_out()
