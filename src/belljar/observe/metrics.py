"""Metrics for Prometheus: counted from the events of this process, read at each scrape.

    metrics = Metrics()
    metrics.subscribe()
    metrics.serve(9100)       # http://127.0.0.1:9100/metrics

Gauges (live sandboxes, their memory) are read at each scrape, so they cannot drift from the truth.

No label takes its value from a guest. A label has a fixed set of values, or the program on the host
chooses them, and those after the first `MOST_VALUES` become "other".
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from belljar import errors, events
from belljar.errors import InvalidOption, LimitNotEnforceable, SandboxError, unknown_option
from belljar.observe.sampling import Monitor, Sample
from belljar.results.execution import Outcome

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import GaugeMetricFamily


Values = Mapping[tuple[str, ...], float]  # label values → value
Source = Callable[[], Values]

BACKENDS = frozenset(("native", "docker", "auto"))
ENDS = ("closed", "lifetime", "idle", "lost")
OTHER = "other"
MOST_VALUES = 64  # of one label whose values the host's program chooses
MOST_SANDBOXES = 1000  # of the label `sandbox`, if it is wanted

# Seconds. A warm cell takes about a millisecond, a container's start one or two seconds, and a
# cell as long as its time-out.
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


Kind = Literal["counter", "histogram", "gauge"]


@dataclass(frozen=True)
class Metric:
    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str


def _metric(name: str, kind: Kind, labels: str, meaning: str) -> Metric:
    return Metric(f"belljar_{name}", kind, tuple(labels.split()), meaning)


METRICS = (
    _metric("cells_total", "counter", "outcome backend environment", "cells that ended"),
    _metric("cell_failures_total", "counter", "reason backend", "cells that Belljar failed to run"),
    _metric("commands_total", "counter", "outcome backend", "commands that ended"),
    _metric("starts_total", "counter", "backend environment", "guests that were started"),
    _metric("start_failures_total", "counter", "reason backend", "guests that did not start"),
    _metric("ends_total", "counter", "reason backend", "sandboxes that ended"),
    _metric(
        "refusals_total", "counter", "by backend", "cells and starts refused, by policy or limits"
    ),
    _metric("host_calls_total", "counter", "function result", "calls of the host's functions"),
    _metric("output_bytes_total", "counter", "backend", "written to stdout and stderr"),
    _metric("file_changes_total", "counter", "operation", "changes of files by the host"),
    _metric("alerts_total", "counter", "kind", "alerts that began"),
    _metric("pool_leases_total", "counter", "reason", "guests that pools gave to sandboxes"),
    _metric("pool_discarded_total", "counter", "reason", "guests of pools that were ended unused"),
    _metric("pool_start_failures_total", "counter", "reason", "guests of pools that did not start"),
    _metric("stage_seconds", "histogram", "stage backend", "how long a stage took"),
    _metric("pool_wait_seconds", "histogram", "reason", "how long a request waited for a guest"),
    _metric("sandboxes", "gauge", "backend", "live sandboxes of this process"),
    _metric("memory_bytes", "gauge", "backend", "memory of all live sandboxes"),
    _metric("cpus_in_use", "gauge", "backend", "processors that all live sandboxes keep busy"),
    _metric("processes", "gauge", "backend", "processes of all live sandboxes"),
    _metric("orphans", "gauge", "backend", "what killed processes left behind, at the last look"),
    _metric("pool_guests", "gauge", "state", "guests of pools: idle, starting, leased, ending"),
    _metric("pool_waiting", "gauge", "", "requests that wait for a guest of a pool"),
    _metric("sandbox_memory_bytes", "gauge", "sandbox backend", "memory of one sandbox"),
    _metric("sandbox_memory_limit_bytes", "gauge", "sandbox backend", "its limit"),
    _metric("sandbox_cpus_in_use", "gauge", "sandbox backend", "processors that one keeps busy"),
)


def make_reference() -> str:
    """The table of the reference page, in Markdown."""
    rows = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        asked = " (only with `per_sandbox=True`)" if "sandbox" in metric.labels else ""
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.meaning}{asked} |")
    return "\n".join(rows) + "\n"


class Metrics:
    """Counts events. There may be several at once, each with its own registry.

    `registry`: a prometheus_client CollectorRegistry (default: a new one). `per_sandbox`: also
    gauges with the sandbox's id as a label, for few sandboxes that live long: each is a series.
    """

    def __init__(
        self, *, registry: CollectorRegistry | None = None, per_sandbox: bool = False
    ) -> None:
        prometheus = require_prometheus()
        self.registry = registry if registry is not None else prometheus.CollectorRegistry()
        self._per_sandbox = per_sandbox
        self._made: dict[str, Any] = {}
        kinds = {
            "counter": prometheus.Counter,
            "histogram": functools.partial(prometheus.Histogram, buckets=BUCKETS),
        }
        for metric in METRICS:
            if make := kinds.get(metric.kind):
                self._made[metric.name] = make(
                    metric.name, metric.meaning, metric.labels, registry=self.registry
                )
        self._values: dict[tuple[str, str], set[str]] = {}
        self._lock = threading.Lock()
        self._sources: dict[str, Source] = {}
        self._subscriptions: tuple[events.Subscription, ...] = ()
        self._servers: list[tuple[Any, threading.Thread]] = []
        self.gauge_source("belljar_sandboxes", _live_by_backend)
        self.gauge_source("belljar_pool_guests", _guests_of_pools)
        self.gauge_source("belljar_pool_waiting", _waiting_for_pools)
        self.registry.register(_Gauges(self._families))

    # -- counters ---------------------------------------------------------------------------

    def subscribe(self) -> Self:
        """Count the events of this process from now on. May be called twice."""
        if not self._subscriptions:
            pools = events.subscribe_pools(self._observe_pool)
            self._subscriptions = events.subscribe(self.observe), pools
        return self

    def observe(self, event: events.Event) -> None:
        """Count one event. Called for each, by subscribe()."""
        subject = event.subject
        backend = _label_backend(subject.backend)
        match event:
            case events.Started():
                environment = self._cap("belljar_starts_total", "environment", subject.environment)
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
                reason = next((word for word in ENDS if word in event.reason), OTHER)
                self._count("belljar_ends_total", reason, backend)

    def _cell(self, event: events.CellEnded, backend: str) -> None:
        execution = event.execution
        environment = self._cap("belljar_cells_total", "environment", event.subject.environment)
        self._count("belljar_cells_total", execution.outcome.value, backend, environment)
        stages = {**event.stages, "total": event.seconds}
        if execution.outcome is Outcome.rejected:  # it neither waited nor ran
            stages = {name: stages[name] for name in ("policy", "total") if name in stages}
        self._time(stages, backend)
        self._count("belljar_output_bytes_total", backend, by=execution.usage.output_bytes)
        if execution.outcome is Outcome.rejected:
            self._count("belljar_refusals_total", "policy", backend)
        for call in execution.calls:
            # The guest chooses the name. A call that succeeded was of a function that exists; of
            # failed calls only names that are known in this way count.
            name = self._cap("belljar_host_calls_total", "function", call.name, new=call.ok)
            self._count("belljar_host_calls_total", name, "ok" if call.ok else "failed")

    def _observe_pool(self, event: events.PoolEvent) -> None:
        match event:
            case events.GuestLeased():
                self._count("belljar_pool_leases_total", event.reason)
                self._made["belljar_pool_wait_seconds"].labels(event.reason).observe(event.seconds)
            case events.GuestDiscarded():
                self._count("belljar_pool_discarded_total", event.reason)
            case events.GuestStartFailed():
                self._count("belljar_pool_start_failures_total", self._reason(event.error))

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
            if issubclass(kind, SandboxError) and hasattr(errors, kind.__name__):
                return kind.__name__
        return OTHER

    def _cap(self, metric: str, label: str, value: str, *, new: bool = True) -> str:
        """The value itself, or "other" if there are too many: the registry never drops one."""
        with self._lock:
            known = self._values.setdefault((metric, label), set())
            if value in known:
                return value
            if not new or len(known) >= MOST_VALUES or len(value) > 200:
                return OTHER
            known.add(value)
            return value

    # -- gauges -----------------------------------------------------------------------------

    def gauge_source(self, name: str, source: Source) -> None:
        """Read a gauge of the table from `source` at each scrape; label values → value."""
        gauges = [metric.name for metric in METRICS if metric.kind == "gauge"]
        if name not in gauges:
            raise unknown_option("gauge", name, gauges)
        self._sources[name] = source

    def watch(self, monitor: Monitor) -> None:
        """Take memory, processors and processes from the last samples of this monitor."""
        add = self.gauge_source
        add("belljar_memory_bytes", lambda: _summed(monitor, lambda each: each.memory))
        add("belljar_processes", lambda: _summed(monitor, lambda each: each.processes))
        add("belljar_cpus_in_use", lambda: _summed(monitor, _cpus))
        if self._per_sandbox:
            add("belljar_sandbox_memory_bytes", lambda: _each(monitor, lambda s: s.memory))
            add(
                "belljar_sandbox_memory_limit_bytes",
                lambda: _each(monitor, lambda s: s.memory_limit),
            )
            add("belljar_sandbox_cpus_in_use", lambda: _each(monitor, _cpus))

    def _families(self) -> Iterator[GaugeMetricFamily]:
        from prometheus_client.core import GaugeMetricFamily

        for metric in METRICS:
            source = self._sources.get(metric.name)
            if source is None:
                continue
            family = GaugeMetricFamily(metric.name, metric.meaning, labels=metric.labels)
            for labels, value in list(source().items())[:MOST_SANDBOXES]:
                if len(labels) != len(metric.labels):
                    needed = f"{metric.name} has the labels {metric.labels}"
                    raise InvalidOption(f"{needed}, not {labels!r}")
                family.add_metric(labels, float(value))
            yield family

    # -- output -----------------------------------------------------------------------------

    def text(self) -> str:
        """Everything, in Prometheus' text format."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry).decode()

    def serve(self, port: int, addr: str = "127.0.0.1") -> int:
        """Answer scrapes on this port until close(); 0 takes a free one. Gives the port.

        Every client that reaches the address can read them: by default, only this machine.
        """
        if type(port) is not int or not 0 <= port <= 0xFFFF:
            raise InvalidOption(f"{port!r} is not a port", hint="0 to 65535")
        prometheus = require_prometheus()
        try:
            server, thread = prometheus.start_http_server(port, addr, registry=self.registry)
        except OSError as error:
            raise InvalidOption(
                f"metrics cannot be served on {addr}:{port}: {error.strerror}",
                hint="give another port, or 0 for a free one",
            ) from error
        self._servers.append((server, thread))
        return int(server.server_port)

    def close(self) -> None:
        """Stop counting and serving. What was counted can still be read. May be called twice."""
        for subscription in self._subscriptions:
            subscription.cancel()
        self._subscriptions = ()
        while self._servers:
            server, thread = self._servers.pop()
            server.shutdown()
            server.server_close()
            thread.join()

    def __enter__(self) -> Self:
        return self.subscribe()

    def __exit__(self, *exception: object) -> None:
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
    """The collector of the gauges."""

    def __init__(self, families: Callable[[], Iterator[GaugeMetricFamily]]) -> None:
        self.collect = families

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return []  # otherwise the sources are read at registration


def _live_by_backend() -> Values:
    return _sum_by_backend((each._lifecycle.subject.backend, 1.0) for each in events.live())


def _guests_of_pools() -> Values:
    found = Counter(idle=0)
    for pool in events.pools.all():
        found.update(pool.count_guests())
    return {(state,): number for state, number in found.items()}


def _waiting_for_pools() -> Values:
    return {(): float(sum(pool.waiting for pool in events.pools.all()))}


def _summed(monitor: Monitor, read: Callable[[Sample], float | None]) -> Values:
    samples = monitor.latest().values()
    return _sum_by_backend((sample.backend, read(sample) or 0.0) for sample in samples)


def _sum_by_backend(values: Iterable[tuple[str, float]]) -> Values:
    found: dict[tuple[str, ...], float] = {("native",): 0.0, ("docker",): 0.0}
    for backend, value in values:
        key = (_label_backend(backend),)
        found[key] = found.get(key, 0.0) + value
    return found


def _each(monitor: Monitor, read: Callable[[Sample], float | None]) -> Values:
    return {
        (id, _label_backend(sample.backend)): value
        for id, sample in monitor.latest().items()
        if (value := read(sample)) is not None
    }


def _label_backend(backend: str) -> str:
    return backend if backend in BACKENDS else OTHER


def _cpus(sample: Sample) -> float | None:
    return None if sample.cpu_percent is None else sample.cpu_percent / 100
