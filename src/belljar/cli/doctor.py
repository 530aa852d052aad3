"""`belljar doctor`: what this host allows, and what holds a live guest on it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from belljar.cli import sandbox_options
from belljar.errors import SandboxError

if TYPE_CHECKING:
    from belljar.cli.host_facts import Fact
    from belljar.environment import Environment
    from belljar.isolation import Isolation

SUMMARY = "what this host allows, measured on a live sandbox"
ENFORCED, BEST_EFFORT, CANNOT_RUN = 0, 1, 2
ROUND_TRIPS = 50

_EPILOG = """\
exit codes:
  0   every layer and every limit is enforced
  1   sandboxes work, but something is best-effort or absent
  2   no sandbox can be started here
"""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One live guest."""

    isolation: Isolation
    first_start: float  # seconds, the zygote included
    next_start: float  # seconds
    round_trip: float  # seconds, the median of run_code("1+1")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = (
        "Tell what this host allows, start a sandbox, and measure on it what holds it."
    )
    parser.epilog = _EPILOG
    sandbox_options.add_environment(parser, "python")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    from belljar.cli import host_facts, saved_environments

    environment = saved_environments.resolve(args.environment)
    facts = host_facts.gather(environment)
    if not args.json:
        _show_host(facts)  # at once: a first build may take a while
    measured: Measured | None = None
    problem: SandboxError | None = None
    try:
        measured = measure(environment)
    except SandboxError as error:
        problem = error
    verdict = _verdict(measured)
    if args.json:
        print(json.dumps(_as_dict(facts, measured, problem, verdict), indent=2))
    else:
        _show_guest(environment.name, facts, measured, problem, verdict)
    return verdict


def measure(environment: Environment) -> Measured:
    from belljar import environment as environments
    from belljar.blocking import Sandbox

    environments.build(environment)  # before the clock starts
    began = time.perf_counter()
    with Sandbox(environment=environment) as sandbox:
        first_start = time.perf_counter() - began
        isolation = sandbox.isolation
        trips = []
        for _ in range(ROUND_TRIPS):
            began = time.perf_counter()
            sandbox.run_code("1+1").raise_for_outcome()
            trips.append(time.perf_counter() - began)
    began = time.perf_counter()
    with Sandbox(environment=environment):
        next_start = time.perf_counter() - began
    return Measured(
        isolation=isolation,
        first_start=first_start,
        next_start=next_start,
        round_trip=statistics.median(trips),
    )


def _verdict(measured: Measured | None) -> int:
    if measured is None:
        return CANNOT_RUN
    return ENFORCED if measured.isolation.enforced else BEST_EFFORT


_VERDICTS = {
    ENFORCED: "every layer and every limit is enforced",
    BEST_EFFORT: "sandboxes work, but not everything is enforced; the remedies are above",
    CANNOT_RUN: "no sandbox can be started on this host",
}


def _show_host(facts: list[Fact]) -> None:
    from belljar.cli import terminal

    terminal.heading("host")
    said: set[str] = set()
    terminal.table(
        _with_remedies([[f.state, f.name, _once(f.detail, said), f.remedy or ""] for f in facts])
    )


def _show_guest(
    environment: str,
    facts: list[Fact],
    measured: Measured | None,
    problem: SandboxError | None,
    verdict: int,
) -> None:
    from belljar.cli import terminal

    terminal.heading(f"\na live guest (environment {environment!r})")
    if problem is not None:
        terminal.table([["no", line] for line in str(problem).splitlines()])
    if measured is not None:
        isolation = measured.isolation
        terminal.table(
            _with_remedies(
                [
                    [each.state, each.name, _without(each.detail, facts), each.remedy or ""]
                    for each in (*isolation.layers, *isolation.limits)
                ]
            )
        )
        terminal.heading("\ntime")
        terminal.table(
            [
                ["first start", terminal.seconds(measured.first_start)],
                ["next start", terminal.seconds(measured.next_start)],
                ["1+1, there and back", terminal.seconds(measured.round_trip)],
            ]
        )
    terminal.heading(f"\n{_VERDICTS[verdict]}")


def _with_remedies(rows: list[list[str]]) -> list[list[str]]:
    """A remedy is on a line of its own, once, below the first that it is for."""
    shown = []
    said: set[str] = set()
    for *cells, remedy in rows:
        shown.append(cells)
        if remedy and remedy not in said:
            said.add(remedy)
            others = ", ".join(row[1] for row in rows if row[-1] == remedy and row[1] != cells[1])
            too = f" (also for {others})" if others else ""
            text = remedy.replace("strict=False", "--best-effort")  # as it is spelled here
            shown.append(["", "", f"remedy{too}: {text}"])
    return shown


def _once(detail: str, said: set[str]) -> str:
    """Of "reason: what to do" only the reason, if what to do was said of another one already."""
    reason, _, advice = detail.partition(": ")
    if advice in said:
        return reason
    said.add(advice)
    return detail


def _without(detail: str, facts: list[Fact]) -> str:
    """A layer's detail without what was said of the host already."""
    for fact in facts:
        if fact.state == "no":
            detail = detail.replace(f"; {fact.detail}", "")
    return detail


def _as_dict(
    facts: list[Fact], measured: Measured | None, problem: SandboxError | None, verdict: int
) -> dict[str, object]:
    return {
        "verdict": {ENFORCED: "enforced", BEST_EFFORT: "best-effort", CANNOT_RUN: "cannot run"}[
            verdict
        ],
        "host": [dataclasses.asdict(fact) for fact in facts],
        "guest": dataclasses.asdict(measured) if measured else None,
        "problem": {"message": problem.message, "hint": problem.hint} if problem else None,
    }
