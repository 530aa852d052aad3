"""What a soak must show, held against what it has: pure functions over its record."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

WARM = 0.2  # the share of the quiet points that is not looked at
POINTS = 6  # quiet points without which no slope is drawn,
SPAN = 480.0  # and seconds between the first and the last of them
GROWTH = 0.02  # of memory, over what was looked at: within the noise of an allocator
LATER = 1.2  # times the first fifth that the last fifth may take
FEW = 30  # executions of a kind in a fifth, below which it is not compared
BESIDE = 3.0  # times its quiet p99 that a neighbour's may be
CALLS = 500  # of a neighbour, below which no p99 is drawn


@dataclass(frozen=True, kw_only=True)
class Verdict:
    wanted: str
    measured: str
    holds: bool | None  # None: too little was measured to say

    @property
    def word(self) -> str:
        if self.holds is None:
            return "too short to say"
        return "holds" if self.holds else "**does not hold**"


def judge(found: dict[str, Any]) -> list[Verdict]:
    return [
        Verdict(
            wanted="wrong outcomes: 0",
            measured=f"{found['wrong_count']:,} of {found['executions']:,} executions",
            holds=found["wrong_count"] == 0,
        ),
        Verdict(
            wanted="leaks: 0",
            measured=f"{found['leak_count']:,} at {found['quiet_points']} quiet points and the end",
            holds=found["leak_count"] == 0,
        ),
        _memory(found["drift"], "memory", "the host process, without what its allocator keeps,"),
        _memory(found["drift"], "zygotes", "what it keeps running"),
        _descriptors(found["drift"]),
        _latency(found["kinds"]),
        *(_neighbour(found["neighbour"], name) for name in found["neighbour_judged"]),
    ]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes between any two points: single ones that lie apart do not count.

    >>> slope([(0, 1), (1, 3), (2, 5), (3, 100)])
    2.0
    """
    found = [
        (y2 - y1) / (x2 - x1)
        for n, (x1, y1) in enumerate(points)
        for x2, y2 in points[n + 1 :]
        if x2 > x1
    ]
    return _middle(found)


def _middle(values: Sequence[float]) -> float:
    return float(statistics.median_low(values)) if values else 0.0


def _growth(drift: list[dict[str, float]], what: str) -> tuple[float, float, float, float] | None:
    """Growth over what was looked at, per hour, the level, and the spread around the line."""
    points = [(each["at"], each[what]) for each in drift[math.ceil(len(drift) * WARM) :]]
    span = points[-1][0] - points[0][0] if points else 0.0
    if len(points) < POINTS or span < SPAN:
        return None
    each = slope(points)
    level = _middle([y for _, y in points])
    rest = [y - each * x for x, y in points]
    middle = _middle(rest)
    spread = 1.4826 * _middle([abs(y - middle) for y in rest])
    return each * span, each * 3600, level, spread


def _memory(drift: list[dict[str, float]], what: str, whose: str) -> Verdict:
    wanted = f"memory of {whose} does not grow: at most {GROWTH:.0%} or twice the spread"
    found = _growth(drift, what)
    if found is None:
        return Verdict(wanted=wanted, measured=f"{len(drift)} quiet points", holds=None)
    growth, hourly, level, spread = found
    return Verdict(
        wanted=wanted,
        measured=f"{growth / 1e6:+.2f} MB of {level / 1e6:.1f} MB ({hourly / 1e6:+.2f} MB an hour, "
        f"spread {spread / 1e6:.2f} MB)",
        holds=growth <= max(GROWTH * level, 2 * spread),
    )


def _descriptors(drift: list[dict[str, float]]) -> Verdict:
    wanted = "descriptors of the host process do not grow: by less than one"
    found = _growth(drift, "descriptors")
    if found is None:
        return Verdict(wanted=wanted, measured=f"{len(drift)} quiet points", holds=None)
    return Verdict(
        wanted=wanted,
        measured=f"{found[0]:+.1f} of {found[2]:.0f}",
        holds=found[0] < 1,
    )


def _latency(kinds: dict[str, dict[str, Any]]) -> Verdict:
    wanted = f"the last fifth takes at most {LATER} × the first (p50, mean over the kinds)"
    ratios = {name: later for name, row in kinds.items() if (later := drift_of(row)) is not None}
    if not ratios:
        return Verdict(wanted=wanted, measured="too few executions", holds=None)
    mean = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios.values()))
    worst = max(ratios, key=lambda name: ratios[name])
    return Verdict(
        wanted=wanted,
        measured=f"{mean:.2f} × over {len(ratios)} kinds; most: {worst}, {ratios[worst]:.2f} ×",
        holds=mean <= LATER,
    )


def drift_of(row: dict[str, Any]) -> float | None:
    """p50 of the last fifth as a multiple of the first's."""
    first, last = row["first"], row["last"]
    if min(first["count"], last["count"]) < FEW:
        return None
    return float(last["p50"] / first["p50"])


def _neighbour(felt: dict[str, Any], name: str) -> Verdict:
    wanted = f"a neighbour beside one {name}: p99 at most {BESIDE:.0f} × its quiet p99"
    quiet, loud = felt["quiet"]["caller"], felt[name]["caller"]
    if not quiet["count"] or not loud["count"]:
        return Verdict(wanted=wanted, measured="not measured", holds=None)
    ratio = loud["p99"] / quiet["p99"]
    enough = min(quiet["count"], loud["count"]) >= CALLS
    return Verdict(
        wanted=wanted,
        measured=f"{ratio:.2f} × ({loud['count']:,} calls)",
        holds=ratio <= BESIDE if enough else None,
    )
