"""What pools do, for whoever counts it: leases, and guests that were ended unused."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from belljar.pool.decide import Reason, Why


@dataclass(frozen=True, kw_only=True)
class Leased:
    """A tenant got a guest."""

    reason: Reason
    seconds: float  # from the wish to the guest
    environment: str


@dataclass(frozen=True, kw_only=True)
class Discarded:
    """A guest was ended that nobody had used."""

    why: Why


@dataclass(frozen=True, kw_only=True)
class StartFailed:
    error: Exception


Told = Leased | Discarded | StartFailed
Callback = Callable[[Told], None]


class Counted(Protocol):
    def guests(self) -> Mapping[str, int]:
        """How many, by their state. Called from any thread."""

    @property
    def waiting(self) -> int: ...


_lock = threading.Lock()
_callbacks: tuple[Callback, ...] = ()
_pools: weakref.WeakSet[Counted] = weakref.WeakSet()


def subscribe(callback: Callback) -> Callable[[], None]:
    """Have it told; gives the function that ends this. The callback is quick and never raises."""
    global _callbacks
    with _lock:
        _callbacks = (*_callbacks, callback)

    def cancel() -> None:
        global _callbacks
        with _lock:
            _callbacks = tuple(each for each in _callbacks if each is not callback)

    return cancel


def tell(told: Told) -> None:
    for callback in _callbacks:
        callback(told)


def begins(pool: Counted) -> None:
    with _lock:
        _pools.add(pool)


def ends(pool: Counted) -> None:
    with _lock:
        _pools.discard(pool)


def pools() -> list[Counted]:
    """Those of this process that are open."""
    with _lock:
        return list(_pools)


def _after_fork() -> None:
    """The pools are the parent's, and so are those who watch them."""
    global _lock, _callbacks, _pools
    _lock, _callbacks, _pools = threading.Lock(), (), weakref.WeakSet()


os.register_at_fork(after_in_child=_after_fork)
