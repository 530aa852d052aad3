"""`belljar doctor`: what this host allows, and how a live sandbox on it is isolated.

It also reports on a container engine, if there is one. Without one, nothing is missing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from belljar.cli import host_facts, image, sandbox_options, terminal
from belljar.errors import SandboxError

if TYPE_CHECKING:
    from belljar.backends.isolation import Isolation
    from belljar.cli.host_facts import EngineFound, Fact
    from belljar.environment.environment import Environment
    from belljar.sandbox.blocking import Sandbox

SUMMARY = "report what this host allows, measured on a live sandbox"
ENFORCED, BEST_EFFORT, CANNOT_RUN = 0, 1, 2
ROUND_TRIPS = 50

_EPILOG = """\
exit codes:
  0   every layer and every limit is enforced
  1   sandboxes work, but something is best-effort or absent
  2   no sandbox can be started here
"""
_VERDICTS = {
    ENFORCED: "every layer and every limit is enforced",
    BEST_EFFORT: "sandboxes work, but not everything is enforced; the remedies are above",
    CANNOT_RUN: "no sandbox can be started on this host",
}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One live guest of the native backend."""

    isolation: Isolation
    first_start: float  # seconds, including the start of the zygote
    next_start: float  # seconds
    round_trip: float  # seconds, the median of run_code("1+1")


@dataclass(frozen=True, kw_only=True)
class RuntimeMeasured:
    """One guest in a container of one runtime."""

    runtime: str
    default: bool
    isolation: Isolation | None = None
    first_result: float | None = None  # seconds, including the start
    round_trip: float | None = None  # seconds, the median of run_code("1+1")
    problem: str | None = None  # why there is no guest
    hint: str | None = None


@dataclass(frozen=True, kw_only=True)
class Docker:
    """The container engine, and one live guest on each of its runtimes."""

    engine: EngineFound | None = None
    runtimes: list[RuntimeMeasured] = dataclasses.field(default_factory=list)
    problem: SandboxError | None = None  # why there is no engine

    @property
    def isolation(self) -> Isolation | None:
        """That of the engine's default runtime."""
        return self.runtimes[0].isolation if self.runtimes else None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Report what this host allows, start a sandbox, and measure its isolation."
    parser.epilog = _EPILOG
    sandbox_options.add_environment(parser, "python")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from belljar.environment.environment import resolve

    environment = resolve(args.environment)
    facts = host_facts.list_host_facts(environment)
    if not args.json:
        _show_host(facts)  # now, because a first build may take a while
    docker = _inspect_engine(environment, show=not args.json)
    measured: Measured | None = None
    problem: SandboxError | None = None
    try:
        measured = measure(environment)
    except SandboxError as error:
        problem = error
    verdict = _verdict(measured, docker)
    if args.json:
        print(json.dumps(_as_dict(facts, measured, problem, verdict, docker), indent=2))
    else:
        _show_guest(environment.name, facts, measured, problem, verdict)
    return verdict


def _verdict(measured: Measured | None, docker: Docker) -> int:
    """About the backend that a sandbox gets by default: native, else docker."""
    isolation = docker.isolation if measured is None else measured.isolation
    if isolation is None:
        return CANNOT_RUN
    return ENFORCED if isolation.enforced else BEST_EFFORT


# -- measuring ------------------------------------------------------------------------------------


def measure(environment: Environment) -> Measured:
    from belljar.environment import environment as environments
    from belljar.sandbox.blocking import Sandbox

    environments.build(environment)  # before the clock starts
    began = time.perf_counter()
    with Sandbox(backend="native", environment=environment) as sandbox:
        first_start = time.perf_counter() - began
        isolation = sandbox.isolation
        round_trip = _time_round_trip(sandbox)
    began = time.perf_counter()
    with Sandbox(backend="native", environment=environment):
        next_start = time.perf_counter() - began
    return Measured(
        isolation=isolation, first_start=first_start, next_start=next_start, round_trip=round_trip
    )


def _time_round_trip(sandbox: Sandbox) -> float:
    """The median, in seconds."""
    trips = []
    for _ in range(ROUND_TRIPS):
        began = time.perf_counter()
        sandbox.run_code("1+1").raise_for_outcome()
        trips.append(time.perf_counter() - began)
    return statistics.median(trips)


def _inspect_engine(environment: Environment, *, show: bool) -> Docker:
    try:
        engine = host_facts.find_engine()
    except SandboxError as error:
        if show:
            terminal.heading("\ncontainer engine")
            terminal.table([["none", error.message, f"({error.hint})" if error.hint else ""]])
        return Docker(problem=error)
    if show:
        terminal.heading("\ncontainer engine")
        rows = [[f.state, f.name, f.detail, f.remedy or ""] for f in engine.facts]
        terminal.table(_with_remedies(rows))
    docker = Docker(engine=engine, runtimes=list(_measure_runtimes(environment, engine)))
    if show:
        terminal.heading(f"\na live guest on each runtime (environment {environment.name!r})")
        header = ("RUNTIME", "FIRST RESULT", "1+1", "ISOLATION")
        terminal.table([_runtime_row(each) for each in docker.runtimes], header)
    return docker


def _measure_runtimes(environment: Environment, found: EngineFound) -> Iterator[RuntimeMeasured]:
    for index, name in enumerate(found.runtimes):
        try:
            yield _measure_runtime(environment, name, default=index == 0)
        except SandboxError as error:
            yield RuntimeMeasured(
                runtime=name, default=index == 0, problem=error.message, hint=error.hint
            )


def _measure_runtime(environment: Environment, runtime: str, *, default: bool) -> RuntimeMeasured:
    from belljar.backends.docker.settings import Docker
    from belljar.sandbox.blocking import Sandbox

    docker = Docker(runtime=runtime, pull="never")  # the doctor downloads no image
    image.ask_engine(None, lambda engine: image.ensure(engine, environment, docker))
    began = time.perf_counter()
    with Sandbox(backend=docker, environment=environment) as sandbox:
        sandbox.run_code("1+1").raise_for_outcome()
        first_result = time.perf_counter() - began
        return RuntimeMeasured(
            runtime=runtime,
            default=default,
            isolation=sandbox.isolation,
            first_result=first_result,
            round_trip=_time_round_trip(sandbox),
        )


# -- output ---------------------------------------------------------------------------------------


def _show_host(facts: list[Fact]) -> None:
    terminal.heading("host")
    said: set[str] = set()
    terminal.table(
        _with_remedies([[f.state, f.name, _once(f.detail, said), f.remedy or ""] for f in facts])
    )


def _runtime_row(measured: RuntimeMeasured) -> list[str]:
    name = f"{measured.runtime} (default)" if measured.default else measured.runtime
    if measured.isolation is None or not measured.first_result or not measured.round_trip:
        hint = f" ({measured.hint})" if measured.hint else ""
        return [name, "-", "-", f"{measured.problem}{hint}"]
    times = [terminal.seconds(measured.first_result), terminal.seconds(measured.round_trip)]
    summary = repr(measured.isolation).partition(": ")[2].removesuffix(">")
    return [name, *times, summary]


def _show_guest(
    environment: str,
    facts: list[Fact],
    measured: Measured | None,
    problem: SandboxError | None,
    verdict: int,
) -> None:
    terminal.heading(f"\na live guest of the native backend (environment {environment!r})")
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
                ["run_code('1+1')", terminal.seconds(measured.round_trip)],
            ]
        )
    terminal.heading(f"\n{_VERDICTS[verdict]}")


def _with_remedies(rows: list[list[str]]) -> list[list[str]]:
    """Print each remedy once, on a separate line below the first row that it is for."""
    shown = []
    said: set[str] = set()
    for *cells, remedy in rows:
        shown.append(cells)
        if remedy and remedy not in said:
            said.add(remedy)
            others = ", ".join(row[1] for row in rows if row[-1] == remedy and row[1] != cells[1])
            too = f" (also for {others})" if others else ""
            shown.append(["", "", f"remedy{too}: {remedy}"])
    return shown


def _once(detail: str, said: set[str]) -> str:
    """Of "reason: advice" only the reason, if an earlier row had the same advice."""
    reason, _, advice = detail.partition(": ")
    if advice in said:
        return reason
    said.add(advice)
    return detail


def _without(detail: str, facts: list[Fact]) -> str:
    """A layer's detail without what the host's table has already said."""
    for fact in facts:
        if fact.state == "no":
            detail = detail.replace(f"; {fact.detail}", "")
    return detail


def _as_dict(
    facts: list[Fact],
    measured: Measured | None,
    problem: SandboxError | None,
    verdict: int,
    docker: Docker,
) -> dict[str, object]:
    return {
        "verdict": {ENFORCED: "enforced", BEST_EFFORT: "best-effort", CANNOT_RUN: "cannot run"}[
            verdict
        ],
        "host": [dataclasses.asdict(fact) for fact in facts],
        "guest": dataclasses.asdict(measured) if measured else None,
        "problem": _describe(problem),
        "docker": {
            "engine": [dataclasses.asdict(f) for f in docker.engine.facts] if docker.engine else [],
            "runtimes": [dataclasses.asdict(each) for each in docker.runtimes],
            "problem": _describe(docker.problem),
        },
    }


def _describe(problem: SandboxError | None) -> dict[str, str | None] | None:
    return {"message": problem.message, "hint": problem.hint} if problem else None
