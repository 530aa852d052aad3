"""Which sandboxes of a manager are to be swept now: decided from what was seen, without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why a sandbox was swept."""

    idle = "idle"  # nobody used it for longer than idle_timeout
    lifetime = "lifetime"  # it is older than the manager's lifetime
    lost = "lost"  # it died, or was ended by somebody else


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a sandbox looked like at one moment."""

    name: str
    age: float  # seconds since it was there
    idle: float  # seconds since it was used
    busy: bool  # an operation, a cell or a command is under way
    alive: bool = True


def decide(
    seen: Iterable[Seen], *, idle_timeout: float | None, lifetime: float | None
) -> dict[str, Reason]:
    """Which of them are to go, and why. None: no such limit. A busy one always stays.

    >>> one = Seen(name="a", age=90.0, idle=61.0, busy=False)
    >>> decide([one], idle_timeout=60.0, lifetime=None)
    {'a': <Reason.idle: 'idle'>}
    """
    found = {}
    for each in seen:
        if each.busy:
            continue
        if not each.alive:
            found[each.name] = Reason.lost
        elif lifetime is not None and each.age > lifetime:
            found[each.name] = Reason.lifetime
        elif idle_timeout is not None and each.idle > idle_timeout:
            found[each.name] = Reason.idle
    return found


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
