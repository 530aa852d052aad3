"""A pool in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class BucketStats:
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

    Nothing is counted twice, and nothing is missing: of all that were `created`, `total` are there,
    and the others were deleted, swept (idle, lifetime), lost, or ended by the manager's close.
    """

    total: int  # sandboxes that can be used
    waiting: int  # that wait for a place
    starting: int  # that are being made
    ending: int  # that are being ended, and still take their places
    active_operations: int  # of operation() and run_code()
    by_owner: Mapping[str, int]  # places that each owner takes
    created: int
    deleted: int
    swept_idle: int
    swept_lifetime: int
    lost: int
    closed: int  # by the end of the manager
    refused: int  # for want of a place
    failed: int  # creations that came to nothing for another reason
    max_sandboxes: int
    max_per_owner: int | None
    idle_timeout: float | None
    cleanup_interval: float
    lifetime: float | None
    is_shutting_down: bool

    def to_dict(self) -> dict[str, object]:
        """As plain data."""
        return {**vars(self), "by_owner": dict(self.by_owner)}
