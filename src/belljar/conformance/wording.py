"""Sentences that every form of the report shares."""

from __future__ import annotations

from belljar.conformance.results import BAD, ControlResult, Head, Report, State
from belljar.conformance.rows import ROWS

LABELS = {
    State.HELD: "HELD",
    State.FAILED: "FAILED",
    State.VACUOUS: "VACUOUS",
    State.BEST_EFFORT: "BEST EFFORT",
    State.NOT_APPLICABLE: "N/A",
    State.NOT_RUN: "NOT RUN",
}
_COUNTED = {
    State.FAILED: "failed",
    State.VACUOUS: "vacuous",
    State.BEST_EFFORT: "best effort",
    State.NOT_APPLICABLE: "not applicable",
    State.NOT_RUN: "not run",
}
MEANINGS = {
    State.HELD: "tried here, and nothing that the attempt is after was reached",
    State.FAILED: "something was seen that must not be",
    State.VACUOUS: "the control did not trip the oracle, so that the row proves nothing",
    State.BEST_EFFORT: "tried, but nothing on this host enforces it; `belljar doctor` says why",
    State.NOT_APPLICABLE: "has no meaning in this setting; the reason is given",
    State.NOT_RUN: "could not be tried on this machine; the reason is given",
}


def verdict(report: Report) -> str:
    totals = dict(report.totals)
    held = f"{totals.pop(State.HELD)} of {len(report.rows)} rows held"
    others = [f", {count} {_COUNTED[state]}" for state, count in totals.items() if count]
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


def facts(head: Head) -> list[tuple[str, str]]:
    """The head of the report, by name."""
    found = [
        ("belljar", head.version),
        ("date", head.date),
        ("duration", f"{head.seconds:.0f} s"),
        ("setting", head.setting),
        ("user", head.user),
        ("machine", head.machine),
        ("kernel", head.kernel),
        ("system", head.system),
        ("python", head.python),
    ]
    if head.engine:
        found.append(("engine", head.engine))
    found.append(("controls", "run" if head.controls else "not run (--no-controls)"))
    return found


def layers(head: Head) -> list[tuple[str, str, str]]:
    """Name, state and detail of each layer and limit, as measured on a live guest."""
    every = (*head.isolation.layers, *head.isolation.limits)
    return [(each.name, each.state, each.detail) for each in every]


def control(result: ControlResult | None) -> str:
    if result is None:
        return "none"
    if result.tripped is None:
        return f"{result.kind}: {result.showed}"
    tripped = "tripped" if result.tripped else "DID NOT TRIP"
    return f"{tripped} ({result.kind}): {result.showed}"
