"""The hot paths against yardsticks of the same run: fails when one is several times slower.

`scripts/guard` runs it, in less than a minute; limits and judgement are in guard_limits.py. A round
that fails is repeated once, which is said. `--slow-down 10` makes our side ten times slower, by
waiting after each call for nine times as long as it took: then it must fail.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
from guard_limits import PATHS, Finding, failed_twice, judge
from rich import box
from rich.console import Console
from rich.table import Table

from belljar import AsyncSandbox, Policy, Pool, Sandbox

ROUNDS = 8
TRIPS = 60
STREAM = 16 << 20
OUTPUT = f"import sys\nfor _ in range({STREAM} >> 16): sys.stdout.write('x' * 65536)"
PIPE = f"import os\nfor _ in range({STREAM} >> 16): os.write(1, b'x' * 65536)"
ECHO = "import os\nwhile b := os.read(0, 1): os.write(1, b)"
Times = defaultdict[str, list[float]]


def timed(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def python(*code: str) -> None:
    subprocess.run([sys.executable, "-I", "-S", "-c", *code], check=True)


class Echo:
    """A process that sends every byte back."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-S", "-c", ECHO]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self.there_and_back()

    def there_and_back(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"x")
        self._process.stdout.read(1)

    def close(self) -> None:
        self._process.communicate()


def pipe() -> None:
    """Print as many lines as the stream does, to a callback in this process."""
    command = [sys.executable, "-I", "-S", "-c", PIPE]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0)
    assert process.stdout is not None
    got = 0
    while part := process.stdout.read(1 << 16):
        got += len(part)
    process.wait()
    assert got == STREAM


def expect(got: object, wanted: object) -> None:
    if got != wanted:
        raise SystemExit(f"guard: the answer was {got!r} instead of {wanted!r}")


def one_life() -> None:
    with Sandbox() as sandbox:
        expect(sandbox.run_code("1+1").text, "2")


def stream(sandbox: Sandbox) -> None:
    got = 0

    def heard(text: str) -> None:
        nonlocal got
        got += len(text)

    expect(sandbox.run_code(OUTPUT, on_stdout=heard).outcome.value, "ok")
    expect(got, STREAM)


class Guard:
    """What is measured, and the places it is measured in."""

    def __init__(self, live: Sandbox, pool: Pool, echo: Echo) -> None:
        self._live, self._pool, self._echo = live, pool, echo
        with open(argparse.__file__, encoding="utf-8") as file:
            self._source = file.read()
        self._policy = Policy.preset("strict")

    def measure(self, rounds: int) -> tuple[Times, Times]:
        ours: Times = defaultdict(list)
        yardsticks: Times = defaultdict(list)
        for number in range(rounds + 1):
            if number == 1:  # the first warms caches
                ours.clear()
                yardsticks.clear()
            for _ in range(2):
                yardsticks["start"].append(timed(lambda: python("pass")))
                ours["start"].append(timed(one_life))
                self._filled()
                ours["pool"].append(timed(self._one_shot))
            for _ in range(TRIPS):
                yardsticks["trip"].append(timed(self._echo.there_and_back))
                ours["trip"].append(timed(self._trip))
            yardsticks["stream"].append(timed(pipe))
            ours["stream"].append(timed(lambda: stream(self._live)))
            yardsticks["policy"].append(timed(lambda: ast.parse(self._source)))
            ours["policy"].append(timed(lambda: self._policy.check(self._source)))
        yardsticks["pool"] = yardsticks["start"]
        return ours, yardsticks

    def _trip(self) -> None:
        expect(self._live.run_code("1+1").text, "2")

    def _filled(self) -> None:
        until = time.monotonic() + 30
        while self._pool.stats().ready < 2:
            if time.monotonic() > until:
                raise SystemExit("guard: the pool does not fill")
            time.sleep(0.002)

    def _one_shot(self) -> None:
        expect(self._pool.run_code("1+1").text, "2")


@contextlib.contextmanager
def slowed(factor: float) -> Iterator[None]:
    """Every start, every run and every check takes `factor` times as long, and really does."""
    if factor == 1:
        yield
        return

    def awaited(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(function)
        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            result = await function(*args, **kwargs)
            await anyio.sleep((time.perf_counter() - began) * (factor - 1))
            return result

        return wrapped

    def called(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            result = function(*args, **kwargs)
            time.sleep((time.perf_counter() - began) * (factor - 1))
            return result

        return wrapped

    kept = [(AsyncSandbox, "start"), (AsyncSandbox, "run_code"), (Policy, "check")]
    originals = [(owner, name, getattr(owner, name)) for owner, name in kept]
    for owner, name, function in originals:
        setattr(owner, name, (called if owner is Policy else awaited)(function))
    try:
        yield
    finally:
        for owner, name, function in originals:
            setattr(owner, name, function)


def show(findings: list[Finding], console: Console) -> None:
    frame = box.ROUNDED if console.is_terminal else box.ASCII
    table = Table("path", "ours / yardstick", box=frame)
    for heading in ("ratio", "limit", "holds"):
        table.add_column(heading, justify="right")
    for one in findings:
        path = one.path
        table.add_row(
            path.name,
            f"{path.ours} / {path.yardstick}",
            f"{one.ratio:.1f}",
            f"{path.limit:g}",
            "yes" if one.holds else "NO",
        )
    console.print(table)


def run(rounds: int, slow_down: float, console: Console) -> list[Finding]:
    """The paths that failed, twice."""
    limits = {"output": "1g", "timeout": 120.0}
    echo = Echo()
    with (
        Sandbox(limits=limits, backend="native") as live,
        Pool(min_ready=2, max_total=8, backend="native") as pool,
        contextlib.ExitStack() as stack,
    ):
        one_life()  # what is made once for a process
        stack.enter_context(slowed(slow_down))
        guard = Guard(live, pool, echo)
        first = judge(*guard.measure(rounds))
        show(first, console)
        if all(one.holds for one in first):
            echo.close()
            return []
        console.print("Not all hold: once more, in case the machine was busy.")
        second = judge(*guard.measure(rounds))
        show(second, console)
    echo.close()
    return failed_twice(first, second)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"that count ({ROUNDS})")
    parser.add_argument("--slow-down", type=float, default=1, metavar="N", help="must then fail")
    given = parser.parse_args()
    os.environ["BELLJAR_BACKEND"] = "native"
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    failed = run(given.rounds, given.slow_down, console)
    names = ", ".join(one.path.name for one in failed)
    if failed:
        raise SystemExit(f"guard: several times slower than it was, in two rounds: {names}")
    print(f"guard: all {len(PATHS)} paths are within their limits")


if __name__ == "__main__":
    main()
