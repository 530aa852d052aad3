"""Monitor: samples of what each live sandbox of this process uses.

Usage is read from outside the sandbox (`sandbox.usage()`). Each sandbox has a ring of samples,
which is removed with it: memory is bounded by the number of live sandboxes.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import anyio

from belljar import events
from belljar.backends.base import UsageSample
from belljar.errors import InvalidOption, SandboxError

if TYPE_CHECKING:
    from belljar.sandbox.sandbox import AsyncSandbox

log = logging.getLogger("belljar.observe")

USAGE_TIMEOUT = 10.0  # seconds; an engine may be slow, and other sandboxes wait
AT_ONCE = 16  # readings; for a remote container each is a call over the network
SHORTEST = 0.01  # seconds between two samples, or two searches for orphans


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


def compute_percent(
    before: tuple[float, float | None] | None, now: tuple[float, float | None]
) -> float | None:
    """CPU in percent of one processor, from two pairs of time and seconds used.

    >>> compute_percent((10.0, 1.0), (12.0, 2.0))
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
        sandboxes: Callable[[], Iterable[AsyncSandbox]] | None = None,
    ) -> None:
        check_seconds("interval", interval)
        if type(keep) is not int or keep < 2:
            raise InvalidOption(f"keep={keep!r} is not a whole number of samples from 2 on")
        self.interval = interval
        self._keep = keep
        self._on_samples = tuple(on_samples)
        self._sandboxes = sandboxes or events.live
        self._rings: dict[str, deque[Sample]] = {}
        self._moments: dict[str, tuple[float, float | None]] = {}
        self._lock = threading.Lock()
        self._thread: Repeating | None = None
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

        async def one(sandbox: AsyncSandbox) -> None:
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

    async def _read(self, sandbox: AsyncSandbox) -> Sample | None:
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
                share = compute_percent(self._moments.get(id), now)
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
                self._thread = Repeating(
                    self.sample_now, lambda: self.interval, what="sampling", name="belljar-monitor"
                )
        return self

    def close(self) -> None:
        """Stop sampling; what was sampled can still be read. May be called twice."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.close()


class Repeating:
    """Calls `act` in a thread now, and again after each `interval`, until close()."""

    def __init__(
        self, act: Callable[[], object], interval: Callable[[], float], *, what: str, name: str
    ) -> None:
        self._act = act
        self._interval = interval
        self._what = what
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._act()
            except Exception:
                # A defect in here must not stop the monitoring.
                log.exception("%s failed; retrying in %g s", self._what, self._interval())
            self._stop.wait(self._interval())

    def close(self) -> None:
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()


def check_seconds(name: str, given: object) -> None:
    number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if not number or not math.isfinite(given) or given < SHORTEST:  # type: ignore[arg-type, operator]
        raise InvalidOption(f"{name}={given!r} is not a number of seconds from {SHORTEST} on")


def _sample(sandbox: AsyncSandbox, reading: UsageSample) -> Sample:
    isolation = getattr(sandbox, "isolation", None)
    return Sample(
        time=time.time(),
        sandbox=sandbox.id,
        backend=isolation.backend if isolation is not None else "unknown",
        cpu=reading.cpu,
        memory=reading.memory,
        peak_memory=reading.peak_memory,
        processes=reading.processes,
        memory_limit=sandbox.limits.memory,
        cpus=sandbox.limits.cpus,
    )
