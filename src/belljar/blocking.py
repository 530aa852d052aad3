"""Sandbox: the blocking twin of AsyncSandbox, one line a method, on the runtime's event loop."""

from __future__ import annotations

import inspect
import queue
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Literal, ParamSpec, Self, TypeVar, overload

import anyio

from belljar import options, runtime
from belljar.cell import OnResult, OnText
from belljar.commands import AsyncCommands
from belljar.environment import Environment
from belljar.errors import InvalidOption
from belljar.execution import CommandResult, Execution
from belljar.files import WORKSPACE, AsyncFiles, FileInfo
from belljar.isolation import Isolation
from belljar.limits import Limits
from belljar.sandbox import AsyncSandbox

P = ParamSpec("P")
T = TypeVar("T")
Events = queue.SimpleQueue[Callable[[], object] | None]  # None: the work has ended


def wait(function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run an awaitable on the runtime's loop and wait for it here.

    Callbacks run in this thread, so that they may use the sandbox themselves. An exception here
    (Ctrl-C above all, or one of a callback) cancels the work, which ends what runs in the guest,
    and is raised when that is done.
    """
    events: Events = queue.SimpleQueue()
    for name in ("on_stdout", "on_stderr", "on_result"):
        callback = kwargs.get(name)
        if inspect.iscoroutinefunction(callback):
            raise InvalidOption(
                f"{name} is a coroutine function, which nothing here can await",
                hint="use AsyncSandbox, or an ordinary function",
            )
        if callable(callback):
            kwargs[name] = _deferred(events, callback)

    work: Work[T] = Work(lambda: function(*args, **kwargs), events)
    current = runtime.current()
    current.submit(work.run)
    try:
        while (event := events.get()) is not None:
            event()
    except BaseException:
        current.call_soon(work.cancel)
        while events.get() is not None:
            continue  # callbacks are not called any more
        raise
    return work.result()


class Work(Generic[T]):
    """One awaitable on the runtime's loop. Unlike a cancelled future, a cancelled Work says when
    it has really come to its end."""

    def __init__(self, function: Callable[[], Awaitable[T]], events: Events) -> None:
        self._function = function
        self._events = events
        self._scope: anyio.CancelScope | None = None
        self._cancelled = False
        self._made: list[T] = []
        self._error: BaseException = RuntimeError("cancelled")

    async def run(self) -> None:
        try:
            with anyio.CancelScope() as self._scope:
                if self._cancelled:
                    self._scope.cancel()
                self._made.append(await self._function())
        except Exception as error:
            self._error = error
        finally:
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
    return lambda item: events.put(lambda: callback(item))


class Files:
    """Read and write files of the sandbox. Relative paths are below /workspace."""

    def __init__(self, files: AsyncFiles) -> None:
        self._files = files

    @overload
    def read(self, path: str, *, format: Literal["text"] = "text") -> str: ...
    @overload
    def read(self, path: str, *, format: Literal["bytes"]) -> bytes: ...
    def read(self, path: str, *, format: Literal["text", "bytes"] = "text") -> str | bytes:
        """The content of a file: text (UTF-8), or `format="bytes"`."""
        if format == "bytes":
            return wait(self._files.read, path, format="bytes")
        return wait(self._files.read, path, format=format)

    def write(self, path: str, data: str | bytes) -> FileInfo:
        """Write a file, with the directories above it; what was there is replaced."""
        return wait(self._files.write, path, data)

    def list(self, path: str = WORKSPACE) -> list[FileInfo]:
        """What a directory holds, by name."""
        return wait(self._files.list, path)

    def exists(self, path: str) -> bool:
        return wait(self._files.exists, path)

    def stat(self, path: str) -> FileInfo:
        """Of the path itself: a symbolic link is not followed."""
        return wait(self._files.stat, path)

    def make_dir(self, path: str) -> FileInfo:
        """Make a directory, and those above it; one that is there already is fine."""
        return wait(self._files.make_dir, path)

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with all that is in it."""
        return wait(self._files.remove, path)

    def rename(self, old: str, new: str) -> FileInfo:
        return wait(self._files.rename, old, new)


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
        return wait(
            self._commands.run,
            cmd,
            timeout=timeout,
            cwd=cwd,
            env=env,
            stdin=stdin,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
        )


class Sandbox:
    """One isolated place for Python: variables persist, files have a workspace, limits hold.

    Starts when its `with` block is entered or at first use; `create` starts at once.

        with Sandbox() as sandbox:
            execution = sandbox.run_code("6 * 7")
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
        self._sandbox = AsyncSandbox(
            backend=backend,
            environment=environment,
            limits=limits,
            env=env,
            network=network,
            strict=strict,
            metadata=metadata,
        )
        self.commands = Commands(self._sandbox.commands)
        self.files = Files(self._sandbox.files)

    @classmethod
    def create(
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
        sandbox.start()
        return sandbox

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
        return wait(
            self._sandbox.run_code,
            code,
            timeout=timeout,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            on_result=on_result,
            env=env,
        )

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the running cell; nothing happens if none is running."""
        return wait(self._sandbox.interrupt)

    def restart(self) -> None:
        """A fresh interpreter: variables are gone, files stay. Ends a cell that is running."""
        return wait(self._sandbox.restart)

    def kill(self) -> None:
        """End it at once, whatever runs in it. Like close(): afterwards it is gone."""
        return wait(self._sandbox.kill)

    def close(self) -> None:
        """End it and leave nothing behind. May be called twice, and while code runs."""
        return wait(self._sandbox.close)
