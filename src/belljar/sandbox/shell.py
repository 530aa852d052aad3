"""AsyncShell and Shell: a bash in a sandbox whose state lasts from one command to the next.

Variables, functions, aliases, options, traps, the directory and the umask stay; `$?` is that of the
command before. Each command is a bash of its own (see shell_driver.sh), so output, error output
and exit status are exact, `exit` and a time-out end the command and not the shell, and a command
that was killed has changed nothing.

So `exec >file` holds for one command, and `wait` or `fg` do not know jobs of earlier commands. Such
jobs go on as long as the sandbox does, and their process ids stay valid; output that they write
after the command that started them has ended is not seen.
"""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from belljar.backends.event_loop import Lock
from belljar.errors import FileError, InvalidOption, SandboxError, check_callbacks, check_encodable
from belljar.results.execution import CommandResult, Outcome
from belljar.runtime import wait
from belljar.sandbox import options
from belljar.sandbox.blocking import Sandbox
from belljar.sandbox.commands import AsyncCommands
from belljar.sandbox.run import OnText
from belljar.sandbox.sandbox import AsyncSandbox

DRIVER = Path(__file__).with_name("shell_driver.sh").read_text()
# The only line of the shell, so that bash counts the lines of the command from 1. What it needs is
# in its environment, and not an argument: `pkill -f` and `ps` must find what the command names, and
# not the shell that was given the name.
LINE = (
    'builtin eval "$__bj_functions"; __bj_begin;'
    ' [[ -z $__bj_load ]] || builtin . "$__bj_load" 2>/dev/null; __bj_ready 2>/dev/null && :;'
    ' builtin eval "$__bj_trace$__bj_command";'
    ' { __bj_end "$?" "$@"; } 2>/dev/null; __bj_leave'
)
ROOM = 96 * 1024  # bytes of a command that fit into a variable; a longer one goes by a file
REPORT = 8192  # bytes of the report that are read


@dataclass(frozen=True, kw_only=True, repr=False)
class ShellResult(CommandResult):
    """What one command of a shell did."""

    output: str = ""  # both streams, in the order in which they came; replaces the property
    kept: bool  # False: the command did not change the state of the shell
    fresh: bool  # True: what earlier commands had set was not there (any more)

    @property
    def status(self) -> int:
        """The exit code as a shell has it: 128 and the number of the signal that ended it."""
        if self.exit_code is not None:
            return self.exit_code
        return 128 + (self.signal or 9)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the shell reports when a command has ended."""

    kept: bool  # its state was saved
    fresh: bool  # there was no state to begin with
    held: bool  # a background process still writes output
    cwd: str


class Host(Protocol):
    """Where a shell runs: a sandbox, or anything that can do as much."""

    workdir: str

    async def perform(
        self,
        argv: Sequence[str],
        *,
        shown: str,
        timeout: float | None,
        env: Mapping[str, str],
        on_stdout: OnText,
        on_stderr: OnText,
    ) -> CommandResult:
        """Run a program with these variables, started in `/`; records name it `shown`."""

    async def read(self, path: str, size: int) -> bytes | None:
        """The beginning of a file; None if there is no such file."""

    async def write(self, path: str, text: str) -> object: ...

    async def remove(self, path: str) -> None: ...


class _SandboxHost:
    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox
        self.workdir = sandbox.workdir
        self.write, self.remove = sandbox.files.write, sandbox.files.remove

    async def perform(self, argv: Sequence[str], *, shown: str, **options: Any) -> CommandResult:
        async def note_change(event: str, **fields: object) -> None:
            await self._sandbox._note_change(event, **{**fields, "cmd": shown})

        commands = AsyncCommands(self._sandbox._lifecycle, on_change=note_change)
        return await commands.run(argv, cwd="/", **options)

    async def read(self, path: str, size: int) -> bytes | None:
        header = {"op": "read", "path": path, "offset": 0, "size": size}
        try:
            _, data = await self._sandbox.files.call(path, header)
        except FileError:
            return None
        return data


class AsyncShell:
    """A bash whose state lasts, under asyncio or trio.

    async with AsyncSandbox() as sandbox, AsyncShell(sandbox) as shell:
        await shell.run("cd /tmp; name=world")
        print((await shell.run("echo hello $name from $PWD")).stdout)
    """

    def __init__(
        self,
        sandbox: AsyncSandbox,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        """`cwd` is where it starts (None: the workspace), `env` what it has exported then;
        `timeout` is in seconds for one command (None: that of the sandbox's limits)."""
        if not isinstance(sandbox, AsyncSandbox):
            raise InvalidOption(
                f"an AsyncShell is for an AsyncSandbox, not {_describe_type(sandbox)}",
                hint="in `async with AsyncSandbox() as sandbox`; Shell(sandbox) is for a Sandbox",
            )
        self._open(_SandboxHost(sandbox), cwd, env, timeout)

    @classmethod
    def on(cls, host: Host, *, cwd: str, env: Mapping[str, str] | None = None) -> Self:
        """A shell that does not run in a sandbox."""
        shell = object.__new__(cls)
        shell._open(host, cwd, env, None)
        return shell

    def _open(
        self, host: Host, cwd: str | None, env: Mapping[str, str] | None, timeout: float | None
    ) -> None:
        self._host = host
        self._env = options.check_texts("env", env)
        self._timeout = options.check_timeout(timeout, None)
        self._start = cwd if cwd is not None else ""
        self._directory = f"/tmp/.belljar-shell-{secrets.token_hex(8)}"
        self._turn = Lock()
        self._count = 0
        self._saved = ""  # the file with the state, of two that take turns
        self._closed = False
        self.cwd: str | None = None  # where it was after the last command

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def run(
        self,
        command: str,
        *,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> ShellResult:
        """Run a command (or several lines of them) and wait for its end.

        What it does is in the result, also a failure or a time-out; after the latter the shell
        is as it was before the command. One command runs at a time, others wait for their turn.
        """
        if not isinstance(command, str) or "\0" in command:
            raise InvalidOption(f"a command is a str without NUL characters, not {command!r}")
        check_encodable("a command", command)
        check_callbacks(on_stdout=on_stdout, on_stderr=on_stderr)
        if timeout is None:
            timeout = self._timeout
        async with self._turn:
            if self._closed:
                raise SandboxError("the shell is closed", hint="make a new one")
            self._count += 1
            return await self._run(command, timeout, on_stdout, on_stderr)

    async def _run(
        self,
        command: str,
        timeout: float | None,
        on_stdout: OnText | None,
        on_stderr: OnText | None,
    ) -> ShellResult:
        save = "state1" if self._saved == "state0" else "state0"  # never the one that counts
        given = {
            "__bj_functions": DRIVER,
            "__bj_command": await self._write_if_long(command),
            "__bj_dir": self._directory,
            "__bj_run": str(self._count),  # the report repeats it
            "__bj_save": f"{self._directory}/{save}",
            "__bj_load": f"{self._directory}/{self._saved}" if self._saved else "",
            "__bj_start": posixpath.join(self._host.workdir, self._start),
        }
        heard: list[str] = []
        result = await self._host.perform(
            ["bash", "-c", LINE],
            shown=command,
            timeout=timeout,
            env={**self._env, **given},
            on_stdout=_tee(heard, on_stdout),
            on_stderr=_tee(heard, on_stderr),
        )
        report = await self._read_report()
        # A command that was stopped may still have saved its state: that does not count.
        kept = report.kept and result.outcome in (Outcome.ok, Outcome.exit)
        if kept:
            self._saved, self.cwd = save, report.cwd
        elif result.exit_code == 127:
            await self._check_bash()
        if report.held:  # all output of the command itself has come
            await self._host.write(f"{self._directory}/go{self._count}", "")
        fields = {name: getattr(result, name) for name in CommandResult.__dataclass_fields__}
        return ShellResult(**fields, output="".join(heard), kept=kept, fresh=report.fresh)

    async def _write_if_long(self, command: str) -> str:
        if len(command.encode("utf-8", "surrogateescape")) <= ROOM:
            return command
        path = f"{self._directory}/command"
        await self._host.write(path, command)
        return f"source {path}"

    async def _read_report(self) -> Report:
        """The guest can write anything here, and would only deceive itself."""
        nothing = Report(kept=False, fresh=not self._saved, held=False, cwd="")
        data = await self._host.read(f"{self._directory}/report", REPORT)
        if data is None:
            return nothing
        words = data[:REPORT].decode("utf-8", "replace").removesuffix("\n").split(" ", 4)
        if len(words) < 5 or words[0] != str(self._count):
            return nothing
        kept, fresh, held = (word == "1" for word in words[1:4])
        return Report(kept=kept, fresh=fresh, held=held, cwd=words[4])

    async def _check_bash(self) -> None:
        found = await self._host.perform(
            ["/bin/sh", "-c", "command -v bash"],
            shown="command -v bash",
            timeout=None,
            env=self._env,
            on_stdout=str,
            on_stderr=str,
        )
        if not found.ok:
            raise SandboxError(
                "the sandbox has no bash",
                hint="use an image that has bash; commands.run() needs only sh",
            )

    async def close(self) -> None:
        """Remove its state. Its background processes go on. May be called twice."""
        self._closed = True
        if self._count:
            try:
                await self._host.remove(self._directory)
            except SandboxError:
                return  # gone already, by the code or with the sandbox


def _tee(heard: list[str], callback: OnText | None) -> OnText:
    def hear(text: str) -> object:
        heard.append(text)
        return callback(text) if callback is not None else None

    return hear


def _describe_type(given: object) -> str:
    return f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__


class Shell:
    """AsyncShell for blocking code.

    >>> with Sandbox() as sandbox, Shell(sandbox) as shell:
    ...     shell.run("cd /tmp; name=world").exit_code
    ...     shell.run("echo hello $name from $PWD").stdout
    0
    'hello world from /tmp\\n'
    """

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        if not isinstance(sandbox, Sandbox):
            raise InvalidOption(
                f"a Shell is for a Sandbox, not {_describe_type(sandbox)}",
                hint="in `with Sandbox() as sandbox`; AsyncShell(sandbox) is for an AsyncSandbox",
            )
        self._shell = AsyncShell(sandbox._sandbox, cwd=cwd, env=env, timeout=timeout)

    @property
    def cwd(self) -> str | None:
        """Where it was after the last command."""
        return self._shell.cwd

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def run(
        self,
        command: str,
        *,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> ShellResult:
        """Run a command (or several lines of them) and wait for its end."""
        return wait(
            self._shell.run, command, timeout=timeout, on_stdout=on_stdout, on_stderr=on_stderr
        )

    def close(self) -> None:
        """Remove its state. Its background processes go on. May be called twice."""
        return wait(self._shell.close)
