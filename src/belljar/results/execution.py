"""What came of a run: Execution for code, CommandResult for a command, and their parts.

All of it is data about foreign code. The outcome and the usage were observed from outside; the
texts and the results are the guest's own words, so whatever is shown here goes through
`printable()` first.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self

from belljar.errors import suggests
from belljar.results import ending
from belljar.results.ending import Outcome as Outcome
from belljar.results.plain import as_json
from belljar.results.result import Result as Result
from belljar.text import one_line
from belljar.text import printable as printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from belljar.policy import Report


@suggests
@dataclass(frozen=True, kw_only=True)
class ErrorInfo:
    """The exception that ended a run, in the guest's words."""

    name: str  # the class, such as "ZeroDivisionError"
    value: str  # str() of the exception
    traceback: str  # as Python prints it; the lines point into the cell


@suggests
@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a run cost, measured from outside; None is what cannot be measured on this host."""

    wall: float  # seconds
    cpu: float | None  # seconds of all processes together
    peak_memory: int | None  # bytes; without a cgroup also those shared with other sandboxes
    output_bytes: int  # bytes written to stdout and stderr, also those not kept


@suggests
@dataclass(frozen=True, kw_only=True)
class Logs:
    """The output in the pieces in which it was streamed."""

    stdout: tuple[str, ...]
    stderr: tuple[str, ...]
    background: tuple[str, ...] = ()  # written by threads and processes that earlier cells left


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call that the code made of a function of the host."""

    name: str
    duration: float  # seconds, in the host
    ok: bool  # False if the function raised, or could not be called
    argument_bytes: int
    error: str | None = None  # what the guest was told: the exception's name and message


@suggests
@dataclass(frozen=True, kw_only=True)
class FileChanges:
    """What became of the files below /workspace, by paths relative to it; false if nothing did."""

    created: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.created or self.changed or self.removed)


# An Execution is the record of one event, and its value may be anything (a DataFrame has no plain
# ==): so it is compared by identity.
@suggests
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Execution:
    """What one run of code did."""

    outcome: Outcome
    text: str | None  # repr() of the last expression, made in the guest; None if there is none
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
    calls: tuple[Call, ...] = ()  # of the host's functions, in the order in which they ended
    files: FileChanges | None = None  # None where it was not looked at
    saved: bool | None = None  # all files of a kept workspace are on the host; None: none is kept
    policy: Report | None = None  # what the sandbox's policy said of the code; None: it has none

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.ok

    @property
    def output(self) -> str:
        """All that the code wrote: stdout, then stderr."""
        return self.stdout + self.stderr

    @property
    def images(self) -> list[bytes]:
        """The pictures that the code showed, in order: each as PNG, else JPEG, else SVG."""
        pictures = (
            r.png or r.jpeg or (r.svg or "").encode("utf-8", "replace") for r in self.results
        )
        return [picture for picture in pictures if picture]

    @property
    def signal_name(self) -> str | None:
        """The name of the signal, such as "SIGSEGV"."""
        return ending.signal_name(self.signal)

    def raise_for_outcome(self) -> Self:
        """Raise ExecutionError unless the outcome is ok; give the Execution itself otherwise."""
        if not self.ok:
            raise ending.failure(self, "the code", self.error.traceback if self.error else "")
        return self

    def to_dict(self) -> dict[str, object]:
        """Give plain data that JSON can carry.

        "value" is the value as JSON carries it (a tuple is a list, keys are strings), or None where
        it cannot; "text" has its repr in any case.
        """
        return {
            "outcome": self.outcome.value,
            "text": self.text,
            "value": as_json(self.value),
            "results": [result.to_dict() for result in self.results],
            "stdout": self.stdout,
            "stderr": self.stderr,
            "logs": _lists(asdict(self.logs)),
            "error": asdict(self.error) if self.error else None,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "execution_count": self.execution_count,
            "usage": asdict(self.usage),
            "state_preserved": self.state_preserved,
            "truncated": self.truncated,
            "notes": list(self.notes),
            "calls": [asdict(call) for call in self.calls],
            "files": None if self.files is None else _lists(asdict(self.files)),
            "saved": self.saved,
            "policy": None if self.policy is None else self.policy.to_dict(),
        }

    def to_json(self, indent: int | None = None) -> str:
        """Write `to_dict()` as JSON, in ASCII."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def __repr__(self) -> str:
        """Tell outcome, count, the first of what came out, and the time, in one short line."""
        parts = [f"Execution {self.outcome} [{self.execution_count}]"]
        if self.error:
            parts.append(one_line(f"{self.error.name}: {self.error.value}"))
        elif self.text is not None:
            parts.append(one_line(self.text))
        elif self.stdout:
            parts.append(f"stdout: {one_line(self.stdout)}")
        parts += [ending.ended_by(self), self._also(), ending.seconds(self.usage.wall)]
        return f"<{' '.join(filter(None, parts))}>"

    def _also(self) -> str:
        """What there is besides text: the formats of the results, files, calls."""
        kinds = {
            kind
            for result in self.results
            for kind in result.formats()
            if kind in ("png", "jpeg", "svg", "pdf", "html", "data", "chart")
        }
        said = [f"with {', '.join(sorted(kinds))}"] if kinds else []
        if self.calls:
            said.append(f"{len(self.calls)} calls")
        if self.files:
            said.append(f"files: {one_line(_changes(self.files), 40)}")
        return " ".join(said)

    def __str__(self) -> str:
        """Show it as a notebook does: output, then the value or the traceback, then our notes."""
        shown = [self.stdout, self.stderr]
        if self.error:
            shown.append(self.error.traceback)
        elif self.text is not None:
            shown.append(self.text)
        shown += [f"[{remark}]" for remark in self._remarks()]
        return "\n".join(printable(text.removesuffix("\n")) for text in shown if text)

    def _remarks(self) -> list[str]:
        """Our own sentences, below what the guest wrote. They may quote the guest."""
        said = []
        # A traceback tells why, unless it is the KeyboardInterrupt with which a limit came.
        if not self.ok and not (self.error and self.outcome is Outcome.error):
            said.append(ending.sentence(self, "the code"))
        if self.truncated and not self.notes:  # the notes of a sandbox say what was left out
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
        """Show it in a notebook of the host. Nothing in it runs, and nothing is loaded."""
        from belljar.results import display

        return display.page(self, self._remarks())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Show it in a terminal by rich: `rich.print(execution)`, tables as tables."""
        from belljar.results import rich_view

        yield from rich_view.execution(self, self._remarks())


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

    @property
    def ok(self) -> bool:
        # A missing exit code is not a success.
        return self.outcome is Outcome.ok and self.exit_code == 0

    @property
    def signal_name(self) -> str | None:
        """The name of the signal, such as "SIGSEGV"."""
        return ending.signal_name(self.signal)

    def raise_for_exit(self) -> Self:
        """Raise ExecutionError unless the exit code is 0; give the CommandResult otherwise."""
        if not self.ok:
            raise ending.failure(self, "the command", self.stderr)
        return self

    def to_dict(self) -> dict[str, object]:
        """Give plain data that JSON can carry."""
        return asdict(self) | {"outcome": self.outcome.value}

    def __repr__(self) -> str:
        """Tell the outcome, the first of what came out, and the time, in one short line."""
        parts = [f"CommandResult {self.outcome}", "" if self.ok else ending.ended_by(self)]
        # What went wrong is on stderr, if it is anywhere.
        names = ("stdout", "stderr") if self.ok else ("stderr", "stdout")
        written = [(name, getattr(self, name)) for name in names if getattr(self, name)]
        parts += [f"{name}: {one_line(text)}" for name, text in written[:1]]
        return f"<{' '.join(filter(None, [*parts, ending.seconds(self.usage.wall)]))}>"


def _changes(files: FileChanges) -> str:
    told = {"created": files.created, "changed": files.changed, "removed": files.removed}
    return "; ".join(f"{verb} {', '.join(names)}" for verb, names in told.items() if names)


def _lists(fields: dict[str, tuple[str, ...]]) -> dict[str, list[str]]:
    return {name: list(items) for name, items in fields.items()}
