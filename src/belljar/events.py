"""What happens to the sandboxes of this process, for subscribers: see `subscribe`.

Metrics, the audit log and traces are made of these. They are values, told as they happen, in the
thread and the event loop of the sandbox: a subscriber must be quick and must not block. Events of
cells, commands and files are made only while `cell_subscriptions` has an item.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from belljar.limits import Limits

if TYPE_CHECKING:
    from belljar.backends.base import Location
    from belljar.pool.guests import Guests
    from belljar.results.execution import CommandResult, Execution
    from belljar.sandbox.sandbox import AsyncSandbox

T = TypeVar("T")
log = logging.getLogger("belljar")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The sandbox that an event is about."""

    id: str
    backend: str  # that it runs on; before its start, the one that was asked for
    environment: str  # the name
    metadata: Mapping[str, str]
    limits: Limits


@dataclass(frozen=True, kw_only=True)
class Event:
    subject: Subject


@dataclass(frozen=True, kw_only=True)
class Starting(Event):
    """Before a guest is started; also before a second one, if the first was lost."""


@dataclass(frozen=True, kw_only=True)
class Started(Event):
    seconds: float
    stages: Mapping[str, float]  # seconds for "start" (the guest) and "workspace" (its files)
    whereabouts: Location


@dataclass(frozen=True, kw_only=True)
class StartFailed(Event):
    seconds: float
    error: BaseException


@dataclass(frozen=True, kw_only=True)
class CellStarting(Event):
    """Before the policy is asked, and before anything starts."""

    code: str


@dataclass(frozen=True, kw_only=True)
class CellEnded(Event):
    """Also of code that the policy rejected."""

    code: str
    execution: Execution
    began: float  # seconds since the epoch
    seconds: float  # from the call of run_code to its end
    stages: Mapping[str, float]  # seconds for "policy", "wait" (its turn, the start) and "run"


@dataclass(frozen=True, kw_only=True)
class CellFailed(Event):
    """run_code raised: Belljar failed, or the caller cancelled it."""

    code: str
    error: BaseException
    began: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class CommandEnded(Event):
    cmd: str | Sequence[str]
    result: CommandResult


@dataclass(frozen=True, kw_only=True)
class FilesChanged(Event):
    """The host changed files of the sandbox: `operation` is the name of the method."""

    operation: str
    fields: Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class Ended(Event):
    reason: str  # such as "is closed"
    seconds: float  # since it was made


@dataclass(frozen=True, kw_only=True)
class PoolEvent:
    """What a pool did with a guest. `subscribe_pools` tells these, not `subscribe`."""


@dataclass(frozen=True, kw_only=True)
class GuestLeased(PoolEvent):
    """A pool gave a guest to a caller."""

    reason: str  # what the caller waited for: ready, on_demand, at_capacity
    seconds: float  # from the request to the guest
    environment: str


@dataclass(frozen=True, kw_only=True)
class GuestDiscarded(PoolEvent):
    """A pool ended a guest that was never used."""

    reason: str  # dead, old, room, surplus, closed


@dataclass(frozen=True, kw_only=True)
class GuestStartFailed(PoolEvent):
    """A pool failed to start a guest."""

    error: Exception


class Subscription:
    """What `subscribe` gives; `cancel` ends it. May be used as a context manager."""

    def __init__(
        self, callback: Callable[[Any], None], *, required: bool, cells: bool, pools: bool = False
    ) -> None:
        self._callback = callback
        self._required = required
        self.cells = cells
        self.pools = pools
        self._complained = False
        with _changing:
            _set((*_all, self))

    def tell(self, event: Event | PoolEvent) -> None:
        try:
            self._callback(event)
        except Exception:
            if self._required:
                raise
            if not self._complained:
                self._complained = True
                log.exception("a subscriber of events failed; its next failures are not logged")

    def cancel(self) -> None:
        with _changing:
            _set(tuple(each for each in _all if each is not self))

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exception: object) -> None:
        self.cancel()


class Open(Generic[T]):
    """The sandboxes, or the pools, of this process that are open. Any thread may use it."""

    def __init__(self) -> None:
        self.items: weakref.WeakSet[T] = weakref.WeakSet()

    def add(self, item: T) -> None:
        with _changing:
            self.items.add(item)

    def remove(self, item: T) -> None:
        with _changing:
            self.items.discard(item)

    def all(self) -> list[T]:
        with _changing:
            return list(self.items)


_changing = threading.Lock()
_all: tuple[Subscription, ...] = ()
_subscriptions: tuple[Subscription, ...] = ()  # to events of sandboxes
# Those that are told of everything. Looked at before an event of a cell is made.
cell_subscriptions: tuple[Subscription, ...] = ()
_of_pools: tuple[Subscription, ...] = ()
sandboxes: Open[AsyncSandbox] = Open()  # that have a guest
pools: Open[Guests] = Open()


def _set(subscriptions: tuple[Subscription, ...]) -> None:
    global _all, _subscriptions, cell_subscriptions, _of_pools
    _all = subscriptions
    _subscriptions = tuple(each for each in subscriptions if not each.pools)
    cell_subscriptions = tuple(each for each in subscriptions if each.cells)
    _of_pools = tuple(each for each in subscriptions if each.pools)


def subscribe(
    callback: Callable[[Event], None], *, required: bool = False, cells: bool = True
) -> Subscription:
    """Have each event of this process told to `callback`; without `cells`, only how sandboxes start
    and end, which costs nothing while they run.

    An exception of `callback` is logged, once, and changes nothing. With `required` it reaches the
    caller of the sandbox instead: raised for Starting or CellStarting, it keeps the code from
    running.
    """
    return Subscription(callback, required=required, cells=cells)


def subscribe_pools(callback: Callable[[PoolEvent], None]) -> Subscription:
    """Have each event of this process's pools told to `callback`."""
    return Subscription(callback, required=False, cells=False, pools=True)


def tell(event: Event) -> None:
    lives = isinstance(event, (Starting, Started, StartFailed, Ended))
    for subscription in _subscriptions if lives else cell_subscriptions:
        subscription.tell(event)


def tell_of_pool(event: PoolEvent) -> None:
    for subscription in _of_pools:
        subscription.tell(event)


def live() -> list[AsyncSandbox]:
    """The sandboxes of this process that have a guest now."""
    return sandboxes.all()


def _after_fork() -> None:
    """The sandboxes belong to the parent, and so do its subscriptions."""
    global _changing
    _changing = threading.Lock()
    sandboxes.items, pools.items = weakref.WeakSet(), weakref.WeakSet()
    _set(())


os.register_at_fork(after_in_child=_after_fork)
