"""AsyncSandbox: one isolated place, an interpreter whose variables persist, a workspace, limits.

The whole path in one sitting: options → backend → guest → channel → cell → Execution.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import anyio

from belljar import cell, options, runtime
from belljar.backends.base import Guest, GuestSpec
from belljar.cell import OnResult, OnText, Run
from belljar.channel import Channel
from belljar.clock import Clock
from belljar.commands import AsyncCommands
from belljar.environment import Environment
from belljar.errors import SandboxClosed
from belljar.execution import Execution, Outcome
from belljar.files import AsyncFiles
from belljar.guest import wire
from belljar.isolation import Isolation
from belljar.limits import Limits


class AsyncSandbox:
    """A sandbox under asyncio or trio. Starts when entered or first used; `create` starts at once.

    async with AsyncSandbox() as sandbox:
        execution = await sandbox.run_code("6 * 7")
        print(execution.text)
    """

    def __new__(cls, **given: Any) -> Self:
        options.check_known(cls.__init__, given)
        return super().__new__(cls)

    def __init__(
        self,
        *,
        backend: str = "auto",
        environment: str | Environment = "data",
        limits: Limits | Mapping[str, object] | None = None,
        env: Mapping[str, str] | None = None,
        network: str = "none",
        strict: bool | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self._options = options.make(
            backend=backend,
            environment=environment,
            limits=limits,
            env=env,
            network=network,
            strict=strict,
            metadata=metadata,
        )
        self._pid = os.getpid()
        self._guest: Guest | None = None
        self._channel: Channel | None = None
        self._run: Run | None = None
        self._ended: str | None = None  # why it can be used no more
        self.busy = 0  # cells and commands under way
        self._count = 0
        self._guests = 0  # more than one, if one was lost
        self._state_lost = False
        self._memory_kills = 0  # of this guest, up to the last cell
        self._starting = anyio.Lock()
        self._turn = anyio.Lock()
        self._clock: Clock | None = None
        self.commands = AsyncCommands(self)
        self.files = AsyncFiles(self)

    @classmethod
    async def create(
        cls,
        *,
        backend: str = "auto",
        environment: str | Environment = "data",
        limits: Limits | Mapping[str, object] | None = None,
        env: Mapping[str, str] | None = None,
        network: str = "none",
        strict: bool | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Self:
        """Make a sandbox and start it at once."""
        sandbox = cls(
            backend=backend,
            environment=environment,
            limits=limits,
            env=env,
            network=network,
            strict=strict,
            metadata=metadata,
        )
        await sandbox.start()
        return sandbox

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
    def isolation(self) -> Isolation:
        """What holds the guest, as measured on it. The sandbox must have been started."""
        if self._guest is None:
            raise SandboxClosed(
                "the sandbox has no guest to measure",
                hint="start it: enter its `with` block, or use create()",
            )
        return self._guest.isolation

    def __repr__(self) -> str:
        state = "closed" if self._ended else "running" if self._guest else "not started"
        return f"<{type(self).__name__} {self.id} ({self.environment.name}, {state})>"

    # -- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the guest, if it does not run yet."""
        await self.connected()

    async def connected(self) -> tuple[Channel, Guest]:
        """The live guest and its channel; started, or started anew if it was lost."""
        async with self._starting:
            self._check_usable()
            if self._clock is not None:
                self._clock.used()
            if self._guest is not None and self._channel is not None:
                if self._channel.alive:
                    return self._channel, self._guest
                await self._drop_guest()
                self._state_lost = True
            return await self._start_guest()

    async def _start_guest(self) -> tuple[Channel, Guest]:
        self._guests += 1
        spec = GuestSpec(
            id=f"{self.id}-{self._guests}",
            environment=self.environment,
            limits=self.limits,
            env=self._options.env,
            strict=self._options.strict,
        )
        guest = await runtime.current().backend(self._options.backend).start(spec)
        self._guest, self._channel = guest, Channel(guest.stream)
        self._memory_kills = 0
        if self._clock is None and (self.limits.lifetime or self.limits.idle):
            self._clock = Clock(self)
            runtime.current().mind(self._clock)
        return self._channel, guest

    async def _drop_guest(self) -> None:
        guest, channel = self._guest, self._channel
        self._guest = self._channel = None
        if guest is not None and channel is not None:
            guest.kill()
            with anyio.CancelScope(shield=True):
                await channel.retire()
                await guest.close()

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise SandboxClosed(
                "this sandbox belongs to the process that made it",
                hint="make a new one after the fork",
            )
        if self._ended is not None:
            raise SandboxClosed(f"the sandbox {self._ended}", hint="make a new one")

    def end(self, why: str) -> None:
        """Let it be used no more, and end what runs in it. Called from any thread."""
        if self._ended is None:
            self._ended = why
            if self._guest is not None:
                self._guest.kill()

    async def close(self) -> None:
        """End it and leave nothing behind. May be called twice, and while code runs."""
        if os.getpid() != self._pid:
            return  # a fork: it is the parent's
        self.end("is closed")
        if self._clock is not None:
            self._clock.stopped = True
        with anyio.CancelScope(shield=True):
            async with self._starting:
                await self._drop_guest()

    async def kill(self) -> None:
        """End it at once, whatever runs in it. Like close(): afterwards it is gone."""
        await self.close()

    async def restart(self) -> None:
        """A fresh interpreter: variables are gone, files stay. Ends a cell that is running."""
        channel, _ = await self.connected()
        await channel.call(wire.RESTART)
        self._state_lost = False

    async def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the running cell; nothing happens if none is running."""
        self._check_usable()
        if self._run is not None:
            self._run.interrupted = True
            await self._run.interrupt()

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """While this lasts, the sandbox is not idle."""
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1
            if self._clock is not None:
                self._clock.used()

    def __del__(self) -> None:
        guest = getattr(self, "_guest", None)
        if guest is not None and os.getpid() == self._pid:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2)
            guest.discard()

    # -- code -------------------------------------------------------------------------------

    async def run_code(
        self,
        code: str,
        *,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_result: OnResult | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Execution:
        """Run code in the sandbox's interpreter; variables stay for the next time.

        What the code does is in the Execution, also when it fails; exceptions are for what
        Belljar could not do. `timeout` is in seconds (None: that of the limits). The callbacks
        get output and results while the code runs.
        """
        payload = options.encode_code(code)
        timeout = options.check_timeout(timeout, self.limits.timeout)
        variables = options.texts("env", env)
        options.check_callbacks(on_stdout=on_stdout, on_stderr=on_stderr, on_result=on_result)
        async with self._turn:
            channel, guest = await self.connected()
            self._count += 1
            run = Run(
                channel,
                guest,
                timeout=timeout,
                output=self.limits.output,
                on_stdout=on_stdout,
                on_stderr=on_stderr,
                on_result=on_result,
            )
            header = {"count": self._count, "output": self.limits.output, "env": variables}
            self._run = run
            try:
                with self.working():
                    await run.drive(wire.RUN, header, payload)
            finally:
                self._run = None
            return self._judge(run)

    def _judge(self, run: Run) -> Execution:
        after = run.after()
        status = str(run.done.header.get("status")) if run.done is not None else None
        payload = run.done.payload if run.done is not None else b""
        error = cell.parse_error(payload) if status == "error" else None
        # Since the last cell, not since the start of this one: what is killed in between, for
        # memory that the last one left behind, may die only now.
        kills = after.memory_kills - self._memory_kills
        self._memory_kills = after.memory_kills
        outcome = cell.decide(
            status=status,
            error=error.name if error else None,
            stopped_for=run.stopped_for,
            memory_kills=kills,
            interrupted=run.interrupted,
        )
        if outcome is Outcome.lost and self._ended is not None:
            outcome = Outcome.killed  # by close(), kill(), or the end of its lifetime
        lost = run.done is None or run.flag("lost")
        fresh = self._state_lost or run.flag("fresh")
        self._state_lost = run.done is None
        main = next((r for r in reversed(run.results) if r.is_main_result), None)
        logs = run.logs()
        return Execution(
            outcome=outcome,
            text=main.text if main is not None else None,
            value=cell.parse_value(payload, self.limits.output) if outcome is Outcome.ok else None,
            results=tuple(run.results),
            stdout=run.streams["stdout"].text,
            stderr=run.streams["stderr"].text,
            logs=logs,
            error=error,
            exit_code=run.number("exit_code"),
            signal=run.number("signal"),
            execution_count=self._count,
            usage=run.usage(after),
            state_preserved=not lost and not fresh,
            truncated=run.truncated or run.dropped,
            notes=tuple(self._notes(run, outcome, lost=lost, fresh=fresh, kills=kills)),
        )

    def _notes(
        self, run: Run, outcome: Outcome, *, lost: bool, fresh: bool, kills: int
    ) -> list[str]:
        notes = []
        if run.done is None:
            why = f"it {self._ended}" if self._ended else "its first process died"
            notes.append(f"the sandbox is gone ({why}); variables and files are lost")
        elif lost:
            notes.append("variables were lost: the interpreter had to be started anew")
        if fresh:
            notes.append("variables of earlier cells were not there: their interpreter had died")
        if kills > 0 and outcome is not Outcome.out_of_memory:
            notes.append("a process was killed because the sandbox was out of memory")
        if outcome is Outcome.ok and (unplain := run.text("unplain")):
            notes.append(f"value is None, because {unplain}; see text and results")
        if run.truncated:
            notes.append("output past the limit was dropped")
        if run.dropped:
            notes.append("parts of a result were too large and left out")
        if run.streams["background"].chunks:
            notes.append("threads or processes of earlier cells wrote output: see logs.background")
        return notes
