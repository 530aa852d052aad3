"""The course of a soak, in a process of its own: cycles of load, a quiet point, a neighbour."""

from __future__ import annotations

import gc
import itertools
import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import soak_census
from soak_hostile import HOSTILE
from soak_kinds import FALSIFIED, GOOD, LIMITS, Kind, Setting, Wrong
from soak_neighbour import ALL, PHASES, Neighbourhood
from soak_tally import Tally

from belljar import AsyncPool, AsyncSandbox
from belljar.errors import SandboxError

CYCLE = 15.0  # seconds of one at least, if there is time for more than two
MOST_CYCLES = 30
LOAD = 0.6  # the share of a cycle
BOUND = 300.0  # seconds after which an execution hangs
PROGRESS = 10.0
PASSING = 100_000  # strings, by which the interpreter's table of them has the size that it keeps


@dataclass
class Course:
    minutes: float
    at_once: int
    seed: int
    options: dict[str, Any]  # of every sandbox: backend and environment
    falsify: bool = False
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self) -> None:
        self._seconds = self.minutes * 60
        self._cycles = max(2, min(MOST_CYCLES, round(self._seconds / CYCLE)))
        self._kinds = [*GOOD, *HOSTILE] + [FALSIFIED] * self.falsify
        self._weights = [kind.weight for kind in self._kinds]
        numbers = itertools.count(1)
        base = random.Random(self.seed).getrandbits(30) << 32
        self._nonce: Callable[[], int] = lambda: base + next(numbers)
        self._neighbours = Neighbourhood(self.options, self.tally, self._nonce)
        self._drift: list[dict[str, float]] = []
        self._parent = os.getppid()
        self._stopped = False
        self._scope: anyio.CancelScope | None = None
        self._doing = "begins"
        self._began = 0.0

    async def run(self) -> dict[str, Any]:
        async with AsyncSandbox(limits=LIMITS, **self.options) as sandbox:
            await sandbox.run_code("1")  # what cannot be had here at all is raised
        async with anyio.create_task_group() as group:
            group.start_soon(self._listen)
            await self._first_use()
            self._before = soak_census.take()
            self._began = time.monotonic()
            group.start_soon(self._progress)
            with anyio.CancelScope() as self._scope:
                for cycle in range(self._cycles):
                    if not self._stopping():
                        await self._cycle(cycle)
            group.cancel_scope.cancel()
        return self._found(time.monotonic() - self._began)

    async def _first_use(self) -> None:
        """What a process has once: the zygote, threads, the first import of everything."""
        async with AsyncPool(min_ready=1, limits=LIMITS, **self.options) as pool:
            setting = Setting(pool, self.options)
            for kind in GOOD:
                await self._one(kind, setting, random.Random(0), cycle=None)
        for number in range(PASSING):
            sys.intern(f"passing {number}")
        await anyio.to_thread.run_sync(gc.collect)

    async def _cycle(self, cycle: int) -> None:
        length = self._seconds / self._cycles
        start = self._began + cycle * length
        self._doing = f"load {cycle + 1} of {self._cycles}"
        await self._load(cycle, until=start + LOAD * length)
        self._doing = f"quiet point {cycle + 1} of {self._cycles}"
        await self._rest()
        if self._stopping():
            return
        self._doing = f"neighbour {cycle + 1} of {self._cycles}"
        number = max(2, math.ceil(len(PHASES) / self._cycles))
        turns = itertools.islice(itertools.cycle(PHASES), cycle * number, (cycle + 1) * number)
        try:
            await self._neighbours.visit(list(turns), start + length, self._stopping)
        except Exception as error:
            self.tally.note_wrong("neighbour", False, _words(error))

    async def _load(self, cycle: int, until: float) -> None:
        ready, most = min(8, self.at_once), 2 * self.at_once
        pool = AsyncPool(min_ready=ready, max_total=most, limits=LIMITS, **self.options)
        try:
            async with pool:
                setting = Setting(pool, self.options)
                async with anyio.create_task_group() as group:
                    for number in range(self.at_once):
                        group.start_soon(self._work, setting, cycle, number, until)
        except SandboxError as error:  # its end, or its beginning; a task never raises
            self.tally.note_wrong("pool", False, _words(error))

    async def _work(self, setting: Setting, cycle: int, number: int, until: float) -> None:
        rng = random.Random(f"{self.seed}/{cycle}/{number}")
        while time.monotonic() < until and not self._stopping():
            kind = rng.choices(self._kinds, self._weights)[0]
            await self._one(kind, setting, rng, cycle)

    async def _one(
        self, kind: Kind, setting: Setting, rng: random.Random, cycle: int | None
    ) -> None:
        began = time.monotonic()
        row = self.tally.row(kind.name, kind.hostile)
        try:
            with anyio.fail_after(BOUND):
                outcome = await kind.act(setting, self._nonce(), random.Random(rng.random()))
        except Exception as error:
            outcome = "wrong" if isinstance(error, Wrong) else "raised"
            self.tally.note_wrong(kind.name, kind.hostile, _words(error))
        row.outcomes[outcome] += 1
        self.tally.time(kind.name, kind.hostile, time.monotonic() - began, self._fifth(cycle))

    def _fifth(self, cycle: int | None) -> int | None:
        """The first cycle warms up."""
        return None if not cycle else (cycle - 1) * 5 // (self._cycles - 1)

    async def _rest(self) -> None:
        """The pool is closed: everything must be as it was."""
        gc.collect()
        found = await anyio.to_thread.run_sync(soak_census.settle, self._before)
        if found:
            self._before = soak_census.take()  # each leak is counted once
        self.tally.quiet_points += 1
        self.tally.note_leaks(f"quiet point {self.tally.quiet_points}", found)
        resident = soak_census.memory()
        soak_census.give_back()  # it comes and goes by megabytes, and would hide what grows
        self._drift.append(
            {
                "at": time.monotonic() - self._began,
                "resident": resident,
                "memory": soak_census.memory(),
                "zygotes": sum(soak_census.memory(p.pid) for p in soak_census.descendants()),
                "descriptors": soak_census.descriptors(),
                "executions": self.tally.executions,
            }
        )

    # -- the outside ----------------------------------------------------------------------------

    async def _listen(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                if (
                    self._stopped and self._scope is not None
                ):  # told twice: without waiting for what runs
                    self._scope.cancel()
                self._stopped = True
                self._doing = "ends early"

    def _stopping(self) -> bool:
        return self._stopped or os.getppid() != self._parent

    async def _progress(self) -> None:
        while True:
            tally, memory = self.tally, soak_census.memory() / 1e6
            print(
                f"{time.monotonic() - self._began:.0f} of {self._seconds:.0f} s: {self._doing}; "
                f"{tally.executions:,} executions, {tally.wrongs} wrong, {tally.leak_count} leaks, "
                f"{memory:.0f} MB, {soak_census.descriptors()} descriptors",
                file=sys.stderr,
                flush=True,
            )
            await anyio.sleep(PROGRESS)

    def _found(self, seconds: float) -> dict[str, Any]:
        tally = self.tally
        return {
            "minutes": self.minutes,
            "seconds": seconds,
            "cut_short": self._stopped,
            "at_once": self.at_once,
            "seed": self.seed,
            "backend": self.options["backend"],
            "executions": tally.executions,
            "wrong_count": tally.wrongs,
            "wrong": tally.wrong,
            "leak_count": tally.leak_count,
            "leaks": tally.leaks,
            "quiet_points": tally.quiet_points,
            "kinds": {
                name: {
                    "hostile": row.hostile,
                    "outcomes": dict(row.outcomes),
                    "wrong": row.wrong,
                    "latency": row.latency.as_json(),
                    "first": row.first.as_json(),
                    "last": row.last.as_json(),
                }
                for name, row in tally.rows.items()
            },
            "neighbour": {name: felt.as_json() for name, felt in self._neighbours.felt.items()},
            "neighbour_judged": [name for name in PHASES if name != ALL],
            "drift": self._drift,
        }


def _words(error: BaseException) -> str:
    """What was raised, out of the groups it may be in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if type(error) is TimeoutError:  # those of Belljar are subclasses
        return f"no end within {BOUND:.0f} s"
    return str(error) if isinstance(error, Wrong) else f"raised {type(error).__name__}: {error}"
