"""Sandbox: AsyncSandbox for blocking code, one line a method, and `run` for a single piece of code.

Longer than other files: four public classes, and each method's documentation.
"""

from __future__ import annotations

import functools
import inspect
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    Never,
    Protocol,
    Self,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from belljar.backends.base import Location, UsageSample
from belljar.backends.isolation import Isolation
from belljar.environment.environment import Environment
from belljar.errors import stays_one, suggests, unknown_option
from belljar.files.api import AsyncFiles, FileInfo, GuestPath
from belljar.files.script import Script
from belljar.files.transfer import OnProgress, Transfer
from belljar.files.watch import FileEvent
from belljar.functions.registry import DEFAULT_TIMEOUT, Functions, Registry
from belljar.limits import Limits
from belljar.results.execution import CommandResult, Execution
from belljar.runtime import call, wait
from belljar.sandbox import options
from belljar.sandbox.commands import AsyncCommands
from belljar.sandbox.contexts import AsyncContexts, Context
from belljar.sandbox.event_stream import StreamEvent
from belljar.sandbox.guest_session import Checkpoint
from belljar.sandbox.options import DEFAULTS, Options, SandboxOptions
from belljar.sandbox.ports import AsyncPorts, Forward
from belljar.sandbox.process import AsyncProcess, Chunk, ProcessInfo
from belljar.sandbox.run import OnResult, OnText
from belljar.sandbox.sandbox import AsyncSandbox

if TYPE_CHECKING:
    from belljar.files.tar_export import AsyncArchive
    from belljar.files.tar_import import Source
    from belljar.policy import Policy

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class AsyncSteps(Protocol[T_co]):
    """An async iterator that can be closed."""

    async def __anext__(self) -> T_co: ...

    async def aclose(self) -> None: ...


class Steps(Generic[T]):
    """A blocking iterator over an async one. It can be closed, also from another thread."""

    def __init__(self, source: AsyncSteps[T]) -> None:
        self._source = source

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        try:
            return call(self._source.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End it. May be called twice."""
        wait(self._source.aclose)


class Watch(Steps[FileEvent]):
    """Events of one directory, as they are seen. `close()` ends it; so does the sandbox's end."""


class Archive(Steps[bytes]):
    """The bytes of a tar archive, read from the sandbox while they are iterated."""

    def __init__(self, source: AsyncArchive) -> None:
        super().__init__(source)
        self.left_out = source.left_out  # sentences about what it does not have


class Stream(Steps[StreamEvent]):
    """The events of one cell. It runs from the first one on; `close()` interrupts it."""

    def __next__(self) -> StreamEvent:
        try:
            return super().__next__()
        except StopIteration:
            raise
        except BaseException:  # Ctrl-C above all: it ends the code
            self.close()
            raise


@suggests
@stays_one
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
        """Write a file and make the directories above it.

        An existing file is replaced when the new one is whole: an error leaves it as it was.
        """
        return call(self._files.write, path, data)

    def list(self, path: GuestPath = ".") -> list[FileInfo]:
        """The entries of a directory, sorted by name."""
        return call(self._files.list, path)

    def exists(self, path: GuestPath) -> bool:
        return call(self._files.exists, path)

    def stat(self, path: GuestPath, *, follow: bool = False) -> FileInfo:
        """Describe a path. Of a symbolic link, the link itself; with `follow`, what it leads to."""
        return call(self._files.stat, path, follow=follow)

    def realpath(self, path: GuestPath, *, strict: bool = True) -> str:
        """The path without symbolic links, "." and "..". Unless `strict`, parts may be missing."""
        return call(self._files.realpath, path, strict=strict)

    def watch(self, path: GuestPath = ".", *, recursive: bool = False) -> Watch:
        """Watch a directory from now on: an iterator of FileEvent, until it is closed.

        By looking at it several times a second. What came and went in between is not seen. At most
        2,000 entries; with `recursive` those of all directories below. It does not keep an idle
        sandbox alive, and it ends with the sandbox.
        """
        return Watch(wait(self._files.watch, path, recursive=recursive))

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

    def export_tar(self, path: GuestPath = ".", *, max_size: int | str | None = None) -> Archive:
        """A directory as a tar archive: an iterator of bytes, read while it is iterated.

        Has files, directories, and links that stay inside; `left_out` names the rest. `max_size`
        bounds the bytes of the files (None: what fits into the sandbox's file systems).
        """
        return Archive(call(self._files.export_tar, path, max_size=max_size))

    def import_tar(
        self, source: Source, path: GuestPath = ".", *, max_size: int | str | None = None
    ) -> Transfer:
        """Unpack a tar archive (also with gzip) into a directory, and make that if need be.

        `source` is bytes, a binary file, or an iterable of bytes (of AsyncFiles: also an async
        one). Existing files are replaced, directories merged. An archive with absolute paths or
        ".." in a name is refused; links that lead out and devices are left out.
        """
        return wait(self._files.import_tar, source, path, max_size=max_size)


@suggests
@stays_one
class Process:
    """AsyncProcess for blocking code.

    >>> from belljar import Sandbox
    >>> with Sandbox() as sandbox, sandbox.commands.start("cat", stdin=True) as process:
    ...     process.send("hello")
    ...     process.close_stdin()
    ...     process.wait().stdout
    'hello'
    """

    def __init__(self, process: AsyncProcess) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def info(self) -> ProcessInfo:
        return self._process.info

    @property
    def returncode(self) -> int | None:
        """As a shell has it: the exit code, 124 for a time-out, or 128 and the number of the signal
        that ended it. None while the end was not read."""
        return self._process.returncode

    @property
    def skipped(self) -> int:
        """Bytes of output that this reader lost, because another one was faster."""
        return self._process.skipped

    def __repr__(self) -> str:
        return repr(self._process).replace("AsyncProcess", "Process", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Kill it if it still runs."""
        return wait(self._process.__aexit__, *exception)

    def __iter__(self) -> Iterator[Chunk]:
        while chunk := self.read():
            yield chunk

    def read(self) -> Chunk | None:
        """The next output; None at the end."""
        if self._process._coming:
            return self._process._coming.pop(0)
        return wait(self._process.read)

    def output(self) -> str:
        """What it has written so far, without waiting: head and tail, if that is more than the
        output limit of the sandbox. It counts as read."""
        return wait(self._process.output)

    def wait(self, timeout: float | None = None) -> CommandResult:
        """Wait for its end, and read the output on the way. TimeoutError after `timeout` seconds:
        then it goes on."""
        return wait(self._process.wait, timeout)

    def detach(self) -> None:
        """Read no more. The program goes on, and the last of its output is kept for `connect`."""
        return wait(self._process.detach)

    def send(self, data: str | bytes) -> None:
        """Write to its input, or type on its terminal. Waits while the program does not read."""
        return wait(self._process.send, data)

    def close_stdin(self) -> None:
        """End its input; on a terminal, type Ctrl-D."""
        return wait(self._process.close_stdin)

    def signal(self, number: int | str) -> bool:
        """Send a signal ("SIGINT", 2) to the program and its process group. False if it has
        ended."""
        return wait(self._process.signal, number)

    def kill(self) -> bool:
        """Kill it, with all that it started. False if it has ended."""
        return wait(self._process.kill)

    def resize(self, columns: int, rows: int) -> bool:
        """The size of its terminal. False if it has ended."""
        return wait(self._process.resize, columns, rows)


@suggests
@stays_one
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
        merge: bool = False,
        output_limit: Literal["stop", "truncate"] = "stop",
        format: Literal["text", "bytes"] = "text",
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> CommandResult:
        """Run a shell command (a text), or a program (a sequence), and wait for its end.

        A command that fails is a value too: see `exit_code`, or call `raise_for_exit()`. With
        `merge`, stderr goes to stdout, in the order in which it was written. Past the output limit
        of the sandbox the command is stopped; with `output_limit="truncate"` it goes on, and head
        and tail of its output are kept. `format="bytes"` also gives `stdout_bytes`, `stderr_bytes`.
        """
        return call(
            self._commands.run,
            cmd,
            timeout=timeout,
            cwd=cwd,
            env=env,
            stdin=stdin,
            merge=merge,
            output_limit=output_limit,
            format=format,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
        )

    def start(
        self,
        cmd: str | Sequence[str],
        *,
        stdin: Literal[True] | None = None,
        pty: tuple[int, int] | None = None,
        merge: bool = False,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        name: str | None = None,
    ) -> Process:
        """Start a program, and go on beside it.

        Its output may be of any length: a program whose output is not read waits, until `detach`
        or the end of the sandbox. `stdin=True` lets `send` write to it. `pty=(columns, rows)` gives
        it a terminal. After `timeout` seconds it is killed (None: never). `name` is for `list`.
        """
        start = functools.partial(self._commands.start, cmd, stdin=stdin, pty=pty, merge=merge)
        return Process(wait(start, cwd=cwd, env=env, timeout=timeout, name=name))

    def connect(self, pid: int) -> Process:
        """Read a program that was started before, also one that has ended not long ago.

        The last of its output comes first, up to 64 KiB. Several may read one program.
        """
        return Process(wait(self._commands.connect, pid))

    def list(self, *, ended: bool = False) -> list[ProcessInfo]:
        """The programs that run, the oldest first; with `ended`, also the last that have ended."""
        return wait(self._commands.list, ended=ended)


@suggests
class Contexts:
    """More interpreters of one sandbox: `run_code(code, context=...)`."""

    def __init__(self, contexts: AsyncContexts) -> None:
        self._contexts = contexts

    def create(self, name: str | None = None, *, cwd: str | None = None) -> Context:
        """Another interpreter, which starts in `cwd` (None: the workspace)."""
        return wait(self._contexts.create, name, cwd=cwd)

    def list(self) -> list[Context]:
        """All, the oldest first; not the sandbox's own."""
        return wait(self._contexts.list)

    def restart(self, context: Context | str) -> None:
        """A fresh interpreter: variables are gone, files stay. Ends a cell that is running."""
        return wait(self._contexts.restart, context)

    def remove(self, context: Context | str) -> None:
        """End the interpreter, with what it has started."""
        return wait(self._contexts.remove, context)


@suggests
class Ports:
    """Servers in the sandbox, reached from this process."""

    def __init__(self, ports: AsyncPorts) -> None:
        self._ports = ports

    def connect(self, port: int, *, timeout: float | None = None) -> socket.socket:
        """A connection to a server in the sandbox. ConnectionRefusedError: no server listens.

        `timeout` is in seconds, for a server that does not listen yet.
        """
        return wait(self._ports.dial, port, timeout=timeout)

    def forward(self, port: int, *, to: int = 0, timeout: float | None = None) -> Forward:
        """Listen on this host's loopback, at port `to` (0: any free one), and pass connections on
        to a server in the sandbox, until it is closed or the sandbox ends: "127.0.0.1:PORT".

        With `timeout`, wait so many seconds for the server first.
        """
        return wait(self._ports.forward, port, to=to, timeout=timeout)


@suggests
@stays_one
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

    @functools.cached_property
    def contexts(self) -> Contexts:
        """More interpreters, beside the sandbox's own."""
        return Contexts(self._sandbox.contexts)

    @functools.cached_property
    def ports(self) -> Ports:
        """Servers in the sandbox."""
        return Ports(self._sandbox.ports)

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

    def describe(self) -> str:
        """What a system prompt should say of this sandbox, in a few lines: Python and packages,
        network, files, limits, and functions of the host. Blocks for a short time.
        """
        return self._sandbox.describe()

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
            context=context,
            allow_return=allow_return,
            notebook=notebook,
        )

    def stream(self, code: str | os.PathLike[str] | Script, **options: Any) -> Stream:
        """Run code as `run_code` does, and iterate over what happens.

        Gives OutputEvent and ResultEvent as they come, and at last an EndEvent with the Execution.
        `options` are those of `run_code`, without the callbacks. The code runs from the first event
        on. It is interrupted if the iterator is closed, or dropped, before the end.
        """
        return Stream(self._sandbox.stream(code, **options))

    def put(self, /, **values: object) -> None:
        """Set variables of the sandbox: `put(df=frame, threshold=3)`.

        Plain data, dates, sets, paths, images, numpy arrays, pandas and polars frames, pyarrow
        tables. Of other objects the sandbox gets plain data, or a text, and the next Execution has
        a note of it. Raises CannotTravel with the name of a part that cannot travel at all.
        `context=` is another interpreter of the sandbox if it is a Context, else a variable.
        """
        return call(self._sandbox._put, values)

    def set(
        self,
        name: str,
        value: object,
        *,
        lenient: bool = True,
        context: Context | str | None = None,
    ) -> None:
        """Set one variable of the sandbox. Unless `lenient`, an object that the sandbox cannot have
        as it is raises CannotTravel. `context` is another interpreter of the sandbox."""
        return call(self._sandbox.set, name, value, lenient=lenient, context=context)

    def get(
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
        return call(
            self._sandbox.get,
            name,
            timeout=timeout,
            lenient=lenient,
            types=types,
            context=context,
        )

    def expose(
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
        return wait(
            self._sandbox.expose,
            function,
            name,
            timeout=timeout,
            max_calls=max_calls,
            concurrency=concurrency,
            counts_time=counts_time,
            ends_cell=ends_cell,
            awaitable=awaitable,
        )

    def expose_all(self, functions: Functions) -> dict[str, str]:
        """Let the code call functions of this process, as `Sandbox(functions=...)` does.

        Functions of the same names are replaced. Gives the names in the code by the names given:
        `{"get-weather": "get_weather"}`. If one cannot be exposed, none is.
        """
        return wait(self._sandbox.expose_all, functions)

    def unexpose(self, name: str) -> None:
        """Take a function back: the code cannot call it any more, not even a cell that runs. The
        name may be the one given, or the one in the code."""
        return wait(self._sandbox.unexpose, name)

    @property
    def functions(self) -> Registry:
        """The functions of this process that the code can call, by name: a live mapping. Adding or
        removing one there is the same as expose() and unexpose()."""
        return self._sandbox.functions

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

    def interrupt(self, context: Context | str | None = None) -> None:
        """Raise KeyboardInterrupt in the running cell; nothing happens if none is running."""
        return wait(self._sandbox.interrupt, context)

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

    def restart(self, context: Context | str | None = None) -> None:
        """A fresh interpreter: variables are gone, files stay. Ends a cell that is running.
        `context` is another interpreter of the sandbox."""
        return wait(self._sandbox.restart, context)

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
