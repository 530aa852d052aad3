"""AsyncSandbox: one isolated place, an interpreter whose variables persist, a workspace, limits.

The path of a cell: options → guest (lifecycle.py) → run.py → outcome.py → Execution. Longer than
other files: it is the whole public class, and each method's documentation.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Never, Self, Unpack

import anyio
import anyio.to_thread

from belljar import events
from belljar.backends.base import Location, UsageSample
from belljar.backends.event_loop import Lock, move_to_loop
from belljar.backends.isolation import Isolation
from belljar.environment.environment import Environment
from belljar.errors import (
    CannotTravel,
    CheckpointLost,
    ExecutionError,
    InvalidOption,
    NameMissing,
    SandboxClosed,
    SandboxError,
    check_callbacks,
    suggests,
)
from belljar.files import script as scripts
from belljar.files.api import AsyncFiles
from belljar.files.script import Script
from belljar.functions.registry import HostFunction, Registry
from belljar.limits import Limits
from belljar.protocol import wire
from belljar.protocol.values import Encoded
from belljar.results.execution import Execution, Outcome
from belljar.sandbox import advice, options, outcome, value_transfer
from belljar.sandbox import pause as pausing
from belljar.sandbox.commands import AsyncCommands
from belljar.sandbox.guest_session import KEEP_TIMEOUT, Checkpoint, GuestSession
from belljar.sandbox.lifecycle import Lifecycle
from belljar.sandbox.options import Options, SandboxOptions
from belljar.sandbox.outcome import Finished
from belljar.sandbox.persistence import Code
from belljar.sandbox.run import Cell, OnResult, OnText, Run, encode_code

if TYPE_CHECKING:
    from belljar.policy import Policy, Report


@suggests
class AsyncSandbox:
    """A sandbox under asyncio or trio. Starts when entered or first used; `create` starts at once.

    async with AsyncSandbox() as sandbox:
        execution = await sandbox.run_code("6 * 7")
        print(execution.text)
    """

    def __init__(self, *unnamed: Never, **given: Unpack[SandboxOptions]) -> None:
        self._set_up(options.make_options(given, unnamed))

    @classmethod
    def _from_options(cls, given: Options, functions: Registry | None = None) -> Self:
        """Make a sandbox of checked options; `functions` replace those of the options."""
        sandbox = cls.__new__(cls)
        sandbox._set_up(given, functions)
        return sandbox

    def _set_up(self, given: Options, functions: Registry | None = None) -> None:
        self._options = given
        self._lifecycle = Lifecycle(self, given, functions)
        self._turn = Lock()
        self._run: Run | None = None
        self._count = 0
        self._remarks: tuple[str, ...] = ()  # for the notes of the next Execution

    @functools.cached_property
    def commands(self) -> AsyncCommands:
        """Shell commands beside the interpreter."""
        return AsyncCommands(self._lifecycle, on_change=self._note_change)

    @functools.cached_property
    def files(self) -> AsyncFiles:
        """Files of the sandbox."""
        return AsyncFiles(self._lifecycle, on_change=self._note_change)

    def _check_start(self) -> None:
        """Called before each start of a guest, which a subclass may refuse."""

    @classmethod
    async def create(cls, *unnamed: Never, **given: Unpack[SandboxOptions]) -> Self:
        """Make a sandbox and start it at once."""
        sandbox = cls(*unnamed, **given)
        await sandbox.start()
        return sandbox

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    @property
    def id(self) -> str:
        return self._lifecycle.id

    @property
    def metadata(self) -> Mapping[str, str]:
        return self._lifecycle.options.metadata

    @property
    def limits(self) -> Limits:
        return self._lifecycle.limits

    @property
    def environment(self) -> Environment:
        return self._lifecycle.options.environment

    @property
    def policy(self) -> Policy | None:
        """What code is checked against before it runs."""
        return self._lifecycle.options.policy

    @property
    def workdir(self) -> str:
        """Where its workspace is, in the sandbox."""
        return self._lifecycle.workdir

    @property
    def alive(self) -> bool:
        """Whether it has a live guest. A guest that was lost is replaced at the next use, without
        the variables and files it had."""
        lifecycle = self._lifecycle
        session = lifecycle.session
        return lifecycle.ended is None and session is not None and session.alive

    @property
    def whereabouts(self) -> Location | None:
        """Where its guest can be seen from outside; None while it has no guest."""
        session = self._lifecycle.session
        return None if session is None else session.guest.location

    @property
    def isolation(self) -> Isolation:
        """What holds the guest, as measured on it. The sandbox must have been started."""
        if (session := self._lifecycle.session) is None:
            raise SandboxClosed(
                "the sandbox has no guest to measure",
                hint="start it: enter its `with` block, or use create()",
            )
        return session.guest.isolation

    def __repr__(self) -> str:
        lifecycle = self._lifecycle
        state = "closed" if lifecycle.ended else "running" if lifecycle.session else "not started"
        state = "paused" if lifecycle.paused and not lifecycle.ended else state
        return f"<{type(self).__name__} {self.id} ({self.environment.name}, {state})>"

    @property
    def last_used(self) -> float:
        """When it was last used, by time.monotonic(); a paused one is in use."""
        return time.monotonic() if self._lifecycle.paused else self._lifecycle.last_used

    @property
    def engaged(self) -> bool:
        """Whether anything runs, or waits for its turn or for the start."""
        lifecycle = self._lifecycle
        return lifecycle.busy > 0 or self._turn.locked() or lifecycle.starting.locked()

    @property
    def _session(self) -> GuestSession | None:
        return self._lifecycle.session

    # -- start and end ----------------------------------------------------------------------

    async def start(self) -> None:
        """Start the guest, if it does not run yet."""
        await self._lifecycle.connect()

    async def restart(self) -> None:
        """A fresh interpreter: variables are gone, files stay. Ends a cell that is running."""
        async with self._lifecycle.turn() as session:
            await session.channel.call(wire.RESTART)
        self._lifecycle.state_lost = False
        self._lifecycle.record("restart")

    async def pause(self) -> None:
        """Stop all its processes until `resume`. They keep their memory and use no processor time.

        A cell that is under way stands still, and so do its time-out, `lifetime` and `idle`. What
        needs the guest raises SandboxPaused meanwhile; close() and kill() end it at once.
        """
        await pausing.pause(self._lifecycle)

    async def resume(self) -> None:
        """Let a paused sandbox go on, as if no time had passed."""
        await pausing.resume(self._lifecycle)

    @property
    def paused(self) -> bool:
        """Whether it is between `pause` and `resume`."""
        return self._lifecycle.paused

    @property
    def _seconds_paused(self) -> float:
        return self._lifecycle.seconds_paused

    async def usage(self) -> UsageSample:
        """What it has used so far, and uses at this moment, as seen from outside.

        None stands for what this host cannot tell, and for a sandbox that was not started.
        """
        self._lifecycle.check_usable()
        if self._session is None:
            return UsageSample(cpu=None, peak_memory=None, memory_kills=0)
        return await self._session.guest.read_usage(now=True)

    async def close(self) -> None:
        """End it and leave nothing behind. May be called twice, and while code runs.

        When it returns, every process of the sandbox has ended and given its memory back, and its
        control group is removed. The kernel takes down the empty namespaces, with the workspace
        and other mounts in them, at the same time or right after.
        """
        if os.getpid() != self._lifecycle.pid:
            return  # after a fork: the guest belongs to the parent
        try:
            await self._lifecycle.save()
        finally:
            await self.kill()

    async def kill(self) -> None:
        """End it at once, whatever runs in it. Afterwards it is gone."""
        await self._lifecycle.kill()

    def __del__(self) -> None:
        lifecycle: Lifecycle | None = getattr(self, "_lifecycle", None)
        if lifecycle is not None and lifecycle.session is not None:
            lifecycle.discard(repr(self))

    # -- code -------------------------------------------------------------------------------

    async def run_code(
        self,
        code: str | os.PathLike[str] | Script,
        *,
        timeout: float | None = None,
        stdin: str | bytes | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_result: OnResult | None = None,
        env: Mapping[str, str] | None = None,
        undo_on_error: bool = False,
    ) -> Execution:
        """Run code in the sandbox's interpreter; variables stay for the next time.

        `code` is a text, or the path of a file on this host, which tracebacks then name. What it
        does is in the Execution, also when it fails; exceptions are for what Belljar could not do.
        `timeout` is in seconds (None: that of the limits). `stdin` is what input() and sys.stdin
        read. The callbacks get output and results while the code runs. With `undo_on_error`, code
        that does not end with the outcome ok leaves variables and files as they were before it.
        """
        if on_stdout is not None or on_stderr is not None or on_result is not None:
            check_callbacks(on_stdout=on_stdout, on_stderr=on_stderr, on_result=on_result)
        header: dict[str, object] = {"watch": True}
        if type(code) is str and stdin is None:
            script = Script(code=code)
        else:
            await move_to_loop()
            script = await scripts.make_script(code, stdin)
            header |= script.header()
        variables = {} if env is None else options.check_texts("env", env)
        if variables:
            header["env"] = variables
        limits = self._options.limits
        cell = Cell(
            limits=limits,
            timeout=limits.timeout if timeout is None else options.check_timeout(timeout, None),
            header=header,
            payload=encode_code(script.code),
            stdin=script.stdin,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            on_result=on_result,
        )
        given = Code(script=script, env=variables, timeout=timeout, undo_on_error=undo_on_error)
        began, clock, asked = time.time(), time.perf_counter(), 0.0
        report: Report | None = None
        if events.cell_subscriptions:
            events.tell(events.CellStarting(subject=self._lifecycle.subject, code=script.code))
        try:
            if self._options.policy is not None:
                await move_to_loop()
                report = await self._check_policy(self._options.policy, script.code)
                asked = time.perf_counter() - clock
            if report is not None and not report.allowed:
                execution = outcome.make_rejected(report, self._count)
            else:
                execution = await self._run_cell(given, cell, report)
        except BaseException as error:
            if events.cell_subscriptions:
                events.tell(
                    events.CellFailed(
                        subject=self._lifecycle.subject,
                        code=script.code,
                        error=error,
                        began=began,
                        seconds=time.perf_counter() - clock,
                    )
                )
            raise
        if events.cell_subscriptions:
            took, run = time.perf_counter() - clock, execution.usage.wall
            events.tell(
                events.CellEnded(
                    subject=self._lifecycle.subject,
                    code=script.code,
                    execution=execution,
                    began=began,
                    seconds=took,
                    stages={"policy": asked, "wait": max(took - asked - run, 0.0), "run": run},
                )
            )
        return execution

    async def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the running cell; nothing happens if none is running."""
        self._lifecycle.check_running()
        if self._run is not None and self._session is not None:
            await self._session.settle()
        if self._run is not None:
            await self._run.interrupt()

    async def _check_policy(self, policy: Policy, code: str) -> Report:
        self._lifecycle.check_usable()
        report = await check_policy(policy, code)
        if not report.allowed:
            self._lifecycle.begin_record()
            self._lifecycle.record("rejected", code=code, why=report.summary())
        return report

    async def _get_ready(self) -> None:
        """Called before `_turn` is taken: one cell after the other; an operation on variables
        counts as one."""
        lifecycle = self._lifecycle
        if lifecycle.functions is not None or lifecycle.persistence is not None:
            await move_to_loop()
        lifecycle.check_running()
        if lifecycle.session is not None:
            lifecycle.session.check_free()

    async def _run_cell(self, code: Code, cell: Cell, report: Report | None) -> Execution:
        began, persistence = time.time(), self._lifecycle.persistence
        await self._get_ready()
        async with self._turn:
            before: Checkpoint | None = None
            if code.undo_on_error:
                await move_to_loop()
                before = await self._keep(cell.timeout)
            self._count += 1
            try:
                execution, _ = await self._execute(cell)
                if execution.outcome is not Outcome.ok:
                    said = tuple(advice.notes(execution, self._options, cell.timeout))
                    execution = replace(execution, notes=(*execution.notes, *said))
                if before is not None:
                    execution = await self._undo(before, execution)
            except BaseException:
                if before is not None:
                    await self._take_back(before)
                raise
            if persistence is not None:
                execution = await persistence.keep(code, execution, self._session, began=began)
        return execution if report is None else replace(execution, policy=report)

    async def _execute(self, cell: Cell, *, with_value: bool = True) -> tuple[Execution, Finished]:
        """Run one cell, or one operation on variables, to its end."""
        lifecycle = self._lifecycle
        session = await lifecycle.connect()
        branch, functions = lifecycle.branch, lifecycle.functions
        await session.begin_turn(branch)
        try:
            if lifecycle.persistence is not None:
                await lifecycle.persistence.refresh(session)
            cell.header.update(count=self._count, output=cell.limits.output)
            version = 0 if functions is None else functions.version
            if session.functions.get(branch, 0) != version:
                cell.header["functions"] = [] if functions is None else functions.specs()
                session.functions[branch] = version
            self._run = Run(session, cell, functions)
            try:
                with lifecycle.working():
                    finished = await session.serve(self._run.execute)
            finally:
                self._run = None
        finally:
            session.end_turn()
        return await self._judge(finished, session, with_value=with_value), finished

    async def _judge(
        self, finished: Finished, session: GuestSession, *, with_value: bool
    ) -> Execution:
        lifecycle = self._lifecycle
        state_lost, lifecycle.state_lost = lifecycle.state_lost, finished.done is None
        remarks: tuple[str, ...] = ()
        if with_value:  # else there is no Execution that the caller sees
            remarks, self._remarks = self._remarks, ()
        kills, session.memory_kills = session.memory_kills, finished.memory_kills_in_all
        return await outcome.make_execution(
            finished,
            limits=self._options.limits,
            count=self._count,
            kills_before=kills,
            ended=lifecycle.ended,
            state_lost=state_lost,
            remarks=remarks,
            with_value=with_value,
        )

    # -- variables --------------------------------------------------------------------------

    async def put(self, /, **values: object) -> None:
        """Set variables of the sandbox: `put(df=frame, threshold=3)`.

        Plain data, dates, numpy arrays, pandas and polars frames, pyarrow tables. Raises
        CannotTravel with the name of the part that cannot.
        """
        await self._put_all(values)

    async def _put_all(self, values: Mapping[str, object]) -> None:
        for name in values:
            options.check_name(name)
        value = await value_transfer.encode_named(values, self.limits.memory)
        await self._operate({"op": "put"}, value, self.limits.timeout)
        if self._lifecycle.persistence is not None:
            await self._lifecycle.persistence.record_put(values)

    async def set(self, name: str, value: object) -> None:
        """Set one variable of the sandbox."""
        await self._put_all({name: value})

    async def get(self, name: str, *, timeout: float | None = None) -> object:
        """The value of a variable of the sandbox, as an object of this process.

        Raises NameMissing if the sandbox has no such variable, CannotTravel if its value cannot
        come out.
        """
        header: dict[str, object] = {"op": "get", "name": options.check_name(name)}
        seconds = options.check_timeout(timeout, self.limits.timeout)
        finished = await self._operate(header, None, seconds)
        try:
            return await finished.decode_value(self.limits.memory)
        except CannotTravel as error:
            raise CannotTravel(error.message.replace("value", name, 1)) from None

    async def _operate(
        self, header: dict[str, object], value: Encoded | None, timeout: float | None
    ) -> Finished:
        cell = Cell(limits=self.limits, timeout=timeout, header=header, value=value)
        await self._get_ready()
        async with self._turn:
            execution, finished = await self._execute(cell, with_value=False)
        if not execution.state_preserved:
            self._lifecycle.state_lost = True
        if execution.error is not None and execution.outcome is Outcome.error:
            name = str(header.get("name"))
            if execution.error.name == "NameError" and header["op"] == "get":
                raise NameMissing(f"the sandbox has no variable {name!r}")
            if execution.error.name == "CannotTravel" and header["op"] == "get":
                raise CannotTravel(execution.error.value.replace("value", name, 1)[:2000])
        try:
            execution.raise_for_outcome()
        except ExecutionError as error:
            if not execution.state_preserved:
                error.message = f"{error.message}; the variables of the sandbox are lost"
            raise
        return finished

    # -- host functions ---------------------------------------------------------------------

    async def expose(
        self,
        function: Callable[..., object],
        name: str | None = None,
        *,
        timeout: float | None = 60.0,
        max_calls: int | None = None,
        concurrency: int = 8,
        counts_time: bool = False,
    ) -> None:
        """Let the code call a function of this process, by its name or `name`.

        It runs here, with arguments that the code chose: do not trust them. `timeout` is in
        seconds for one call, `max_calls` counts over the sandbox's life, `concurrency` is how many
        run at once (ordinary functions in threads). The time of calls counts against the
        time-out of the cell with `counts_time`, and beyond `Limits.host_time`.
        """
        if isinstance(function, HostFunction):
            raise InvalidOption(
                "expose() makes a HostFunction itself", hint="give it the function, and its options"
            )
        if self._lifecycle.functions is None:
            self._lifecycle.functions = Registry()
        self._lifecycle.functions.add(
            HostFunction(
                function,
                name=name,
                timeout=timeout,
                max_calls=max_calls,
                concurrency=concurrency,
                counts_time=counts_time,
            )
        )

    # -- checkpoints ------------------------------------------------------------------------

    async def checkpoint(self) -> Checkpoint:
        """Keep the state as it is now: variables, modules, random state, files in /workspace.

        A copy of the interpreter is parked in the sandbox; it shares memory with the running one
        until either changes it, and counts against the limits. Threads, sockets and child
        processes cannot be kept: see `lacks`. It ends after the `timeout` of the limits and a
        second, and after 20 seconds at the latest: what the code does when it is forked
        (`os.register_at_fork`) may hang. Then the interpreter is lost, and a SandboxError says so.
        """
        await self._get_ready()
        async with self._turn:
            made = await self._keep(self.limits.timeout)
        self._lifecycle.record("checkpoint", id=str(made.id))
        return made

    async def rollback(self, checkpoint: Checkpoint) -> None:
        """Go back to a checkpoint, which stays valid: one can go back to it again."""
        await self._get_ready()
        async with self._turn:
            await self._go_back(checkpoint, self.limits.timeout)
            if self._lifecycle.persistence is not None:
                await self._lifecycle.persistence.save(self._session)
        self._lifecycle.record("rollback", id=str(checkpoint.id))

    async def release(self, checkpoint: Checkpoint) -> None:
        """Remove a checkpoint, and free the memory and room it takes."""
        async with self._lifecycle.turn() as session:
            _check_owner(checkpoint, session)
            await session.release(checkpoint.id)

    async def fork(self) -> Self:
        """A second sandbox that goes on from here, independent from now on.

        It has variables and files of its own, but shares the guest, and so the limits, with this
        one: the two take turns. Each must be closed.
        """
        lifecycle = self._lifecycle
        if lifecycle.persistence is not None and lifecycle.persistence.mirrors:
            raise InvalidOption(
                "a sandbox whose workspace is kept on the host cannot be forked",
                hint="two cannot write to one directory; checkpoint() and rollback() work",
            )
        await self._get_ready()
        async with self._turn, lifecycle.turn() as session:
            branch, lacks = await session.keep(branch=True, timeout=self.limits.timeout)
        functions = None if lifecycle.functions is None else lifecycle.functions.copy()
        forked = self._from_options(options.make_fork_options(self._options), functions)
        forked._count, forked._remarks = self._count, _describe_lacks(lacks, "the fork")
        forked._lifecycle.state_lost = lifecycle.state_lost
        lifecycle.record("fork", id=forked.id)
        forked._lifecycle.join(session, branch)
        return forked

    async def _keep(self, timeout: float | None) -> Checkpoint:
        async with self._lifecycle.turn() as session:
            number, lacks = await session.keep(branch=False, timeout=timeout)
        lost = self._lifecycle.state_lost
        return Checkpoint(id=number, lacks=lacks, fresh=lost, session=session)

    async def _go_back(self, checkpoint: Checkpoint, timeout: float | None = None) -> None:
        async with self._lifecycle.turn() as session:
            _check_owner(checkpoint, session)
            await session.go_back(checkpoint.id, timeout)
        self._lifecycle.state_lost = checkpoint.fresh
        self._remarks = _describe_lacks(checkpoint.lacks, "the checkpoint")

    async def _undo(self, before: Checkpoint, execution: Execution) -> Execution:
        session = before.session
        if self._session is not session or not session.alive:
            return execution  # the checkpoint was lost with the guest, which the notes say
        if execution.ok:
            await session.release(before.id)
            return execution
        try:
            await self._go_back(before)
        except SandboxError as error:
            notes = (*execution.notes, f"what it did could not be undone: {error.message}")
            # After any other error the interpreter was ended to make room for the other one.
            as_before = execution.state_preserved and isinstance(error, CheckpointLost)
            return replace(execution, notes=notes, state_preserved=as_before)
        remarks, self._remarks = self._remarks, ()
        await session.release(before.id)
        kept = [note for note in execution.notes if note != outcome.RESTARTED]
        notes = (*kept, "what it did was undone", *remarks)
        return replace(execution, notes=notes, state_preserved=True)

    async def _take_back(self, before: Checkpoint) -> None:
        """Undo a cell that has no Execution, as a rule because it was cancelled."""
        session = before.session
        if self._session is not session or not session.alive:
            return
        # With a time-out: it waits for commands that are under way.
        with anyio.move_on_after(KEEP_TIMEOUT, shield=True):
            with contextlib.suppress(SandboxError):
                await self._go_back(before)
        with anyio.CancelScope(shield=True), contextlib.suppress(SandboxError):
            await session.release(before.id)

    async def _note_change(self, event: str, **fields: Any) -> None:
        """Called after each operation, other than a cell, that may have changed files."""
        lifecycle = self._lifecycle
        if lifecycle.persistence is not None:
            self._remarks += tuple(await lifecycle.persistence.save(self._session))
            lifecycle.persistence.record_event(event, **fields)
        if not events.cell_subscriptions:
            return
        subject = lifecycle.subject
        if event == "command":
            cmd, result = fields["cmd"], fields["result"]
            events.tell(events.CommandEnded(subject=subject, cmd=cmd, result=result))
        else:
            events.tell(events.FilesChanged(subject=subject, operation=event, fields=fields))


options.show_options(AsyncSandbox.__init__)
options.show_options(AsyncSandbox.create.__func__)  # type: ignore[attr-defined]


async def check_policy(policy: Policy, code: str) -> Report:
    """Ask before anything starts. A policy gives advice and is not the boundary: code that it
    allows is confined like any other."""
    # Not on the event loop: the code decides how long it takes.
    return await anyio.to_thread.run_sync(policy.check, code)


def _check_owner(checkpoint: Checkpoint, session: GuestSession) -> None:
    if not isinstance(checkpoint, Checkpoint):
        raise InvalidOption(f"a Checkpoint is needed, not {checkpoint!r}")
    if checkpoint.session is not session:
        raise CheckpointLost("this checkpoint is not of this sandbox, or was lost with its guest")


def _describe_lacks(lacks: Iterable[str], what: str) -> tuple[str, ...]:
    return tuple(f"{what} came without {lack}" for lack in lacks)
