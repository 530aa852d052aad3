"""Commands: programs run in the sandbox beside its interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from belljar.errors import InvalidOption, check_callbacks, check_encodable, suggests
from belljar.files.api import absolute_path
from belljar.protocol import wire
from belljar.results.execution import CommandResult, Outcome
from belljar.sandbox import options
from belljar.sandbox.run import OnText, Run

if TYPE_CHECKING:
    from belljar.sandbox.sandbox import AsyncSandbox


@suggests
class AsyncCommands:
    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

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
        return await self.perform(
            cmd,
            timeout=timeout,
            cwd=cwd,
            env=env,
            stdin=stdin,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
        )

    async def perform(
        self,
        cmd: str | Sequence[str],
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        told: str | None = None,
    ) -> CommandResult:
        """`told`: what records and audit logs say was run, where `cmd` only carries it out."""
        limits = self._sandbox.limits
        header: dict[str, Any] = {
            "argv": arguments(cmd),
            "cwd": absolute_path(cwd if cwd is not None else ".", self._sandbox.workdir),
            "env": options.texts("env", env),
            "output": limits.output,
        }
        timeout = options.check_timeout(timeout, limits.timeout)
        payload = encode_input(stdin)
        check_callbacks(on_stdout=on_stdout, on_stderr=on_stderr)
        async with self._sandbox.using() as (channel, guest):
            await self._sandbox.refreshed()
            run = Run(
                channel,
                guest,
                timeout=timeout,
                output=limits.output,
                grace=0.0,  # shells do not pass an interrupt on
                on_stdout=on_stdout,
                on_stderr=on_stderr,
            )
            with self._sandbox.working():
                await run.drive(wire.EXEC, header, payload)
        result = await judge(run)
        await self._sandbox.changed(
            "command",
            cmd=told or (cmd if isinstance(cmd, str) else list(cmd)),
            cwd=cwd,
            timeout=timeout,
            env=list(header["env"]),
            stdin=payload or None,
            result=result,
        )
        return result


async def judge(run: Run) -> CommandResult:
    after = await run.after()
    code, signal = run.number("exit_code"), run.number("signal")
    gone = run.done is None
    if run.memory_kills(after) > 0 and (gone or signal == 9):
        outcome = Outcome.out_of_memory
    elif run.stopped_for is not None:
        outcome = run.stopped_for
    elif gone:
        outcome = Outcome.lost
    elif signal is not None:
        outcome = Outcome.killed
    else:
        outcome = Outcome.ok if code == 0 else Outcome.exit
    return CommandResult(
        stdout=run.streams["stdout"].text,
        stderr=run.streams["stderr"].text,
        exit_code=code,
        signal=signal,
        outcome=outcome,
        usage=run.usage(after),
        truncated=run.truncated,
    )


def arguments(cmd: str | Sequence[str]) -> list[str]:
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
