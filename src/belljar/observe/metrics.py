"""Metrics for Prometheus: counted from the events of this process, read at each scrape.

    metrics = Metrics()
    metrics.subscribe()
    metrics.serve(9100)       # http://127.0.0.1:9100/metrics

What is now (live sandboxes, their memory) is asked for when somebody looks, so it cannot drift
from what there is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from belljar import events
from belljar.errors import InvalidOption, LimitNotEnforceable, SandboxError, unknown_option
from belljar.observe.metric_table import (
    BUCKETS,
    BY_NAME,
    METRICS,
    MOST_SANDBOXES,
    MOST_VALUES,
    OTHER,
    Metric,
    known_errors,
)
from belljar.observe.sampling import Monitor, Sample
from belljar.pool import telling
from belljar.results.execution import Outcome

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import GaugeMetricFamily

Values = Mapping[tuple[str, ...], float]  # label values → value
Source = Callable[[], Values]

BACKENDS = frozenset(("native", "docker", "auto"))
ENDS = {"closed": "closed", "lifetime": "lifetime", "idle": "idle", "lost": "lost"}


class Metrics:
    """Counts what happens. Several may be there at once, each with a registry of its own.

    `registry`: a prometheus_client CollectorRegistry (default: a new one). `per_sandbox`: also
    gauges with the sandbox's id as a label: many series, for few sandboxes that live long.
    """

    def __init__(
        self, *, registry: CollectorRegistry | None = None, per_sandbox: bool = False
    ) -> None:
        prometheus = require_prometheus()
        self.registry = registry if registry is not None else prometheus.CollectorRegistry()
        self._per_sandbox = per_sandbox
        self._made: dict[str, Any] = {}
        for metric in METRICS:
            if metric.kind == "counter":
                self._made[metric.name] = prometheus.Counter(
                    metric.name, metric.meaning, metric.labels, registry=self.registry
                )
            elif metric.kind == "histogram":
                self._made[metric.name] = prometheus.Histogram(
                    metric.name,
                    metric.meaning,
                    metric.labels,
                    buckets=BUCKETS,
                    registry=self.registry,
                )
        self._errors = known_errors()
        self._values: dict[tuple[str, str], set[str]] = {}
        self._lock = threading.Lock()
        self._sources: dict[str, Source] = {}
        self._monitor: Monitor | None = None
        self._subscription: events.Subscription | None = None
        self._of_pools: Callable[[], None] | None = None
        self._servers: list[tuple[Any, threading.Thread]] = []
        self.gauge_source("belljar_sandboxes", _live_by_backend)
        self.gauge_source("belljar_pool_guests", _guests_of_pools)
        self.gauge_source("belljar_pool_waiting", _waiting_for_pools)
        self._gauges = _Gauges(self._families)
        self.registry.register(self._gauges)

    # -- what is counted --------------------------------------------------------------------

    def subscribe(self) -> Self:
        """Count the events of this process from now on. May be called twice."""
        if self._subscription is None:
            self._subscription = events.subscribe(self.observe)
            self._of_pools = telling.subscribe(self._of_pool)
        return self

    def observe(self, event: events.Event) -> None:
        """Count one event. Called for each, by subscribe()."""
        subject = event.subject
        backend = _where(subject.backend)
        match event:
            case events.Started():
                environment = self._capped("belljar_starts_total", "environment", event)
                self._count("belljar_starts_total", backend, environment)
                self._time(event.stages, backend)
            case events.StartFailed():
                self._count("belljar_start_failures_total", self._reason(event.error), backend)
                if isinstance(event.error, LimitNotEnforceable):
                    self._count("belljar_refusals_total", "limits", backend)
            case events.CellEnded():
                self._cell(event, backend)
            case events.CellFailed():
                self._count("belljar_cell_failures_total", self._reason(event.error), backend)
            case events.CommandEnded():
                result = event.result
                self._count("belljar_commands_total", result.outcome.value, backend)
                self._count("belljar_output_bytes_total", backend, by=result.usage.output_bytes)
            case events.FilesChanged():
                operation = self._cap("belljar_file_changes_total", "operation", event.operation)
                self._count("belljar_file_changes_total", operation)
            case events.Ended():
                self._count("belljar_ends_total", _why(event.reason), backend)

    def _cell(self, event: events.CellEnded, backend: str) -> None:
        execution = event.execution
        environment = self._capped("belljar_cells_total", "environment", event)
        self._count("belljar_cells_total", execution.outcome.value, backend, environment)
        stages = {**event.stages, "total": event.seconds}
        if execution.outcome is Outcome.rejected:  # it neither waited nor ran
            stages = {name: stages[name] for name in ("policy", "total") if name in stages}
        self._time(stages, backend)
        self._count("belljar_output_bytes_total", backend, by=execution.usage.output_bytes)
        if execution.outcome is Outcome.rejected:
            self._count("belljar_refusals_total", "policy", backend)
        for call in execution.calls:
            # The guest names what it calls, and may name anything. A call that went well was of a
            # function that there is; of the others only the names that are known this way count.
            name = self._cap("belljar_host_calls_total", "function", call.name, new=call.ok)
            self._count("belljar_host_calls_total", name, "ok" if call.ok else "failed")

    def _of_pool(self, told: telling.Told) -> None:
        match told:
            case telling.Leased():
                self._count("belljar_pool_leases_total", told.reason.value)
                self._made["belljar_pool_wait_seconds"].labels(told.reason.value).observe(
                    told.seconds
                )
            case telling.Discarded():
                self._count("belljar_pool_discarded_total", told.why.value)
            case telling.StartFailed():
                self._count("belljar_pool_start_failures_total", self._reason(told.error))

    def alerted(self, kind: str) -> None:
        """Count an alert. Called when one begins."""
        self._count("belljar_alerts_total", kind if kind in ("memory", "cpu", "orphans") else OTHER)

    def _count(self, name: str, *labels: str, by: float = 1) -> None:
        self._made[name].labels(*labels).inc(by)

    def _time(self, stages: Mapping[str, float], backend: str) -> None:
        for stage, seconds in stages.items():
            self._made["belljar_stage_seconds"].labels(stage, backend).observe(seconds)

    def _reason(self, error: BaseException) -> str:
        if not isinstance(error, Exception):
            return "cancelled"
        for kind in type(error).__mro__:
            if kind.__name__ in self._errors and issubclass(kind, SandboxError):
                return kind.__name__
        return OTHER

    def _capped(self, metric: str, label: str, event: events.Event) -> str:
        return self._cap(metric, label, event.subject.environment)

    def _cap(self, metric: str, label: str, value: str, *, new: bool = True) -> str:
        """The value itself, while there are few; the registry keeps each for ever."""
        with self._lock:
            known = self._values.setdefault((metric, label), set())
            if value in known:
                return value
            if not new or len(known) >= MOST_VALUES or len(value) > 200:
                return OTHER
            known.add(value)
            return value

    # -- what is now ------------------------------------------------------------------------

    def gauge_source(self, name: str, source: Source) -> None:
        """Have a gauge of the table read from `source` at each scrape; label values → value.

        The hook for whoever knows: the pool for `belljar_pool_guests`, a sweep for
        `belljar_orphans`.
        """
        metric = BY_NAME.get(name)
        if metric is None or metric.kind != "gauge":
            raise unknown_option("gauge", name, [m.name for m in METRICS if m.kind == "gauge"])
        self._sources[name] = source

    def watch(self, monitor: Monitor) -> None:
        """Take memory, processors and processes from this monitor's last samples."""
        self._monitor = monitor
        add = self.gauge_source
        add("belljar_memory_bytes", lambda: _summed(monitor, lambda each: each.memory))
        add("belljar_processes", lambda: _summed(monitor, lambda each: each.processes))
        add("belljar_cpus_in_use", lambda: _summed(monitor, _cpus))
        if self._per_sandbox:
            add("belljar_sandbox_memory_bytes", lambda: _each(monitor, lambda s: s.memory))
            add("belljar_sandbox_memory_limit_bytes", lambda: _each(monitor, _limit))
            add("belljar_sandbox_cpus_in_use", lambda: _each(monitor, _cpus))

    def _families(self) -> Iterator[GaugeMetricFamily]:
        from prometheus_client.core import GaugeMetricFamily

        for metric in METRICS:
            source = self._sources.get(metric.name)
            if source is None:
                continue
            family = GaugeMetricFamily(metric.name, metric.meaning, labels=metric.labels)
            for labels, value in _checked(metric, source()):
                family.add_metric(labels, value)
            yield family

    # -- where it is read -------------------------------------------------------------------

    def text(self) -> str:
        """Everything, in Prometheus' text format."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry).decode()

    def serve(self, port: int, addr: str = "127.0.0.1") -> int:
        """Answer scrapes on this port until close(); 0 takes a free one. Gives the port.

        Everybody who reaches the address can read it: it is this machine alone, unless told.
        """
        if type(port) is not int or not 0 <= port <= 0xFFFF:
            raise InvalidOption(f"{port!r} is no port", hint="0 to 65535")
        prometheus = require_prometheus()
        try:
            server, thread = prometheus.start_http_server(port, addr, registry=self.registry)
        except OSError as error:
            raise InvalidOption(
                f"metrics cannot be served on {addr}:{port}: {error.strerror}",
                hint="another port, or 0 for a free one",
            ) from error
        self._servers.append((server, thread))
        return int(server.server_port)

    def close(self) -> None:
        """Stop counting and serving. What was counted can still be read. May be called twice."""
        if self._subscription is not None:
            self._subscription.cancel()
            self._subscription = None
        if self._of_pools is not None:
            self._of_pools()
            self._of_pools = None
        while self._servers:
            server, thread = self._servers.pop()
            server.shutdown()
            server.server_close()
            thread.join()

    def __enter__(self) -> Self:
        return self.subscribe()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def require_prometheus() -> Any:
    try:
        import prometheus_client
    except ImportError as error:
        raise SandboxError(
            "metrics need the package prometheus-client", hint="pip install prometheus-client"
        ) from error
    return prometheus_client


class _Gauges:
    """The collector of what is read at each scrape."""

    def __init__(self, families: Callable[[], Iterator[GaugeMetricFamily]]) -> None:
        self._families = families

    def collect(self) -> Iterable[GaugeMetricFamily]:
        return list(self._families())

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return []  # so that nothing is asked of the sources when it is registered


def _checked(metric: Metric, values: Values) -> Iterator[tuple[tuple[str, ...], float]]:
    for labels, value in list(values.items())[:MOST_SANDBOXES]:
        if len(labels) != len(metric.labels):
            raise InvalidOption(f"{metric.name} has the labels {metric.labels}, not {labels!r}")
        yield labels, float(value)


def _live_by_backend() -> Values:
    found: dict[tuple[str, ...], float] = {("native",): 0.0, ("docker",): 0.0}
    for sandbox in events.live():
        key = (_where(sandbox._lifecycle.subject.backend),)
        found[key] = found.get(key, 0.0) + 1
    return found


def _guests_of_pools() -> Values:
    found: dict[tuple[str, ...], float] = {("idle",): 0.0}
    for pool in telling.pools():
        for state, number in pool.guests().items():
            found[state,] = found.get((state,), 0.0) + number
    return found


def _waiting_for_pools() -> Values:
    return {(): float(sum(pool.waiting for pool in telling.pools()))}


def _summed(monitor: Monitor, read: Callable[[Sample], float | None]) -> Values:
    found: dict[tuple[str, ...], float] = {("native",): 0.0, ("docker",): 0.0}
    for sample in monitor.latest().values():
        key = (_where(sample.backend),)
        found[key] = found.get(key, 0.0) + (read(sample) or 0.0)
    return found


def _each(monitor: Monitor, read: Callable[[Sample], float | None]) -> Values:
    found: dict[tuple[str, ...], float] = {}
    for id, sample in monitor.latest().items():
        value = read(sample)
        if value is not None:
            found[id, _where(sample.backend)] = value
    return found


def _where(backend: str) -> str:
    return backend if backend in BACKENDS else OTHER


def _cpus(sample: Sample) -> float | None:
    return None if sample.cpu_percent is None else sample.cpu_percent / 100


def _limit(sample: Sample) -> float:
    return sample.memory_limit


def _why(reason: str) -> str:
    return next((word for known, word in ENDS.items() if known in reason), OTHER)
