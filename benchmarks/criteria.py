"""What was promised, held against what was measured in the same run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from figures import Figures, quantity, times

GROWTH = 1.15  # of the last ones against the first; of an old session against a new one
CELL_BYTES = 128  # kept for each cell
SOAK_GROWTH = 1.05
NATIVE, POOL, OTHER = "belljar_native", "belljar_pool", "belljar_other"
SINCE = (3, 12)  # objects can be immortal: one-shots cost less, and more is wanted of them
Key = tuple[str, str, str]  # work, what, peer


@dataclass(frozen=True, kw_only=True)
class Verdict:
    wanted: str
    measured: str
    holds: bool | None  # None: not measured in this run


@dataclass(frozen=True)
class Want:
    """A figure, or its ratio to another one, and its limit: `most` or `least`."""

    wanted: str
    key: Key
    most: float = float("inf")
    least: float = 0.0
    of: Key | None = None

    def judge(self, figures: Figures) -> Verdict:
        ours = figures.find(*self.key)
        theirs = figures.find(*self.of) if self.of else None
        if ours is None or (self.of and (theirs is None or not theirs.median)):
            return Verdict(wanted=self.wanted, measured="not measured in this run", holds=None)
        value, measured = ours.median, f"{ours.shown} ({ours.spread})".removesuffix(" ()")
        if theirs is not None:
            value = ours.median / theirs.median
            measured = f"{times(value)} ({ours.shown} of {theirs.shown})"
        holds = self.least <= value <= self.most
        return Verdict(wanted=self.wanted, measured=measured, holds=holds)


def judge(figures: Figures, versions: Mapping[str, str]) -> list[Verdict]:
    """`versions`: what each peer says of its own, with the Python of its guests."""
    return [
        *(want.judge(figures) for want in (*STARTS, *TRIPS, *storms(versions), *GROWTHS)),
        _cells(figures),
        _soak(figures),
    ]


def first(peer: str) -> Key:
    return ("cold", "first result", peer)


def trip(peer: str) -> Key:
    return ("trip", "round trip", peer)


def command(what: str, peer: str = NATIVE) -> Key:
    return ("command", what, peer)


def storm(what: str, peer: str, at_once: int = 8) -> Key:
    return ("throughput", f"at {at_once}: {what}", peer)


RUN = first("docker_run")
SCRIPT = "script with pandas"
STARTS = (
    Want("new sandbox with pandas: at most 1/50 of docker run", first(NATIVE), 1 / 50, of=RUN),
    Want("the same from the pool: at most 1/220 of docker run", first(POOL), 1 / 220, of=RUN),
    Want("close of a sandbox: at most 4 ms", ("close", "close", NATIVE), 0.004),
    Want("on docker: at most 1.05 × docker run", first("belljar_docker"), 1.05, of=RUN),
    Want(
        "on gVisor: at most 1.05 × docker run with gVisor",
        first("belljar_gvisor"),
        1.05,
        of=first("gvisor_run"),
    ),
    Want(
        "docker, from the pool: at most 1/40 of docker run",
        first("belljar_docker_pool"),
        1 / 40,
        of=RUN,
    ),
    Want("belljar run -c 'print(1)', python: at most 0.45 s", command("print(1), python"), 0.45),
    Want("belljar run -c 'print(1)', data: at most 0.45 s", command("print(1), data"), 0.45),
    Want(
        "belljar run, a script with pandas: at most 1.3 × plain python",
        command(SCRIPT),
        1.3,
        of=command(SCRIPT, "subprocess_imports"),
    ),
)
TRIPS = (
    Want('run_code("1+1"): at most 0.55 ms', trip(NATIVE), 0.00055),
    Want('run_code("1+1"), awaited: at most 0.6 ms', trip("belljar_async"), 0.0006),
    Want('run_code("1+1"): at most 1/10 of a kernel', trip(NATIVE), 1 / 10, of=trip("jupyter")),
    Want("output to a callback: at least 200 MB/s", ("streaming", "writes", NATIVE), least=200),
)
GROWTHS = (
    Want(
        "one more idle sandbox: at most 1/10 of a fresh interpreter's memory",
        ("memory", "private", NATIVE),
        1 / 10,
        of=("memory", "private", "subprocess_imports"),
    ),
    Want(
        f"a start beside all others of a run: at most {GROWTH} × one alone",
        ("many", "last tenth", NATIVE),
        GROWTH,
        of=("many", "alone, afterwards", NATIVE),
    ),
    Want(
        "one-shots, 32 at once: at least 0.9 of the rate at 8",
        storm("rate", NATIVE, 32),
        least=0.9,
        of=storm("rate", NATIVE),
    ),
    Want(
        f"the third burst of 64 on a pool: at most {GROWTH} × the first",
        ("burst", "burst 3: last answer", POOL),
        GROWTH,
        of=("burst", "burst 1: last answer", POOL),
    ),
)


def storms(versions: Mapping[str, str]) -> list[Want]:
    """Of a Python before 3.12 and of one since, whichever of the two peers has it."""
    old, new = NATIVE, OTHER
    if python_in(versions.get(NATIVE, "")) >= SINCE:
        old, new = OTHER, NATIVE
    shots, cost = "one-shots with pandas, 8 at once", "processor time of one, all processes"
    return [
        Want(f"{shots}, Python 3.11: at least 80 per second", storm("rate", old), least=80),
        Want(f"{cost}, Python 3.11: at most 24 ms", storm("processor", old), 0.024),
        Want(f"{shots}, Python ≥ 3.12: at least 95 per second", storm("rate", new), least=95),
        Want(f"{cost}, Python ≥ 3.12: at most 20 ms", storm("processor", new), 0.020),
        Want(f"{shots}, from the pool: at least 80 per second", storm("rate", POOL), least=80),
        Want("one-shots: p99 at most 5 × p50", storm("p99", NATIVE), 5, of=storm("p50", NATIVE)),
        Want("the same, pool: p99 at most 5 × p50", storm("p99", POOL), 5, of=storm("p50", POOL)),
        Want(
            f"{shots}, docker pool: at least the rate of docker run",
            storm("rate", "belljar_docker_pool"),
            least=1,
            of=storm("rate", "docker_run"),
        ),
    ]


def python_in(version: str) -> tuple[int, int]:
    found = re.search(r"Python (\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _soak(figures: Figures) -> Verdict:
    wanted = "memory flat over 20,000 one-shots"
    count = figures.value("soak", "one-shots", POOL) or 0
    early = figures.value("soak", "memory, second tenth", POOL)
    late = figures.value("soak", "memory, last tenth", POOL)
    if early is None or late is None:
        why = "not measured in this run: --soak 20000"
        return Verdict(wanted=wanted, measured=why, holds=None)
    measured = f"{quantity(early, 'bytes')} → {quantity(late, 'bytes')} over {count:,.0f}"
    flat = late <= early * SOAK_GROWTH
    return Verdict(wanted=wanted, measured=measured, holds=flat if count >= 20_000 else None)


def _cells(figures: Figures) -> Verdict:
    wanted = "50,000 cells in one session: as fast as a new one, and nothing kept"
    count = figures.value("cells", "count", NATIVE) or 0
    old = figures.value("cells", "old session", NATIVE)
    new = figures.value("cells", "new session beside it", NATIVE)
    if old is None or new is None:
        return Verdict(wanted=wanted, measured="not measured in this run", holds=None)
    kept = [
        figures.value("cells", f"kept per cell, {side}", NATIVE) or 0.0
        for side in ("init", "worker", "host")
    ]
    measured = (
        f"time {times(old / new)}; bytes a cell in init, worker and host: "
        f"{', '.join(f'{one:.0f}' for one in kept)}; over {count:,.0f}"
    )
    steady = old <= new * GROWTH and max(kept) <= CELL_BYTES
    return Verdict(wanted=wanted, measured=measured, holds=steady if count >= 50_000 else None)
