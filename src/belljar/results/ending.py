"""How a run ended, and how that is said: a word, a sentence, an exception."""

from __future__ import annotations

import textwrap
from enum import StrEnum
from signal import Signals
from typing import TYPE_CHECKING

from belljar.errors import ExecutionError, ExecutionOutOfMemory, ExecutionTimeout
from belljar.text import one_line, printable

if TYPE_CHECKING:
    from belljar.results.execution import CommandResult, ErrorInfo, Execution


class Outcome(StrEnum):
    """How a run ended, as seen from outside the guest."""

    ok = "ok"  # ran to its end
    error = "error"  # an exception nobody caught
    exit = "exit"  # sys.exit(), or a command with a code that is not 0
    timeout = "timeout"  # used up its wall-clock time
    out_of_memory = "out_of_memory"  # wanted more memory than its limit
    killed = "killed"  # its process died: a signal, a crash, os._exit()
    output_limit = "output_limit"  # wrote more than may be kept, and was stopped for it
    rejected = "rejected"  # refused by the policy; nothing ran
    cancelled = "cancelled"  # the caller stopped it
    lost = "lost"  # the guest went away; how far the code came is not known


_ERRORS: dict[Outcome, type[ExecutionError]] = {
    Outcome.timeout: ExecutionTimeout,
    Outcome.out_of_memory: ExecutionOutOfMemory,
}
_HINTS = {
    Outcome.timeout: "give it more time with timeout=, or Limits(timeout=...)",
    Outcome.out_of_memory: "give it more with Limits(memory=...)",
    Outcome.output_limit: "print less, or allow more with Limits(output=...)",
}


def failure(run: Execution | CommandResult, subject: str, details: str) -> ExecutionError:
    """Make the exception for a run that did not end well; `details` are the guest's own words."""
    error = _ERRORS.get(run.outcome, ExecutionError)(
        sentence(run, subject), execution=run, hint=_HINTS.get(run.outcome)
    )
    if details:
        # The end of it, because that is where a traceback says what happened; set apart from our
        # own words, because the guest may have written anything.
        tail = printable(details[-4000:]).removesuffix("\n")
        error.add_note("In the sandbox:\n" + textwrap.indent(tail, "  | ", lambda line: True))
    return error


def sentence(run: Execution | CommandResult, subject: str) -> str:
    error: ErrorInfo | None = getattr(run, "error", None)  # a command has none
    match run.outcome:
        case Outcome.error if error is not None:
            return f"{subject} raised {one_line(f'{error.name}: {error.value}', 500)}"
        case Outcome.timeout:
            return f"{subject} ran out of time after {seconds(run.usage.wall)}"
        case Outcome.out_of_memory:
            return f"{subject} ran out of memory"
        case Outcome.output_limit:
            return f"{subject} wrote more output than its limit"
        case Outcome.rejected:
            why = f": {one_line(error.value, 500)}" if error is not None else ""
            return f"{subject} was rejected by the policy and did not run{why}"
        case Outcome.cancelled:
            return f"{subject} was cancelled"
        case Outcome.lost:
            return f"{subject} was lost: the guest went away while it ran"
        case _:
            return f"{subject} ended: {ended_by(run) or f'{run.outcome}, no exit code'}"


def ended_by(run: Execution | CommandResult) -> str:
    if run.signal is not None:
        return f"killed by {signal_name(run.signal)}"
    return "" if run.exit_code is None else f"exit code {run.exit_code}"


def signal_name(number: int | None) -> str | None:
    if number is None:
        return None
    try:
        return Signals(number).name
    except ValueError:  # the real-time signals between the first and the last have no name
        return f"signal {number}"


def seconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
