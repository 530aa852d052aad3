"""Commands: programs run in the sandbox beside its interpreter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from belljar.errors import InvalidOption, check_callbacks, check_encodable, stays_one, suggests
from belljar.files.api import absolute_path
from belljar.protocol import wire
from belljar.results.execution import CommandResult
from belljar.sandbox import options
from belljar.sandbox.lifecycle import Lifecycle
from belljar.sandbox.outcome import make_command_result
from belljar.sandbox.run import Cell, OnText, Run


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
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> CommandResult:
        """Run a shell command (a text), or a program (a sequence), and wait for its end.

        A command that fails is a value too: see `exit_code`, or call `raise_for_exit()`.
        """
        limits = self._lifecycle.limits
        header: dict[str, Any] = {
            "argv": make_argv(cmd),
            "cwd": absolute_path(cwd if cwd is not None else ".", self._lifecycle.workdir),
            "env": options.check_texts("env", env),
            "output": limits.output,
        }
        timeout = options.check_timeout(timeout, limits.timeout)
        payload = encode_input(stdin)
        check_callbacks(on_stdout=on_stdout, on_stderr=on_stderr)
        command = Cell(
            limits=limits,
            timeout=timeout,
            kind=wire.EXEC,
            header=header,
            payload=payload,
            grace=0.0,  # shells do not pass an interrupt on
            on_stdout=on_stdout,
            on_stderr=on_stderr,
        )
        persistence = self._lifecycle.persistence
        async with self._lifecycle.turn() as session:
            if persistence is not None:
                await persistence.refresh(session)
            with self._lifecycle.working():
                finished = await Run(session, command).execute()
        result = make_command_result(finished)
        await self._on_change(
            "command",
            cmd=cmd if isinstance(cmd, str) else list(cmd),
            cwd=cwd,
            timeout=timeout,
            env=list(header["env"]),
            stdin=payload or None,
            result=result,
        )
        return result


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
    if sum(map(len, argv)) > 128 * 1024:
        raise InvalidOption(
            "the command is longer than 128 KiB", hint="write it to a file and run that"
        )
    return argv


def encode_input(stdin: str | bytes | None) -> bytes:
    if stdin is None:
        return b""
    data = stdin.encode("utf-8", "surrogateescape") if isinstance(stdin, str) else bytes(stdin)
    if len(data) > wire.MAX_PAYLOAD:
        raise InvalidOption(
            f"stdin has {len(data)} bytes, more than {wire.MAX_PAYLOAD}",
            hint="write it to a file with files.write(), and redirect",
        )
    return data
