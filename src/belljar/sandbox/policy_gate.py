"""Whether code may run at all: the caller's policy is asked, before anything starts.

It is advice, not the boundary: what it lets pass is confined like everything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio.to_thread

from belljar.results.execution import ErrorInfo, Execution, Logs, Outcome, Usage

if TYPE_CHECKING:
    from belljar.policy import Policy, Report

MOST_NOTES = 10


async def ask(policy: Policy, code: str) -> Report:
    # Not on the event loop: what it costs is up to whoever wrote the code.
    return await anyio.to_thread.run_sync(policy.check, code)


def rejected(report: Report, count: int) -> Execution:
    """The Execution of code that did not run. `count`: of the cells that did."""
    notes = tuple(
        f"line {each.line}: {each.message} [{each.rule}]: {each.remedy}"
        for each in report.findings[:MOST_NOTES]
    )
    return Execution(
        outcome=Outcome.rejected,
        text=None,
        value=None,
        results=(),
        stdout="",
        stderr="",
        logs=Logs(stdout=(), stderr=()),
        error=ErrorInfo(name="PolicyRejected", value=report.summary(), traceback=""),
        exit_code=None,
        signal=None,
        execution_count=count,
        usage=Usage(wall=0.0, cpu=0.0, peak_memory=None, output_bytes=0),
        state_preserved=True,
        truncated=False,
        notes=notes,
        policy=report,
    )
