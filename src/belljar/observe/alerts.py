"""Alerts: a sandbox was near its limit for some time, or there are too many orphans.

An alert begins after so many samples above its threshold in a row, and ends with the first sample
below the threshold minus `margin`: a value that moves around the threshold is told once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from belljar.errors import InvalidOption
from belljar.text import one_line

if TYPE_CHECKING:
    from belljar.observe.sampling import Sample

Kind = Literal["memory", "cpu", "orphans"]
Key = tuple[Kind, str]  # of what, and of which sandbox ("" for orphans)
Callback = Callable[["Alert"], None]

log = logging.getLogger("belljar.alerts")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """When to alert. Shares are of the sandbox's limit: 0.9 is 90 %; None: never."""

    memory: float | None = 0.9
    cpu: float | None = 0.9
    samples: int = 3  # in a row
    margin: float = 0.1  # it ends so far below the threshold, as a share of the limit
    orphans: int | None = 3  # alert above this number

    def __post_init__(self) -> None:
        for name in ("memory", "cpu"):
            share = getattr(self, name)
            if share is not None and not (_is_number(share) and 0 < share <= 1):
                raise InvalidOption(
                    f"{name}={share!r} is not a share of a limit",
                    hint="give a number above 0, up to 1: 0.9 is 90 %; None is never",
                )
        if type(self.samples) is not int or self.samples < 1:
            raise InvalidOption(f"samples={self.samples!r} is not a whole number from 1 on")
        if not _is_number(self.margin) or not 0 <= self.margin < 1:
            raise InvalidOption(f"margin={self.margin!r} is not a share from 0 to 1")
        if self.orphans is not None and (type(self.orphans) is not int or self.orphans < 0):
            raise InvalidOption(f"orphans={self.orphans!r} is not a whole number from 0 on")


@dataclass(frozen=True, kw_only=True)
class Alert:
    kind: Kind
    sandbox: str | None  # None: of the whole host
    value: float  # a share of the limit, or a number of orphans
    threshold: float
    ended: bool = False

    @property
    def message(self) -> str:
        if self.kind == "orphans":
            what = f"{self.value:.0f} leftovers of dead processes (limit {self.threshold:.0f})"
            return f"{what}: {'over' if self.ended else '`belljar gc` removes them'}"
        what = "memory" if self.kind == "memory" else "processor time"
        seen = f"uses {self.value:.0%} of its {what} (alert above {self.threshold:.0%})"
        return f"sandbox {one_line(self.sandbox or '')} {seen}{': over' if self.ended else ''}"


@dataclass(frozen=True, kw_only=True)
class State:
    """What one decision leaves for the next."""

    above: Mapping[Key, int] = field(default_factory=lambda: MappingProxyType({}))
    active: Mapping[Key, Alert] = field(default_factory=lambda: MappingProxyType({}))


def decide(
    rules: Rules, state: State, samples: Iterable[Sample] | None, orphans: int | None = None
) -> tuple[State, list[Alert]]:
    """Which alerts begin and end now. None: the sandboxes, or the orphans, were not looked at.

    >>> from belljar.observe.sampling import Sample
    >>> near = Sample(time=0.0, sandbox="a", memory=95, memory_limit=100, cpus=1)
    >>> state, changed = decide(Rules(samples=1), State(), [near])
    >>> [alert.kind for alert in changed]
    ['memory']
    """
    above: dict[Key, int] = {}
    active: dict[Key, Alert] = {}
    changed: list[Alert] = []

    def check(key: Key, value: float | None, threshold: float, samples: int, low: float) -> None:
        alert = state.active.get(key)
        if value is None:  # unknown: nothing changes
            if alert is not None:
                active[key] = alert
            above[key] = state.above.get(key, 0)
            return
        made = Alert(kind=key[0], sandbox=key[1] or None, value=value, threshold=threshold)
        if alert is not None:
            if value >= low:
                active[key] = made
            else:
                changed.append(replace(made, ended=True))
            return
        above[key] = state.above.get(key, 0) + 1 if value > threshold else 0
        if above[key] >= samples:
            active[key] = made
            changed.append(made)

    for sample in samples or ():
        shares: list[tuple[Kind, float | None, float | None]] = [
            ("memory", sample.memory_share, rules.memory),
            ("cpu", sample.cpu_share, rules.cpu),
        ]
        for kind, share, threshold in shares:
            if threshold is not None:
                low = max(threshold - rules.margin, 0.0)
                check((kind, sample.sandbox), share, threshold, rules.samples, low)
    if samples is None:
        above |= {key: n for key, n in state.above.items() if key[0] != "orphans"}
        active |= {key: alert for key, alert in state.active.items() if key[0] != "orphans"}
    if rules.orphans is not None:
        number = None if orphans is None else float(orphans)
        # No margin for whole numbers: it ends when there are no more than allowed.
        check(("orphans", ""), number, rules.orphans, 1, rules.orphans + 0.5)
    # A sandbox without samples has ended: its alerts are dropped, and not told.
    return State(above={key: n for key, n in above.items() if n}, active=active), changed


class Alerts:
    """Decides for each set of samples, and tells callbacks and a logger. Safe in any thread."""

    def __init__(self, rules: Rules | None = None, *callbacks: Callback) -> None:
        self.rules = rules or Rules()
        self._callbacks = callbacks
        self._state = State()
        self._lock = threading.Lock()

    @property
    def active(self) -> tuple[Alert, ...]:
        return tuple(self._state.active.values())

    def look(
        self, samples: Iterable[Sample] | None, orphans: int | None = None
    ) -> tuple[Alert, ...]:
        """Take these samples into account. Returns the alerts that began or ended with them."""
        with self._lock:
            self._state, changed = decide(self.rules, self._state, samples, orphans)
        for alert in changed:
            log.log(
                logging.INFO if alert.ended else logging.WARNING,
                alert.message,
                extra={"belljar_alert": alert},
            )
            for callback in self._callbacks:
                try:
                    callback(alert)
                except Exception:
                    log.exception("an on_alert callback failed")
        return tuple(changed)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
