"""A figure: what was measured of whom, with its spread; and its ratio to a peer of the same run."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

# Which peer a figure is set against: the first of these that was measured.
REFERENCES = {
    "cold": ("docker_run", "subprocess_imports"),
    "command": ("subprocess_imports",),
    "trip": ("jupyter", "subprocess_imports"),
    "frames": ("jupyter", "subprocess_imports"),
    "throughput": ("docker_run", "subprocess_imports"),
    "memory": ("subprocess_imports",),
    "streaming": ("subprocess_imports",),
    "outputs": ("subprocess_imports",),
}


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share lies; between two, the line that joins them.

    >>> percentile([1, 2, 3, 4], 0.5), percentile([7], 0.99)
    (2.5, 7.0)
    """
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low) * 1.0


@dataclass(frozen=True, kw_only=True)
class Figure:
    work: str
    what: str
    peer: str
    unit: str  # s, bytes, per second, MB/s
    median: float
    q1: float
    q3: float
    n: int

    @classmethod
    def of(cls, work: str, what: str, peer: str, unit: str, values: Sequence[float]) -> Self:
        return cls(
            work=work,
            what=what,
            peer=peer,
            unit=unit,
            median=statistics.median(values),
            q1=percentile(values, 0.25),
            q3=percentile(values, 0.75),
            n=len(values),
        )

    @property
    def spread(self) -> str:
        """The quartiles, in the unit of `shown`."""
        if self.n < 2:
            return ""
        return f"{quantity(self.q1, self.unit)} to {quantity(self.q3, self.unit)}"

    @property
    def shown(self) -> str:
        return quantity(self.median, self.unit)


class Figures:
    """All of one run."""

    def __init__(self, figures: Iterable[Figure] = ()) -> None:
        self.all: list[Figure] = list(figures)

    def add(self, work: str, what: str, peer: str, unit: str, values: Sequence[float]) -> None:
        if values:
            self.all.append(Figure.of(work, what, peer, unit, values))

    def find(self, work: str, what: str, peer: str) -> Figure | None:
        for figure in self.all:
            if (figure.work, figure.what, figure.peer) == (work, what, peer):
                return figure
        return None

    def value(self, work: str, what: str, peer: str) -> float | None:
        found = self.find(work, what, peer)
        return None if found is None else found.median

    def reference(self, work: str, what: str) -> Figure | None:
        for peer in REFERENCES.get(work, ()):
            if found := self.find(work, what, peer):
                return found
        return None

    def ratio(self, figure: Figure) -> float | None:
        """This one divided by the peer's; None without a peer's value, or for the peer itself."""
        other = self.reference(figure.work, figure.what)
        if other is None or other is figure or not other.median:
            return None
        return figure.median / other.median

    def as_json(self) -> list[dict[str, Any]]:
        rows = []
        for figure in self.all:
            other = self.reference(figure.work, figure.what)
            against = {"ratio": self.ratio(figure), "to": other.peer if other else None}
            rows.append(asdict(figure) | against)
        return rows


def quantity(value: float, unit: str) -> str:
    """For people: three digits that count.

    >>> quantity(0.00123, "s"), quantity(2.5, "s"), quantity(3_500_000, "bytes")
    ('1.23 ms', '2.50 s', '3.50 MB')
    """
    if unit == "s":
        if value < 0.001:
            return f"{value * 1e6:.0f} µs"
        return f"{digits(value * 1000)} ms" if value < 1 else f"{digits(value)} s"
    if not unit:
        return f"{value:,.0f}"
    if unit == "bytes" and abs(value) < 100_000:
        return f"{value:,.0f} bytes"
    if unit == "bytes":
        return f"{digits(value / 1e6)} MB"
    return f"{digits(value)} {'/s' if unit == 'per second' else unit}".replace(" /s", "/s")


def digits(value: float) -> str:
    """Three of them, and all before the point."""
    size = abs(value)
    return f"{value:.2f}" if size < 10 else f"{value:.1f}" if size < 100 else f"{value:,.0f}"


def times(ratio: float) -> str:
    """A ratio in words: how many times as much, or which part.

    >>> times(2.0), times(0.01)
    ('2.00 ×', '1/100')
    """
    if ratio >= 1:
        return f"{digits(ratio)} ×"
    return f"1/{digits(1 / ratio).removesuffix('.0').removesuffix('.00')}" if ratio else "0"
