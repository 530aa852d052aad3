"""PoolStats and ManagerStats: a pool and a manager in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class BucketStats:
    """The unused guests of one kind."""

    backend: str  # as it was requested
    environment: str
    differs: Mapping[str, str]  # from the pool's own kind: options and limits
    ready: int
    starting: int
    waiting: int  # requests for this kind
    failures: int  # of starts, in a row


@dataclass(frozen=True, kw_only=True)
class PoolStats:
    """A pool in numbers, all of one moment. Times are in seconds."""

    ready: int  # unused guests
    starting: int
    leased: int  # in use
    ending: int  # being ended; they still count
    waiting: int  # requests for a guest
    leases: Mapping[str, int]  # by what the caller waited for: ready, on_demand, at_capacity
    waited: Mapping[str, float]  # in total, by the same
    longest_wait: float
    discarded: Mapping[str, int]  # unused guests that were ended: dead, old, room, surplus, closed
    started: int
    start_failures: int
    refused: int  # requests that waited for too long
    last_error: str | None  # of a start; None after one that succeeded
    shelves: tuple[BucketStats, ...]
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


@dataclass(frozen=True, kw_only=True)
class ManagerStats:
    """A manager in numbers, all of one moment.

    Each sandbox is counted once: of those that were `created`, `total` are there, and the others
    were deleted, swept (idle, lifetime), lost, or closed with the manager.
    """

    total: int  # sandboxes that can be used
    waiting: int  # creations that wait, because there are max_sandboxes
    starting: int  # being made
    ending: int  # being closed; they still count
    active_operations: int  # of operation() and run_code()
    by_owner: Mapping[str, int]  # sandboxes of each owner
    created: int
    deleted: int
    swept_idle: int
    swept_lifetime: int
    lost: int
    closed: int  # with the manager
    refused: int  # creations, because there were max_sandboxes
    failed: int  # creations that failed for another reason
    max_sandboxes: int
    max_per_owner: int | None
    idle_timeout: float | None
    cleanup_interval: float
    lifetime: float | None
    is_shutting_down: bool

    def to_dict(self) -> dict[str, object]:
        """As plain data."""
        return {**vars(self), "by_owner": dict(self.by_owner)}
