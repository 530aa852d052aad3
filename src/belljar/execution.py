"""What came of a run: Execution for code, CommandResult for a command, and their parts.

All of it is data about foreign code. The outcome and the usage were observed from outside; the
texts and the results are the guest's own words, so whatever is shown here goes through
`printable()` first.
"""

from __future__ import annotations

import base64
import json
import re
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from signal import Signals
from typing import NoReturn, Self

from belljar.errors import (
    ExecutionError,
    ExecutionOutOfMemory,
    ExecutionTimeout,
    SandboxError,
)

# C0 without tab and newline, DEL, C1; the line separators and the controls that reorder what is
# read (bidirectional overrides); lone surrogates, which no terminal or log file can encode.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Escape what a terminal or a log would obey instead of show; newline and tab stay.

    >>> printable("\x1b]0;owned\x07 done\n")
    '\\x1b]0;owned\\x07 done\n'
    """
    return _UNPRINTABLE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


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


@dataclass(frozen=True, kw_only=True)
class ErrorInfo:
    """The exception that ended a run, in the guest's words."""

    name: str  # the class, such as "ZeroDivisionError"
    value: str  # str() of the exception
    traceback: str  # as Python prints it; the lines point into the cell


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a run cost, measured from outside; None is what cannot be measured on this host."""

    wall: float  # seconds
    cpu: float | None  # seconds of all processes together
    peak_memory: int | None  # bytes; without a cgroup also those shared with other sandboxes
    output_bytes: int  # bytes written to stdout and stderr, also those not kept


@dataclass(frozen=True, kw_only=True)
class Logs:
    """The output in the pieces in which it was streamed."""

    stdout: tuple[str, ...]
    stderr: tuple[str, ...]
    background: tuple[str, ...] = ()  # written by threads and processes that earlier cells left


_MIME_TYPES = {
    "text": "text/plain",
    "html": "text/html",
    "markdown": "text/markdown",
    "svg": "image/svg+xml",
    "latex": "text/latex",
    "json": "application/json",
    "png": "image/png",
    "jpeg": "image/jpeg",
    "pdf": "application/pdf",
}
_SHORT_NAMES = {mime: name for name, mime in _MIME_TYPES.items()}


@dataclass(frozen=True, kw_only=True)
class Result:
    """One thing a cell displayed, in one or more formats.

    HTML, SVG and Markdown come from the guest: sanitise them before a browser sees them.

    >>> result = Result(data={"text/plain": "<Figure>", "image/png": b"..."}, is_main_result=True)
    >>> result.text, result.html, result.formats()
    ('<Figure>', None, ['text', 'png'])
    """

    data: Mapping[str, str | bytes]  # by MIME type
    is_main_result: bool  # the value of the last expression, not a display()

    def formats(self) -> list[str]:
        """Name what there is: the short name where this class has one, else the MIME type."""
        return [_SHORT_NAMES.get(mime, mime) for mime in self.data]

    @property
    def text(self) -> str | None:
        return self._text("text")

    @property
    def html(self) -> str | None:
        return self._text("html")

    @property
    def markdown(self) -> str | None:
        return self._text("markdown")

    @property
    def svg(self) -> str | None:
        return self._text("svg")

    @property
    def latex(self) -> str | None:
        return self._text("latex")

    @property
    def png(self) -> bytes | None:
        return self._bytes("png")

    @property
    def jpeg(self) -> bytes | None:
        return self._bytes("jpeg")

    @property
    def pdf(self) -> bytes | None:
        return self._bytes("pdf")

    @property
    def json(self) -> object:
        """The parsed application/json, or None; raises SandboxError if the guest sent none such."""
        text = self._text("json")
        if text is None:
            return None
        try:
            parsed: object = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise SandboxError(
                f"the guest's application/json cannot be parsed: {error}",
                hint="what it sent is in data['application/json']",
            ) from error
        return parsed

    def to_dict(self) -> dict[str, object]:
        """Give plain data; "base64" lists the MIME types whose bytes are written in base64."""
        return {
            "data": {
                mime: content if isinstance(content, str) else base64.b64encode(content).decode()
                for mime, content in self.data.items()
            },
            "base64": [mime for mime, content in self.data.items() if isinstance(content, bytes)],
            "is_main_result": self.is_main_result,
        }

    def __repr__(self) -> str:
        main = " main" if self.is_main_result else ""
        return f"<Result{main} {', '.join(map(repr, self.formats())) or 'empty'}>"

    def _text(self, name: str) -> str | None:
        content = self.data.get(_MIME_TYPES[name])
        return content if isinstance(content, str) else None

    def _bytes(self, name: str) -> bytes | None:
        content = self.data.get(_MIME_TYPES[name])
        return content if isinstance(content, bytes) else None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# An Execution is the record of one event, and its value may be anything (a DataFrame has no plain
# ==): so it is compared by identity.
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

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.ok

    @property
    def signal_name(self) -> str | None:
        """The name of the signal, such as "SIGSEGV"."""
        return _signal_name(self.signal)

    def raise_for_outcome(self) -> Self:
        """Raise ExecutionError unless the outcome is ok; give the Execution itself otherwise."""
        if not self.ok:
            raise _failure(self, "the code", self.error.traceback if self.error else "")
        return self

    def to_dict(self) -> dict[str, object]:
        """Give plain data that JSON can carry.

        "value" is the value as JSON carries it (a tuple is a list, keys are strings), or None where
        it cannot; "text" has its repr in any case.
        """
        return {
            "outcome": self.outcome.value,
            "text": self.text,
            "value": _as_json(self.value),
            "results": [result.to_dict() for result in self.results],
            "stdout": self.stdout,
            "stderr": self.stderr,
            "logs": {name: list(pieces) for name, pieces in asdict(self.logs).items()},
            "error": asdict(self.error) if self.error else None,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "execution_count": self.execution_count,
            "usage": asdict(self.usage),
            "state_preserved": self.state_preserved,
            "truncated": self.truncated,
            "notes": list(self.notes),
        }

    def to_json(self, indent: int | None = None) -> str:
        """Write `to_dict()` as JSON, in ASCII."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def __repr__(self) -> str:
        """Tell outcome, count, the first of what came out, and the time, in one short line."""
        parts = [f"Execution {self.outcome} [{self.execution_count}]"]
        if self.error:
            parts.append(_one_line(f"{self.error.name}: {self.error.value}"))
        elif self.text is not None:
            parts.append(_one_line(self.text))
        elif self.stdout:
            parts.append(f"stdout: {_one_line(self.stdout)}")
        parts += [_ended_by(self), _seconds(self.usage.wall)]
        return f"<{' '.join(filter(None, parts))}>"

    def __str__(self) -> str:
        """Show it as a notebook does: output, then the value or the traceback, then our notes."""
        shown = [self.stdout, self.stderr]
        if self.error:
            shown.append(self.error.traceback)
        elif self.text is not None:
            shown.append(self.text)
        # A traceback tells why, unless it is the KeyboardInterrupt with which a limit came.
        if not self.ok and not (self.error and self.outcome is Outcome.error):
            shown.append(f"[{_sentence(self, 'the code')}]")
        if self.truncated and not self.notes:  # the notes of a sandbox say what was left out
            shown.append("[the output was truncated]")
        shown += [f"[{note}]" for note in self.notes]
        return "\n".join(printable(text.removesuffix("\n")) for text in shown if text)


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
        return _signal_name(self.signal)

    def raise_for_exit(self) -> Self:
        """Raise ExecutionError unless the exit code is 0; give the CommandResult otherwise."""
        if not self.ok:
            raise _failure(self, "the command", self.stderr)
        return self

    def to_dict(self) -> dict[str, object]:
        """Give plain data that JSON can carry."""
        return asdict(self) | {"outcome": self.outcome.value}

    def __repr__(self) -> str:
        """Tell the outcome, the first of what came out, and the time, in one short line."""
        parts = [f"CommandResult {self.outcome}", "" if self.ok else _ended_by(self)]
        # What went wrong is on stderr, if it is anywhere.
        names = ("stdout", "stderr") if self.ok else ("stderr", "stdout")
        written = [(name, getattr(self, name)) for name in names if getattr(self, name)]
        parts += [f"{name}: {_one_line(text)}" for name, text in written[:1]]
        return f"<{' '.join(filter(None, [*parts, _seconds(self.usage.wall)]))}>"


_ERRORS: dict[Outcome, type[ExecutionError]] = {
    Outcome.timeout: ExecutionTimeout,
    Outcome.out_of_memory: ExecutionOutOfMemory,
}
_HINTS = {
    Outcome.timeout: "give it more time with timeout=, or Limits(timeout=...)",
    Outcome.out_of_memory: "give it more with Limits(memory=...)",
    Outcome.output_limit: "print less, or allow more with Limits(output=...)",
}


def _failure(run: Execution | CommandResult, subject: str, details: str) -> ExecutionError:
    """Make the exception for a run that did not end well; `details` are the guest's own words."""
    error = _ERRORS.get(run.outcome, ExecutionError)(
        _sentence(run, subject), execution=run, hint=_HINTS.get(run.outcome)
    )
    if details:
        # The end of it, because that is where a traceback says what happened; set apart from our
        # own words, because the guest may have written anything.
        tail = printable(details[-4000:]).removesuffix("\n")
        error.add_note("In the sandbox:\n" + textwrap.indent(tail, "  | ", lambda line: True))
    return error


def _sentence(run: Execution | CommandResult, subject: str) -> str:
    match run.outcome:
        case Outcome.error if isinstance(run, Execution) and run.error:
            return f"{subject} raised {_one_line(f'{run.error.name}: {run.error.value}', 500)}"
        case Outcome.timeout:
            return f"{subject} ran out of time after {_seconds(run.usage.wall)}"
        case Outcome.out_of_memory:
            return f"{subject} ran out of memory"
        case Outcome.output_limit:
            return f"{subject} wrote more output than its limit"
        case Outcome.rejected:
            return f"{subject} was rejected by the policy and did not run"
        case Outcome.cancelled:
            return f"{subject} was cancelled"
        case Outcome.lost:
            return f"{subject} was lost: the guest went away while it ran"
        case _:
            return f"{subject} ended: {_ended_by(run) or f'{run.outcome}, no exit code'}"


def _ended_by(run: Execution | CommandResult) -> str:
    if run.signal is not None:
        return f"killed by {_signal_name(run.signal)}"
    return "" if run.exit_code is None else f"exit code {run.exit_code}"


def _signal_name(number: int | None) -> str | None:
    if number is None:
        return None
    try:
        return Signals(number).name
    except ValueError:  # the real-time signals between the first and the last have no name
        return f"signal {number}"


def _as_json(value: object) -> object:
    try:
        carried: object = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return None
    return carried


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _one_line(text: str, width: int = 60) -> str:
    line = printable(text[:width]).replace("\n", "\\n").replace("\t", "\\t")
    return line if len(text) <= width else f"{line}…"
