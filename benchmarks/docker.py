"""The docker backend against the docker command: a new container, and a call in a live one.

`scripts/bench docker` runs it, on the engine that the docker command uses. What is compared does
the same imports in the same image, in turns; look at the ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.table import Table

from belljar import Sandbox
from belljar.environment.environment import BUILTIN

PYTHON = "/opt/env/bin/python"
SETTINGS = ("--network=none", "--tmpfs=/tmp", "--env=MPLCONFIGDIR=/tmp/.matplotlib")
CALLS = 500


def timed(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@contextmanager
def container(image: str, runtime: str) -> Iterator[str]:
    made = docker("run", "-d", f"--runtime={runtime}", *SETTINGS, image, "sleep", "3600")
    try:
        yield made
    finally:
        docker("rm", "-f", made)


def first_result(runtime: str) -> tuple[float, str]:
    """From nothing to the result of a first cell; and the image that was used."""
    began = time.perf_counter()
    with Sandbox(backend="docker", environment="data", runtime=runtime) as sandbox:
        assert sandbox.run_code("1 + 1").text == "2"
        took = time.perf_counter() - began
        inner = sandbox._sandbox._place
        assert inner is not None
        image = docker("inspect", "--format={{.Image}}", inner.guest.container)  # type: ignore[attr-defined]
    return took, image


def measure(runtime: str, rounds: int) -> dict[str, float]:
    modules = ", ".join(BUILTIN["data"].preload)
    _, image = first_result(runtime)  # builds the image, and warms the caches
    run = ["run", "--rm", f"--runtime={runtime}", *SETTINGS, image, PYTHON]
    imports = [*run, "-c", f"import {modules}; print(1 + 1)"]
    docker(*imports)
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(first_result(runtime)[0])
        theirs.append(timed(lambda: docker(*imports)))
    with Sandbox(backend="docker", environment="data", runtime=runtime) as sandbox:
        sandbox.run_code("1 + 1")
        calls = [timed(lambda: sandbox.run_code("1 + 1")) for _ in range(CALLS)]
    with container(image, runtime) as made:
        execs = [
            timed(lambda: docker("exec", made, PYTHON, "-c", "print(1 + 1)")) for _ in range(rounds)
        ]
    return {
        "first result": statistics.median(ours),
        "docker run": statistics.median(theirs),
        "first result / docker run": statistics.median(ours) / statistics.median(theirs),
        "run_code": statistics.median(calls),
        "docker exec": statistics.median(execs),
        "docker exec / run_code": statistics.median(execs) / statistics.median(calls),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--runtime", action="append", help="runc, runsc, ... (all that there are)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    known = json.loads(docker("info", "--format={{json .Runtimes}}"))
    runtimes = args.runtime or [name for name in ("runc", "runsc") if name in known]
    found = {runtime: measure(runtime, args.rounds) for runtime in runtimes}
    if args.json:
        print(json.dumps(found, indent=2))
        return
    table = Table(box=box.SIMPLE, title="environment data; medians, ms and ratios")
    table.add_column("what")
    for runtime in runtimes:
        table.add_column(runtime, justify="right")
    for name in next(iter(found.values())):
        ratio = " / " in name
        cells = [found[runtime][name] for runtime in runtimes]
        table.add_row(name, *(f"{v:.2f} x" if ratio else f"{v * 1000:,.2f}" for v in cells))
    Console().print(table)


if __name__ == "__main__":
    main()
