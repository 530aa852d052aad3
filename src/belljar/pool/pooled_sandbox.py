"""A guest of a pool: idle and unused at first, then leased by one sandbox and its forks.

No guest that was used is used again: it ends with its sandbox. A lease is over when the sandbox and
its forks are gone, and the guest has ended. A sandbox that lost its guest starts a new one under
the same lease.
"""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Self, cast

import anyio

from belljar.backends.base import Backend, Guest, GuestSpec
from belljar.environment.environment import Environment
from belljar.errors import GuestLost, SandboxError, StartError
from belljar.limits import Limits
from belljar.protocol import wire
from belljar.sandbox.channel import Channel
from belljar.sandbox.guest_session import GuestSession
from belljar.sandbox.outcome import parse_error
from belljar.sandbox.run import Cell, Run
from belljar.sandbox.sandbox import AsyncSandbox

ANSWER_TIMEOUT = 2.0  # seconds
WARMUP_TIMEOUT = 30.0  # seconds
WARMUP_OUTPUT = 64 * 1024  # bytes


class LostBeforeStart(GuestLost):
    """The guest was lost before any code ran in it: the code may run on another guest."""


# -- idle ---------------------------------------------------------------------------------------


class IdleGuest:
    """A guest that is confined, has done its imports, and was never used."""

    def __init__(self, guest: Guest, spec: GuestSpec) -> None:
        self.spec = spec
        self._guest: Guest | None = guest

    @classmethod
    async def start(cls, backend: Backend, spec: GuestSpec) -> Self:
        return cls(await backend.start(spec), spec)

    @property
    def ended(self) -> bool:
        """True if the guest is known to be gone, without asking it."""
        return self._guest is None or self._guest.stream.ended()

    async def answers(self) -> bool:
        """Ask the guest. It may have been killed, or its engine may be gone."""
        if self.ended:
            return False
        assert self._guest is not None
        channel = Channel(self._guest.stream)
        try:
            await channel.call(wire.PING, timeout=ANSWER_TIMEOUT)
        except SandboxError:
            return False
        return True

    async def warm_up(self, code: str) -> None:
        """Run code in a separate namespace, before a sandbox gets the guest. A guest is a fork:
        memory is copied when it is first written to, which makes a first cell several times as
        long as the second. Raises StartError if the code fails."""
        assert self._guest is not None
        cell = Cell(
            limits=Limits(output=WARMUP_OUTPUT),
            timeout=WARMUP_TIMEOUT,
            header={"count": 0, "output": WARMUP_OUTPUT, "env": {}, "watch": True},
            payload=f"exec({code!r}, {{}})".encode(),
        )
        # A session of its own, whose request comes before the first one of the sandbox.
        run = await Run(GuestSession(self._guest, 0, after=0), cell).execute()
        if run.done is None:
            raise StartError("the guest was lost while it ran the pool's rehearsal code")
        if (status := run.done.header.get("status")) != "ok":
            error = parse_error(run.done.payload) if status == "error" else None
            why = f"{error.name}: {error.value}" if error is not None else f"it ended with {status}"
            raise StartError(
                f"the pool's rehearsal code failed: {why}", hint="see Pool(rehearsal=...)"
            )

    def take_guest(self) -> Guest:
        """The guest, for the one sandbox that uses it and closes it. Raises the second time."""
        guest, self._guest = self._guest, None
        if guest is None:
            raise SandboxError("this guest has a sandbox already, or has ended")
        return guest

    async def close(self) -> None:
        """End the unused guest. Does nothing if a sandbox has taken it."""
        guest, self._guest = self._guest, None
        if guest is not None:
            with anyio.CancelScope(shield=True):
                await guest.close()

    def discard(self) -> None:
        """close() without waiting. Called from any thread."""
        guest, self._guest = self._guest, None
        if guest is not None:
            guest.discard()


_PLAIN_WARMUP = "repr(1)"
# The caller's own image may lack pandas. Chosen by `scripts/bench warmup --rehearsal`: it takes 9
# to 14 ms of processor time, and first cells then copy a fifth to a quarter of the pages. A figure
# is not in it: that would take 30 ms more, and few first cells draw.
_PANDAS_WARMUP = """\
try:
    import pandas, traceback
except ImportError:
    repr(1)
else:
    frame = pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    repr(frame), frame.to_html(), frame.describe(), frame.groupby("b").sum(), frame["a"].sum()
    frame.merge(frame, on="a"), frame.sort_values("b"), frame["b"].str.upper().value_counts()
    frame["d"] = pandas.date_range("2024-01-01", periods=2)
    frame["d"].dt.year, pandas.concat([frame, frame]), frame[frame["a"] > 1], frame.isna().sum()
    try:
        frame["e"]
    except KeyError:
        traceback.format_exc()
"""


def choose_warmup_code(environment: Environment, given: str | None) -> str:
    """The caller's code ("": no warm-up), or code that suits the packages."""
    if given is not None:
        return given
    return _PANDAS_WARMUP if "pandas" in environment.preload else _PLAIN_WARMUP


# -- leased -------------------------------------------------------------------------------------


class Lease:
    """One guest in use. `on_over` is called once, on the pool's loop, when the lease is over."""

    def __init__(
        self,
        guest: Guest,
        call: Callable[[Callable[[], object]], object],
        on_over: Callable[[Lease], None],
    ) -> None:
        self.guest = LeasedGuest(guest, self)
        self.ending = False  # its sandboxes are being closed
        self.sandboxes: weakref.WeakSet[PooledSandbox] = weakref.WeakSet()
        self._call = call
        self._on_over = on_over
        self._holders = 0
        self._guest_ended = self._over = False

    def hold(self, sandbox: PooledSandbox) -> None:
        self._holders += 1
        self.sandboxes.add(sandbox)

    def release(self) -> None:
        """Called once for each hold(), from any thread."""
        self._call(lambda: self._update(released=1))

    def note_guest_ended(self) -> None:
        """Called from any thread, also twice."""
        self._call(lambda: self._update(ended=True))

    def _update(self, *, released: int = 0, ended: bool = False) -> None:
        self._holders -= released
        self._guest_ended = self._guest_ended or ended
        if self._holders > 0 or self._over:
            return
        if not self._guest_ended:  # the close of its sandbox was cancelled
            self.guest.discard()
        else:
            self._over = True
            self._on_over(self)

    @property
    def shared(self) -> bool:
        """True if a sandbox and forks of it use the guest."""
        return self._holders > 1


class LeasedGuest:
    """A guest that tells its lease when it has ended."""

    def __init__(self, guest: Guest, lease: Lease) -> None:
        self._guest = guest
        self._lease = lease

    async def close(self) -> None:
        try:
            await self._guest.close()
        finally:
            self._lease.note_guest_ended()

    def discard(self) -> None:
        self._guest.discard()
        self._lease.note_guest_ended()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._guest, name)


class PooledSandbox(AsyncSandbox):
    """A sandbox of a pool. Its guest ends with it."""

    lease: Lease | None = None
    once = False  # for one piece of work: if the guest is lost, no other one is started
    _guests_wanted = 0

    def use_lease(self, lease: Lease) -> None:
        """Called once, before it is started."""
        lease.hold(self)
        self.lease = lease
        self._lifecycle.adopt(cast(Guest, lease.guest))

    def _check_start(self) -> None:
        self._guests_wanted += 1
        if self.once and self._guests_wanted > 1:
            raise LostBeforeStart("the guest was lost before the code began")
        if self.lease is not None and self.lease.shared:
            # A lease counts as one guest: the sandbox and each fork would start one.
            raise GuestLost(
                "the guest that this sandbox shared with its forks was lost",
                hint="close all but one of them: the last one starts a new guest",
            )

    async def kill(self) -> None:
        try:
            await super().kill()
        finally:
            self._release_lease()

    async def fork(self) -> Self:
        twin = await super().fork()
        if self.lease is not None:
            self.lease.hold(twin)
            twin.lease = self.lease
        return twin

    def _release_lease(self) -> None:
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.release()

    def __del__(self) -> None:
        try:
            super().__del__()
        finally:
            self._release_lease()


class Acquisition:
    """What AsyncPool.acquire() returns: `await` it for the sandbox, which you close; or use
    `async with`, which closes it."""

    def __init__(self, lease: Callable[[], Awaitable[AsyncSandbox]]) -> None:
        self._lease = lease
        self._sandbox: AsyncSandbox | None = None

    def __await__(self) -> Generator[Any, Any, AsyncSandbox]:
        return self._lease().__await__()

    async def __aenter__(self) -> AsyncSandbox:
        self._sandbox = await self._lease()
        return self._sandbox

    async def __aexit__(self, *exception: object) -> None:
        assert self._sandbox is not None
        await self._sandbox.close()
