"""The Monitor: CPU and memory of each live sandbox of this process, sampled again and again.

What a sandbox has used is read from outside of it (`sandbox.usage()`). Each has a ring of samples
of its own, which goes when the sandbox does: memory is bounded by the number of live sandboxes.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, Self

import anyio

from belljar.errors import InvalidOption, SandboxError
from belljar.limits import Limits
from belljar.observe.alerts import Observation

log = logging.getLogger("belljar.observe")

USAGE_TIMEOUT = 10.0  # seconds; an engine may be slow, and others wait for their turn
AT_ONCE = 16  # readings; those of containers elsewhere are calls over the network


class Reading(Protocol):
    @property
    def cpu(self) -> float | None: ...
    @property
    def memory(self) -> int | None: ...
    @property
    def peak_memory(self) -> int | None: ...
    @property
    def processes(self) -> int | None: ...


class Watched(Protocol):
    """What is asked of a sandbox."""

    @property
    def id(self) -> str: ...
    @property
    def limits(self) -> Limits: ...
    async def usage(self) -> Reading: ...


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What one sandbox used at one moment; None is what this host cannot tell."""

    time: float  # seconds since the epoch
    sandbox: str
    backend: str
    cpu: float | None  # seconds since its guest started
    cpu_percent: float | None  # of one processor, since the sample before; None for the first
    memory: int | None  # bytes now
    peak_memory: int | None  # bytes
    processes: int | None
    memory_limit: int
    cpus: float

    @property
    def memory_share(self) -> float | None:
        return None if self.memory is None else self.memory / self.memory_limit

    def observation(self) -> Observation:
        return Observation(
            sandbox=self.sandbox,
            memory=self.memory,
            memory_limit=self.memory_limit,
            cpu_percent=self.cpu_percent,
            cpus=self.cpus,
        )


def percent(
    before: tuple[float, float | None] | None, now: tuple[float, float | None]
) -> float | None:
    """CPU in percent of one processor, out of two pairs of moment and seconds used.

    >>> percent((10.0, 1.0), (12.0, 2.0))
    50.0
    """
    if before is None or before[1] is None or now[1] is None:
        return None
    passed, used = now[0] - before[0], now[1] - before[1]
    # A counter that went back is that of a new guest, started when the old one was lost.
    return used / passed * 100 if passed > 0 and used >= 0 else None


class Monitor:
    """Samples in a thread of its own from start() to close(); or by hand, with sample().

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
        self._sandboxes = sandboxes or _live
        self._rings: dict[str, deque[Sample]] = {}
        self._moments: dict[str, tuple[float, float | None]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failed: set[str] = set()
        self.seconds = 0.0  # spent on sampling so far
        self.rounds = 0

    # -- what there is ----------------------------------------------------------------------

    def latest(self) -> dict[str, Sample]:
        """The last sample of each sandbox that lives."""
        with self._lock:
            return {id: ring[-1] for id, ring in self._rings.items()}

    def series(self, sandbox: str) -> tuple[Sample, ...]:
        """The samples of one sandbox, the oldest first; none if it is not, or no more, known."""
        with self._lock:
            return tuple(self._rings.get(sandbox, ()))

    # -- sampling ---------------------------------------------------------------------------

    async def sample(self) -> dict[str, Sample]:
        """Read each live sandbox once, in whichever event loop."""
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
                log.exception("a callback for samples failed")
        return found

    def sample_now(self) -> dict[str, Sample]:
        """The same, blocking; not in a thread that runs an event loop."""
        return anyio.run(self.sample)

    async def _read(self, sandbox: Watched) -> Sample | None:
        try:
            with anyio.move_on_after(USAGE_TIMEOUT):
                reading = await sandbox.usage()
                return _sample(sandbox, reading)
        except (SandboxError, OSError) as error:
            # It has just ended, or its engine is away; said once for each, not at each sample.
            if sandbox.id not in self._failed:
                self._failed.add(sandbox.id)
                log.debug("no reading of %s: %s", sandbox.id, error)
        return None

    def _take(self, found: dict[str, Sample]) -> None:
        with self._lock:
            for id, sample in found.items():
                # The clock on the wall may be set back; the difference is taken by the other.
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
                # A mistake of ours; sampling goes on, as whoever looks at it relies on it.
                log.exception("sampling failed")
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _live() -> Iterable[Watched]:
    from belljar import events

    return events.live()


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
