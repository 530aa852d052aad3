"""What a pool does next: decided from what there is, without I/O.

`State` is what there is at one moment; `decide` reads it and says what is to be done; whoever does
it writes it down in the State, and asks again when something has happened.

Who waits is served in the order of tags (start-time fair queueing): an owner's next ticket gets the
tag after his last one, but never one that lies behind what is being served now. So owners take
turns, however many tickets each has; the tickets of one are served in their order; and nobody waits
for ever, because what comes later gets later tags.
"""

from __future__ import annotations

import bisect
import itertools
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

LINGER = 10.0  # seconds that guests beyond what is wanted may wait for somebody to ask
QUIET = 0.2  # seconds without a lease, after which a shelf that is half full is filled
KEEP = 60.0  # seconds for which a shelf is filled after somebody has asked for its kind


class Reason(StrEnum):
    """What a tenant had to wait for."""

    ready = "ready"  # nothing: a warm guest was there
    on_demand = "on_demand"  # for a start: no guest was ready
    at_capacity = "at_capacity"  # for a place: there were max_total guests


class Why(StrEnum):
    """Why a guest that nobody had used was ended."""

    dead = "dead"  # it died, or did not answer
    old = "old"  # older than max_age
    room = "room"  # somebody waited for a guest of another kind, and there was no place
    surplus = "surplus"  # nobody asked for it any more
    closed = "closed"  # by the end of the pool


@dataclass(frozen=True, kw_only=True)
class Rules:
    min_ready: int  # guests of a kind that shall wait for tenants
    max_total: int  # guests of all kinds: ready, being started, in use, being ended
    max_age: float | None  # seconds after which one that waits is replaced
    starts: int  # at once, for those who wait; and one of each kind that has none
    refills: int  # at once, for nobody yet, likewise; while tenants are at work, one


@dataclass(eq=False, kw_only=True)
class ReadyGuest:
    """A guest that is ready, and that nobody has used."""

    key: Hashable
    born: float
    alive: bool = True
    number: int = 0  # who knows the guest itself


@dataclass(eq=False, kw_only=True)
class Request:
    """Somebody who wants a guest of a kind."""

    key: Hashable
    owner: Hashable
    tag: int = 0
    number: int = 0
    reason: Reason | None = None  # what he waits for, as far as that is known


@dataclass(eq=False, kw_only=True)
class Bucket:
    """The guests of one kind that nobody has yet."""

    key: Hashable
    permanent: bool = False  # the kind of the pool itself: kept filled whether asked for or not
    ready: deque[ReadyGuest] = field(default_factory=deque)  # the oldest first
    starting: int = 0
    checking: int = 0  # ready, but being asked whether they still answer
    asks: int = 0
    asked: float = 0.0  # when somebody did, last
    failures: int = 0  # of starts, one after the other
    retry: float = 0.0  # not to be refilled before

    def target(self, rules: Rules, now: float) -> int:
        """A kind that was asked for only once is not kept ready: it may never be again."""
        wanted = self.permanent or (self.asks > 1 and now - self.asked <= KEEP)
        return rules.min_ready if wanted else 0


class State:
    def __init__(self) -> None:
        self.shelves: dict[Hashable, Bucket] = {}
        self.waiting: list[Request] = []  # in the order in which they are served
        self.leased = 0
        self.ending = 0
        self.given = float("-inf")  # when a guest was, last
        self.closing = False
        self._numbers = itertools.count(1)
        self._served = 0  # the tag that was served last
        self._last: dict[Hashable, int] = {}  # of each owner who waits: the last tag he got

    @property
    def ready(self) -> int:
        return sum(len(shelf.ready) for shelf in list(self.shelves.values()))

    @property
    def starting(self) -> int:
        return sum(shelf.starting for shelf in list(self.shelves.values()))

    @property
    def total(self) -> int:
        checking = sum(shelf.checking for shelf in list(self.shelves.values()))
        return self.ready + self.starting + checking + self.leased + self.ending

    def enter(self, ticket: Request, now: float) -> None:
        """Stand in line. The shelf of its kind must be there."""
        shelf = self.shelves[ticket.key]
        shelf.asks += 1
        shelf.asked = now
        if len(self._last) > 2 * len(self.waiting) + 16:  # owners come and go
            self._last = {who: tag for who, tag in self._last.items() if tag > self._served}
        ticket.tag = max(self._served, self._last.get(ticket.owner, 0)) + 1
        ticket.number = next(self._numbers)
        self._last[ticket.owner] = ticket.tag
        bisect.insort(self.waiting, ticket, key=_order)

    def leave(self, ticket: Request) -> None:
        """Out of the line without having been served: those behind him of the same owner move up.
        Nothing happens to who is not in it."""
        if not self._remove(ticket):
            return
        tag = ticket.tag
        self._last[ticket.owner] = tag - 1
        behind = [each for each in self.waiting if each.owner == ticket.owner and each.tag >= tag]
        for each in behind:
            del self.waiting[self._place_of(each)]
            each.tag, tag = tag, each.tag
            bisect.insort(self.waiting, each, key=_order)
            self._last[each.owner] = each.tag

    def serve(self, ticket: Request, now: float) -> None:
        self.given = now
        self._served = max(self._served, ticket.tag)
        self._remove(ticket)

    def _remove(self, ticket: Request) -> bool:
        at = self._place_of(ticket)
        found = at < len(self.waiting) and self.waiting[at] is ticket
        if found:
            del self.waiting[at]
        return found

    def _place_of(self, ticket: Request) -> int:
        return bisect.bisect_left(self.waiting, _order(ticket), key=_order)

    def next_of(self, key: Hashable) -> Request | None:
        """The first in line for this kind."""
        return next((ticket for ticket in self.waiting if ticket.key == key), None)


def _order(ticket: Request) -> tuple[int, int]:
    return ticket.tag, ticket.number


@dataclass(frozen=True)
class Give:
    ticket: Request
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
    """Tell who waits what for, when that becomes known, or worse."""

    ticket: Request
    reason: Reason


@dataclass(frozen=True)
class Refuse:
    ticket: Request


@dataclass(frozen=True)
class Forget:
    """A shelf that nobody needs."""

    key: Hashable


Action = Give | Start | End | Wait | Refuse | Forget


def decide(state: State, rules: Rules, now: float) -> list[Action]:
    """What is to be done now. Reads the state, and changes nothing."""
    if state.closing:
        ends = [End(idle, Why.closed) for shelf in state.shelves.values() for idle in shelf.ready]
        return [*ends, *map(Refuse, state.waiting)]
    return list(_Decision(state, rules, now).actions())


class _Decision:
    """One look at the state. What is decided first is gone for what is decided next."""

    def __init__(self, state: State, rules: Rules, now: float) -> None:
        self.state = state
        self.rules = rules
        self.now = now
        self.unfit: list[End] = []
        self.usable: dict[Hashable, deque[ReadyGuest]] = {}
        for shelf in state.shelves.values():
            self.usable[shelf.key] = deque(self._fit(shelf))
        self.spare = sum(map(len, self.usable.values()))
        self.under_way = {s.key: s.starting + s.checking for s in state.shelves.values()}
        self.starting = state.starting
        self.starts_of = {s.key: s.starting for s in state.shelves.values()}
        self.free = rules.max_total - state.total
        self.coming = state.ending + len(self.unfit)  # places that will be free

    def _fit(self, shelf: Bucket) -> Iterator[ReadyGuest]:
        oldest = self.rules.max_age
        for idle in shelf.ready:
            if not idle.alive:
                self.unfit.append(End(idle, Why.dead))
            elif oldest is not None and self.now - idle.born >= oldest:
                self.unfit.append(End(idle, Why.old))
            else:
                yield idle

    def actions(self) -> Iterator[Action]:
        yield from self.unfit
        left = deque[Request]()
        for at, ticket in enumerate(self.state.waiting):
            if not self.spare:
                left.extend(itertools.islice(self.state.waiting, at, at + self.rules.max_total))
                break
            if idle := self._take(ticket.key):
                yield Give(ticket, idle)
            else:
                left.append(ticket)
        for ticket in left:
            yield from self._serve_later(ticket)
        yield from self._shrink()
        yield from self._refill()

    def _take(self, key: Hashable) -> ReadyGuest | None:
        if not self.usable[key]:
            return None
        self.spare -= 1
        return self.usable[key].popleft()

    def _serve_later(self, ticket: Request) -> Iterator[Action]:
        """A start under way is for him, or one begins, or a place must become free first."""
        reason = Reason.on_demand
        if self.under_way[ticket.key]:
            self.under_way[ticket.key] -= 1
        elif self.free > 0:
            self.free -= 1  # his, even if the start has to wait for others
            if self._may_start(ticket.key, self.rules.starts):
                yield self._start(ticket.key)
        else:
            reason = Reason.at_capacity
            if self.coming > 0:
                self.coming -= 1
            elif idle := self._least_wanted():
                yield End(idle, Why.room)
        if ticket.reason is not reason and ticket.reason is not Reason.at_capacity:
            yield Wait(ticket, reason)

    def _least_wanted(self) -> ReadyGuest | None:
        """Of what nobody waits for: of the kind that was not asked for the longest."""
        shelves = [shelf for shelf in self.state.shelves.values() if self.usable[shelf.key]]
        if not shelves:
            return None
        return self._take(min(shelves, key=lambda shelf: shelf.asked).key)

    def _shrink(self) -> Iterator[Action]:
        for shelf in self.state.shelves.values():
            target = shelf.target(self.rules, self.now)
            if self.now - shelf.asked > LINGER:
                while len(self.usable[shelf.key]) > target and (idle := self._take(shelf.key)):
                    yield End(idle, Why.surplus)
            if self.now - shelf.asked > KEEP and self._is_needless(shelf):
                yield Forget(shelf.key)

    def _is_needless(self, shelf: Bucket) -> bool:
        if shelf.permanent or shelf.ready or shelf.starting or shelf.checking:
            return False
        return self.state.next_of(shelf.key) is None

    def _refill(self) -> Iterator[Action]:
        """A start takes processor time from tenants: while they come and go there is one at a
        time, and only for a shelf that is less than half full."""
        most = 1 if self.state.leased else self.rules.refills
        lively = self.now - self.state.given < QUIET
        for shelf in self.state.shelves.values():
            coming = len(self.usable[shelf.key]) + self.under_way[shelf.key]
            target = shelf.target(self.rules, self.now)
            for _ in range((target + 1) // 2 - coming if lively else target - coming):
                may = self._may_start(shelf.key, most) and self.now >= shelf.retry
                if not may or self.free <= 0:
                    break
                self.free -= 1
                yield self._start(shelf.key)

    def _may_start(self, key: Hashable, most: int) -> bool:
        """One of each kind in any case: what takes long, such as a build, holds up no other."""
        return self.starting < most or not self.starts_of[key]

    def _start(self, key: Hashable) -> Start:
        self.starting += 1
        self.starts_of[key] += 1
        return Start(key)


def backoff(failures: int) -> float:
    """Seconds until a shelf whose starts failed is refilled again; who asks is not kept waiting.

    >>> [backoff(n) for n in (1, 2, 3, 20)]
    [0.5, 1.0, 2.0, 60.0]
    """
    return float(min(0.5 * 2 ** min(failures - 1, 10), 60.0))
