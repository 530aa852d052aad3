"""What was promised of the native backend, held against what was measured in the same run."""

from __future__ import annotations

from dataclasses import dataclass

from figures import Figures, digits, quantity, times

CELL_TIME, CELL_BYTES = 1.15, 128  # the last tenth against the first; kept for each cell
SOAK_GROWTH = 1.05
STORM = "at 8"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    wanted: str
    measured: str
    holds: bool | None  # None: not measured in this run


def judge(figures: Figures) -> list[Verdict]:
    return [
        _part(figures, "new sandbox with pandas", "belljar_native", 50),
        _part(figures, "the same from the pool", "belljar_pool", 300),
        _part(figures, "docker, from the pool", "belljar_docker_pool", 40),
        _most(figures, 'run_code("1+1"), awaited', ("trip", "round trip", "belljar_async"), 0.0005),
        _most(figures, 'run_code("1+1")', ("trip", "round trip", "belljar_native"), 0.0009),
        _faster_than_jupyter(figures),
        *(
            verdict
            for peer in ("belljar_pool", "belljar_native")
            for verdict in _storm(figures, peer)
        ),
        _soak(figures),
        _memory(figures),
        _streaming(figures),
        _cells(figures),
    ]


def _unmeasured(wanted: str, why: str = "not measured in this run") -> Verdict:
    return Verdict(wanted=wanted, measured=why, holds=None)


def _part(figures: Figures, name: str, peer: str, part: int) -> Verdict:
    """A cold start as a part of docker run's."""
    wanted = f"{name}: at most 1/{part} of docker run, same imports"
    ours = figures.value("cold", "first result", peer)
    theirs = figures.value("cold", "first result", "docker_run")
    if ours is None or theirs is None:
        return _unmeasured(wanted)
    measured = f"{times(ours / theirs)} ({quantity(ours, 's')} of {quantity(theirs, 's')})"
    return Verdict(wanted=wanted, measured=measured, holds=ours * part <= theirs)


def _most(figures: Figures, name: str, key: tuple[str, str, str], most: float) -> Verdict:
    wanted = f"{name}: at most {quantity(most, 's')}"
    found = figures.find(*key)
    if found is None:
        return _unmeasured(wanted)
    return Verdict(
        wanted=wanted, measured=f"{found.shown} ({found.spread})", holds=found.median <= most
    )


def _faster_than_jupyter(figures: Figures) -> Verdict:
    wanted = "the same: at least 5 × faster than a Jupyter kernel"
    ours = figures.value("trip", "round trip", "belljar_native")
    theirs = figures.value("trip", "round trip", "jupyter")
    if ours is None or theirs is None:
        return _unmeasured(wanted)
    measured = f"{digits(theirs / ours)} × ({quantity(theirs, 's')})"
    return Verdict(wanted=wanted, measured=measured, holds=theirs >= 5 * ours)


def _storm(figures: Figures, peer: str) -> list[Verdict]:
    how = "from the pool" if peer == "belljar_pool" else "without a pool"
    enough, even = (
        f"one-shots with pandas, 8 at once, {how}: at least 80 per second",
        f"the same, {how}: p99 at most 5 × p50",
    )
    rate = figures.value("throughput", f"{STORM}: rate", peer)
    p50 = figures.value("throughput", f"{STORM}: p50", peer)
    p99 = figures.value("throughput", f"{STORM}: p99", peer)
    if rate is None or p50 is None or p99 is None:
        return [_unmeasured(enough), _unmeasured(even)]
    spread = f"{digits(p99 / p50)} × ({quantity(p99, 's')} and {quantity(p50, 's')})"
    return [
        Verdict(wanted=enough, measured=f"{digits(rate)}/s", holds=rate >= 80),
        Verdict(wanted=even, measured=spread, holds=p99 <= 5 * p50),
    ]


def _soak(figures: Figures) -> Verdict:
    wanted = "memory flat over 20,000 one-shots"
    count = figures.value("soak", "one-shots", "belljar_pool") or 0
    early = figures.value("soak", "memory, second tenth", "belljar_pool")
    late = figures.value("soak", "memory, last tenth", "belljar_pool")
    if early is None or late is None:
        return _unmeasured(wanted, "not measured in this run: --soak 20000")
    measured = f"{quantity(early, 'bytes')} → {quantity(late, 'bytes')} over {count:,.0f}"
    flat = late <= early * SOAK_GROWTH
    return Verdict(wanted=wanted, measured=measured, holds=flat if count >= 20_000 else None)


def _memory(figures: Figures) -> Verdict:
    wanted = "one more idle sandbox: at most 1/8 of a fresh interpreter's memory"
    ours = figures.value("memory", "private", "belljar_native")
    theirs = figures.value("memory", "private", "subprocess_imports")
    if ours is None or theirs is None:
        return _unmeasured(wanted)
    measured = f"{times(ours / theirs)} ({quantity(ours, 'bytes')} of {quantity(theirs, 'bytes')})"
    return Verdict(wanted=wanted, measured=measured, holds=ours * 8 <= theirs)


def _streaming(figures: Figures) -> Verdict:
    wanted = "output to a callback: at least 200 MB/s"
    found = figures.find("streaming", "writes", "belljar_native")
    if found is None:
        return _unmeasured(wanted)
    return Verdict(
        wanted=wanted, measured=f"{found.shown} ({found.spread})", holds=found.median >= 200
    )


def _cells(figures: Figures) -> Verdict:
    wanted = "10,000 cells in one session: no growth"
    count = figures.value("cells", "count", "belljar_native") or 0
    first = figures.value("cells", "first tenth", "belljar_native")
    last = figures.value("cells", "last tenth", "belljar_native")
    if first is None or last is None:
        return _unmeasured(wanted)
    kept = [
        figures.value("cells", f"kept per cell, {side}", "belljar_native") or 0.0
        for side in ("guest", "host")
    ]
    measured = (
        f"time {times(last / first)}, {kept[0]:.0f} and {kept[1]:.0f} bytes a cell inside and "
        f"outside, over {count:,.0f}"
    )
    steady = last <= first * CELL_TIME and max(kept) <= CELL_BYTES
    return Verdict(wanted=wanted, measured=measured, holds=steady if count >= 10_000 else None)
