"""The report as plain text, and the sentences that its HTML form shares."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from belljar.conformance.report_data import (
    BAD,
    Attempt,
    ControlResult,
    Head,
    Report,
    RowResult,
    State,
)
from belljar.conformance.rows import FAMILIES, ROWS
from belljar.text import printable

_WIDTH = 100


def render(report: Report) -> str:
    # The report may quote a guest.
    return printable("\n".join(_lines(report))) + "\n"


def summary(report: Report) -> str:
    """A few lines for standard output when the report goes to a file."""
    lines = [f"  {where}: {problem}" for where, problem in list_problems(report)]
    return printable("\n".join([write_verdict(report), *lines])) + "\n"


def list_problems(report: Report) -> list[tuple[str, str]]:
    """What did not hold: where, and what was seen there."""
    found = []
    for row in report.rows:
        for attempt in row.attempts:
            problems = list(attempt.problems)
            if attempt.control is not None and attempt.control.tripped is False:
                problems.append(f"control {describe_control(attempt.control)}")
            found += [(f"row {row.number}, {attempt.name}", problem) for problem in problems]
    return found + [("left behind", line) for line in report.leftovers]


def _lines(report: Report) -> Iterator[str]:
    yield "Belljar conformance report"
    yield "=" * 26
    yield ""
    yield write_verdict(report)
    yield ""
    for name, value in list_facts(report.head):
        yield from _wrapped(value, f"{name + ':':<11}")
    yield ""
    yield "Layers and limits, measured on a live guest:"
    for name, state, detail in list_layers(report.head):
        yield from _wrapped(detail, f"  {name:<17} {state:<12}")
    yield ""
    yield "How to read it:"
    for each, meaning in MEANINGS.items():
        yield from _wrapped(meaning, f"  {LABELS[each]:<12}")
    for family in FAMILIES:
        rows = [row for row in report.rows if row.family == family]
        if rows:
            yield from ("", family, "-" * len(family))
        for row in rows:
            yield from _row(row)
    for line in report.leftovers:
        yield f"left behind: {line}"
    yield ""
    yield write_verdict(report)


def _row(row: RowResult) -> Iterator[str]:
    yield ""
    yield f"{row.number:>3}  {LABELS[row.state]:<8} {row.title}  ({row.seconds:.1f} s)"
    yield from _wrapped("; ".join(row.mechanisms), "     stopped by: ")
    for attempt in row.attempts:
        yield from _attempt(attempt)


def _attempt(attempt: Attempt) -> Iterator[str]:
    yield from _wrapped(f"{attempt.what}  [{attempt.name}]", f"     {LABELS[attempt.state]:<8} ")
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
    yield from _wrapped(describe_control(attempt.control), "         control:  ")


def _wrapped(text: str, label: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        _WIDTH,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_on_hyphens=False,
    ) or [label.rstrip()]


LABELS = {state: state.upper() for state in State} | {State.NOT_APPLICABLE: "N/A"}
_COUNTED = {State.NOT_APPLICABLE: "not applicable"}  # the others by their values
MEANINGS = {
    State.HELD: "tried here; the attempt did not reach what it was after",
    State.FAILED: "the attempt did something that it must not be able to do",
    State.VACUOUS: "the control did not trip the oracle, so the row proves nothing",
    State.BEST_EFFORT: "tried, but nothing on this host enforces it; `belljar doctor` says why",
    State.NOT_APPLICABLE: "has no meaning in this setting; the reason is given",
    State.NOT_RUN: "could not be tried on this machine; the reason is given",
}


def write_verdict(report: Report) -> str:
    totals = dict(report.totals)
    held = f"{totals.pop(State.HELD)} of {len(report.rows)} rows held"
    others = [f", {count} {_COUNTED.get(state, state)}" for state, count in totals.items() if count]
    counted = held + "".join(others)
    if unasked := len(ROWS) - len(report.rows):
        counted += f"; {unasked} of {len(ROWS)} rows were not asked for"
    if report.held:
        best = totals[State.BEST_EFFORT]
        whole = "HELD" if unasked else "HELD, BUT FOR BEST EFFORT" if best else "ALL HELD"
        return f"{whole}{'' if report.head.controls else ', WITHOUT CONTROLS'}: {counted}"
    bad = [str(row.number) for row in report.rows if row.state in BAD]
    rows = f" (row {', '.join(bad)})" if bad else ""
    left = f"; left behind: {len(report.leftovers)}" if report.leftovers else ""
    return f"NOT HELD{rows}: {counted}{left}"


def list_facts(head: Head) -> list[tuple[str, str]]:
    """The head of the report, by name."""
    found = [
        ("belljar", head.version),
        ("date", head.date),
        ("duration", f"{head.seconds:.0f} s"),
    ]
    names = ("setting", "user", "machine", "kernel", "system", "python")
    found += [(name, getattr(head, name)) for name in names]
    if head.engine:
        found.append(("engine", head.engine))
    found.append(("controls", "run" if head.controls else "not run (--no-controls)"))
    return found


def list_layers(head: Head) -> list[tuple[str, str, str]]:
    """Name, state and detail of each layer and limit, as measured on a live guest."""
    every = (*head.isolation.layers, *head.isolation.limits)
    return [(each.name, each.state, each.detail) for each in every]


def describe_control(result: ControlResult | None) -> str:
    if result is None:
        return "none"
    if result.tripped is None:
        return f"{result.where}: {result.showed}"
    tripped = "tripped" if result.tripped else "DID NOT TRIP"
    return f"{tripped} ({result.where}): {result.showed}"
