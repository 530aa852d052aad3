"""PythonExecute: Python code in a sandbox, never on the host.

Each tool object has one sandbox, started at its first use. Every `execute` gets a fresh interpreter
in it, without variables, processes and shared memory of earlier ones. Files stay, so that one step
of an analysis can read what the one before has written. Two tool objects share nothing.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from belljar.backends.docker.settings import Docker
from belljar.backends.event_loop import Lock
from belljar.compat import placement
from belljar.compat.openmanus.config import DEFAULT_IMAGE
from belljar.compat.openmanus.tool.base import BaseTool
from belljar.compat.placement import across
from belljar.errors import ExecutionError, InvalidOption
from belljar.limits import Limits
from belljar.results.execution import Execution, Outcome
from belljar.sandbox.options import check_timeout
from belljar.sandbox.sandbox import AsyncSandbox

# System V memory, queues and semaphores belong to no process, and outlive all of them.
REMOVE_IPC = ("ipcrm", "-a")
REMOVE_TIMEOUT = 10.0

_log = logging.getLogger("belljar")


class Observation(dict[str, Any]):
    """{"observation": the output, and the error if there was one, "success": bool}."""

    execution: Execution | None = None  # everything, also the output before a time-out


class PythonExecute(BaseTool):
    """Runs Python code and returns what it printed."""

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
        """`workspace`: a directory of the host that keeps the files; without it they are removed
        with the tool."""
        self._backend = backend
        self._environment = environment
        self._settings: dict[str, Any] = {"limits": Limits.coerce(limits), "workspace": workspace}
        self._sandbox: AsyncSandbox | None = None
        self._turn = Lock()
        self._used = False
        self._finalizer: weakref.finalize[..., Any] | None = None

    async def execute(self, code: str, timeout: float = 5) -> Observation:
        """Run code for at most `timeout` seconds; a failure is in the observation."""
        if not isinstance(code, str):
            raise InvalidOption(f"code is a str, not {type(code).__name__}")
        check_timeout(timeout, None)
        execution = await across(self._execute, code, timeout)
        success = placement.succeeded(execution)
        made = Observation(observation=_observation(execution, timeout), success=success)
        made.execution = execution
        return made

    async def _execute(self, code: str, timeout: float) -> Execution:
        async with self._turn:
            if self._sandbox is None:
                self._sandbox = await self._start()
                self._used = False
            if self._used:
                await self._sandbox.restart()
                await _remove_shared_memory(self._sandbox)
            self._used = True
            return await self._sandbox.run_code(code, timeout=timeout)

    async def _start(self) -> AsyncSandbox:
        options = await placement.place(
            self._backend,
            image=None,
            default_image=DEFAULT_IMAGE,
            environment=self._environment,
        )
        sandbox = await AsyncSandbox.create(**options, **self._settings)
        self._finalizer = weakref.finalize(self, placement.kill_soon, [sandbox])
        self._finalizer.atexit = False  # the runtime kills all sandboxes at exit
        return sandbox

    async def close(self) -> None:
        """Close its sandbox; its files are removed too. The next execute() makes a new one."""
        await across(self._close)

    async def _close(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            if self._finalizer is not None:
                self._finalizer.detach()
            await sandbox.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


async def _remove_shared_memory(sandbox: AsyncSandbox) -> None:
    done = await sandbox.commands.run(list(REMOVE_IPC), timeout=REMOVE_TIMEOUT)
    if not done.ok:
        _log.warning("sandbox %s: ipcrm failed, so shared memory may stay: %s", sandbox.id, done)


def _observation(execution: Execution, timeout: float) -> str:
    if execution.outcome is Outcome.timeout:
        return f"Execution timeout after {timeout:g} seconds"
    printed = execution.stdout
    if placement.succeeded(execution):
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
