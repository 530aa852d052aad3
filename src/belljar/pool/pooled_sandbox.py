"""A tenant of a pool: a sandbox whose guest was warm, and the place that it takes.

The place is free when nobody uses the guest any more: the sandbox and its forks are gone, and the
guest itself is. A guest that is lost and started anew by its sandbox stays in the same place.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, Self

import anyio

from belljar.backends.base import Backend, Guest, GuestSpec, Reading, Stream, Whereabouts
from belljar.backends.isolation import Isolation
from belljar.environment.environment import Environment
from belljar.errors import GuestLost, InvalidOption, SandboxError, StartError
from belljar.protocol import wire
from belljar.sandbox.channel import Channel
from belljar.sandbox.run import Run, parse_error
from belljar.sandbox.sandbox import AsyncSandbox


class LostBeforeStart(GuestLost):
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
        self.tenants: weakref.WeakSet[PooledSandbox] = weakref.WeakSet()
        self._call = call
        self._over = over
        self._holders = 0
        self._there = True  # the guest
        self._told = False

    def hold(self, tenant: PooledSandbox) -> None:
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
    def whereabouts(self) -> Whereabouts:
        return self._guest.whereabouts

    async def reading(self, *, from_now: bool = False, now: bool = False) -> Reading:
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


class PooledSandbox(AsyncSandbox):
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
            raise LostBeforeStart("the guest was lost before the code began")
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


class Acquisition:
    """`await` it for the sandbox, or `async with` it: then it is closed at the end."""

    def __init__(self, take: Callable[[], Awaitable[AsyncSandbox]]) -> None:
        self._take = take
        self._sandbox: AsyncSandbox | None = None

    def __await__(self) -> Generator[Any, Any, AsyncSandbox]:
        return self._take().__await__()

    async def __aenter__(self) -> AsyncSandbox:
        self._sandbox = await self._take()
        return self._sandbox

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._sandbox is not None
        await self._sandbox.close()


READY_TIMEOUT = 2.0
WARMUP_TIMEOUT = 30.0
WARMUP_OUTPUT = 64 * 1024


class IdleGuest:
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
        channel = Channel(self._guest.stream)
        output = WARMUP_OUTPUT
        run = Run(channel, self._guest, timeout=WARMUP_TIMEOUT, output=output)
        header = {"count": 0, "output": output, "env": {}, "watch": True}
        await run.drive(wire.RUN, header, f"exec({code!r}, {{}})".encode())
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


_PLAIN_WARMUP = "repr(1)"
# An image of the caller's need not have it.
_PANDAS_WARMUP = """\
try:
    import pandas
except ImportError:
    repr(1)
else:
    frame = pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    repr(frame), frame["a"].sum()
"""


def check_warmup_code(given: object) -> str | None:
    if given is not None and not isinstance(given, str):
        raise InvalidOption(f"rehearsal is code as a str, not {type(given).__name__}")
    return given


def choose_warmup_code(environment: Environment, given: str | None) -> str:
    """What the caller said, or what suits the packages; an empty text stands for none."""
    if given is not None:
        return given
    return _PANDAS_WARMUP if "pandas" in environment.preload else _PLAIN_WARMUP
