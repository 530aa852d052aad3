"""Recorded text, made fit to be read: what a terminal would obey is carried out or shown."""

from __future__ import annotations

import datetime
import re
import shlex

from belljar.record.reader import Event, Session
from belljar.results.execution import CommandResult, Execution, Outcome, printable

# Colours and cursor movements (CSI), titles and links (OSC), and the short ones.
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]?[0-Z\\-~])")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def without_ansi(text: str) -> str:
    return _ANSI.sub("", text)


def encodable(text: str) -> str:
    """Without lone surrogates, which no file can hold."""
    return _SURROGATE.sub("\ufffd", text)


def plain(text: str) -> str:
    """As a terminal would leave it, without colours; what is left of control characters is shown.

    A progress bar writes over its line: the last thing written there is kept.
    """
    lines = (line.removesuffix("\r").rpartition("\r")[2] for line in text.split("\n"))
    return printable(without_ansi("\n".join(lines)))


def command_of(event: Event) -> str:
    command = event.fields.get("cmd")
    if isinstance(command, list):
        return shlex.join(map(str, command))
    return str(command)


def event_of(event: Event) -> str:
    """One line that says what was done."""
    names = event.fields.get("values")
    if isinstance(names, dict):
        said = ", ".join(map(str, names))
    else:
        said = " ".join(
            str(event.fields[name]) for name in ("path", "old", "new", "id") if name in event.fields
        )
    return printable(f"{event.kind} {said}".strip()).replace("\n", "\\n")[:500]


def end_of(run: Execution | CommandResult) -> str:
    """How it ended, where that is not plain from its output; else nothing."""
    if run.outcome in (Outcome.ok, Outcome.error):
        return ""
    how = run.outcome.value.replace("_", " ")
    if run.exit_code is not None:
        how += f", exit code {run.exit_code}"
    if run.signal_name is not None:
        how += f", {run.signal_name}"
    return how


def heading(session: Session) -> str:
    return f"{moment(session.began)}, environment {printable(session.environment.name)}"


def moment(seconds: float) -> str:
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):  # a number that is no time
        return "at an unknown time"


def duration(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:,.2f} s"


def size(count: int) -> str:
    number, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if number < 1000:
            break
        number, unit = number / 1024, larger
    return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"
