"""Executions of code that did not run, or of which nothing is known."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from belljar.results.execution import ErrorInfo, Execution, Logs, Outcome, Usage

if TYPE_CHECKING:
    from belljar.policy import Report

MOST_NOTES = 10  # about the findings of a policy


def make_rejected(report: Report, count: int) -> Execution:
    """The Execution of code that a policy kept from running. `count`: of the cells that did run."""
    notes = tuple(
        f"line {each.line}: {each.message} [{each.rule}]: {each.remedy}"
        for each in report.findings[:MOST_NOTES]
    )
    error = ErrorInfo(name="PolicyRejected", value=report.summary(), traceback="")
    made = make_empty(Outcome.rejected, error, notes, count=count, cpu=0.0)
    return replace(made, state_preserved=True, policy=report)


def make_empty(
    outcome: Outcome,
    error: ErrorInfo,
    notes: tuple[str, ...],
    *,
    count: int,
    cpu: float | None = None,
) -> Execution:
    """The Execution of code that did not run, or of which nothing is known."""
    return Execution(
        outcome=outcome,
        text=None,
        value=None,
        results=(),
        stdout="",
        stderr="",
        logs=Logs(stdout=(), stderr=()),
        error=error,
        exit_code=None,
        signal=None,
        execution_count=count,
        usage=Usage(wall=0.0, cpu=cpu, peak_memory=None, output_bytes=0),
        state_preserved=False,
        truncated=False,
        notes=notes,
    )
