"""What a pool does next: decided from its state, without I/O.

`decide` reads the `State` and returns actions. `guests.py` carries them out, writes the result into
the State, and calls `decide` again when something has changed.

Requests are served in the order of their tags (start-time fair queueing): the next request of an
owner gets the tag after that owner's last one, but never a tag before the one that is being served.
So owners take turns, however many requests each has; the requests of one owner are served in their
order; and every request is served at last, because later requests get later tags.
"""

from __future__ import annotations

import bisect
import itertools
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

LINGER = 10.0  # seconds after the last request, until guests beyond the target are ended
QUIET = 0.2  # seconds without a lease, after which a half full bucket is filled up
KEEP = 60.0  # seconds after the last request for its kind, for which a bucket is kept filled


class Reason(StrEnum):
    """What a request had to wait for."""

    ready = "ready"  # nothing: a warm guest was there
    on_demand = "on_demand"  # for a start: no guest was ready
    at_capacity = "at_capacity"  # for a place: there were max_total guests


class Why(StrEnum):
    """Why an unused guest was ended."""

    dead = "dead"  # it died, or did not answer
    old = "old"  # older than max_age
    room = "room"  # a request for another kind waited, and there were max_total guests
    surplus = "surplus"  # no request came for its kind any more
    closed = "closed"  # the pool was closed


@dataclass(frozen=True, kw_only=True)
class Rules:
    min_ready: int  # idle guests to keep of a kind
    max_total: int  # guests of all kinds: ready, being started, in use, being ended
    max_age: float | None  # seconds after which an idle guest is replaced
    # At once, and above this one of each kind that has no start under way:
    starts: int  # for requests that wait
    refills: int  # to fill buckets; while guests are in use, one


@dataclass(eq=False, kw_only=True)
class ReadyGuest:
    """An unused guest in a bucket."""

    key: Hashable
    born: float
    checked: float = 0.0  # when it answered, last
    alive: bool = True
    guest: Any = None  # the IdleGuest itself; deciding does not touch it


@dataclass(eq=False, kw_only=True)
class Request:
    """A caller waits for a guest of a kind."""

    key: Hashable
    owner: Hashable
    tag: int = 0
    number: int = 0
    reason: Reason | None = None  # what it waits for, as far as that is known


@dataclass(eq=False, kw_only=True)
class Bucket:
    """The unused guests of one kind."""

    key: Hashable
    options: Any = None  # of its guests; deciding does not touch them
    permanent: bool = False  # the kind of the pool itself: kept filled without requests
    ready: deque[ReadyGuest] = field(default_factory=deque)  # the oldest first
    starting: int = 0
    checking: int = 0  # ready, and being asked whether they still answer
    requests: int = 0
    requested: float = 0.0  # when the last request came
    failures: int = 0  # of starts, in a row
    retry: float = 0.0  # not to be refilled before

    def target(self, rules: Rules, now: float) -> int:
        """How many to keep. A kind that was requested only once may never be again: none."""
        wanted = self.permanent or (self.requests > 1 and now - self.requested <= KEEP)
        return rules.min_ready if wanted else 0


class State:
    def __init__(self) -> None:
        self.buckets: dict[Hashable, Bucket] = {}
        self.waiting: list[Request] = []  # in the order in which they are served
        self.leased = 0
        self.ending = 0
        self.given = float("-inf")  # when a guest was leased, last
        self.closing = False
        self._numbers = itertools.count(1)
        self._served = 0  # the tag that was served last
        self._last: dict[Hashable, int] = {}  # of each owner that waits: its last tag

    @property
    def ready(self) -> int:
        return sum(len(bucket.ready) for bucket in list(self.buckets.values()))

    @property
    def starting(self) -> int:
        return sum(bucket.starting for bucket in list(self.buckets.values()))

    @property
    def checking(self) -> int:
        return sum(bucket.checking for bucket in list(self.buckets.values()))

    @property
    def total(self) -> int:
        return self.ready + self.starting + self.checking + self.leased + self.ending

    def add_request(self, request: Request, now: float) -> None:
        """Queue a request. The bucket of its kind must be there."""
        bucket = self.buckets[request.key]
        bucket.requests += 1
        bucket.requested = now
        if len(self._last) > 2 * len(self.waiting) + 16:  # owners come and go
            self._last = {who: tag for who, tag in self._last.items() if tag > self._served}
        request.tag = max(self._served, self._last.get(request.owner, 0)) + 1
        request.number = next(self._numbers)
        self._last[request.owner] = request.tag
        bisect.insort(self.waiting, request, key=_order)

    def withdraw(self, request: Request) -> None:
        """Take an unserved request out of the queue: later ones of the same owner move up. Does
        nothing if the request is not in the queue."""
        if not self._remove(request):
            return
        tag = request.tag
        self._last[request.owner] = tag - 1
        behind = [each for each in self.waiting if each.owner == request.owner and each.tag >= tag]
        for each in behind:
            del self.waiting[self._place_of(each)]
            each.tag, tag = tag, each.tag
            bisect.insort(self.waiting, each, key=_order)
            self._last[each.owner] = each.tag

    def serve(self, request: Request, now: float) -> None:
        self.given = now
        self._served = max(self._served, request.tag)
        self._remove(request)

    def _remove(self, request: Request) -> bool:
        at = self._place_of(request)
        found = at < len(self.waiting) and self.waiting[at] is request
        if found:
            del self.waiting[at]
        return found

    def _place_of(self, request: Request) -> int:
        return bisect.bisect_left(self.waiting, _order(request), key=_order)

    def count_requests(self, key: Hashable) -> int:
        return sum(request.key == key for request in self.waiting)

    def first_request(self, key: Hashable) -> Request | None:
        """The first request for this kind."""
        return next((request for request in self.waiting if request.key == key), None)


def _order(request: Request) -> tuple[int, int]:
    return request.tag, request.number


@dataclass(frozen=True)
class Give:
    request: Request
    guest: ReadyGuest


@dataclass(frozen=True)
class Start:
    key: Hashable


@dataclass(frozen=True)
class End:
    guest: ReadyGuest
    why: Why


@dataclass(frozen=True)
class Wait:
    """Note what a request waits for, when that becomes known, or becomes worse."""

    request: Request
    reason: Reason


@dataclass(frozen=True)
class Refuse:
    request: Request


@dataclass(frozen=True)
class RemoveBucket:
    """Remove a bucket that is not needed."""

    key: Hashable


Action = Give | Start | End | Wait | Refuse | RemoveBucket


def decide(state: State, rules: Rules, now: float) -> list[Action]:
    """The actions to take now. Reads the state and does not change it."""
    if state.closing:
        ends = [End(idle, Why.closed) for bucket in state.buckets.values() for idle in bucket.ready]
        return [*ends, *map(Refuse, state.waiting)]
    return list(_Decision(state, rules, now).actions())


class _Decision:
    """One look at the state. What one action uses is not available to the next."""

    def __init__(self, state: State, rules: Rules, now: float) -> None:
        self.state = state
        self.rules = rules
        self.now = now
        self.unfit: list[End] = []
        self.usable: dict[Hashable, deque[ReadyGuest]] = {}
        for bucket in state.buckets.values():
            self.usable[bucket.key] = deque(self._fit(bucket))
        self.spare = sum(map(len, self.usable.values()))
        self.under_way = {s.key: s.starting + s.checking for s in state.buckets.values()}
        self.starting = state.starting
        self.starts_of = {s.key: s.starting for s in state.buckets.values()}
        self.free = rules.max_total - state.total
        self.lively = now - state.given < QUIET
        self.coming = state.ending + len(self.unfit)  # places that will become free

    def _fit(self, bucket: Bucket) -> Iterator[ReadyGuest]:
        oldest = self.rules.max_age
        for idle in bucket.ready:
            if not idle.alive:
                self.unfit.append(End(idle, Why.dead))
            elif oldest is not None and self.now - idle.born >= oldest:
                self.unfit.append(End(idle, Why.old))
            else:
                yield idle

    def actions(self) -> Iterator[Action]:
        yield from self.unfit
        left = deque[Request]()
        for at, request in enumerate(self.state.waiting):
            if not self.spare:
                left.extend(itertools.islice(self.state.waiting, at, at + self.rules.max_total))
                break
            if idle := self._take(request.key):
                self.lively = True
                yield Give(request, idle)
            else:
                left.append(request)
        for request in left:
            yield from self._serve_later(request)
        yield from self._shrink()
        yield from self._refill()

    def _take(self, key: Hashable) -> ReadyGuest | None:
        if not self.usable[key]:
            return None
        self.spare -= 1
        return self.usable[key].popleft()

    def _serve_later(self, request: Request) -> Iterator[Action]:
        """Count on a start under way, or start a guest, or wait until a place is free."""
        reason = Reason.on_demand
        if self.under_way[request.key]:
            self.under_way[request.key] -= 1
        elif self.free > 0:
            self.free -= 1  # taken, even if the start has to wait for others
            if self._may_start(request.key, self.rules.starts):
                yield self._start(request.key)
        else:
            reason = Reason.at_capacity
            if self.coming > 0:
                self.coming -= 1
            elif idle := self._least_wanted():
                yield End(idle, Why.room)
        if request.reason is not reason and request.reason is not Reason.at_capacity:
            yield Wait(request, reason)

    def _least_wanted(self) -> ReadyGuest | None:
        """A guest that no request waits for, of the kind whose last request is the longest ago."""
        buckets = [bucket for bucket in self.state.buckets.values() if self.usable[bucket.key]]
        if not buckets:
            return None
        return self._take(min(buckets, key=lambda bucket: bucket.requested).key)

    def _shrink(self) -> Iterator[Action]:
        for bucket in self.state.buckets.values():
            target = bucket.target(self.rules, self.now)
            if self.now - bucket.requested > LINGER:
                while len(self.usable[bucket.key]) > target and (idle := self._take(bucket.key)):
                    yield End(idle, Why.surplus)
            if self.now - bucket.requested > KEEP and self._is_needless(bucket):
                yield RemoveBucket(bucket.key)

    def _is_needless(self, bucket: Bucket) -> bool:
        if bucket.permanent or bucket.ready or bucket.starting or bucket.checking:
            return False
        return self.state.first_request(bucket.key) is None

    def _refill(self) -> Iterator[Action]:
        """A start takes processor time from guests in use: while guests are leased there is one
        start at a time, and only for a bucket that is less than half full."""
        most = 1 if self.state.leased else self.rules.refills
        for bucket in self.state.buckets.values():
            coming = len(self.usable[bucket.key]) + self.under_way[bucket.key]
            target = bucket.target(self.rules, self.now)
            for _ in range((target + 1) // 2 - coming if self.lively else target - coming):
                may = self._may_start(bucket.key, most) and self.now >= bucket.retry
                if not may or self.free <= 0:
                    break
                self.free -= 1
                yield self._start(bucket.key)

    def _may_start(self, key: Hashable, most: int) -> bool:
        """One of each kind in any case, so that a slow start, such as a build, delays no other."""
        return self.starting < most or not self.starts_of[key]

    def _start(self, key: Hashable) -> Start:
        self.starting += 1
        self.starts_of[key] += 1
        return Start(key)


def backoff(failures: int) -> float:
    """Seconds until a bucket whose starts failed is refilled again. Requests do not wait for it.

    >>> [backoff(n) for n in (1, 2, 3, 20)]
    [0.5, 1.0, 2.0, 60.0]
    """
    return float(min(0.5 * 2 ** min(failures - 1, 10), 60.0))
