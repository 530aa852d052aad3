"""The life of a sandbox: its guest is started when it is needed, started anew when it was lost, and
ended so that nothing stays behind.

Longer than other files: each way to begin or to end must be read beside the others.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio

from belljar import events, runtime
from belljar.backends.base import Guest, GuestSpec, Location, UsageSample
from belljar.backends.event_loop import Lock
from belljar.backends.isolation import Isolation
from belljar.backends.mounts import Scratch
from belljar.environment.environment import Environment
from belljar.errors import ProtocolError, SandboxClosed
from belljar.functions.registry import Registry
from belljar.limits import Limits
from belljar.protocol import wire
from belljar.sandbox.channel import Channel
from belljar.sandbox.clock import Clock
from belljar.sandbox.guest_session import Place
from belljar.sandbox.options import Options
from belljar.sandbox.persistence import Keeping

if TYPE_CHECKING:
    from belljar.policy import Policy


class Life:
    """What a sandbox is and has, before anything runs in it."""

    def _prepare(self, given: Options) -> None:
        self._options = given
        self._functions = Registry(given.functions.values())
        self._keeping = Keeping(given)
        self._pid = os.getpid()
        self._place: Place | None = None
        self._adopted: Guest | None = None
        self._branch = 0  # which of those who share the place
        self._ended: str | None = None  # why it can be used no more
        self.busy = 0  # cells and commands under way
        self.last_used = time.monotonic()
        self._guests = 0  # more than one, if one was lost
        self._made = time.monotonic()
        self._state_lost = False
        self._starting = Lock()
        self._turn = Lock()
        self._clock: Clock | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # -- what it is -------------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self._options.id

    @property
    def metadata(self) -> Mapping[str, str]:
        return self._options.metadata

    @property
    def limits(self) -> Limits:
        return self._options.limits

    @property
    def environment(self) -> Environment:
        return self._options.environment

    @property
    def policy(self) -> Policy | None:
        """What code is checked against before it runs."""
        return self._options.policy

    @property
    def workdir(self) -> str:
        """Where its workspace is, in the sandbox."""
        return self._options.workdir

    @property
    def subject(self) -> events.Subject:
        """What events say of it."""
        place = self._place
        return events.Subject(
            id=self.id,
            backend=self._options.backend if place is None else place.guest.isolation.backend,
            environment=self.environment.name,
            metadata=self.metadata,
            limits=self.limits,
        )

    @property
    def alive(self) -> bool:
        """Whether it has a guest that lives. One that was lost is started anew when it is used,
        without the variables and files it had."""
        return self._ended is None and self._place is not None and self._place.alive

    @property
    def engaged(self) -> bool:
        """Whether anything is under way: something runs, or waits for its turn or for the start."""
        return self.busy > 0 or self._turn.locked() or self._starting.locked()

    @property
    def whereabouts(self) -> Location | None:
        """Where its guest can be seen from outside; None while it has none."""
        return None if self._place is None else self._place.guest.whereabouts

    @property
    def isolation(self) -> Isolation:
        """What holds the guest, as measured on it. The sandbox must have been started."""
        if self._place is None:
            raise SandboxClosed(
                "the sandbox has no guest to measure",
                hint="start it: enter its `with` block, or use create()",
            )
        return self._place.guest.isolation

    def __repr__(self) -> str:
        state = "closed" if self._ended else "running" if self._place else "not started"
        return f"<{type(self).__name__} {self.id} ({self.environment.name}, {state})>"

    # -- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the guest, if it does not run yet."""
        await self._connected()

    @contextlib.asynccontextmanager
    async def using(self) -> AsyncIterator[tuple[Channel, Guest]]:
        """The live guest and its channel, for one operation; started if need be."""
        place = await self._connected()
        async with place.turn(self._branch):
            try:
                yield place.channel, place.guest
            except ProtocolError:
                place.give_up()
                raise

    async def _connected(self) -> Place:
        """Started, or started anew if it was lost."""
        place = self._place
        if place is not None and not self._starting.locked() and place.alive:
            self._check_usable()
            self._note_use()
            return place
        async with self._starting:
            self._check_usable()
            self._note_use()
            if self._place is not None:
                if self._place.alive:
                    return self._place
                await self._leave()
                self._state_lost = True
            return await self._start()

    def _note_use(self) -> None:
        self.last_used = time.monotonic()
        if self._clock is not None:
            self._clock.used()

    async def _start(self) -> Place:
        runtime.current()  # first of all: with it comes presence, which is told of the start
        subject, began = self.subject, time.perf_counter()
        events.tell(events.Starting(subject=subject))
        try:
            self._place = place = await self._start_guest()
            await self._keeping.load(place)
        except BaseException as error:
            if self._place is not None:
                await self._leave()
            seconds = time.perf_counter() - began
            events.tell(events.StartFailed(subject=subject, seconds=seconds, error=error))
            raise
        events.begins(self)
        now = time.perf_counter()
        told = events.Started(
            subject=self.subject,
            seconds=now - began,
            stages={"start": place.started - began, "workspace": now - place.started},
            whereabouts=place.guest.whereabouts,
        )
        try:
            events.tell(told)
        except BaseException:
            await self._leave()
            raise
        return place

    async def _start_guest(self) -> Place:
        spec = self.spec()
        self._guests += 1
        self._keeping.begin(self._functions.names)
        guest, self._adopted = self._adopted, None
        if guest is None:
            guest = await runtime.current().backend(self._options.backend).start(spec)
        self._mind()
        return Place(guest, self.limits.memory)

    def spec(self) -> GuestSpec:
        """What a backend must know of its next guest."""
        mounts = self._options.mounts
        return GuestSpec(
            id=f"{self.id}-{self._guests + 1}",
            environment=self.environment,
            limits=self.limits,
            env=self._options.env,
            strict=self._options.strict,
            mounts=tuple(each for each in mounts if not isinstance(each, Scratch)),
            scratch=tuple(each.guest for each in mounts if isinstance(each, Scratch)),
            noexec=self._options.noexec,
            workdir=self._options.workdir,
            network=self._options.network,
            settings=self._options.docker,
        )

    def adopt(self, guest: Guest) -> None:
        """Start with a guest that is there already, made by its `spec` and used by nobody."""
        assert self._place is None
        assert self._adopted is None
        self._adopted = guest

    def _mind(self) -> None:
        if self._clock is None and (self.limits.lifetime or self.limits.idle):
            self._clock = Clock(self)
            runtime.current().mind(self._clock)

    async def _leave(self) -> None:
        place, self._place = self._place, None
        adopted, self._adopted = self._adopted, None
        events.ends(self)
        if adopted is not None:
            with anyio.CancelScope(shield=True):
                await adopted.close()
        if place is not None:
            with anyio.CancelScope(shield=True):
                await place.leave(self._branch)
            self._branch = 0

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise SandboxClosed(
                "this sandbox belongs to the process that made it",
                hint="make a new one after the fork",
            )
        if self._ended is not None:
            raise SandboxClosed(f"the sandbox {self._ended}", hint="make a new one")

    def end(self, why: str) -> None:
        """Let it be used no more, and end what runs in it. Called from any thread.

        A guest that is shared goes on for the others, unless this one's code runs in it.
        """
        if self._ended is None:
            self._ended = why
            place = self._place
            if place is not None and (self.busy or not place.shared):
                place.guest.kill()

    async def close(self) -> None:
        """End it and leave nothing behind. May be called twice, and while code runs."""
        if os.getpid() != self._pid:
            return  # a fork: it is the parent's
        try:
            if self._ended is None and not self.busy:
                await self._keeping.save(self._place)
        finally:
            await self.kill()

    async def kill(self) -> None:
        """End it at once, whatever runs in it. Afterwards it is gone."""
        if os.getpid() != self._pid:
            return
        if self._place is not None and self._place.shared:
            self._ended = self._ended or "is closed"  # leaving ends what is its own
        else:
            self.end("is closed")
        if self._clock is not None:
            self._clock.stopped = True
        if self._place is not None:
            self._place.check_loop()
        with anyio.CancelScope(shield=True):
            async with self._starting:
                subject, had = self.subject, self._place is not None
                await self._leave()
        self._keeping.close()
        if had and events.wanted(cells=False):
            self._tell_end(subject)

    def _tell_end(self, subject: events.Subject) -> None:
        seconds = time.monotonic() - self._made
        events.tell(events.Ended(subject=subject, reason=self._ended or "", seconds=seconds))

    async def usage(self) -> UsageSample:
        """What it has used so far, and uses at this moment, as seen from outside.

        None stands for what this host cannot tell, and for a sandbox that was not started.
        """
        self._check_usable()
        if self._place is None:
            return UsageSample(cpu=None, peak_memory=None, memory_kills=0)
        return await self._place.guest.reading(now=True)

    async def restart(self) -> None:
        """A fresh interpreter: variables are gone, files stay. Ends a cell that is running."""
        async with self.using() as (channel, _):
            await channel.call(wire.RESTART)
        self._state_lost = False
        self._keeping.event("restart")

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """While this lasts, the sandbox is not idle."""
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1
            self._note_use()

    def __del__(self) -> None:
        place = getattr(self, "_place", None)
        if place is not None and os.getpid() == self._pid:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2)
            self._keeping.close()
            if place.forget(self._branch):
                place.guest.discard()
