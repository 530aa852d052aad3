"""`belljar doctor`: what this host allows, and how a live sandbox on it is isolated.

It also reports on a container engine, if there is one. Without one, nothing is missing.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from belljar.cli import host_facts, image, sandbox_options, terminal
from belljar.errors import SandboxError
from belljar.text import format_seconds

if TYPE_CHECKING:
    from belljar.backends.isolation import Isolation, Layer
    from belljar.cli.host_facts import Fact
    from belljar.environment.environment import Environment
    from belljar.sandbox.blocking import Sandbox

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

    facts: Sequence[Fact] = ()  # about the engine
    runtimes: Sequence[RuntimeMeasured] = ()
    problem: SandboxError | None = None  # why there is no engine


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
        terminal.print_json(_as_dict(facts, measured, problem, verdict, docker))
    else:
        _show_guest(environment.name, facts, measured, problem, verdict)
    return verdict


def _verdict(measured: Measured | None, docker: Docker) -> int:
    """About the backend that a sandbox gets by default: native, else docker."""
    found = [measured] if measured is not None else docker.runtimes  # the default one first
    isolation = found[0].isolation if found else None
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
    if show:
        terminal.heading("\ncontainer engine")
    try:
        engine = host_facts.find_engine()
    except SandboxError as error:
        if show:
            terminal.table([["none", error.message, f"({error.hint})" if error.hint else ""]])
        return Docker(problem=error)
    if show:
        _show_facts(engine.facts)
    runtimes = [
        _measure_runtime(environment, name, default=number == 0)
        for number, name in enumerate(engine.runtimes)
    ]
    if show:
        terminal.heading(f"\na live guest on each runtime (environment {environment.name!r})")
        header = ("RUNTIME", "FIRST RESULT", "1+1", "ISOLATION")
        terminal.table([_runtime_row(each) for each in runtimes], header)
    return Docker(facts=engine.facts, runtimes=runtimes)


def _measure_runtime(environment: Environment, runtime: str, *, default: bool) -> RuntimeMeasured:
    from belljar.backends.docker.settings import Docker
    from belljar.sandbox.blocking import Sandbox

    docker = Docker(runtime=runtime, pull="never")  # the doctor downloads no image
    try:
        host_facts.ask_engine(None, lambda engine: image.ensure(engine, environment, docker))
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
    except SandboxError as error:
        return RuntimeMeasured(
            runtime=runtime, default=default, problem=error.message, hint=error.hint
        )


# -- output ---------------------------------------------------------------------------------------


def _show_host(facts: list[Fact]) -> None:
    terminal.heading("host")
    said: set[str] = set()
    _show_facts(facts, lambda detail: _once(detail, said))


def _show_facts(
    facts: Sequence[Fact | Layer], shorten: Callable[[str], str] = lambda detail: detail
) -> None:
    """Print each remedy once, on a separate line below the first row that it is for."""
    rows = []
    said: set[str] = set()
    for each in facts:
        rows.append([each.state, each.name, shorten(each.detail)])
        if each.remedy and each.remedy not in said:
            said.add(each.remedy)
            same = [other.name for other in facts if other.remedy == each.remedy]
            too = f" (also for {', '.join(same[1:])})" if same[1:] else ""
            rows.append(["", "", f"remedy{too}: {each.remedy}"])
    terminal.table(rows)


def _runtime_row(measured: RuntimeMeasured) -> list[str]:
    name = f"{measured.runtime} (default)" if measured.default else measured.runtime
    if measured.isolation is None or not measured.first_result or not measured.round_trip:
        hint = f" ({measured.hint})" if measured.hint else ""
        return [name, "-", "-", f"{measured.problem}{hint}"]
    times = [format_seconds(measured.first_result), format_seconds(measured.round_trip)]
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
        layers = (*isolation.layers, *isolation.limits)
        _show_facts(layers, lambda detail: _without(detail, facts))
        terminal.heading("\ntime")
        terminal.table(
            [
                ["first start", format_seconds(measured.first_start)],
                ["next start", format_seconds(measured.next_start)],
                ["run_code('1+1')", format_seconds(measured.round_trip)],
            ]
        )
    terminal.heading(f"\n{_VERDICTS[verdict]}")


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
        "verdict": ("enforced", "best-effort", "cannot run")[verdict],
        "host": [dataclasses.asdict(fact) for fact in facts],
        "guest": dataclasses.asdict(measured) if measured else None,
        "problem": _describe(problem),
        "docker": {
            "engine": [dataclasses.asdict(fact) for fact in docker.facts],
            "runtimes": [dataclasses.asdict(each) for each in docker.runtimes],
            "problem": _describe(docker.problem),
        },
    }


def _describe(problem: SandboxError | None) -> dict[str, str | None] | None:
    return {"message": problem.message, "hint": problem.hint} if problem else None
