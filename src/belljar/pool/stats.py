"""A pool in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class ShelfStats:
    """The guests of one kind that nobody has yet."""

    backend: str  # as it was asked for
    environment: str
    differs: Mapping[str, str]  # in what from the pool's own kind: options and limits
    ready: int
    starting: int
    waiting: int  # tenants, for one of these
    failures: int  # of starts, one after the other


@dataclass(frozen=True, kw_only=True)
class PoolStats:
    """A pool in numbers, all of one moment. Times are in seconds."""

    ready: int  # guests that wait for a tenant
    starting: int
    leased: int  # in use
    ending: int  # being ended, and still take their places
    waiting: int  # tenants, for a guest
    leases: Mapping[str, int]  # by what was waited for: ready, on_demand, at_capacity
    waited: Mapping[str, float]  # in all, by the same
    longest_wait: float
    discarded: Mapping[str, int]  # guests ended unused: dead, old, room, surplus, closed
    started: int
    start_failures: int
    refused: int  # tenants who would not wait any longer
    last_error: str | None  # of a start; None again after one that went well
    shelves: tuple[ShelfStats, ...]
    min_ready: int
    max_total: int
    max_age: float | None
    closed: bool

    @property
    def total(self) -> int:
        return self.ready + self.starting + self.leased + self.ending

    def to_dict(self) -> dict[str, object]:
        """As plain data."""
        return {**asdict(self), "total": self.total}
