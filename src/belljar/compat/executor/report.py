"""What one execution did, in the words of DockerExecutor's result dictionary."""

from __future__ import annotations

import json
from typing import Any

from belljar.errors import CannotTravel, NameMissing, SandboxError
from belljar.results.execution import Execution, Outcome, describe_end
from belljar.sandbox.blocking import Sandbox

KILLED = 137  # 128 + SIGKILL, as the engine and the shell say it
NO_VALUES = ("module", "function", "type", "method", "builtin_function_or_method")

# Programs of before printed their signal. It is looked for only where no variable has the name.
_MARKS = ("__SIGNAL_JSON_START__", "__SIGNAL_JSON_END__")
_LONGEST = 1_000_000  # characters between them


def empty() -> dict[str, Any]:
    return {
        "success": False,
        "signal": None,
        "error": None,
        "execution_time": 0.0,
        "container_id": None,
        "validated": False,
        "cleanup_success": True,  # while there is nothing to clean up
        "logs": "",
    }


def succeeded(execution: Execution) -> bool:
    """sys.exit(0) is a success, as it is for a process."""
    return execution.ok or (execution.outcome is Outcome.exit and execution.exit_code == 0)


def failure(execution: Execution, logs: str, *, timeout: float, memory: str) -> str:
    """Why it failed. A time-out is called so only if it was one."""
    match execution.outcome:
        case Outcome.timeout:
            words = f"Container execution timeout exceeded ({timeout:g}s)"
            return f"{words}\n{logs}" if logs else words
        case Outcome.out_of_memory:
            why = f"Out of memory: the code wanted more than memory_limit={memory}"
            return exited(f"{why}\n{logs}")
        case Outcome.error:
            return f"Container exited with code 1:\n{logs}"
        case Outcome.exit | Outcome.killed:
            return f"Container exited with code {_code(execution)}:\n{_why(execution)}{logs}"
        case Outcome.output_limit:
            return exited(f"{_why(execution)}{logs}")
        case _:
            return f"Container error: {describe_end(execution, 'the code')}\n{logs}"


def exited(why: str) -> str:
    """For what was ended from outside."""
    return f"Container exited with code {KILLED}:\n{why}"


def _code(execution: Execution) -> int:
    if execution.signal is not None:
        return 128 + execution.signal
    return -1 if execution.exit_code is None else execution.exit_code


def _why(execution: Execution) -> str:
    said = "" if execution.outcome is Outcome.exit else describe_end(execution, "the code")
    return f"{said}\n" if said else ""


def signal_of(sandbox: Sandbox, stdout: str, *, timeout: float) -> tuple[Any, str | None]:
    """What the code computed under the name `signal`, and why it could not be had, if so."""
    try:
        return sandbox.get("signal", timeout=timeout), None
    except NameMissing:
        return _printed(stdout), None
    except CannotTravel as error:
        # `from scipy import signal` is not a result, and no failure either.
        if any(f"signal is a {kind}" in error.message for kind in NO_VALUES):
            return None, None
        return None, f"signal cannot leave the sandbox: {error.message}"
    except SandboxError as error:
        return None, f"signal could not be read: {error.message}"


def _printed(stdout: str) -> Any:
    # By find(), not by a pattern: the guest chose the text, and a pattern may take hours for it.
    start = stdout.find(_MARKS[0])
    end = stdout.find(_MARKS[1], start)
    if start < 0 or end < 0 or end - start > _LONGEST:
        return None
    try:
        return json.loads(stdout[start + len(_MARKS[0]) : end])
    except (ValueError, RecursionError):
        return None
