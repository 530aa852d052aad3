"""How many times its yardstick each hot path may take, and what is said of a run. Pure.

A limit is several times what is usual, so that a busy machine passes, and code that does something
several times as long does not. Times themselves are never judged: only ratios to a yardstick of
the same run, taken in turns with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Path:
    """A hot path, and what it is set against."""

    name: str
    ours: str
    yardstick: str
    limit: float  # ours / yardstick


PATHS = (
    Path(
        name="start",
        ours="a new sandbox to its first result, and its end",
        yardstick="python -c pass",
        limit=14,
    ),
    Path(
        name="pool",
        ours="a one-shot from a pool",
        yardstick="python -c pass",
        limit=3,
    ),
    Path(
        name="trip",
        ours="run_code('1+1') in a live sandbox",
        yardstick="a byte to another process and back",
        limit=250,
    ),
    Path(
        name="stream",
        ours="output to a callback",
        yardstick="the same bytes through a bare pipe",
        limit=20,
    ),
    Path(
        name="policy",
        ours="the policy over a long file",
        yardstick="ast.parse of it",
        limit=9,
    ),
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    path: Path
    ratio: float

    @property
    def holds(self) -> bool:
        return self.ratio <= self.path.limit


Samples = Mapping[str, Sequence[float]]


def judge(ours: Samples, yardsticks: Samples, paths: Sequence[Path] = PATHS) -> list[Finding]:
    """By the best of each side: what else runs on the machine can only make either slower."""
    findings = []
    for path in paths:
        mine, other = ours.get(path.name), yardsticks.get(path.name)
        if not mine or not other:
            raise ValueError(f"{path.name} was not measured")
        if min(other) <= 0:
            raise ValueError(f"the yardstick of {path.name} took no time")
        findings.append(Finding(path=path, ratio=min(mine) / min(other)))
    return findings


def failed_twice(first: Sequence[Finding], second: Sequence[Finding]) -> list[Finding]:
    """Those of the second that do not hold, and did not in the first."""
    before = {one.path.name for one in first if not one.holds}
    return [one for one in second if not one.holds and one.path.name in before]
