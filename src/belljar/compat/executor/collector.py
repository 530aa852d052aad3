"""Whom ContainerMonitor tells its numbers: nobody, Belljar's Metrics, or a collector of before."""

from __future__ import annotations

import sys
from typing import Any

from belljar.compat.executor.container_stats import ContainerStats
from belljar.errors import InvalidOption

GAUGES = {
    "sandbox_container_memory_usage_mb": "Memory of a container in MB",
    "sandbox_container_memory_percent": "Memory of a container in percent of its limit",
    "sandbox_container_cpu_percent": "CPU of a container in percent of one processor",
    "sandbox_containers_running": "Containers that run",
    "sandbox_containers_orphaned": "Containers whose owner has died",
}
COUNTERS = {
    "sandbox_containers_cleaned_total": "Orphaned containers that were removed",
    "sandbox_errors_total": "Alerts",
}


class Nobody:
    def gauge(self, name: str, value: float, labels: dict[str, str] | None = None) -> None:
        """A value as it is now."""

    def counter(self, name: str, value: float) -> None:
        """So many more."""

    def error(self, kind: str) -> None:
        """Something to look at."""

    def usage(self, stats: ContainerStats) -> None:
        labels = {
            "container_id": stats.container_id,
            "container_name": stats.container_name,
            "status": stats.status.value,
        }
        self.gauge("sandbox_container_memory_usage_mb", stats.memory_usage_mb, labels)
        self.gauge("sandbox_container_memory_percent", stats.memory_percent, labels)
        self.gauge("sandbox_container_cpu_percent", stats.cpu_percent, labels)


class OfRegistry(Nobody):
    """Gauges in a registry of prometheus_client: that of Belljar's Metrics."""

    def __init__(self, registry: Any) -> None:
        from prometheus_client import Counter, Gauge

        labels = ("container_id", "container_name", "status")
        self._made: dict[str, Any] = {}
        for name, meaning in GAUGES.items():
            names = labels if name.startswith("sandbox_container_") else ()
            self._made[name] = Gauge(name, meaning, names, registry=registry)
        for name, meaning in COUNTERS.items():
            self._made[name] = Counter(name, meaning, registry=registry)

    def gauge(self, name: str, value: float, labels: dict[str, str] | None = None) -> None:
        made = self._made[name]
        (made.labels(**labels) if labels else made).set(value)

    def counter(self, name: str, value: float) -> None:
        self._made[name].inc(value)

    def error(self, kind: str) -> None:
        self.counter("sandbox_errors_total", 1)


class OfBefore(Nobody):
    """A collector with `metrics` by name, `record_error`, and a way to register what is new."""

    def __init__(self, given: Any) -> None:
        self._given = given
        kinds = getattr(sys.modules.get(type(given).__module__), "MetricType", None)
        register = getattr(given, "_register_metric", None)
        for name, meaning in {**GAUGES, **COUNTERS}.items():
            if name not in given.metrics and register is not None and kinds is not None:
                register(name, kinds.COUNTER if name in COUNTERS else kinds.GAUGE, meaning)

    def gauge(self, name: str, value: float, labels: dict[str, str] | None = None) -> None:
        if name in self._given.metrics:
            self._given.metrics[name].add_value(value, labels)

    def counter(self, name: str, value: float) -> None:
        self.gauge(name, value)

    def error(self, kind: str) -> None:
        self._given.record_error(kind)


def coerce(given: Any) -> Nobody:
    if given is None:
        return Nobody()
    if getattr(given, "registry", None) is not None:
        return OfRegistry(given.registry)
    if hasattr(given, "metrics") and hasattr(given, "record_error"):
        return OfBefore(given)
    raise InvalidOption(
        f"metrics_collector is a {type(given).__name__}, which takes no metrics",
        hint="give belljar.observe's Metrics, or None",
    )
