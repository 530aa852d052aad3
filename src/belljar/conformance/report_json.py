"""The report as JSON. `schema` changes when a field changes its meaning or goes."""

from __future__ import annotations

import json

from belljar.conformance.results import Attempt, Report, RowResult
from belljar.conformance.rows import ROWS

SCHEMA = 1


def as_dict(report: Report) -> dict[str, object]:
    head = report.head
    return {
        "schema": SCHEMA,
        "held": report.held,
        "rows_not_asked_for": len(ROWS) - len(report.rows),
        "totals": {state.value: count for state, count in report.totals.items()},
        "belljar": head.version,
        "date": head.date,
        "seconds": round(head.seconds, 1),
        "setting": {
            "name": head.setting,
            "backend": head.backend,
            "runtime": head.runtime,
            "user": head.user,
            "machine": head.machine,
            "kernel": head.kernel,
            "system": head.system,
            "python": head.python,
            "engine": head.engine,
        },
        "controls": head.controls,
        "isolation": head.isolation.to_dict(),
        "rows": [_row(row) for row in report.rows],
        "left_behind": list(report.leftovers),
    }


def _row(row: RowResult) -> dict[str, object]:
    return {
        "row": row.number,
        "title": row.title,
        "family": row.family,
        "state": row.state.value,
        "mechanisms": list(row.mechanisms),
        "seconds": round(row.seconds, 2),
        "attempts": [_attempt(each) for each in row.attempts],
    }


def _attempt(attempt: Attempt) -> dict[str, object]:
    control = attempt.control
    return {
        "name": attempt.name,
        "attempt": attempt.what,
        "state": attempt.state.value,
        "why": attempt.why,
        "expected": attempt.expected,
        "actual": attempt.actual,
        "evidence": list(attempt.evidence),
        "problems": list(attempt.problems),
        "control": control
        and {"where": control.kind, "tripped": control.tripped, "showed": control.showed},
        "seconds": round(attempt.seconds, 2),
    }


def render(report: Report) -> str:
    return json.dumps(as_dict(report), indent=2) + "\n"
