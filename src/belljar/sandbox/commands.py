"""Commands: programs run in the sandbox beside its interpreter."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from belljar.errors import (
    InvalidOption,
    ProtocolError,
    check_callbacks,
    check_encodable,
    stays_one,
    suggests,
)
from belljar.files.api import absolute_path
from belljar.protocol import wire
from belljar.results.execution import CommandResult
from belljar.sandbox import options, process
from belljar.sandbox.guest_session import GuestSession
from belljar.sandbox.lifecycle import Lifecycle
from belljar.sandbox.outcome import make_command_result
from belljar.sandbox.output import Kept, Output
from belljar.sandbox.process import AsyncProcess, ProcessInfo, encode_input
from belljar.sandbox.run import Cell, OnText, Run
from belljar.sandbox.streams import Input, Window

MAX_COMMAND = 8 * 1024 * 1024  # bytes on the wire, where a character takes up to twelve


@suggests
@stays_one
class AsyncCommands:
    def __init__(
        self, lifecycle: Lifecycle, *, on_change: Callable[..., Awaitable[object]]
    ) -> None:
        """`on_change` is awaited after each command, which may have changed files."""
        self._lifecycle = lifecycle
        self._on_change = on_change

    async def run(
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
        options.check_choice("output_limit", output_limit, ("stop", "truncate"))
        options.check_choice("format", format, ("text", "bytes"))
        asked = make_request(self._lifecycle.workdir, cmd, cwd, env)
        data = encode_input(stdin)
        asked |= {"stdin": bool(data), "merge": bool(merge), "once": True}
        limits = self._lifecycle.limits
        timeout = options.check_timeout(timeout, limits.timeout)
        check_callbacks(on_stdout=on_stdout, on_stderr=on_stderr)
        command = Cell(
            limits=limits,
            timeout=timeout,
            kind=wire.OPEN,
            header={"credit": wire.WINDOW},
            payload=json.dumps(asked).encode("ascii"),
            grace=0.0,  # shells do not pass an interrupt on
            on_stdout=on_stdout,
            on_stderr=on_stderr,
        )
        persistence = self._lifecycle.persistence
        async with self._lifecycle.turn() as session:
            if persistence is not None:
                await persistence.refresh(session)
            with self._lifecycle.working():
                run = _Command(session, command, data, truncate=output_limit == "truncate")
                result = make_command_result(await run.execute())
        result = replace(result, truncated=result.truncated or run.left_out)
        if format == "bytes":
            stdout, stderr = run.output("stdout"), run.output("stderr")
            result = replace(result, stdout_bytes=stdout, stderr_bytes=stderr)
        await self._on_change(
            "command",
            cmd=cmd if isinstance(cmd, str) else list(cmd),
            cwd=cwd,
            timeout=timeout,
            env=list(asked["env"]),
            stdin=data or None,
            result=result,
        )
        return result

    async def start(
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
    ) -> AsyncProcess:
        """Start a program, and go on beside it.

        Its output may be of any length: a program whose output is not read waits, until `detach`
        or the end of the sandbox. `stdin=True` lets `send` write to it. `pty=(columns, rows)` gives
        it a terminal. After `timeout` seconds it is killed (None: never). `name` is for `list`.
        """
        asked = make_request(self._lifecycle.workdir, cmd, cwd, env)
        asked |= process.check_start(stdin, pty, timeout, name)
        asked |= {"merge": bool(merge), "shown": process.shorten(cmd)}
        async with self._lifecycle.turn() as session:
            if self._lifecycle.persistence is not None:
                await self._lifecycle.persistence.refresh(session)
            return await process.open_process(self._lifecycle, session, asked)

    async def connect(self, pid: int) -> AsyncProcess:
        """Read a program that was started before, also one that has ended not long ago.

        The last of its output comes first, up to 64 KiB. Several may read one program.
        """
        if type(pid) is not int:
            raise InvalidOption(f"the pid of a process is a number, not {pid!r}")
        async with self._lifecycle.turn() as session:
            return await process.open_process(self._lifecycle, session, {"pid": pid})

    async def list(self, *, ended: bool = False) -> list[ProcessInfo]:
        """The programs that run, the oldest first; with `ended`, also the last that have ended."""
        async with self._lifecycle.turn() as session:
            return await process.list_processes(session, ended=ended)


class _Command(Run):
    """A command under way, whose end is waited for."""

    def __init__(self, session: GuestSession, cell: Cell, stdin: bytes, *, truncate: bool) -> None:
        super().__init__(session, cell)
        self._stdin = memoryview(stdin)
        self._window, self._input = Window(), Input()
        self._outputs: dict[str, Output] = {}
        self._streams = self._outputs  # type: ignore[assignment]
        self._kept = Kept(cell.limits.output) if truncate else None
        self.left_out = False  # something in the middle
        self._started = False

    def output(self, name: str) -> bytes:
        stream = self._outputs.get(name)
        return b"" if stream is None else stream.data()

    async def _perform(self) -> None:
        await super()._perform()
        for stream in self._outputs.values():
            if self._kept is not None:
                self.left_out = self._kept.fit(self._outputs.values(), final=True)
            stream.chunks = [stream.text()]

    async def _collect_in_time(self, timeout: float | None) -> None:
        await self._send_input()
        await super()._collect_in_time(timeout)

    async def _send_input(self) -> None:
        number, channel = self._exchange.number, self._channel
        had = bool(self._stdin)
        while self._stdin and self._input.room > 0:
            part = self._input.cut(self._stdin)
            self._stdin = self._stdin[len(part) :]
            await channel.send(wire.STREAM, number, None, bytes(part))
        if had and not self._stdin:
            await channel.send(wire.END, number, {"input": True})

    async def _take(self, frame: wire.Frame) -> None:
        if frame.kind == wire.CREDIT:
            self._input.grant(frame)
            await self._send_input()
        elif frame.kind != wire.REPLY:
            await super()._take(frame)
        elif self._started:
            raise ProtocolError("the guest answered twice")
        elif "error" not in frame.header:
            self._started = True
        else:  # it could not be started
            message = f"{str(frame.header['error'])[:1000]}\n".encode("utf-8", "replace")
            await self._feed("stderr", message)
            self._done = frame

    async def _take_stream(self, frame: wire.Frame) -> None:
        name, data = self._window.receive(frame)
        await self._feed(name, data)
        if due := self._window.take(data):
            await self._channel.send(wire.CREDIT, self._exchange.number, {"size": due})

    async def _feed(self, name: str, data: bytes) -> None:
        stream = self._outputs.get(name)
        if stream is None:
            stream = self._outputs[name] = Output(name, getattr(self._cell, f"on_{name}"))
        if self._silent:
            stream.callback = None
        if self._kept is None:
            data, given = data[: max(self._room, 0)], data
            self._room -= len(given)
            self._truncated = self._truncated or len(data) < len(given)
        self._output_bytes += len(data)
        await stream.feed(data)
        if self._kept is not None:
            self._kept.fit(self._outputs.values())


def make_request(
    workdir: str, cmd: str | Sequence[str], cwd: str | None, env: Mapping[str, str] | None
) -> dict[str, Any]:
    return {
        "argv": make_argv(cmd),
        "cwd": absolute_path(cwd if cwd is not None else ".", workdir),
        "env": options.check_texts("env", env),
    }


def make_argv(cmd: str | Sequence[str]) -> list[str]:
    if isinstance(cmd, str):
        argv = ["/bin/sh", "-c", cmd]
    elif isinstance(cmd, Sequence) and not isinstance(cmd, (bytes, bytearray)):
        argv = list(cmd)
    else:
        raise InvalidOption(f"a command is a str or a list of str, not {type(cmd).__name__}")
    if not argv or not all(isinstance(part, str) and "\0" not in part for part in argv):
        raise InvalidOption("a command has at least one part, and no NUL character")
    check_encodable("a command", "".join(argv))
    if sum(map(len, argv)) * 12 > MAX_COMMAND and len(json.dumps(argv)) > MAX_COMMAND:
        raise InvalidOption("the command is too long", hint="write it to a file with files.write()")
    return argv
