"""Monitor: samples of what each live sandbox of this process uses; and Alerts about them.

Usage is read from outside the sandbox (`sandbox.usage()`). Each sandbox has a ring of samples,
which is removed with it: memory is bounded by the number of live sandboxes.

An alert begins after so many samples above its threshold in a row, and ends with the first sample
below the threshold minus `margin`: a value that moves around the threshold is told once.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, Protocol, Self

import anyio

from belljar import events
from belljar.backends.base import Reading
from belljar.errors import InvalidOption, SandboxError
from belljar.limits import Limits
from belljar.text import one_line

log = logging.getLogger("belljar.observe")

USAGE_TIMEOUT = 10.0  # seconds; an engine may be slow, and other sandboxes wait
AT_ONCE = 16  # readings; for a remote container each is a call over the network


class Watched(Protocol):
    """The part of a sandbox that a Monitor uses."""

    @property
    def id(self) -> str: ...
    @property
    def limits(self) -> Limits: ...
    async def usage(self) -> Reading: ...


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What one sandbox used at one moment; None: this host cannot tell."""

    time: float  # seconds since the epoch
    sandbox: str
    backend: str = "unknown"
    cpu: float | None = None  # seconds since its guest started
    cpu_percent: float | None = None  # of one processor, since the last sample; None for the first
    memory: int | None = None  # bytes now
    peak_memory: int | None = None  # bytes
    processes: int | None = None
    memory_limit: int
    cpus: float

    @property
    def memory_share(self) -> float | None:
        return None if self.memory is None else self.memory / self.memory_limit

    @property
    def cpu_share(self) -> float | None:
        return None if self.cpu_percent is None else self.cpu_percent / 100 / self.cpus


def percent(
    before: tuple[float, float | None] | None, now: tuple[float, float | None]
) -> float | None:
    """CPU in percent of one processor, from two pairs of time and seconds used.

    >>> percent((10.0, 1.0), (12.0, 2.0))
    50.0
    """
    if before is None or before[1] is None or now[1] is None:
        return None
    passed, used = now[0] - before[0], now[1] - before[1]
    # A counter that went back belongs to a new guest: the old one was lost.
    return used / passed * 100 if passed > 0 and used >= 0 else None


class Monitor:
    """Samples in a thread from start() to close(); or on demand, with sample().

    with Monitor(interval=1.0) as monitor:
        ...
        monitor.latest()   # {sandbox id: Sample}
    """

    def __init__(
        self,
        *,
        interval: float = 1.0,
        keep: int = 300,
        on_samples: Iterable[Callable[[Mapping[str, Sample]], object]] = (),
        sandboxes: Callable[[], Iterable[Watched]] | None = None,
    ) -> None:
        if isinstance(interval, bool) or not math.isfinite(interval) or interval < 0.01:
            raise InvalidOption(f"interval={interval!r} is not a number of seconds from 0.01 on")
        if type(keep) is not int or keep < 2:
            raise InvalidOption(f"keep={keep!r} is not a whole number of samples from 2 on")
        self.interval = interval
        self._keep = keep
        self._on_samples = tuple(on_samples)
        self._sandboxes = sandboxes or events.live
        self._rings: dict[str, deque[Sample]] = {}
        self._moments: dict[str, tuple[float, float | None]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failed: set[str] = set()
        self.seconds = 0.0  # spent on sampling so far
        self.rounds = 0

    # -- results ----------------------------------------------------------------------------

    def latest(self) -> dict[str, Sample]:
        """The last sample of each live sandbox."""
        with self._lock:
            return {id: ring[-1] for id, ring in self._rings.items()}

    def series(self, sandbox: str) -> tuple[Sample, ...]:
        """The samples of one live sandbox, the oldest first."""
        with self._lock:
            return tuple(self._rings.get(sandbox, ()))

    # -- sampling ---------------------------------------------------------------------------

    async def sample(self) -> dict[str, Sample]:
        """Read each live sandbox once, in any event loop."""
        began = time.perf_counter()
        found: dict[str, Sample] = {}
        limiter = anyio.CapacityLimiter(AT_ONCE)

        async def one(sandbox: Watched) -> None:
            async with limiter:
                sample = await self._read(sandbox)
            if sample is not None:
                found[sandbox.id] = sample

        async with anyio.create_task_group() as group:
            for sandbox in self._sandboxes():
                group.start_soon(one, sandbox)
        self._take(found)
        self.rounds += 1
        self.seconds += time.perf_counter() - began
        for callback in self._on_samples:
            try:
                callback(found)
            except Exception:
                log.exception("an on_samples callback failed")
        return found

    def sample_now(self) -> dict[str, Sample]:
        """sample(), blocking. Not for a thread that runs an event loop."""
        return anyio.run(self.sample)

    async def _read(self, sandbox: Watched) -> Sample | None:
        try:
            with anyio.move_on_after(USAGE_TIMEOUT):
                reading = await sandbox.usage()
                return _sample(sandbox, reading)
        except (SandboxError, OSError) as error:
            # It has just ended, or its engine is away. Logged once for each sandbox.
            if sandbox.id not in self._failed:
                self._failed.add(sandbox.id)
                log.debug("reading the usage of sandbox %s failed: %s", sandbox.id, error)
        return None

    def _take(self, found: dict[str, Sample]) -> None:
        with self._lock:
            for id, sample in found.items():
                # The wall clock may be set back; the monotonic clock measures the difference.
                now = time.monotonic(), sample.cpu
                share = percent(self._moments.get(id), now)
                found[id] = replace(sample, cpu_percent=share)
                self._moments[id] = now
                self._rings.setdefault(id, deque(maxlen=self._keep)).append(found[id])
            live = {sandbox.id for sandbox in self._sandboxes()} | found.keys()
            for id in self._rings.keys() - live:
                del self._rings[id], self._moments[id]
            self._failed &= live

    # -- the thread -------------------------------------------------------------------------

    def start(self) -> Self:
        """Sample every `interval` seconds from now on. May be called twice."""
        with self._lock:
            if self._thread is None:
                self._stop.clear()
                self._thread = threading.Thread(
                    target=self._run, name="belljar-monitor", daemon=True
                )
                self._thread.start()
        return self

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                anyio.run(self.sample)
            except Exception:
                # A defect in here must not stop the monitoring.
                log.exception("sampling failed; retrying in %g s", self.interval)
            self._stop.wait(self.interval)

    def close(self) -> None:
        """Stop sampling; what was sampled can still be read. May be called twice."""
        self._stop.set()
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.close()


def _sample(sandbox: Watched, reading: Reading) -> Sample:
    isolation = getattr(sandbox, "isolation", None)
    return Sample(
        time=time.time(),
        sandbox=sandbox.id,
        backend=isolation.backend if isolation is not None else "unknown",
        cpu=reading.cpu,
        cpu_percent=None,
        memory=reading.memory,
        peak_memory=reading.peak_memory,
        processes=reading.processes,
        memory_limit=sandbox.limits.memory,
        cpus=sandbox.limits.cpus,
    )


Kind = Literal["memory", "cpu", "orphans"]
Key = tuple[Kind, str]  # of what, and of which sandbox ("" for orphans)
Callback = Callable[["Alert"], None]

alert_log = logging.getLogger("belljar.alerts")


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


@dataclass(frozen=True, kw_only=True)
class Decision:
    state: State
    began: tuple[Alert, ...]
    ended: tuple[Alert, ...]


def decide(
    rules: Rules, state: State, samples: Iterable[Sample] | None, orphans: int | None = None
) -> Decision:
    """Which alerts begin and end now. None: the sandboxes, or the orphans, were not looked at.

    >>> near = Sample(time=0.0, sandbox="a", memory=95, memory_limit=100, cpus=1)
    >>> [alert.kind for alert in decide(Rules(samples=1), State(), [near]).began]
    ['memory']
    """
    above: dict[Key, int] = {}
    active: dict[Key, Alert] = {}
    began: list[Alert] = []
    ended: list[Alert] = []

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
                ended.append(Alert(**{**vars(made), "ended": True}))
            return
        above[key] = state.above.get(key, 0) + 1 if value > threshold else 0
        if above[key] >= samples:
            active[key] = made
            began.append(made)

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
    kept = State(above={key: n for key, n in above.items() if n}, active=active)
    return Decision(state=kept, began=tuple(began), ended=tuple(ended))


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
            decision = decide(self.rules, self._state, samples, orphans)
            self._state = decision.state
        told = (*decision.began, *decision.ended)
        for alert in told:
            alert_log.log(
                logging.INFO if alert.ended else logging.WARNING,
                alert.message,
                extra={"belljar_alert": alert},
            )
            for callback in self._callbacks:
                try:
                    callback(alert)
                except Exception:
                    alert_log.exception("an on_alert callback failed")
        return told


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
