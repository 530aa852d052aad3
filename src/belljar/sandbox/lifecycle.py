"""The guest of a sandbox: started when it is needed, replaced when it was lost, and ended so that
nothing is left behind. Also keeps the limits `lifetime` and `idle`.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

import anyio

from belljar import events, runtime
from belljar.backends.base import Guest, GuestSpec
from belljar.backends.event_loop import Lock, move_to_loop
from belljar.backends.mounts import Scratch
from belljar.errors import ProtocolError, SandboxClosed, SandboxPaused
from belljar.functions.registry import Registry
from belljar.limits import Limits
from belljar.sandbox import pause
from belljar.sandbox.channel import Channel
from belljar.sandbox.guest_session import GuestSession
from belljar.sandbox.options import Options
from belljar.sandbox.persistence import Persistence

if TYPE_CHECKING:
    from belljar.sandbox.sandbox import AsyncSandbox


class Lifecycle:
    """One sandbox from its options to its end."""

    def __init__(
        self, sandbox: AsyncSandbox, options: Options, functions: Registry | None = None
    ) -> None:
        self._sandbox = weakref.ref(sandbox)  # weak: it ends its guest when it is collected
        self.options = options
        self.id = options.id
        self.limits: Limits = options.limits
        self.workdir = options.workdir
        self.functions = functions  # of the host, that the code may call
        if options.functions and functions is None:
            self.functions = Registry(options.functions.values())
        kept = (options.workspace, options.session, options.record)
        self.persistence = Persistence(options) if any(each is not None for each in kept) else None
        self.session: GuestSession | None = None
        self.branch = 0  # of those that share the session
        self.ended: str | None = None  # why it can no longer be used
        self.busy = 0  # cells and commands under way
        self.readers = 0  # that wait for output of a program
        self.last_used = self._made = self._born = time.monotonic()
        self.guests = 0  # started so far: more than one, if one was lost
        self.state_lost = False  # variables were lost, and no Execution has said so yet
        self.starting = Lock()
        self.stopped = True  # `look` is not called
        self._adopted: Guest | None = None
        self.on_end: list[Callable[[], object]] = []  # called when it can no longer be used
        self._paused_before = 0.0  # seconds, with guests it had before this one
        self.pid = os.getpid()

    @property
    def subject(self) -> events.Subject:
        """What events say of it."""
        options, session = self.options, self.session
        return events.Subject(
            id=self.id,
            backend=options.backend if session is None else session.guest.isolation.backend,
            environment=options.environment.name,
            metadata=options.metadata,
            limits=self.limits,
        )

    # -- use --------------------------------------------------------------------------------

    async def connect(self) -> GuestSession:
        """The live guest: started at the first use, replaced if it was lost."""
        session = self.session
        if session is not None and not self.starting.locked() and session.channel.alive:
            self.check_running()
            self.note_use()
            return session
        await move_to_loop()
        async with self.starting:
            self.check_running()
            self.note_use()
            if self.session is not None:
                if self.session.channel.alive:
                    return self.session
                await self.leave()
                self.state_lost = True
            return await self._start()

    @contextlib.asynccontextmanager
    async def turn(self, *, watching: bool = False) -> AsyncIterator[GuestSession]:
        """The live guest, for one operation; started if need be.

        `watching`: it does not count as a use, and needs a guest that runs already."""
        if self.persistence is not None:
            await move_to_loop()
        session = self._find_live() if watching else await self.connect()
        async with session.turn(self.branch):
            try:
                yield session
            except ProtocolError:
                session.kill()
                raise

    @contextlib.asynccontextmanager
    async def using(self, *, watching: bool = False) -> AsyncIterator[tuple[Channel, Guest]]:
        """The same for files: the channel and the guest."""
        async with self.turn(watching=watching) as session:
            yield session.channel, session.guest

    def _find_live(self) -> GuestSession:
        self.check_usable()
        if self.session is None or not self.session.alive:
            raise SandboxClosed("the sandbox has no guest", hint="start it, or use it")
        return self.session

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """While this lasts, the sandbox is not idle."""
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1
            self.note_use()

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """While this lasts, the sandbox is not idle; but nothing of it is under way."""
        self.readers += 1
        try:
            yield
        finally:
            self.readers -= 1
            self.note_use()

    def note_use(self) -> None:
        self.last_used = time.monotonic()

    def check_usable(self) -> None:
        if os.getpid() != self.pid:
            raise SandboxClosed(
                "this sandbox belongs to the process that made it",
                hint="make a new one after the fork",
            )
        if self.ended is not None:
            raise SandboxClosed(f"the sandbox {self.ended}", hint="make a new one")

    @property
    def paused(self) -> bool:
        pauses = self.session.channel.pauses if self.session is not None else None
        return pauses is not None and pauses.under_way

    @property
    def seconds_paused(self) -> float:
        """Of its life, so far."""
        now = 0.0 if self.session is None else self.session.channel.seconds_paused
        return self._paused_before + now

    def check_running(self) -> None:
        self.check_usable()
        if self.paused:
            raise SandboxPaused("the sandbox is paused", hint="resume() lets it go on")

    # -- start ------------------------------------------------------------------------------

    async def _start(self) -> GuestSession:
        process = runtime.current()  # before the first event: with it comes presence
        subject, began = self.subject, time.perf_counter()
        events.tell(events.Starting(subject=subject))
        try:
            if (sandbox := self._sandbox()) is not None:
                sandbox._check_start()
            spec = self.make_spec()
            self.guests += 1
            self.begin_record()
            guest, self._adopted = self._adopted, None
            if guest is None:
                guest = await process.backend(self.options.backend).start(spec)
            self.keep_time()
            self.session = session = GuestSession(guest, self.limits.memory)
            if self.persistence is not None:
                await self.persistence.load(session)
            self._appear()
            now = time.perf_counter()
            started = events.Started(
                subject=self.subject,
                seconds=now - began,
                stages={"start": session.started - began, "workspace": now - session.started},
                whereabouts=guest.location,
            )
        except BaseException as error:
            if self.session is not None:
                await self.leave()
            seconds = time.perf_counter() - began
            events.tell(events.StartFailed(subject=subject, seconds=seconds, error=error))
            raise
        try:
            events.tell(started)
        except BaseException:
            await self.leave()
            raise
        return session

    def make_spec(self) -> GuestSpec:
        """What a backend must know of the next guest."""
        options = self.options
        return GuestSpec(
            id=f"{self.id}-{self.guests + 1}",
            environment=options.environment,
            limits=self.limits,
            env=options.env,
            strict=options.strict,
            mounts=tuple(each for each in options.mounts if not isinstance(each, Scratch)),
            scratch=tuple(each.guest for each in options.mounts if isinstance(each, Scratch)),
            noexec=options.noexec,
            workdir=options.workdir,
            network=options.network,
            settings=options.docker,
            once=options.once,
            ahead=options.ahead,
        )

    def adopt(self, guest: Guest) -> None:
        """Start with a guest that runs already. It was made by `make_spec` and is unused."""
        assert self.session is None
        assert self._adopted is None
        self._adopted = guest

    def join(self, session: GuestSession, branch: int) -> None:
        """Share the guest of another sandbox, as a fork of that sandbox."""
        self.session, self.branch, self.guests = session, branch, 1
        self._paused_before = -session.channel.seconds_paused
        self._appear()
        self.keep_time()
        events.tell(events.Starting(subject=self.subject))
        seen = session.guest.location
        events.tell(events.Started(subject=self.subject, seconds=0.0, stages={}, whereabouts=seen))

    def _appear(self) -> None:
        if (sandbox := self._sandbox()) is not None:
            events.sandboxes.add(sandbox)

    # -- end --------------------------------------------------------------------------------

    def end(self, why: str) -> None:
        """Refuse further use, and end what runs in the guest. Called from any thread.

        A shared guest goes on for the others, unless code of this sandbox runs in it.
        """
        if self.ended is None:
            self.ended = why
            self._tell_end()
            session = self.session
            if session is not None and (self.busy or not session.shared):
                session.guest.kill()
                session.end_pause()

    def _tell_end(self) -> None:
        while self.on_end:
            self.on_end.pop()()

    async def save(self) -> None:
        """Bring the workspace out, before the sandbox is closed."""
        if self.persistence is not None and self.ended is None and not self.busy:
            if self.session is not None:
                await pause.thaw(self.session)
            await self.persistence.save(self.session)

    async def kill(self) -> None:
        if os.getpid() != self.pid:
            return  # after a fork: the guest belongs to the parent
        session = self.session
        if session is not None and session.shared:
            self.ended = self.ended or "is closed"  # `leave` ends what belongs to this branch
            self._tell_end()
        else:
            self.end("is closed")
        self.stopped = True
        if session is not None:
            session.check_loop()
        with anyio.CancelScope(shield=True):
            async with self.starting:
                subject, had = self.subject, self.session is not None
                await self.leave()
        if self.persistence is not None:
            self.persistence.close()
        if had:
            seconds = time.monotonic() - self._made
            events.tell(events.Ended(subject=subject, reason=self.ended or "", seconds=seconds))

    async def leave(self) -> None:
        self._paused_before = self.seconds_paused
        session, self.session = self.session, None
        adopted, self._adopted = self._adopted, None
        if (sandbox := self._sandbox()) is not None:
            events.sandboxes.remove(sandbox)
        with anyio.CancelScope(shield=True):
            if adopted is not None:
                await adopted.close()
            if session is not None:
                await session.leave(self.branch)
                self.branch = 0

    def discard(self, name: str) -> None:
        """End the guest of a sandbox that was not closed, without waiting. From any thread."""
        session, self.stopped = self.session, True
        self._tell_end()
        if session is not None and os.getpid() == self.pid:
            warnings.warn(f"{name} was not closed", ResourceWarning, stacklevel=3)
            if self.persistence is not None:
                self.persistence.close()
            if session.drop(self.branch):
                session.guest.discard()

    # -- the record -------------------------------------------------------------------------

    def begin_record(self) -> None:
        if self.persistence is not None:
            self.persistence.begin_record([*(self.functions or ())])

    def record(self, event: str, **fields: object) -> None:
        if self.persistence is not None:
            self.persistence.record_event(event, **fields)

    # -- lifetime and idle ------------------------------------------------------------------

    def keep_time(self) -> None:
        if self.stopped and (self.limits.lifetime or self.limits.idle) and not self.ended:
            self.stopped = False
            self.last_used = self._born = time.monotonic()
            runtime.current().mind(self)

    def look(self) -> None:
        """Called by the runtime ten times a second, until `stopped`."""
        limits, now = self.limits, time.monotonic()
        if self.paused:
            return
        lived = now - self._born - self.seconds_paused
        if limits.lifetime is not None and lived > limits.lifetime:
            self.stopped = True
            self.end(f"has reached its lifetime of {limits.lifetime:g} s")
        if (
            limits.idle is not None
            and not self.busy
            and not self.readers
            and now - self.last_used > limits.idle
        ):
            self.stopped = True
            self.end(f"was idle for more than {limits.idle:g} s")
