"""The report as plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from belljar.conformance import wording
from belljar.conformance.results import Attempt, Report, RowResult
from belljar.conformance.rows import FAMILIES
from belljar.text import printable

_WIDTH = 100


def render(report: Report) -> str:
    # What is quoted may come from a guest.
    return printable("\n".join(_lines(report))) + "\n"


def summary(report: Report) -> str:
    """A few lines, for those who have the report in a file."""
    lines = [wording.verdict(report)]
    for row in report.rows:
        for attempt in row.attempts:
            for problem in attempt.problems:
                lines.append(f"  row {row.number}, {attempt.name}: {problem}")
            if attempt.control is not None and attempt.control.tripped is False:
                lines.append(
                    f"  row {row.number}, {attempt.name}: control "
                    f"{wording.control(attempt.control)}"
                )
    lines += [f"  left behind: {line}" for line in report.leftovers]
    return printable("\n".join(lines)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield "Belljar conformance report"
    yield "=" * 26
    yield ""
    yield wording.verdict(report)
    yield ""
    for name, value in wording.facts(report.head):
        yield from _wrapped(value, f"{name + ':':<11}")
    yield ""
    yield "Layers and limits, measured on a live guest:"
    for name, state, detail in wording.layers(report.head):
        yield from _wrapped(detail, f"  {name:<17} {state:<12}")
    yield ""
    yield "How to read it:"
    for each, meaning in wording.MEANINGS.items():
        yield from _wrapped(meaning, f"  {wording.LABELS[each]:<9}")
    for family in FAMILIES:
        rows = [row for row in report.rows if row.family == family]
        if rows:
            yield from ("", family, "-" * len(family))
        for row in rows:
            yield from _row(row)
    for line in report.leftovers:
        yield f"left behind: {line}"
    yield ""
    yield wording.verdict(report)


def _row(row: RowResult) -> Iterator[str]:
    yield ""
    yield f"{row.number:>3}  {wording.LABELS[row.state]:<8} {row.title}  ({row.seconds:.1f} s)"
    yield from _wrapped("; ".join(row.mechanisms), "     stopped by: ")
    for attempt in row.attempts:
        yield from _attempt(attempt)


def _attempt(attempt: Attempt) -> Iterator[str]:
    yield from _wrapped(
        f"{attempt.what}  [{attempt.name}]", f"     {wording.LABELS[attempt.state]:<8} "
    )
    if attempt.why:
        yield from _wrapped(attempt.why, "         because:  ")
    if attempt.why and not attempt.evidence:
        return
    yield from _wrapped(attempt.expected, "         expected: ")
    yield from _wrapped(attempt.actual, "         actual:   ")
    for line in attempt.problems:
        yield from _wrapped(line, "         PROBLEM:  ")
    for line in attempt.evidence:
        yield from _wrapped(line, "         seen:     ")
    yield from _wrapped(wording.control(attempt.control), "         control:  ")


def _wrapped(text: str, label: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        _WIDTH,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_on_hyphens=False,
    ) or [label.rstrip()]
