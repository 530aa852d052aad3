"""PythonExecute: Python code in a sandbox, never on the host.

Each tool object has a sandbox of its own, started at its first use. Every `execute` gets a fresh
interpreter in it: no variable, no process and no shared memory of an earlier one is there. Files
stay, so that one step of an analysis can read what the one before has written. Two tool objects
never share anything.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Any, ClassVar, Self

import anyio

from belljar import runtime
from belljar.backends.docker.settings import Docker
from belljar.compat import where
from belljar.compat.openmanus.config import DEFAULT_IMAGE
from belljar.compat.openmanus.crossing import across
from belljar.compat.openmanus.tool.base import BaseTool
from belljar.errors import ExecutionError, InvalidOption, SandboxError
from belljar.limits import Limits
from belljar.results.execution import Execution, Outcome
from belljar.sandbox import options
from belljar.sandbox.sandbox import AsyncSandbox

# System V memory, queues and semaphores belong to no process, and outlive all of them.
FORGET = ("ipcrm", "-a")
FORGET_TIMEOUT = 10.0

_log = logging.getLogger("belljar")


class Observation(dict[str, Any]):
    """{"observation": what was printed or went wrong, "success": whether it ended well}."""

    execution: Execution | None = None  # all that is known, also the output before a time-out


class PythonExecute(BaseTool):
    """Runs Python code and gives what it printed."""

    name = "python_execute"
    description = (
        "Runs Python code in a sandbox. Only what is printed can be seen: the value of an "
        "expression is not. Variables do not last until the next call, files do."
    )
    parameters: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {
            "code": {"type": "string", "description": "The Python code to run."},
        },
        "required": ["code"],
    }

    def __init__(
        self,
        *,
        backend: str | Docker | None = None,
        environment: str = "data",
        limits: Limits | Mapping[str, object] | None = None,
        workspace: str | os.PathLike[str] | None = None,
    ) -> None:
        """`workspace` is a directory of the host that keeps the files; without it they go with
        the tool."""
        self._backend = backend
        self._environment = environment
        self._settings: dict[str, Any] = {"limits": Limits.coerce(limits), "workspace": workspace}
        self._sandbox: AsyncSandbox | None = None
        self._turn: anyio.Lock | None = None
        self._used = False
        self._finalizer: weakref.finalize[..., Any] | None = None

    async def execute(self, code: str, timeout: float = 5) -> Observation:
        """Run code for at most `timeout` seconds; what went wrong is in the observation."""
        if not isinstance(code, str):
            raise InvalidOption(f"code is a str, not {type(code).__name__}")
        options.check_timeout(timeout, None)
        execution = await across(self._execute, code, timeout)
        made = Observation(
            observation=_observation(execution, timeout), success=_success(execution)
        )
        made.execution = execution
        return made

    async def _execute(self, code: str, timeout: float) -> Execution:
        self._turn = self._turn or anyio.Lock()
        async with self._turn:
            if self._sandbox is None:
                self._sandbox = await self._start()
                self._used = False
            if self._used:
                await self._sandbox.restart()
                await _forget(self._sandbox)
            self._used = True
            return await self._sandbox.run_code(code, timeout=timeout)

    async def _start(self) -> AsyncSandbox:
        placed = await where.place(
            self._backend,
            image=None,
            default_image=DEFAULT_IMAGE,
            environment=self._environment,
        )
        given: dict[str, Any] = {**placed.options, **self._settings}
        sandbox = await AsyncSandbox.create(**given)
        self._finalizer = weakref.finalize(self, _end, sandbox)
        self._finalizer.atexit = False  # the runtime itself ends everything then
        return sandbox

    async def close(self) -> None:
        """End its sandbox; the files in it go too. The next execute() makes a new one."""
        await across(self._close)

    async def _close(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            if self._finalizer is not None:
                self._finalizer.detach()
            await sandbox.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


async def _forget(sandbox: AsyncSandbox) -> None:
    """What earlier code left in the kernel, where no interpreter owns it."""
    done = await sandbox.commands.run(list(FORGET), timeout=FORGET_TIMEOUT)
    if not done.ok:
        _log.warning("sandbox %s: ipcrm failed, so shared memory may stay: %s", sandbox.id, done)


def _end(sandbox: AsyncSandbox) -> None:
    """For a tool that nobody has any more."""

    async def kill() -> None:
        try:
            await sandbox.kill()
        except SandboxError:
            return  # its guest is ended with the runtime at the latest

    runtime.current().submit(kill)


def _success(execution: Execution) -> bool:
    return execution.ok or (execution.outcome is Outcome.exit and execution.exit_code == 0)


def _observation(execution: Execution, timeout: float) -> str:
    if execution.outcome is Outcome.timeout:
        return f"Execution timeout after {timeout:g} seconds"
    printed = execution.stdout
    if _success(execution):
        return printed
    if printed and not printed.endswith("\n"):
        printed += "\n"
    if execution.outcome is Outcome.error and execution.error is not None:
        return printed + execution.error.traceback
    try:
        execution.raise_for_outcome()
    except ExecutionError as error:
        return printed + str(error)
    return printed
