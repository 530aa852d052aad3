"""Recorded text for readers: without terminal codes, in words, and code as highlighted HTML."""

from __future__ import annotations

import builtins
import datetime
import html
import io
import keyword
import re
import shlex
import token
import tokenize
from collections.abc import Iterator

from belljar.record.reader import Event, Session
from belljar.results.execution import CommandResult, Execution, Outcome
from belljar.text import printable

# Escape codes: colours and cursor movements (CSI), titles and links (OSC), and short ones.
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]?[0-Z\\-~])")


MAX_HIGHLIGHTED = 200_000  # characters; the tokenizer is slow, and few people read more
_STRINGS = ("STRING", "FSTRING_", "TSTRING_")  # the last two since Python 3.12 and 3.14
_CLASSES = {number: "s" for name, number in vars(token).items() if name.startswith(_STRINGS)}
_CLASSES |= {token.COMMENT: "c", token.NUMBER: "n"}
_BUILTINS = frozenset(dir(builtins))


def without_ansi(text: str) -> str:
    return _ANSI.sub("", text)


def plain_text(text: str) -> str:
    """As a terminal would show it, without colours; other control characters are escaped.

    A progress bar overwrites its line: only its last state is kept.
    """
    lines = (line.removesuffix("\r").rpartition("\r")[2] for line in text.split("\n"))
    return printable(without_ansi("\n".join(lines)))


def describe_command(event: Event) -> str:
    command = event.fields.get("cmd")
    if isinstance(command, list):
        return shlex.join(map(str, command))
    return str(command)


def describe_event(event: Event) -> str:
    """One line about the operation."""
    names = event.fields.get("values")
    if isinstance(names, dict):
        said = ", ".join(map(str, names))
    else:
        said = " ".join(
            str(event.fields[name])
            for name in ("op", "path", "old", "new", "name", "id")
            if name in event.fields
        )
    return printable(f"{event.kind} {said}".strip()).replace("\n", "\\n")[:500]


def describe_end(run: Execution | CommandResult) -> str:
    """How it ended; empty if its output shows that."""
    if run.outcome in (Outcome.ok, Outcome.error):
        return ""
    how = run.outcome.value.replace("_", " ")
    if run.exit_code is not None:
        how += f", exit code {run.exit_code}"
    if run.signal_name is not None:
        how += f", {run.signal_name}"
    return how


def session_heading(session: Session) -> str:
    return f"{format_time(session.began)}, environment {printable(session.environment.name)}"


def format_time(seconds: float) -> str:
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):  # not a valid time
        return "at an unknown time"


def highlight_code(code: str) -> str:
    """HTML for a <pre>, with tokens in spans. `code` is printable already.

    The code may be anything: each character is written once, in order and escaped, whatever the
    tokenizer finds. Code that it cannot read gets no spans.
    """
    if len(code) > MAX_HIGHLIGHTED:
        return html.escape(code)
    try:
        return "".join(_token_spans(code))
    except (tokenize.TokenError, SyntaxError, ValueError):
        return html.escape(code)


def _token_spans(code: str) -> Iterator[str]:
    # The offset of each line, as the tokenizer counts lines.
    starts = [0]
    for line in io.StringIO(code):
        starts.append(starts[-1] + len(line))
    done, previous = 0, ""
    for each in tokenize.generate_tokens(io.StringIO(code).readline):
        kind = _token_class(each, attribute=previous == ".")
        previous = each.string
        if kind is None:
            continue
        begin, end = (
            min(starts[min(row - 1, len(starts) - 1)] + column, len(code))
            for row, column in (each.start, each.end)
        )
        if begin < done or end <= begin:
            continue
        yield html.escape(code[done:begin])
        yield f'<span class="{kind}">{html.escape(code[begin:end])}</span>'
        done = end
    yield html.escape(code[done:])


def _token_class(each: tokenize.TokenInfo, *, attribute: bool) -> str | None:
    if each.type != token.NAME:
        return _CLASSES.get(each.type)
    if keyword.iskeyword(each.string):
        return "k"
    return "b" if each.string in _BUILTINS and not attribute else None
