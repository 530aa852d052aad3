"""What goes wrong with generated code, as exceptions that PandasAI's own loop knows.

    CodeExecutionError (PandasAI's: `Agent.chat` answers with an ErrorResponse after its retries)
    ├── CodeFailed             also a RuntimeError, as pandasai_docker raises
    │   ├── CodeTimedOut       also a TimeoutError
    │   ├── CodeOutOfMemory    also a MemoryError
    │   ├── NoResult           also PandasAI's NoResultFoundError
    │   └── BadResult          also PandasAI's InvalidOutputValueMismatch
    └── BadSyntax              also a SyntaxError

PandasAI hands every exception to the model and tries again; of those that are left at the end it
turns only CodeExecutionError into an answer.
"""

from __future__ import annotations

from pandasai.exceptions import CodeExecutionError, InvalidOutputValueMismatch, NoResultFoundError

from belljar.results.execution import Execution, Outcome, describe_end
from belljar.text import printable

MAX_SHOWN = 4000  # characters of what the code wrote; a model reads it, and pays for it
NOT_RUNNING = "Container is not running."
NO_SQL = "execute_sql_query function is not defined in the environment."


class CodeFailed(CodeExecutionError, RuntimeError):
    """The generated code did not end well; `execution` has all of it."""

    execution: Execution | None = None


class CodeTimedOut(CodeFailed, TimeoutError):
    """The generated code used up its time."""


class CodeOutOfMemory(CodeFailed, MemoryError):
    """The generated code wanted more memory than its limit."""


class NoResult(CodeFailed, NoResultFoundError):
    """The generated code has set no variable `result`."""


class BadResult(CodeFailed, InvalidOutputValueMismatch):
    """`result` is not what PandasAI asks for."""


class BadSyntax(CodeExecutionError, SyntaxError):
    """The generated code is not Python."""


_CLASSES = {Outcome.timeout: CodeTimedOut, Outcome.out_of_memory: CodeOutOfMemory}


def failure(execution: Execution, remark: str = "") -> CodeFailed:
    """The exception for code that did not end well, with the traceback that the model needs."""
    told = execution.error.traceback if execution.error else ""
    if not told or execution.outcome is not Outcome.error:
        told = f"{describe_end(execution, 'the code')}\n{told}".strip()
    error = _CLASSES.get(execution.outcome, CodeFailed)(
        f"Error executing code: {printable(told[-MAX_SHOWN:])}{remark}"
    )
    error.execution = execution
    return error
