"""Sandbox: AsyncSandbox for blocking code, one line a method, and `run` for a single piece of code.

Longer than other files: three public classes, and each method's documentation.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import os
import queue
import types
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import replace
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    Never,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import anyio

from belljar import runtime
from belljar.backends.base import Location, UsageSample
from belljar.backends.isolation import Isolation
from belljar.environment.environment import Environment
from belljar.errors import InvalidOption, suggests, unknown_option
from belljar.files.api import AsyncFiles, FileInfo, GuestPath
from belljar.files.script import Script
from belljar.files.transfer import OnProgress, Transfer
from belljar.limits import Limits
from belljar.results.execution import CommandResult, Execution
from belljar.sandbox import options
from belljar.sandbox.commands import AsyncCommands
from belljar.sandbox.guest_session import Checkpoint
from belljar.sandbox.options import DEFAULTS, Options, SandboxOptions
from belljar.sandbox.run import OnResult, OnText
from belljar.sandbox.sandbox import AsyncSandbox

if TYPE_CHECKING:
    from belljar.policy import Policy

P = ParamSpec("P")
T = TypeVar("T")
CALLBACKS = ("on_stdout", "on_stderr", "on_result", "on_progress")
Events = queue.SimpleQueue[Callable[[], object] | None]  # None: the work has ended


def call(function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Like `wait`, and faster: in this thread for as long as no event loop is needed. For functions
    that await move_to_loop() before they need one."""
    for name in CALLBACKS:  # they must not hold up what reads the guest's output
        if kwargs.get(name) is not None:
            return wait(function, *args, **kwargs)
    process = runtime.current()
    caller = process.take_caller()
    if caller is None:
        return wait(function, *args, **kwargs)
    context = contextvars.copy_context()
    moves, result = False, None
    try:
        context.run(caller.begin)
        coroutine = function(*args, **kwargs)
        context.run(coroutine.send, None)
        moves = True
    except StopIteration as done:
        result = done.value
    finally:
        caller.end()
        deferred, caller.deferred = caller.deferred, []
        on_move = caller.on_move
        process.give_back(caller)
    if moves:
        work: Work[T] = Work(functools.partial(_go_on, coroutine, on_move))
        work.begin(context, deferred)
        return work.finish()
    for handler in deferred:
        handler()
    return cast("T", result)


@types.coroutine
def _go_on(
    coroutine: Coroutine[Any, Any, T], on_move: Callable[[], None] | None
) -> Generator[Any, Any, T]:
    """The rest of a coroutine that has begun in another thread."""
    if on_move is not None:
        on_move()
    result: T = yield from coroutine  # unlike `await`, this takes one that has begun
    return result


def wait(function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run an awaitable on the runtime's loop and wait for it here.

    Callbacks run in this thread, so that they may use the sandbox themselves. An exception here
    (Ctrl-C above all, or one of a callback) cancels the work, which ends what runs in the guest,
    and is raised when that is done.
    """
    events: Events = queue.SimpleQueue()
    for name in CALLBACKS:
        callback = kwargs.get(name)
        if callback is None:
            continue
        if inspect.iscoroutinefunction(callback):
            raise InvalidOption(
                f"{name} is a coroutine function, which a blocking Sandbox cannot await",
                hint="use AsyncSandbox, or an ordinary function",
            )
        if callable(callback):
            kwargs[name] = _deferred(events, callback)

    work: Work[T] = Work(functools.partial(function, *args, **kwargs), events)
    work.begin()
    return work.finish()


class Work(Generic[T]):
    """One awaitable on the runtime's loop. Unlike a cancelled future, a cancelled Work tells when
    it has really ended."""

    def __init__(self, function: Callable[[], Awaitable[T]], events: Events | None = None) -> None:
        self._function = function
        self._events: Events = queue.SimpleQueue() if events is None else events
        self._scope: anyio.CancelScope | None = None
        self._cancelled = False
        self._made: list[T] = []
        self._error: BaseException = RuntimeError("cancelled")

    def begin(
        self,
        context: contextvars.Context | None = None,
        first: Iterable[Callable[[], object]] = (),
    ) -> None:
        """Start it. From any thread, once. `first`: what the thread that waits calls first."""
        for event in first:
            self._events.put(event)
        self._runtime = runtime.current()
        self._runtime.submit(self.run, context)

    def finish(self) -> T:
        """Wait for its end in this thread, as `wait` does."""
        try:
            while (event := self._events.get()) is not None:
                event()
        except BaseException:
            self._runtime.call_soon(self.cancel)
            while self._events.get() is not None:
                continue  # callbacks are not called any more
            raise
        return self.result()

    async def run(self) -> None:
        try:
            with anyio.CancelScope() as self._scope:
                if self._cancelled:
                    self._scope.cancel()
                self._made.append(await self._function())
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # it may have begun in another thread, with its signals
            self._error = error
        finally:
            # Twice: Ctrl-C may come just when the waiting thread has taken the first.
            self._events.put(None)
            self._events.put(None)

    def result(self) -> T:
        if not self._made:
            raise self._error
        return self._made[0]

    def cancel(self) -> None:
        self._cancelled = True
        if self._scope is not None:
            self._scope.cancel()


def _deferred(events: Events, callback: Any) -> Any:
    return lambda *items: events.put(lambda: callback(*items))


@suggests
class Files:
    """Read and write files of the sandbox. Relative paths are below /workspace."""

    def __init__(self, files: AsyncFiles) -> None:
        self._files = files

    @overload
    def read(self, path: GuestPath, *, format: Literal["text"] = "text") -> str: ...
    @overload
    def read(self, path: GuestPath, *, format: Literal["bytes"]) -> bytes: ...
    def read(self, path: GuestPath, *, format: Literal["text", "bytes"] = "text") -> str | bytes:
        """The content of a file: text (UTF-8), or `format="bytes"`."""
        if format == "bytes":
            return call(self._files.read, path, format="bytes")
        return call(self._files.read, path, format=format)

    def write(self, path: GuestPath, data: str | bytes) -> FileInfo:
        """Write a file and make the directories above it; an existing file is replaced."""
        return call(self._files.write, path, data)

    def list(self, path: GuestPath = ".") -> list[FileInfo]:
        """The entries of a directory, sorted by name."""
        return call(self._files.list, path)

    def exists(self, path: GuestPath) -> bool:
        return call(self._files.exists, path)

    def stat(self, path: GuestPath) -> FileInfo:
        """Describe the path itself: a symbolic link is not followed."""
        return call(self._files.stat, path)

    def make_dir(self, path: GuestPath) -> FileInfo:
        """Make a directory and those above it; it may exist already."""
        return call(self._files.make_dir, path)

    def remove(self, path: GuestPath) -> None:
        """Remove a file, or a directory with its content."""
        return call(self._files.remove, path)

    def rename(self, old: GuestPath, new: GuestPath) -> FileInfo:
        return call(self._files.rename, old, new)

    def upload(
        self,
        local: str | os.PathLike[str],
        path: GuestPath | None = None,
        *,
        on_progress: OnProgress | None = None,
    ) -> Transfer:
        """Copy a file, or a directory with its content, into the sandbox.

        `path` is the target (None: the same name in /workspace; ending with "/": the same name in
        that directory). Existing files are replaced, directories merged. Links in a tree are copied
        if they stay inside it. `on_progress` gets the bytes so far and the total.
        """
        return wait(self._files.upload, local, path, on_progress=on_progress)

    def download(
        self,
        path: GuestPath,
        local: str | os.PathLike[str],
        *,
        max_size: int | str | None = None,
        on_progress: OnProgress | None = None,
    ) -> Transfer:
        """Copy a file, or a directory with its content, to this host.

        `local` is the target; if it is a directory, a file goes into it. Each file appears at once
        and whole; existing files are replaced, directories merged. The host follows no link of the
        sandbox, and makes none that leads out of the tree. `max_size` bounds the bytes (None: what
        fits into the sandbox's file systems).
        """
        return wait(self._files.download, path, local, max_size=max_size, on_progress=on_progress)


@suggests
class Commands:
    def __init__(self, commands: AsyncCommands) -> None:
        self._commands = commands

    def run(
        self,
        cmd: str | Sequence[str],
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> CommandResult:
        """Run a shell command (a text), or a program (a sequence), and wait for its end.

        A command that fails is a value too: see `exit_code`, or call `raise_for_exit()`.
        """
        return call(
            self._commands.run,
            cmd,
            timeout=timeout,
            cwd=cwd,
            env=env,
            stdin=stdin,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
        )


@suggests
class Sandbox:
    """One isolated place for Python: variables persist, files have a workspace, limits hold.

    Starts when its `with` block is entered or at first use; `create` starts at once.

        with Sandbox() as sandbox:
            execution = sandbox.run_code("6 * 7")
            print(execution.text)
    """

    def __init__(self, *unnamed: Never, **given: Unpack[SandboxOptions]) -> None:
        self._set_up(AsyncSandbox(*unnamed, **given))

    @classmethod
    def _from_async(cls, sandbox: AsyncSandbox) -> Self:
        made = cls.__new__(cls)
        made._set_up(sandbox)
        return made

    @classmethod
    def _from_options(cls, checked: Options) -> Self:
        return cls._from_async(AsyncSandbox._from_options(checked))

    def _set_up(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    @functools.cached_property
    def commands(self) -> Commands:
        """Shell commands beside the interpreter."""
        return Commands(self._sandbox.commands)

    @functools.cached_property
    def files(self) -> Files:
        """Files of the sandbox."""
        return Files(self._sandbox.files)

    @classmethod
    def create(cls, *unnamed: Never, **given: Unpack[SandboxOptions]) -> Self:
        """Make a sandbox and start it at once."""
        sandbox = cls(*unnamed, **given)
        sandbox.start()
        return sandbox

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def id(self) -> str:
        return self._sandbox.id

    @property
    def metadata(self) -> Mapping[str, str]:
        return self._sandbox.metadata

    @property
    def limits(self) -> Limits:
        return self._sandbox.limits

    @property
    def environment(self) -> Environment:
        return self._sandbox.environment

    @property
    def policy(self) -> Policy | None:
        """What code is checked against before it runs."""
        return self._sandbox.policy

    @property
    def workdir(self) -> str:
        """Where its workspace is, in the sandbox."""
        return self._sandbox.workdir

    @property
    def alive(self) -> bool:
        """Whether it has a live guest. A guest that was lost is replaced at the next use, without
        the variables and files it had."""
        return self._sandbox.alive

    @property
    def whereabouts(self) -> Location | None:
        """Where its guest can be seen from outside; None while it has no guest."""
        return self._sandbox.whereabouts

    @property
    def isolation(self) -> Isolation:
        """What holds the guest, as measured on it. The sandbox must have been started."""
        return self._sandbox.isolation

    def __repr__(self) -> str:
        return repr(self._sandbox).replace("AsyncSandbox", type(self).__name__, 1)

    def start(self) -> None:
        """Start the guest, if it does not run yet."""
        return wait(self._sandbox.start)

    def run_code(
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
        return call(
            self._sandbox.run_code,
            code,
            timeout=timeout,
            stdin=stdin,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            on_result=on_result,
            env=env,
            undo_on_error=undo_on_error,
        )

    def put(self, /, **values: object) -> None:
        """Set variables of the sandbox: `put(df=frame, threshold=3)`.

        Plain data, dates, numpy arrays, pandas and polars frames, pyarrow tables. Raises
        CannotTravel with the name of the part that cannot.
        """
        return call(self._sandbox._put_all, values)

    def set(self, name: str, value: object) -> None:
        """Set one variable of the sandbox."""
        return call(self._sandbox.set, name, value)

    def get(self, name: str, *, timeout: float | None = None) -> object:
        """The value of a variable of the sandbox, as an object of this process.

        Raises NameMissing if the sandbox has no such variable, CannotTravel if its value cannot
        come out.
        """
        return call(self._sandbox.get, name, timeout=timeout)

    def expose(
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
        return wait(
            self._sandbox.expose,
            function,
            name,
            timeout=timeout,
            max_calls=max_calls,
            concurrency=concurrency,
            counts_time=counts_time,
        )

    def checkpoint(self) -> Checkpoint:
        """Keep the state as it is now: variables, modules, random state, files in /workspace.

        A copy of the interpreter is parked in the sandbox; it shares memory with the running one
        until either changes it, and counts against the limits. Threads, sockets and child
        processes cannot be kept: see `lacks`. It ends after the `timeout` of the limits and a
        second, and after 20 seconds at the latest: what the code does when it is forked
        (`os.register_at_fork`) may hang. Then the interpreter is lost, and a SandboxError says so.
        """
        return wait(self._sandbox.checkpoint)

    def rollback(self, checkpoint: Checkpoint) -> None:
        """Go back to a checkpoint, which stays valid: one can go back to it again."""
        return wait(self._sandbox.rollback, checkpoint)

    def release(self, checkpoint: Checkpoint) -> None:
        """Remove a checkpoint, and free the memory and room it takes."""
        return wait(self._sandbox.release, checkpoint)

    def fork(self) -> Self:
        """A second sandbox that goes on from here, independent from now on.

        It has variables and files of its own, but shares the guest, and so the limits, with this
        one: the two take turns. Each must be closed.
        """
        return self._from_async(wait(self._sandbox.fork))

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the running cell; nothing happens if none is running."""
        return wait(self._sandbox.interrupt)

    def pause(self) -> None:
        """Stop all its processes until `resume`. They keep their memory and use no processor time.

        A cell that is under way stands still, and so do its time-out, `lifetime` and `idle`. What
        needs the guest raises SandboxPaused meanwhile; close() and kill() end it at once.
        """
        wait(self._sandbox.pause)

    def resume(self) -> None:
        """Let a paused sandbox go on, as if no time had passed."""
        wait(self._sandbox.resume)

    @property
    def paused(self) -> bool:
        """Whether it is between `pause` and `resume`."""
        return self._sandbox.paused

    def usage(self) -> UsageSample:
        """What it has used so far, and uses at this moment, as seen from outside.

        None stands for what this host cannot tell, and for a sandbox that was not started.
        """
        return wait(self._sandbox.usage)

    def restart(self) -> None:
        """A fresh interpreter: variables are gone, files stay. Ends a cell that is running."""
        return wait(self._sandbox.restart)

    def kill(self) -> None:
        """End it at once, whatever runs in it. Afterwards it is gone."""
        return wait(self._sandbox.kill)

    def close(self) -> None:
        """End it and leave nothing behind. May be called twice, and while code runs.

        When it returns, every process of the sandbox has ended and given its memory back, and its
        control group is removed. The kernel takes down the empty namespaces, with the workspace
        and other mounts in them, at the same time or right after.
        """
        return wait(self._sandbox.close)


options.show_options(Sandbox.__init__)
options.show_options(Sandbox.create.__func__)  # type: ignore[attr-defined]
_RUN_OPTIONS = {
    name: each
    for name, each in inspect.signature(Sandbox.run_code).parameters.items()
    if each.kind is each.KEYWORD_ONLY and name not in DEFAULTS
}


def run(code: str | os.PathLike[str], **given: Any) -> Execution:
    """Run code in a sandbox of its own; the options are those of Sandbox and of run_code.

    `env` goes to the sandbox.

        execution = belljar.run("1 + 1", timeout=5, environment="python")
    """
    for name in given:
        if name not in DEFAULTS and name not in _RUN_OPTIONS:
            raise unknown_option("option", name, sorted({*DEFAULTS, *_RUN_OPTIONS}))
    running = {name: given.pop(name) for name in _RUN_OPTIONS if name in given}
    asked = options.make_options(cast(SandboxOptions, given))
    with Sandbox._from_options(replace(asked, once=True)) as sandbox:
        return sandbox.run_code(code, **running)


options.show_options(run, *_RUN_OPTIONS.values())
