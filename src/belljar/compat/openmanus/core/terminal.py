"""Terminals in a sandbox: a shell whose variables, directory and files persist."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any, Self

from belljar.backends.docker.client.engine_errors import EngineError
from belljar.compat.openmanus.container import Container, resolve
from belljar.compat.openmanus.core.exceptions import SandboxResourceError, SandboxTimeoutError
from belljar.compat.openmanus.sdk_container import SdkContainer
from belljar.errors import InvalidOption, SandboxError
from belljar.limits import format_size
from belljar.results.execution import Outcome
from belljar.sandbox.shell import AsyncShell, ShellResult


class DockerSession:
    """One shell in a container."""

    def __init__(self, container_id: str | Container | SdkContainer) -> None:
        self._container = resolve(container_id)
        self.container_id = self._container.id
        self._shell: AsyncShell | None = None

    async def create(self, working_dir: str, env_vars: Mapping[str, str]) -> None:
        """Open the shell, in this directory and with these variables exported."""
        if self._shell is not None:
            await self.close()
        # TERM: so that no program draws on this terminal.
        self._shell = self._container.shell(working_dir, {"TERM": "dumb", **env_vars})

    async def execute(self, command: str, timeout: float | None = None) -> CommandOutput:
        """Run a command and return its output, with its `exit_code`.

        Raises SandboxTimeoutError when it took too long; the command was killed, and the shell is
        as before. Raises SandboxResourceError if another limit killed it.
        """
        if self._shell is None:
            raise RuntimeError("Session not initialized")
        if not isinstance(command, str):
            raise InvalidOption(f"a command is a str, not {type(command).__name__}")
        timeout = timeout or self._container.timeout
        try:
            result = await self._container.do(self._shell.run, command, timeout=timeout)
        except EngineError as error:
            raise RuntimeError(f"Failed to execute command: {error}") from None
        output = CommandOutput.of(result)
        _raise_for(result, output, timeout)
        return output

    async def close(self) -> None:
        """Close the shell; its variables are gone. May be called twice."""
        shell, self._shell = self._shell, None
        if shell is not None and self._container.alive:
            await self._container.do(shell.close)


def _raise_for(result: ShellResult, output: CommandOutput, timeout: float | None) -> None:
    if result.outcome is Outcome.timeout:
        raise SandboxTimeoutError(
            f"Command execution timed out after {timeout:g} seconds",
            hint="the command was killed, and the shell can be used; allow more with timeout=",
            output=output,
        )
    if result.outcome is Outcome.out_of_memory:
        raise SandboxResourceError(
            "Command ran out of memory", hint="raise memory_limit", output=output
        )
    if result.outcome is Outcome.output_limit:
        raise SandboxResourceError(
            f"Command wrote more than {format_size(result.usage.output_bytes)}",
            hint="redirect its output to a file, and read that",
            output=output,
        )
    if result.outcome is Outcome.lost:
        raise RuntimeError("Failed to execute command: the sandbox was lost; it restarts at once")


class AsyncDockerizedTerminal:
    """A terminal in a container: `.container` of a DockerSandbox, or its id; or a container of the
    Docker SDK, and the commands then run in that container, which belongs to the caller.

    async with AsyncDockerizedTerminal(sandbox.container) as terminal:
        await terminal.run_command("cd /tmp; name=world")
        print(await terminal.run_command("echo hello $name from $PWD"))
    """

    def __init__(
        self,
        container: Any,
        working_dir: str = "/workspace",
        env_vars: Mapping[str, str] | None = None,
        default_timeout: float = 60,
    ) -> None:
        self._container = resolve(container)
        self.container: Any = self._container if isinstance(container, str) else container
        self.working_dir = working_dir
        self.env_vars = dict(env_vars or {})
        self.default_timeout = default_timeout
        self.session: DockerSession | None = None

    async def init(self) -> None:
        """Open its shell; the working directory is made if it is missing."""
        if not isinstance(self.working_dir, str) or not posixpath.isabs(self.working_dir):
            raise InvalidOption(f"working_dir is an absolute path, not {self.working_dir!r}")
        try:
            await self._container.do(self._container.make_dir, self.working_dir)
        except (SandboxError, OSError) as error:
            raise RuntimeError(f"Failed to create working directory: {error}") from None
        self.session = DockerSession(self._container)
        await self.session.create(self.working_dir, self.env_vars)

    async def run_command(self, cmd: str, timeout: float | None = None) -> CommandOutput:
        """Run a command in its shell; see DockerSession.execute."""
        if self.session is None:
            raise RuntimeError("Terminal not initialized")
        return await self.session.execute(cmd, timeout=timeout or self.default_timeout)

    async def close(self) -> None:
        """Close its shell. May be called twice."""
        if self.session is not None:
            await self.session.close()

    async def __aenter__(self) -> Self:
        await self.init()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


class CommandOutput(str):
    """The output of a command as a terminal shows it: both streams in their order, without the
    last newline."""

    __slots__ = ("exit_code", "stderr", "stdout")

    exit_code: int  # as a shell has it: 128 and more if a signal ended it
    stdout: str  # exactly
    stderr: str

    @classmethod
    def of(cls, result: ShellResult) -> Self:
        made = cls(result.output.removesuffix("\n"))
        made.exit_code = result.status
        made.stdout = result.stdout
        made.stderr = result.stderr
        return made
