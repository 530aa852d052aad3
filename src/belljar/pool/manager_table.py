"""The named sandboxes of a manager, from the request to the end; and which of them to sweep.

A request takes the name; the sandbox counts when it is admitted. At the maximum, requests wait in a
queue and are admitted in their order. Nothing here awaits, so every decision is made on one
consistent state.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from time import monotonic as now
from types import MappingProxyType

import anyio

from belljar.errors import ManagerFull, NameTaken, QuotaExceeded, SandboxError, SandboxMissing
from belljar.pool.settings import ManagerSettings, check_name
from belljar.pool.stats import ManagerStats
from belljar.sandbox.sandbox import AsyncSandbox


class Reason(StrEnum):
    """Why a sandbox was swept."""

    idle = "idle"  # it was not used for longer than idle_timeout
    lifetime = "lifetime"  # it is older than the manager's lifetime
    lost = "lost"  # it died, or was closed behind the manager's back


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The state of a sandbox at one moment."""

    name: str
    age: float  # seconds since it was made
    idle: float  # seconds since it was used
    busy: bool  # an operation, a cell or a command is under way
    alive: bool = True


def decide(
    seen: Iterable[Seen], *, idle_timeout: float | None, lifetime: float | None
) -> dict[str, Reason]:
    """Which of them to close, and why. None: no limit. A busy one stays.

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


LIMITS = ("max_sandboxes", "max_per_owner", "idle_timeout", "cleanup_interval", "lifetime")
COUNTED = (
    *("created", "deleted", "swept_idle", "swept_lifetime"),
    *("lost", "closed", "refused", "failed"),
)


class Entry:
    def __init__(self, name: str, owner: str | None) -> None:
        self.name = name
        self.owner = owner
        self.sandbox: AsyncSandbox | None = None  # None: it is being made
        self.operations = 0
        self._lived = False
        self.born = self.used = now()
        self.admitted = anyio.Event()  # it counts, and may be made
        self.settled = anyio.Event()  # it is there, or never will be
        self.gone = anyio.Event()  # it has ended
        self.error: Exception | None = None  # why it could not be made, or closed
        self.cancelled: str | None = None  # why its creation was cancelled
        self.scope: anyio.CancelScope | None = None  # of its creation

    def set_sandbox(self, sandbox: AsyncSandbox) -> None:
        self.sandbox = sandbox
        self.born = self.used = now()
        self._lived = bool(getattr(sandbox, "alive", True))
        self.settled.set()

    def touch(self) -> None:
        self.used = now()

    def cancel(self, why: str) -> None:
        """Cancel its creation."""
        self.cancelled = why
        if self.scope is not None:
            self.scope.cancel()

    @property
    def busy(self) -> bool:
        """An operation is under way, or something runs in the sandbox or waits for its turn."""
        engaged = getattr(self.sandbox, "engaged", getattr(self.sandbox, "busy", 0) > 0)
        return self.operations > 0 or engaged

    @property
    def alive(self) -> bool:
        """A sandbox that was never alive does not count as dead: a factory may return one that
        starts later, or that has no such attribute."""
        alive = bool(getattr(self.sandbox, "alive", True))
        self._lived = self._lived or alive
        return alive or not self._lived

    @property
    def lost(self) -> bool:
        return self.sandbox is not None and not self.busy and not self.alive

    def observe(self) -> Seen:
        moment = now()
        used = max(self.used, getattr(self.sandbox, "last_used", self.used))
        return Seen(
            name=self.name,
            age=moment - self.born - getattr(self.sandbox, "_seconds_paused", 0.0),
            idle=moment - used,
            busy=self.busy,
            alive=self.alive,
        )


class Table:
    def __init__(self, settings: ManagerSettings) -> None:
        self.settings = settings
        self.named: dict[str, Entry] = {}
        self.queue: list[Entry] = []
        self.ending: set[Entry] = set()
        self.counts: Counter[str] = Counter()

    @property
    def there(self) -> list[Entry]:
        return [entry for entry in self.named.values() if entry.sandbox is not None]

    @property
    def taken(self) -> int:
        return len(self.named) - len(self.queue) + len(self.ending)

    def by_owner(self) -> Counter[str]:
        placed = [entry for entry in self.named.values() if entry.admitted.is_set()]
        return Counter(entry.owner for entry in (*placed, *self.ending) if entry.owner is not None)

    def refusal(self, owner: str | None) -> ManagerFull | None:
        """Why no sandbox of this owner can be admitted now; None: it can."""
        most = self.settings.max_per_owner
        if most is not None and owner is not None and self.by_owner()[owner] >= most:
            return QuotaExceeded(
                f"maximum number of sandboxes ({most}) of {owner!r} reached",
                hint="delete one, wait with wait=, or raise max_per_owner",
            )
        if self.taken >= self.settings.max_sandboxes:
            return ManagerFull(
                f"maximum number of sandboxes ({self.settings.max_sandboxes}) reached",
                hint="delete one, wait with wait=, or raise max_sandboxes",
            )
        return None

    def reserve(self, name: str | None, owner: str | None, *, may_wait: bool) -> Entry:
        """Take the name (None: a new one), and admit the entry or queue it. Raises the refusal."""
        name = f"sandbox-{uuid.uuid4().hex[:16]}" if name is None else check_name("name", name)
        if owner is not None:
            check_name("owner", owner)
        if name in self.named:
            raise NameTaken(
                f"there is a sandbox {name!r} already", hint="get_or_create() returns it"
            )
        entry = Entry(name, owner)
        refusal = self.refusal(owner)
        if refusal is None:
            entry.admitted.set()
        elif may_wait:
            self.queue.append(entry)
        else:
            self.counts["refused"] += 1
            raise refusal
        self.named[name] = entry
        return entry

    def remove_failed(self, entry: Entry, error: Exception | None) -> None:
        """Its creation failed."""
        self.counts["failed"] += entry.admitted.is_set()
        entry.error = error
        del self.named[entry.name]
        if entry in self.queue:
            self.queue.remove(entry)
        entry.settled.set()
        self.admit_waiting()

    def begin_close(self, entry: Entry, count: str) -> None:
        """The name is free from now on; the sandbox counts until it has ended. `count` is the
        statistic that it adds to."""
        self.counts[count] += 1
        del self.named[entry.name]
        self.ending.add(entry)

    def remove_closed(self, entry: Entry, error: SandboxError | None) -> None:
        entry.error = error
        self.ending.discard(entry)
        entry.gone.set()
        self.admit_waiting()

    def admit_waiting(self) -> None:
        """Admit queued entries, in their order."""
        for entry in list(self.queue):
            if self.refusal(entry.owner) is None:
                self.queue.remove(entry)
                entry.admitted.set()

    def stats(self, *, is_shutting_down: bool) -> ManagerStats:
        there = len(self.there)
        return ManagerStats(
            total=there,
            waiting=len(self.queue),
            starting=len(self.named) - there - len(self.queue),
            ending=len(self.ending),
            active_operations=sum(
                entry.operations for entry in (*self.named.values(), *self.ending)
            ),
            by_owner=MappingProxyType(dict(self.by_owner())),
            **{name: getattr(self.settings, name) for name in LIMITS},
            is_shutting_down=is_shutting_down,
            **{name: self.counts[name] for name in COUNTED},
        )


def missing_error(name: str, entry: Entry | None = None) -> SandboxMissing:
    if entry is not None and entry.error is not None:
        return SandboxMissing(f"there is no sandbox {name!r}: {entry.error}")
    return SandboxMissing(
        f"there is no sandbox {name!r}",
        hint="it was never made, or was deleted, swept or lost; get_or_create() makes it",
    )
