"""The result of a run: Execution for code, CommandResult for a command, and their parts.

The host observes the outcome and the usage from outside. Texts and results come from the guest, so
everything shown here goes through `printable()` first.
"""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from signal import Signals
from typing import TYPE_CHECKING, Self

from belljar import errors
from belljar.errors import ExecutionError, ExecutionOutOfMemory, ExecutionTimeout, suggests
from belljar.results.result import Result as Result
from belljar.results.result import describe_results
from belljar.text import as_json, fit_texts, format_seconds, one_line, printable, show_as_terminal

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from belljar.policy import Report


class Outcome(StrEnum):
    """How a run ended, as seen from outside the guest."""

    ok = "ok"  # ran to its end
    error = "error"  # an exception that the code did not catch
    exit = "exit"  # sys.exit(), or a command with a code that is not 0
    timeout = "timeout"  # used up its wall-clock time
    out_of_memory = "out_of_memory"  # needed more memory than its limit
    killed = "killed"  # its process died: a signal, a crash, os._exit()
    output_limit = "output_limit"  # wrote more than its limit, and was stopped
    rejected = "rejected"  # refused by the policy; nothing ran
    cancelled = "cancelled"  # the caller stopped it
    lost = "lost"  # the guest died; it is not known how far the code ran


@suggests
@dataclass(frozen=True, kw_only=True)
class ErrorInfo:
    """The exception that ended a run, as the guest describes it."""

    name: str  # the class, such as "ZeroDivisionError"
    value: str  # str() of the exception
    traceback: str  # as Python prints it; the lines point into the cell


@suggests
@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a run cost, measured from outside; None if this host cannot measure it."""

    wall: float  # seconds
    cpu: float | None  # seconds of all processes together
    peak_memory: int | None  # bytes; without a cgroup also those shared with other sandboxes
    output_bytes: int  # bytes written to stdout and stderr, including those not kept


@suggests
@dataclass(frozen=True, kw_only=True)
class Logs:
    """The output, in the pieces in which it arrived."""

    stdout: tuple[str, ...]
    stderr: tuple[str, ...]
    background: tuple[str, ...] = ()  # from threads and processes that earlier cells started
    order: tuple[str, ...] = ()  # the stream of each piece, as they arrived: ("stdout", "stderr")

    @property
    def merged(self) -> str:
        """stdout and stderr as one text, in the order in which the pieces arrived."""
        pieces = {"stdout": iter(self.stdout), "stderr": iter(self.stderr)}
        ordered = [next(pieces[name], "") for name in self.order if name in pieces]
        return "".join([*ordered, *pieces["stdout"], *pieces["stderr"]])


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of a host function."""

    name: str
    duration: float  # seconds, in the host
    ok: bool  # False if the function raised, or could not be called
    argument_bytes: int
    error: str | None = None  # what the guest was told: the exception's name and message


@suggests
@dataclass(frozen=True, kw_only=True)
class FileChanges:
    """Which files below /workspace changed, as relative paths; false if none did."""

    created: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.created or self.changed or self.removed)


# Compared by identity: its value may be anything, and == of a DataFrame does not give a bool.
@suggests
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Execution:
    """What one run of code did."""

    outcome: Outcome
    text: str | None  # repr() of the last expression, made in the guest; None without one
    value: object  # the last expression itself if it is plain data, else None
    results: tuple[Result, ...]  # everything displayed, in order
    stdout: str
    stderr: str
    logs: Logs
    error: ErrorInfo | None
    exit_code: int | None  # of sys.exit(), or of a process that ended itself
    signal: int | None  # the number of the signal that ended the process
    execution_count: int  # 1 for the first cell of an interpreter
    usage: Usage
    state_preserved: bool  # the variables are still there for the next cell
    truncated: bool  # more was written than was kept
    notes: tuple[str, ...] = ()  # sentences for people
    calls: tuple[Call, ...] = ()  # of host functions, in the order in which they ended
    files: FileChanges | None = None  # None if the changes were not determined
    saved: bool | None = None  # all files are in the kept workspace; None: no workspace is kept
    policy: Report | None = None  # the verdict of the sandbox's policy; None: it has no policy
    finished: bool = False  # ended with a result: ends_cell, belljar.finish() or a `return`
    final: object = None  # that result; of a host function the object that it returned

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.ok

    @property
    def output(self) -> str:
        """What the code wrote: stdout, then stderr."""
        return self.stdout + self.stderr

    @property
    def images(self) -> list[bytes]:
        """The pictures that the code showed, in order: each as PNG, else JPEG, else SVG."""
        from belljar.results.sanitize import find_picture

        return [picture[1] for picture in map(find_picture, self.results) if picture]

    @property
    def signal_name(self) -> str | None:
        """The name of the signal, such as "SIGSEGV"."""
        return _signal_name(self.signal)

    def raise_for_outcome(self) -> Self:
        """Raise ExecutionError unless the outcome is ok; give the Execution itself otherwise."""
        if not self.ok:
            raise make_error(self, "the code", self.error.traceback if self.error else "")
        return self

    def for_model(self, limit: int | None = 20_000) -> str:
        """What a model should read of it, in at most `limit` characters (None: all of it).

        Output in the order in which it arrived, what was displayed, the value or the traceback,
        and Belljar's notes. Pictures are named; `images` has them. Of long texts the beginning and
        the end are kept, and the number of characters between them.
        """
        if limit is not None and (type(limit) is not int or limit < 1):
            raise errors.InvalidOption(f"limit must be an int above 0 or None, not {limit!r}")
        shown = [self.logs.merged or self.output, *describe_results(self.results)]
        if self.error is not None:
            shown.append(self.error.traceback)
        elif self.text is not None and not any(each.is_main_result for each in self.results):
            shown.append(self.text)
        shown += [f"[{remark}]" for remark in self._remarks()]
        return fit_texts([show_as_terminal(text) for text in shown], limit) or "[no output]"

    def to_dict(self) -> dict[str, object]:
        """Give plain data that JSON can carry.

        "value" is the value in JSON's types (a tuple becomes a list, keys become strings), or None
        if JSON has no type for it; "text" always has its repr.
        """
        changed = {
            "outcome": self.outcome.value,
            "value": as_json(self.value),
            "final": as_json(self.final),
            "results": [result.to_dict() for result in self.results],
            "logs": _lists(asdict(self.logs)),
            "error": asdict(self.error) if self.error else None,
            "usage": asdict(self.usage),
            "notes": list(self.notes),
            "calls": [asdict(call) for call in self.calls],
            "files": None if self.files is None else _lists(asdict(self.files)),
            "policy": None if self.policy is None else self.policy.to_dict(),
        }
        return {each.name: getattr(self, each.name) for each in fields(self)} | changed

    def to_json(self, indent: int | None = None) -> str:
        """Write `to_dict()` as JSON, in ASCII."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def __repr__(self) -> str:
        """Outcome, count, the error or the first output, and the time, in one short line."""
        parts = [f"Execution {self.outcome} [{self.execution_count}]"]
        if self.error:
            parts.append(one_line(f"{self.error.name}: {self.error.value}"))
        elif self.text is not None:
            parts.append(one_line(self.text))
        elif self.stdout:
            parts.append(f"stdout: {one_line(self.stdout)}")
        parts += [describe_exit(self), self._also(), format_seconds(self.usage.wall)]
        return f"<{' '.join(filter(None, parts))}>"

    def _also(self) -> str:
        """The rest in short: formats of the results, calls, files."""
        kinds = {
            kind
            for result in self.results
            for kind in result.formats()
            if kind in ("png", "jpeg", "svg", "pdf", "html", "data", "chart")
        }
        said = [f"with {', '.join(sorted(kinds))}"] if kinds else []
        if self.finished:
            said.append("finished")
        if self.calls:
            said.append(f"{len(self.calls)} calls")
        if self.files:
            said.append(f"files: {one_line(_changes(self.files), 40)}")
        return " ".join(said)

    def __str__(self) -> str:
        """Output, then the value or the traceback, then Belljar's notes, as a notebook shows it."""
        shown = [self.stdout, self.stderr]
        if self.error:
            shown.append(self.error.traceback)
        elif self.text is not None:
            shown.append(self.text)
        shown += [f"[{remark}]" for remark in self._remarks()]
        return "\n".join(printable(text.removesuffix("\n")) for text in shown if text)

    def _remarks(self) -> list[str]:
        """Belljar's own sentences about the run. They may quote the guest."""
        said = []
        # A traceback says why, unless it is the KeyboardInterrupt by which a limit stops the code.
        if not self.ok and not (self.error and self.outcome is Outcome.error):
            said.append(describe_end(self, "the code"))
        if self.truncated and not self.notes:  # the notes say what was left out
            said.append("the output was truncated")
        said += self.notes
        if self.calls:
            counts = Counter(call.name for call in self.calls)
            words = [f"{name} {n} times" if n > 1 else name for name, n in counts.items()]
            said.append(f"called {one_line(', '.join(words), 200)}")
        if self.files:
            said.append(one_line(_changes(self.files), 200))
        return said

    def _repr_html_(self) -> str:
        """Show it in a notebook of the host. The guest's HTML cannot run code or load anything."""
        from belljar.results import display

        return display.render_page(self, self._remarks())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """`rich.print(execution)` shows it, tables as tables."""
        from belljar.results import display

        yield from display.render_execution(self, self._remarks())


@suggests
@dataclass(frozen=True, kw_only=True, repr=False)
class CommandResult:
    """What one command did."""

    stdout: str
    stderr: str
    exit_code: int | None  # None if a signal ended it, or it is not known
    signal: int | None  # the number of the signal that ended it
    outcome: Outcome
    usage: Usage
    truncated: bool  # more was written than was kept
    stdout_bytes: bytes | None = None  # with format="bytes"
    stderr_bytes: bytes | None = None

    @property
    def ok(self) -> bool:
        # A missing exit code is not a success.
        return self.outcome is Outcome.ok and self.exit_code == 0

    @property
    def signal_name(self) -> str | None:
        """The name of the signal, such as "SIGSEGV"."""
        return _signal_name(self.signal)

    @property
    def output(self) -> str:
        """What it wrote: stdout, then stderr."""
        return self.stdout + self.stderr

    @property
    def returncode(self) -> int:
        """One number for its end, as shells have it: the exit code, 124 for a time-out, 128 and
        the number of the signal that ended it, 125 if none of that is known."""
        if self.outcome is Outcome.timeout:
            return 124
        if self.signal is not None:
            return 128 + self.signal
        return 125 if self.exit_code is None else self.exit_code

    def raise_for_exit(self) -> Self:
        """Raise ExecutionError unless the exit code is 0; give the CommandResult otherwise."""
        if not self.ok:
            raise make_error(self, "the command", self.stderr)
        return self

    def to_dict(self) -> dict[str, object]:
        """Give plain data that JSON can carry."""
        made = asdict(self) | {"outcome": self.outcome.value}
        return {name: value for name, value in made.items() if not name.endswith("_bytes")}

    def __repr__(self) -> str:
        """Outcome, exit, the first output, and the time, in one short line."""
        parts = [f"CommandResult {self.outcome}", "" if self.ok else describe_exit(self)]
        # Error messages are usually on stderr.
        names = ("stdout", "stderr") if self.ok else ("stderr", "stdout")
        written = [(name, getattr(self, name)) for name in names if getattr(self, name)]
        parts += [f"{name}: {one_line(text)}" for name, text in written[:1]]
        return f"<{' '.join(filter(None, [*parts, format_seconds(self.usage.wall)]))}>"


def _changes(files: FileChanges) -> str:
    return "; ".join(f"{verb} {', '.join(names)}" for verb, names in vars(files).items() if names)


def _lists(fields: dict[str, tuple[str, ...]]) -> dict[str, list[str]]:
    return {name: list(items) for name, items in fields.items()}


_ERRORS: dict[Outcome, type[ExecutionError]] = {
    Outcome.timeout: ExecutionTimeout,
    Outcome.out_of_memory: ExecutionOutOfMemory,
}
_HINTS = {
    Outcome.timeout: "give it more time with timeout=, or Limits(timeout=...)",
    Outcome.out_of_memory: "give it more with Limits(memory=...)",
    Outcome.output_limit: "print less, or allow more with Limits(output=...)",
}


def make_error(run: Execution | CommandResult, subject: str, details: str) -> ExecutionError:
    """The exception for a run that failed; `details` is text of the guest."""
    error = _ERRORS.get(run.outcome, ExecutionError)(
        describe_end(run, subject), execution=run, hint=_HINTS.get(run.outcome)
    )
    if details:
        # The end, because a traceback says there what happened. Indented, so that a reader can tell
        # the guest's text from ours.
        tail = printable(details[-4000:]).removesuffix("\n")
        error.add_note("In the sandbox:\n" + textwrap.indent(tail, "  | ", lambda line: True))
    return error


def describe_end(run: Execution | CommandResult, subject: str) -> str:
    error: ErrorInfo | None = getattr(run, "error", None)  # a command has none
    match run.outcome:
        case Outcome.error if error is not None:
            return f"{subject} raised {one_line(f'{error.name}: {error.value}', 500)}"
        case Outcome.timeout:
            return f"{subject} ran out of time after {format_seconds(run.usage.wall)}"
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
            return f"{subject} was lost: the guest died while it ran"
        case _:
            return f"{subject} ended: {describe_exit(run) or f'{run.outcome}, no exit code'}"


def describe_exit(run: Execution | CommandResult) -> str:
    if run.signal is not None:
        return f"killed by {_signal_name(run.signal)}"
    return "" if run.exit_code is None else f"exit code {run.exit_code}"


def _signal_name(number: int | None) -> str | None:
    if number is None:
        return None
    try:
        return Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"
