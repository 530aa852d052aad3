"""What Belljar costs beside plain Python, measured in one run on one machine.

The rounds are interleaved, so that a busy moment of the machine hits all rows alike; look at the
ratios before the milliseconds. `scripts/bench` runs it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

from rich import box
from rich.console import Console
from rich.table import Table

from belljar import AsyncSandbox, Sandbox, __version__
from belljar.environment import Built, build

IMPORTS = "import numpy, pandas, matplotlib"
PANDAS = "import pandas as pd; int(pd.DataFrame({'a': range(10)}).a.sum())"
LIVE_PER_ROUND = 10  # a call in a live sandbox is cheap: more of them in each round

ROWS = {
    "interpreter": "python -c pass",
    "imports": f'python -c "{IMPORTS}"',
    "cold": "first sandbox of a process, first pandas result",
    "create": "new sandbox (zygote warm)",
    "ready": "new sandbox, first pandas result",
    "close": "close",
    "one_shot": "new sandbox, first pandas result, close",
    "live": 'run_code("1+1"), live sandbox',
    "live_async": "the same, awaited (AsyncSandbox)",
}
# name: (numerator, denominator)
RATIOS = {
    "new sandbox with pandas / python with the imports": ("ready", "imports"),
    "new sandbox with pandas / bare interpreter": ("ready", "interpreter"),
    "1+1 in a live sandbox / bare interpreter": ("live", "interpreter"),
}


class Bench:
    scratch: str  # where the unconfined Python may keep caches

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {name: [] for name in ROWS}

    def note(self, row: str, began: float) -> None:
        self.times[row].append(time.perf_counter() - began)

    def run(self, rounds: int) -> None:
        built = build("data")
        self.cold()
        with Sandbox() as live, tempfile.TemporaryDirectory() as self.scratch:
            asyncio.run(self.rounds(rounds, built, live))

    def cold(self) -> None:
        began = time.perf_counter()
        with Sandbox() as sandbox:
            _expect(sandbox.run_code(PANDAS).text, "45")
            self.note("cold", began)

    async def rounds(self, rounds: int, built: Built, live: Sandbox) -> None:
        async with AsyncSandbox() as live_async:
            for number in range(rounds):
                # The first round warms caches, and is not counted.
                warm = number > 0
                before = {name: len(times) for name, times in self.times.items()}
                self.subprocesses(built)
                self.fresh()
                self.live(live)
                await self.live_async(live_async)
                if not warm:
                    for name, count in before.items():
                        del self.times[name][count:]

    def subprocesses(self, built: Built) -> None:
        for row, code in (("interpreter", "pass"), ("imports", IMPORTS)):
            began = time.perf_counter()
            _python(built, code, self.scratch)
            self.note(row, began)

    def fresh(self) -> None:
        began = time.perf_counter()
        sandbox = Sandbox.create()
        self.note("create", began)
        _expect(sandbox.run_code(PANDAS).text, "45")
        self.note("ready", began)
        closing = time.perf_counter()
        sandbox.close()
        self.note("close", closing)
        self.note("one_shot", began)

    def live(self, sandbox: Sandbox) -> None:
        for _ in range(LIVE_PER_ROUND):
            began = time.perf_counter()
            execution = sandbox.run_code("1+1")
            self.note("live", began)
            _expect(execution.text, "2")

    async def live_async(self, sandbox: AsyncSandbox) -> None:
        for _ in range(LIVE_PER_ROUND):
            began = time.perf_counter()
            execution = await sandbox.run_code("1+1")
            self.note("live_async", began)
            _expect(execution.text, "2")

    # -- what came of it --------------------------------------------------------------------

    def summary(self) -> dict[str, object]:
        rows = {
            name: {
                "what": ROWS[name],
                "n": len(times),
                "median": statistics.median(times),
                "p90": _p90(times),
                "min": min(times),
            }
            for name, times in self.times.items()
        }
        ratios = {
            name: statistics.median(self.times[top]) / statistics.median(self.times[bottom])
            for name, (top, bottom) in RATIOS.items()
        }
        return {"unit": "seconds", "host": _host(), "rows": rows, "ratios": ratios}


def _python(built: Built, code: str, scratch: str) -> None:
    """The Environment's interpreter with the Environment's packages, outside of any sandbox."""
    version = "python{}.{}".format(*built.interpreter.version)
    packages = built.path / "lib" / version / "site-packages"
    environ = {"PATH": os.defpath, "HOME": scratch, "PYTHONPATH": str(packages)}
    environ |= {"MPLBACKEND": "Agg", "MPLCONFIGDIR": scratch}
    subprocess.run([built.interpreter.executable, "-c", code], env=environ, check=True)


def _expect(got: str | None, wanted: str) -> None:
    if got != wanted:
        raise SystemExit(f"a sandbox answered {got!r} instead of {wanted!r}")


def _p90(times: list[float]) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * 0.9))]


def _host() -> dict[str, object]:
    return {
        "belljar": __version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "root": os.geteuid() == 0,
        "load": os.getloadavg()[0],
    }


def show(bench: Bench) -> None:
    console = Console(highlight=False, soft_wrap=True)
    frame = box.ROUNDED if console.is_terminal else box.ASCII
    host = _host()
    console.print(
        f"Belljar {host['belljar']}, Python {host['python']}, Linux {host['kernel']} "
        f"{host['machine']}, {host['processors']} processors, load {host['load']:.1f}, "
        f"as {'root' if host['root'] else 'an ordinary user'}"
    )
    table = Table("what", box=frame)
    for heading in ("median", "p90", "min", "n"):
        table.add_column(heading, justify="right")
    for name, times in bench.times.items():
        measured = (statistics.median(times), _p90(times), min(times))
        table.add_row(ROWS[name], *(f"{t * 1000:.2f} ms" for t in measured), str(len(times)))
    console.print(table, soft_wrap=False)
    ratios = Table("ratio of medians", box=frame)
    ratios.add_column("", justify="right")
    for name, (top, bottom) in RATIOS.items():
        one, other = (statistics.median(bench.times[row]) for row in (top, bottom))
        ratios.add_row(name, f"1/{other / one:.1f}" if one < other else f"{one / other:.1f}")
    console.print(ratios, soft_wrap=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40, help="rounds that count (default 40)")
    parser.add_argument("--json", action="store_true", help="write JSON (in seconds) to stdout")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    bench = Bench()
    bench.run(arguments.rounds + 1)
    if arguments.json:
        json.dump(bench.summary(), sys.stdout, indent=1)
        print()
    else:
        show(bench)


if __name__ == "__main__":
    main()
