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
from belljar.backends.event_loop import move_to_loop
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
    stays_one,
    suggests,
    unknown_option,
)
from belljar.files import script as scripts
from belljar.files.api import AsyncFiles
from belljar.files.script import Script
from belljar.functions.registry import (
    DEFAULT_TIMEOUT,
    Functions,
    HostFunction,
    Registry,
    make_identifier,
)
from belljar.limits import Limits
from belljar.protocol import wire
from belljar.protocol.values import Encoded
from belljar.results.execution import Execution, Outcome
from belljar.sandbox import advice, not_run, options, outcome, value_transfer
from belljar.sandbox import pause as pausing
from belljar.sandbox.commands import AsyncCommands
from belljar.sandbox.contexts import AsyncContexts, Context, Interpreter
from belljar.sandbox.event_stream import AsyncStream, check_options
from belljar.sandbox.guest_session import KEEP_TIMEOUT, Checkpoint, GuestSession
from belljar.sandbox.lifecycle import Lifecycle
from belljar.sandbox.options import Options, SandboxOptions
from belljar.sandbox.outcome import Finished
from belljar.sandbox.persistence import Code
from belljar.sandbox.ports import AsyncPorts
from belljar.sandbox.run import Cell, OnResult, OnText, Run

if TYPE_CHECKING:
    from belljar.policy import Policy, Report


@suggests
@stays_one
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
        self._main = Interpreter()

    @functools.cached_property
    def commands(self) -> AsyncCommands:
        """Shell commands beside the interpreter."""
        return AsyncCommands(self._lifecycle, on_change=self._note_change)

    @functools.cached_property
    def files(self) -> AsyncFiles:
        """Files of the sandbox."""
        return AsyncFiles(self._lifecycle, on_change=self._note_change)

    @functools.cached_property
    def contexts(self) -> AsyncContexts:
        """More interpreters, beside the sandbox's own."""
        return AsyncContexts(self._lifecycle)

    @functools.cached_property
    def ports(self) -> AsyncPorts:
        """Servers in the sandbox."""
        return AsyncPorts(self._lifecycle)

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

    def describe(self) -> str:
        """What a system prompt should say of this sandbox, in a few lines: Python and packages,
        network, files, limits, and functions of the host. Blocks for a short time.
        """
        lifecycle = self._lifecycle
        return advice.describe_sandbox(
            self._options, lifecycle.subject.backend, lifecycle.functions
        )

    @property
    def last_used(self) -> float:
        """When it was last used, by time.monotonic(); a paused one is in use."""
        return time.monotonic() if self._lifecycle.paused else self._lifecycle.last_used

    @property
    def engaged(self) -> bool:
        """Whether anything runs, or waits for its turn or for the start."""
        lifecycle = self._lifecycle
        waiting = self._main.turn.locked() or self.contexts.running()
        return lifecycle.busy > 0 or waiting or lifecycle.starting.locked()

    @property
    def _session(self) -> GuestSession | None:
        return self._lifecycle.session

    # -- start and end ----------------------------------------------------------------------

    async def start(self) -> None:
        """Start the guest, if it does not run yet."""
        await self._lifecycle.connect()

    async def restart(self, context: Context | str | None = None) -> None:
        """A fresh interpreter: variables are gone, files stay. Ends a cell that is running.
        `context` is another interpreter of the sandbox."""
        if context is not None:
            return await self.contexts.restart(context)
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
        context: Context | str | None = None,
        allow_return: bool = False,
        notebook: bool | None = None,
    ) -> Execution:
        """Run code in the sandbox's interpreter; variables stay for the next time.

        `code` is a text, or the path of a file on this host, which tracebacks then name. What it
        does is in the Execution, also when it fails; exceptions are for what Belljar could not do.
        `timeout` is in seconds (None: that of the limits). `stdin` is what input() and sys.stdin
        read. The callbacks get output and results while the code runs. With `undo_on_error`, code
        that does not end with the outcome ok leaves variables and files as they were before it.
        `context` is another interpreter of the sandbox: see `contexts`.
        With `allow_return`, a `return` at the top level ends the code, and gives its value. With
        `notebook` (None: as the sandbox says), code may be written as for a notebook: `!ls`.
        """
        where = self._find_interpreter(context)
        if undo_on_error and context is not None:
            self.contexts.check_alone()
        if on_stdout is not None or on_stderr is not None or on_result is not None:
            check_callbacks(on_stdout=on_stdout, on_stderr=on_stderr, on_result=on_result)
        header: dict[str, object] = {"watch": True}
        if notebook is None:
            notebook = self._options.notebook
        if type(code) is str and stdin is None:
            script = Script(code=code, allow_return=allow_return, notebook=notebook)
            if notebook:
                header["notebook"] = True
            if allow_return:
                header["return"] = True
        else:
            await move_to_loop()
            script = await scripts.make_script(
                code, stdin, allow_return=allow_return, notebook=notebook
            )
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
        given = Code(
            script=script,
            env=variables,
            timeout=timeout,
            undo_on_error=undo_on_error,
            context=None if where.context is None else where.context.id,
        )
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
                execution = not_run.make_rejected(report, where.count)
            else:
                execution = await self._run_cell(given, cell, report, where)
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

    def stream(self, code: str | os.PathLike[str] | Script, **options: Any) -> AsyncStream:
        """Run code as `run_code` does, and iterate over what happens.

        Gives OutputEvent and ResultEvent as they come, and at last an EndEvent with the Execution.
        `options` are those of `run_code`, without the callbacks. The code runs from the first event
        on. It is interrupted if the iterator is closed, or dropped, before the end.
        """
        return AsyncStream(
            functools.partial(self.run_code, code, **check_options(self.run_code, options))
        )

    async def interrupt(self, context: Context | str | None = None) -> None:
        """Raise KeyboardInterrupt in the running cell; nothing happens if none is running."""
        self._lifecycle.check_running()
        where = self._find_interpreter(context)
        if where.run is not None and self._session is not None:
            await self._session.settle()
        if where.run is not None:
            await where.run.interrupt()

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
        lifecycle, functions = self._lifecycle, self._lifecycle.functions
        if lifecycle.persistence is not None or (functions is not None and functions.version):
            await move_to_loop()
        lifecycle.check_running()
        if lifecycle.session is not None:
            lifecycle.session.check_free()

    async def _run_cell(
        self, code: Code, cell: Cell, report: Report | None, where: Interpreter
    ) -> Execution:
        began, persistence = time.time(), self._lifecycle.persistence
        await self._get_ready()
        async with where.turn:
            before: Checkpoint | None = None
            if code.undo_on_error:
                await move_to_loop()
                before = await self._keep(cell.timeout)
            where.count += 1
            try:
                execution, _ = await self._execute(cell, where)
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

    async def _execute(
        self, cell: Cell, where: Interpreter, *, with_value: bool = True
    ) -> tuple[Execution, Finished]:
        """Run one cell, or one operation on variables, to its end."""
        lifecycle = self._lifecycle
        session = await lifecycle.connect()
        if where.session is not None and where.session is not session:
            raise SandboxError(
                "the context was lost with the guest that it was in", hint="make a new one"
            )
        branch, functions = lifecycle.branch, lifecycle.functions
        await session.begin_turn(branch)
        try:
            if lifecycle.persistence is not None:
                await lifecycle.persistence.refresh(session)
            cell.header.update(count=where.count, output=cell.limits.output)
            key = branch
            if where.number:
                cell.header["context"], key = where.number, -where.number
            version = 0 if functions is None else functions.version
            if session.functions.get(key, 0) != version:
                cell.header["functions"] = [] if functions is None else functions.specs()
                session.functions[key] = version
            run = where.run = Run(session, cell, functions if version else None)
            try:
                with lifecycle.working():
                    finished = await session.serve(run.execute)
            finally:
                where.run = None
        finally:
            session.end_turn()
        return await self._judge(finished, session, where, with_value=with_value), finished

    async def _judge(
        self, finished: Finished, session: GuestSession, where: Interpreter, *, with_value: bool
    ) -> Execution:
        lifecycle = self._lifecycle
        state_lost = False
        if where is self._main:
            state_lost, lifecycle.state_lost = lifecycle.state_lost, finished.done is None
        remarks: tuple[str, ...] = ()
        if with_value:  # else there is no Execution that the caller sees
            remarks, where.remarks = where.remarks, ()
        kills, session.memory_kills = session.memory_kills, finished.memory_kills_in_all
        return await outcome.make_execution(
            finished,
            limits=self._options.limits,
            count=where.count,
            kills_before=kills,
            ended=lifecycle.ended,
            state_lost=state_lost,
            remarks=remarks,
            with_value=with_value,
        )

    # -- variables --------------------------------------------------------------------------

    async def put(self, /, **values: object) -> None:
        """Set variables of the sandbox: `put(df=frame, threshold=3)`.

        Plain data, dates, sets, paths, images, numpy arrays, pandas and polars frames, pyarrow
        tables. Of other objects the sandbox gets plain data, or a text, and the next Execution has
        a note of it. Raises CannotTravel with the name of a part that cannot travel at all.
        `context=` is another interpreter of the sandbox if it is a Context, else a variable.
        """
        await self._put(values)

    async def _put(self, values: dict[str, object]) -> None:
        context = values.get("context")
        known = {key for each in await self.contexts.list() for key in (each.id, each.name)}
        if isinstance(context, str) and context in known:
            raise InvalidOption(
                f"put(context={context!r}) means a context or a variable",
                hint="give put() the Context, or use set(name, value, context=...); "
                "set('context', value) sets a variable of that name",
            )
        if not isinstance(context, Context):
            return await self._put_all(values)
        del values["context"]
        await self._put_all(values, self.contexts.find(context))

    async def _put_all(
        self,
        values: Mapping[str, object],
        where: Interpreter | None = None,
        *,
        lenient: bool = True,
    ) -> None:
        for name in values:
            options.check_name(name)
        value = await value_transfer.encode_named(values, self.limits.memory, lenient=lenient)
        header: dict[str, object] = {"op": "put"} | ({} if lenient else {"strict": True})
        where = where or self._main
        await self._operate(header, value, self.limits.timeout, where)
        if self._lifecycle.persistence is not None:
            id = None if where.context is None else where.context.id
            await self._lifecycle.persistence.record_put(values, id)

    async def set(
        self,
        name: str,
        value: object,
        *,
        lenient: bool = True,
        context: Context | str | None = None,
    ) -> None:
        """Set one variable of the sandbox. Unless `lenient`, an object that the sandbox cannot have
        as it is raises CannotTravel. `context` is another interpreter of the sandbox."""
        await self._put_all({name: value}, self._find_interpreter(context), lenient=lenient)

    async def get(
        self,
        name: str,
        *,
        timeout: float | None = None,
        lenient: bool = False,
        types: Iterable[object] = (),
        context: Context | str | None = None,
    ) -> object:
        """The value of a variable of the sandbox, as an object of this process.

        Objects of the classes in `types` (and of their fields) are built from what the sandbox
        sent: a dataclass or named tuple by its constructor, a pydantic model by validation. With
        `lenient` other objects come as plain data or as their text. Raises NameMissing if the
        sandbox has no such variable, CannotTravel if its value cannot come out. `context` is
        another interpreter of the sandbox.
        """
        where = self._find_interpreter(context)
        header: dict[str, object] = {"op": "get", "name": options.check_name(name)}
        if lenient:
            header["lenient"] = True
        seconds = options.check_timeout(timeout, self.limits.timeout)
        finished = await self._operate(header, None, seconds, where)
        try:
            reception = value_transfer.receive(types, lenient=lenient)
            return await finished.decode_value(self.limits.memory, reception)
        except CannotTravel as error:
            raise CannotTravel(error.message.replace("value", name, 1), hint=error.hint) from None

    def _find_interpreter(self, context: Context | str | None) -> Interpreter:
        return self._main if context is None else self.contexts.find(context)

    async def _operate(
        self,
        header: dict[str, object],
        value: Encoded | None,
        timeout: float | None,
        where: Interpreter,
    ) -> Finished:
        cell = Cell(limits=self.limits, timeout=timeout, header=header, value=value)
        await self._get_ready()
        async with where.turn:
            execution, finished = await self._execute(cell, where, with_value=False)
        if not execution.state_preserved and where is self._main:
            self._lifecycle.state_lost = True
        if execution.error is not None and execution.outcome is Outcome.error:
            name = None if header["op"] == "put" else str(header["name"])
            if execution.error.name == "NameError" and header["op"] == "get":
                raise NameMissing(f"the sandbox has no variable {name!r}")
            if execution.error.name == "CannotTravel":
                raise value_transfer.refused_inside(execution.error.value, name)
        try:
            execution.raise_for_outcome()
        except ExecutionError as error:
            if not execution.state_preserved:
                whose = "sandbox" if where is self._main else "context"
                error.message = f"{error.message}; the variables of the {whose} are lost"
            raise
        return finished

    # -- host functions ---------------------------------------------------------------------

    async def expose(
        self,
        function: Callable[..., object],
        name: str | None = None,
        *,
        timeout: float | None = DEFAULT_TIMEOUT,
        max_calls: int | None = None,
        concurrency: int | None = None,
        counts_time: bool = False,
        ends_cell: bool = False,
        awaitable: bool | None = None,
    ) -> str:
        """Let the code call a function of this process, by its name or `name`. Gives the name in
        the code, which is an identifier: "get-weather" is get_weather there.

        It runs here, with arguments that the code chose: do not trust them. `timeout` is in
        seconds for one call (an async function has none unless it is given), `max_calls` counts
        over the sandbox's life, `concurrency` is how many run at once (None: 8 in threads, 64 of
        an async function). The time of calls counts against the time-out of the cell with
        `counts_time`, and beyond `Limits.host_time`. With `ends_cell`, its result ends the cell,
        and is `final` of the Execution. Async functions, and those with `awaitable`, are awaited in
        the code.
        """
        if isinstance(function, HostFunction):
            raise InvalidOption(
                "expose() makes a HostFunction itself",
                hint="give it the function, and its options; or use expose_all([function])",
            )
        made = HostFunction(
            function,
            name=name,
            timeout=timeout,
            max_calls=max_calls,
            concurrency=concurrency,
            counts_time=counts_time,
            ends_cell=ends_cell,
            awaitable=awaitable,
        )
        return self.functions.add(made)

    async def expose_all(self, functions: Functions) -> dict[str, str]:
        """Let the code call functions of this process, as `Sandbox(functions=...)` does.

        Functions of the same names are replaced. Gives the names in the code by the names given:
        `{"get-weather": "get_weather"}`. If one cannot be exposed, none is.
        """
        return self.functions.add_all(functions)

    async def unexpose(self, name: str) -> None:
        """Take a function back: the code cannot call it any more, not even a cell that runs. The
        name may be the one given, or the one in the code."""
        named = {make_identifier(each): each for each in self.functions}
        given = name if name in self.functions else named.get(name)
        if given is None:
            raise unknown_option("host function", str(name), self.functions)
        del self.functions[given]

    @property
    def functions(self) -> Registry:
        """The functions of this process that the code can call, by name: a live mapping. Adding or
        removing one there is the same as expose() and unexpose()."""
        if self._lifecycle.functions is None:
            self._lifecycle.functions = Registry()
        return self._lifecycle.functions

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
        async with self._main.turn:
            made = await self._keep(self.limits.timeout)
        self._lifecycle.record("checkpoint", id=str(made.id))
        return made

    async def rollback(self, checkpoint: Checkpoint) -> None:
        """Go back to a checkpoint, which stays valid: one can go back to it again."""
        await self._get_ready()
        async with self._main.turn:
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
        async with self._main.turn, lifecycle.turn() as session:
            self.contexts.check_alone()
            branch, lacks = await session.keep(branch=True, timeout=self.limits.timeout)
        functions = None if lifecycle.functions is None else lifecycle.functions.copy()
        forked = self._from_options(options.make_fork_options(self._options), functions)
        forked._main.count = self._main.count
        forked._main.remarks = _describe_lacks(lacks, "the fork")
        forked._lifecycle.state_lost = lifecycle.state_lost
        lifecycle.record("fork", id=forked.id)
        forked._lifecycle.join(session, branch)
        return forked

    async def _keep(self, timeout: float | None) -> Checkpoint:
        async with self._lifecycle.turn() as session:
            self.contexts.check_alone()
            number, lacks = await session.keep(branch=False, timeout=timeout)
        lost = self._lifecycle.state_lost
        return Checkpoint(id=number, lacks=lacks, fresh=lost, session=session)

    async def _go_back(self, checkpoint: Checkpoint, timeout: float | None = None) -> None:
        async with self._lifecycle.turn() as session:
            _check_owner(checkpoint, session)
            self.contexts.check_alone()
            await session.go_back(checkpoint.id, timeout)
        self._lifecycle.state_lost = checkpoint.fresh
        self._main.remarks = _describe_lacks(checkpoint.lacks, "the checkpoint")

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
        remarks, self._main.remarks = self._main.remarks, ()
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
            self._main.remarks += tuple(await lifecycle.persistence.save(self._session))
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


def encode_code(code: str) -> bytes:
    if not isinstance(code, str):  # of a Snippet
        found = f"code is a str, not {type(code).__name__}"
        raise InvalidOption(found, hint="decode bytes before running them")
    payload = code.removeprefix("\ufeff").encode("utf-8", "surrogatepass")
    if len(payload) > wire.MAX_PAYLOAD:
        raise InvalidOption(
            f"the code has {len(payload)} bytes, more than {wire.MAX_PAYLOAD}",
            hint="write large data to a file with files.write()",
        )
    return payload


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
