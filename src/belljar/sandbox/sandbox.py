"""AsyncSandbox: one isolated place, an interpreter whose variables persist, a workspace, limits.

The path of a cell in one sitting: options → guest (life.py) → channel → cell → Execution. Longer
than other files: options are written out for editors, twice, and what runs is undone here, too.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import anyio

from belljar import events
from belljar.backends.docker.settings import Docker
from belljar.backends.mounts import WORKSPACE, Mount
from belljar.environment.environment import Environment
from belljar.errors import (
    CannotTravel,
    CheckpointLost,
    InvalidOption,
    NameMissing,
    SandboxError,
    check_callbacks,
    suggests,
)
from belljar.files import script as scripts
from belljar.files.api import AsyncFiles
from belljar.files.script import Input, Script
from belljar.functions.registry import Functions, HostFunction
from belljar.limits import Limits
from belljar.protocol import wire
from belljar.protocol.values import Encoded
from belljar.results.execution import CommandResult, Execution, Outcome
from belljar.sandbox import advice, options, outcome, policy_gate, value_transfer
from belljar.sandbox.checkpoints import Checkpoint
from belljar.sandbox.commands import AsyncCommands
from belljar.sandbox.guest_session import KEEP_TIMEOUT, Place
from belljar.sandbox.lifecycle import Life
from belljar.sandbox.options import Options
from belljar.sandbox.run import Cell, OnResult, OnText, Run

if TYPE_CHECKING:
    from belljar.sandbox.options import PolicyLike


@suggests
class AsyncSandbox(Life):
    """A sandbox under asyncio or trio. Starts when entered or first used; `create` starts at once.

    async with AsyncSandbox() as sandbox:
        execution = await sandbox.run_code("6 * 7")
        print(execution.text)
    """

    def __new__(cls, *unnamed: object, **given: Any) -> Self:
        options.check_known(cls.__init__, given, unnamed)
        return super().__new__(cls)

    def __init__(
        self,
        *,
        backend: str | Docker = "auto",
        environment: str | Environment | None = None,
        packages: Sequence[str] = (),
        limits: Limits | Mapping[str, object] | None = None,
        env: Mapping[str, str] | None = None,
        network: str = "none",
        policy: PolicyLike | None = None,
        strict: bool | None = None,
        metadata: Mapping[str, str] | None = None,
        functions: Functions | None = None,
        workspace: str | os.PathLike[str] | None = None,
        session: str | None = None,
        workdir: str = WORKSPACE,
        mounts: Iterable[Mount] = (),
        noexec: bool = False,
        record: str | os.PathLike[str] | None = None,
        image: str | None = None,
        dockerfile: str | os.PathLike[str] | None = None,
        runtime: str | None = None,
        platform: str | None = None,
        gpus: str | int | None = None,
        devices: Sequence[str] = (),
    ) -> None:
        self._prepare(
            options.make(
                backend=backend,
                environment=environment,
                packages=packages,
                limits=limits,
                env=env,
                network=network,
                policy=policy,
                strict=strict,
                metadata=metadata,
                functions=functions,
                workspace=workspace,
                session=session,
                workdir=workdir,
                mounts=mounts,
                noexec=noexec,
                record=record,
                image=image,
                dockerfile=dockerfile,
                runtime=runtime,
                platform=platform,
                gpus=gpus,
                devices=devices,
            )
        )

    def _prepare(self, given: Options) -> None:
        super()._prepare(given)
        self._run: Run | None = None
        self._count = 0
        self._remarks: tuple[str, ...] = ()  # for the notes of the next Execution
        self.commands = AsyncCommands(self)
        self.files = AsyncFiles(self, on_change=self.changed)

    @classmethod
    async def create(
        cls,
        *,
        backend: str | Docker = "auto",
        environment: str | Environment | None = None,
        packages: Sequence[str] = (),
        limits: Limits | Mapping[str, object] | None = None,
        env: Mapping[str, str] | None = None,
        network: str = "none",
        policy: PolicyLike | None = None,
        strict: bool | None = None,
        metadata: Mapping[str, str] | None = None,
        functions: Functions | None = None,
        workspace: str | os.PathLike[str] | None = None,
        session: str | None = None,
        workdir: str = WORKSPACE,
        mounts: Iterable[Mount] = (),
        noexec: bool = False,
        record: str | os.PathLike[str] | None = None,
        image: str | None = None,
        dockerfile: str | os.PathLike[str] | None = None,
        runtime: str | None = None,
        platform: str | None = None,
        gpus: str | int | None = None,
        devices: Sequence[str] = (),
    ) -> Self:
        """Make a sandbox and start it at once."""
        sandbox = cls(
            backend=backend,
            environment=environment,
            packages=packages,
            limits=limits,
            env=env,
            network=network,
            policy=policy,
            strict=strict,
            metadata=metadata,
            functions=functions,
            workspace=workspace,
            session=session,
            workdir=workdir,
            mounts=mounts,
            noexec=noexec,
            record=record,
            image=image,
            dockerfile=dockerfile,
            runtime=runtime,
            platform=platform,
            gpus=gpus,
            devices=devices,
        )
        await sandbox.start()
        return sandbox

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
        check_callbacks(on_stdout=on_stdout, on_stderr=on_stderr, on_result=on_result)
        script = await scripts.make_script(code, stdin)
        cell = Cell(
            code=script.code,
            payload=options.encode_code(script.code),
            script=script,
            env=options.texts("env", env),
            given_timeout=timeout,
            timeout=options.check_timeout(timeout, self.limits.timeout),
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            on_result=on_result,
            undo_on_error=undo_on_error,
        )
        if self._options.policy is None and not events.wanted():
            return await self._run_cell(cell)
        return await self._run_seen(cell)

    async def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the running cell; nothing happens if none is running."""
        self._check_usable()
        if self._run is not None:
            self._run.interrupted = True
            await self._run.interrupt()

    async def _run_seen(self, cell: Cell) -> Execution:
        """The same for a sandbox with a policy, and with those watching who want to know of it."""
        began, clock = time.time(), time.perf_counter()
        if events.wanted():
            events.tell(events.CellStarting(subject=self.subject, code=cell.code))
        report, asked = None, 0.0
        try:
            self._check_usable()
            if self._options.policy is not None:
                report = await policy_gate.ask(self._options.policy, cell.code)
                asked = time.perf_counter() - clock
            if report is not None and not report.allowed:
                execution = policy_gate.rejected(report, self._count)
                self._keeping.begin(self._functions.names)
                self._keeping.event("rejected", code=cell.code, why=report.summary())
            else:
                execution = replace(await self._run_cell(cell), policy=report)
        except BaseException as error:
            if events.wanted():
                took = time.perf_counter() - clock
                events.tell(
                    events.CellFailed(
                        subject=self.subject, code=cell.code, error=error, began=began, seconds=took
                    )
                )
            raise
        if events.wanted():
            took, run = time.perf_counter() - clock, execution.usage.wall
            events.tell(
                events.CellEnded(
                    subject=self.subject,
                    code=cell.code,
                    execution=execution,
                    began=began,
                    seconds=took,
                    stages={"policy": asked, "wait": max(took - asked - run, 0.0), "run": run},
                )
            )
        return execution

    @contextlib.asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """One cell after the other; what is about variables counts as one."""
        if self._place is not None:
            self._place.check_free()
        async with self._turn:
            yield

    async def _run_cell(self, cell: Cell) -> Execution:
        began = time.time()
        async with self._alone():
            before = await self._keep(cell.timeout) if cell.undo_on_error else None
            self._count += 1
            header: dict[str, object] = {"watch": True, **cell.script.header()}
            if cell.env:
                header["env"] = cell.env
            try:
                run, place = await self._drive(
                    header,
                    cell.payload,
                    timeout=cell.timeout,
                    on_stdout=cell.on_stdout,
                    on_stderr=cell.on_stderr,
                    on_result=cell.on_result,
                    stdin=cell.script.stdin,
                )
                execution = await self._judge(run, place)
                execution = _advised(execution, self._options, cell.timeout)
                if before is not None:
                    execution = await self._undo(before, execution)
            except BaseException:
                if before is not None:
                    await self._take_back(before)
                raise
            if self._keeping.mirrors:
                said = await self._keeping.save(self._place)
                saved = self._keeping.saved
                execution = replace(execution, notes=(*execution.notes, *said), saved=saved)
            notes = await self._keeping.cell(cell, execution, began=began)
        return replace(execution, notes=(*execution.notes, *notes)) if notes else execution

    async def _drive(
        self,
        header: dict[str, object],
        payload: bytes = b"",
        *,
        value: Encoded | None = None,
        timeout: float | None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_result: OnResult | None = None,
        stdin: Input | None = None,
    ) -> tuple[Run, Place]:
        """One cell, or one operation on its variables, to its end."""
        place = await self._connected()
        await place.begin_turn(self._branch)
        try:
            if self._keeping.mirrors:
                await self._keeping.refresh(place)
            run = Run(
                place.channel,
                place.guest,
                timeout=timeout,
                output=self.limits.output,
                on_stdout=on_stdout,
                on_stderr=on_stderr,
                on_result=on_result,
                functions=self._functions,
                values=self.limits.memory,
                cpus=self.limits.cpus,
                host_time=self.limits.host_time,
                stdin=stdin,
            )
            header |= {"count": self._count, "output": self.limits.output}
            if place.functions.get(self._branch, 0) != self._functions.version:
                header["functions"] = self._functions.specs()
                place.functions[self._branch] = self._functions.version
            self._run = run
            try:
                with self.working(), place.serving():
                    await run.drive(wire.RUN, header, payload, value)
            finally:
                self._run = None
            return run, place
        finally:
            place.end_turn()

    async def _judge(self, run: Run, place: Place, *, with_value: bool = True) -> Execution:
        fresh, self._state_lost = self._state_lost, run.done is None
        remarks, self._remarks = self._remarks, ()
        execution, place.memory_kills = await outcome.of(
            run,
            kills_before=place.memory_kills,
            ended=self._ended,
            fresh=fresh,
            count=self._count,
            limits=self.limits,
            with_value=with_value,
        )
        return replace(execution, notes=(*remarks, *execution.notes)) if remarks else execution

    # -- variables --------------------------------------------------------------------------

    async def put(self, /, **values: object) -> None:
        """Set variables of the sandbox: `put(df=frame, threshold=3)`.

        Plain data, dates, numpy arrays, pandas and polars frames, pyarrow tables. Raises
        CannotTravel with the name of the part that cannot.
        """
        await self.put_all(values)

    async def put_all(self, values: Mapping[str, object]) -> None:
        for name in values:
            options.check_name(name)
        value = await value_transfer.encode_named(values, self.limits.memory)
        async with self._alone():
            execution, _ = await self._operate({"op": "put"}, value, self.limits.timeout)
        outcome.raise_for(execution)
        await self._keeping.put(values)

    async def set(self, name: str, value: object) -> None:
        """Set one variable of the sandbox."""
        await self.put_all({name: value})

    async def get(self, name: str, *, timeout: float | None = None) -> object:
        """The value of a variable of the sandbox, as an object of this process.

        Raises NameMissing if there is none, CannotTravel if it is nothing that can come out.
        """
        header: dict[str, object] = {"op": "get", "name": options.check_name(name)}
        seconds = options.check_timeout(timeout, self.limits.timeout)
        async with self._alone():
            execution, run = await self._operate(header, None, seconds)
        if execution.error is not None and execution.outcome is Outcome.error:
            if execution.error.name == "NameError":
                raise NameMissing(f"the sandbox has no variable {name!r}")
            if execution.error.name == "CannotTravel":
                raise CannotTravel(execution.error.value.replace("value", name, 1)[:2000])
        outcome.raise_for(execution)
        try:
            return await value_transfer.decode(run.take_value(), self.limits.memory)
        except CannotTravel as error:
            raise CannotTravel(error.message.replace("value", name, 1)) from None

    async def _operate(
        self, header: dict[str, object], value: Encoded | None, timeout: float | None
    ) -> tuple[Execution, Run]:
        run, place = await self._drive(header, value=value, timeout=timeout)
        remarks = self._remarks
        execution = await self._judge(run, place, with_value=False)
        self._remarks = remarks
        if not execution.state_preserved:
            self._state_lost = True
        return execution, run

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

        It runs here, with arguments that the code chose: treat them as a stranger's. `timeout` is
        in seconds for one call, `max_calls` counts over the sandbox's life, `concurrency` is how
        many run at once (ordinary functions in threads). The time of calls counts against the
        time-out of the cell with `counts_time`, and beyond `Limits.host_time`.
        """
        if isinstance(function, HostFunction):
            raise InvalidOption(
                "expose() makes a HostFunction itself", hint="give it the function, and its options"
            )
        self._functions.add(
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
        async with self._alone():
            made = await self._keep(self.limits.timeout)
        self._keeping.event("checkpoint", id=str(made.id))
        return made

    async def rollback(self, checkpoint: Checkpoint) -> None:
        """Go back to a checkpoint, which stays valid: one can go back to it again."""
        async with self._alone():
            await self._go_back(checkpoint, self.limits.timeout)
            await self._keeping.save(self._place)
        self._keeping.event("rollback", id=str(checkpoint.id))

    async def release(self, checkpoint: Checkpoint) -> None:
        """Let go of a checkpoint, and of the memory and room it takes."""
        async with self.using():
            place = self._owner_of(checkpoint)
            await place.release(checkpoint.id)

    async def fork(self) -> Self:
        """A second sandbox that goes on from here, independent from now on.

        It has variables and files of its own, but shares the guest, and so the limits, with this
        one: the two take turns. Each must be closed.
        """
        if self._keeping.mirrors:
            raise InvalidOption(
                "a sandbox whose workspace is kept on the host cannot be forked",
                hint="two cannot write to one directory; checkpoint() and rollback() work",
            )
        async with self._alone(), self.using():
            place = self._place
            assert place is not None
            branch, lacks = await place.keep(branch=True, timeout=self.limits.timeout)
        twin = object.__new__(type(self))
        twin._prepare(options.twin(self._options))
        twin._functions = self._functions.copy()
        twin._place, twin._branch, twin._guests = place, branch, 1
        twin._count, twin._remarks = self._count, _lacking(lacks, "the fork")
        twin._state_lost = self._state_lost
        events.begins(twin)
        twin._mind()
        self._keeping.event("fork", id=twin.id)
        if events.wanted(cells=False):
            seen = place.guest.whereabouts
            events.tell(events.Starting(subject=twin.subject))
            events.tell(
                events.Started(subject=twin.subject, seconds=0.0, stages={}, whereabouts=seen)
            )
        return twin

    async def _keep(self, timeout: float | None) -> Checkpoint:
        async with self.using():
            assert self._place is not None
            number, lacks = await self._place.keep(branch=False, timeout=timeout)
            return Checkpoint(id=number, lacks=lacks, fresh=self._state_lost, place=self._place)

    async def _go_back(self, checkpoint: Checkpoint, timeout: float | None = None) -> None:
        async with self.using():
            place = self._owner_of(checkpoint)
            await place.go_back(checkpoint.id, timeout)
        self._state_lost = checkpoint.fresh
        self._remarks = _lacking(checkpoint.lacks, "the checkpoint")

    def _owner_of(self, checkpoint: Checkpoint) -> Place:
        if not isinstance(checkpoint, Checkpoint):
            raise InvalidOption(f"a Checkpoint is needed, not {checkpoint!r}")
        if self._place is None or checkpoint.place is not self._place:
            raise CheckpointLost(
                "this checkpoint is not of this sandbox, or was lost with its guest"
            )
        return self._place

    async def _undo(self, before: Checkpoint, execution: Execution) -> Execution:
        if self._place is not before.place or not before.place.alive:
            return execution  # lost with the guest, which the notes say
        if execution.ok:
            await before.place.release(before.id)
            return execution
        try:
            await self._go_back(before)
        except SandboxError as error:
            notes = (*execution.notes, f"what it did could not be undone: {error.message}")
            # Whatever else went wrong, the interpreter had to make room for the other one.
            as_before = execution.state_preserved and isinstance(error, CheckpointLost)
            return replace(execution, notes=notes, state_preserved=as_before)
        remarks, self._remarks = self._remarks, ()
        await before.place.release(before.id)
        kept = [note for note in execution.notes if note != outcome.STARTED_ANEW]
        notes = (*kept, "what it did was undone", *remarks)
        return replace(execution, notes=notes, state_preserved=True)

    async def _take_back(self, before: Checkpoint) -> None:
        """For a cell without an Execution, cancelled as a rule: undone as far as that goes."""
        place = before.place
        if self._place is not place or not place.alive:
            return
        # Not for ever: a command that is under way would be waited for.
        with anyio.move_on_after(KEEP_TIMEOUT, shield=True):
            with contextlib.suppress(SandboxError):
                await self._go_back(before)
        with anyio.CancelScope(shield=True), contextlib.suppress(SandboxError):
            await place.release(before.id)

    async def refreshed(self) -> None:
        """Called before commands: what changed on the host meanwhile is to be there."""
        if self._place is not None:
            await self._keeping.refresh(self._place)

    async def changed(self, event: str, **fields: object) -> None:
        """Called after whatever may have changed files, but for cells."""
        self._remarks += tuple(await self._keeping.save(self._place))
        self._keeping.event(event, **fields)
        if not events.wanted():
            return
        if event == "command":
            cmd, result = fields["cmd"], fields["result"]
            assert isinstance(cmd, (str, list))
            assert isinstance(result, CommandResult)
            events.tell(events.CommandEnded(subject=self.subject, cmd=cmd, result=result))
        else:
            events.tell(events.FilesChanged(subject=self.subject, operation=event, fields=fields))


def _advised(execution: Execution, options: Options, timeout: float | None) -> Execution:
    if execution.ok:
        return execution
    said = tuple(advice.notes(execution, options, timeout))
    return replace(execution, notes=(*execution.notes, *said)) if said else execution


def _lacking(lacks: Iterable[str], what: str) -> tuple[str, ...]:
    return tuple(f"{what} came without {lack}" for lack in lacks)
