"""What a soak has counted, in memory that does not grow with its length: counters, histograms."""

from __future__ import annotations

import math
import sys
from array import array
from collections import Counter
from dataclasses import dataclass, field

STEP = math.log(1.03)  # each bucket is 3 % wider than the one before
LEAST = 1e-5  # seconds
BUCKETS = 650  # up to half an hour
MOST_SENTENCES = 50
MOST_LENGTH = 500


class Histogram:
    """Durations, in buckets of 3 %, all of which are there from the beginning."""

    def __init__(self) -> None:
        self._buckets = array("Q", bytes(8 * BUCKETS))
        self.count = 0
        self.most = 0.0

    def add(self, seconds: float) -> None:
        bucket = math.ceil(math.log(max(seconds, LEAST) / LEAST) / STEP)
        self._buckets[min(bucket, BUCKETS - 1)] += 1
        self.count += 1
        self.most = max(self.most, seconds)

    def quantile(self, share: float) -> float | None:
        """The upper edge of the bucket in which it lies; None: nothing was added.

        >>> histogram = Histogram()
        >>> histogram.quantile(0.5)
        >>> for n in range(1, 101):
        ...     histogram.add(n / 1000)
        >>> 0.049 < histogram.quantile(0.5) < 0.053 and 0.098 < histogram.quantile(0.99) < 0.103
        True
        """
        wanted = max(1, math.ceil(share * self.count))
        seen = 0
        for bucket, count in enumerate(self._buckets):
            seen += count
            if count and seen >= wanted:
                return min(LEAST * math.exp(bucket * STEP), self.most)
        return None

    def as_json(self) -> dict[str, float | int | None]:
        return {
            "count": self.count,
            "p50": self.quantile(0.5),
            "p99": self.quantile(0.99),
            "most": self.most,
        }


@dataclass
class Row:
    """One kind of execution."""

    hostile: bool
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    latency: Histogram = field(default_factory=Histogram)
    first: Histogram = field(default_factory=Histogram)  # of the first fifth of the run
    last: Histogram = field(default_factory=Histogram)


class Tally:
    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.wrong: list[str] = []  # the first ones, in words
        self.leaks: list[str] = []
        self.leak_count = 0
        self.quiet_points = 0

    @property
    def executions(self) -> int:
        return sum(sum(row.outcomes.values()) for row in self.rows.values())

    @property
    def wrongs(self) -> int:
        return sum(row.wrong for row in self.rows.values())

    def row(self, kind: str, hostile: bool) -> Row:
        return self.rows.setdefault(kind, Row(hostile))

    def note_wrong(self, kind: str, hostile: bool, what: str) -> None:
        self.row(kind, hostile).wrong += 1
        if len(self.wrong) < MOST_SENTENCES:
            self.wrong.append(f"{kind}: {what}"[:MOST_LENGTH])
            print(f"wrong: {self.wrong[-1]}", file=sys.stderr, flush=True)

    def note_leaks(self, where: str, found: list[str]) -> None:
        self.leak_count += len(found)
        room = MOST_SENTENCES - len(self.leaks)
        self.leaks += [f"{where}: {each}"[:MOST_LENGTH] for each in found[:room]]

    def time(self, kind: str, hostile: bool, seconds: float, fifth: int | None) -> None:
        """`fifth`: of the run, from 0; None while it warms up."""
        row = self.row(kind, hostile)
        row.latency.add(seconds)
        if fifth == 0:
            row.first.add(seconds)
        elif fifth == 4:
            row.last.add(seconds)
