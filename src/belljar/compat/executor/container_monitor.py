"""ContainerMonitor: what sandboxes use, and what is left of those whose owner has died."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from belljar.backends import docker as docker  # programs of before replace this name in tests
from belljar.compat.executor import collector
from belljar.compat.executor.availability import DOCKER_AVAILABLE as DOCKER_AVAILABLE
from belljar.compat.executor.availability import MISSING
from belljar.compat.executor.container_source import (
    FINLAB_LABEL,
    ClientContainers,
    Missing,
    OwnSandboxes,
    Source,
)
from belljar.compat.executor.container_stats import ContainerStats, ContainerStatus

__all__ = ["ContainerMonitor", "ContainerStats", "ContainerStatus"]

log = logging.getLogger(__name__)

INTERVAL = 10.0  # seconds; how often somebody is thought to look, for get_monitoring_overhead()


class ContainerMonitor:
    """Looks at the sandboxes of this process. With a `docker_client` (of the Docker SDK), at the
    containers it knows that carry the label `finlab-sandbox`, those of the system of before.

    `metrics_collector`: Belljar's Metrics, or a collector of the system of before.
    """

    FINLAB_LABEL = FINLAB_LABEL

    def __init__(
        self,
        metrics_collector: Any = None,
        docker_client: Any = None,
        alert_threshold: int = 3,
        cleanup_enabled: bool = True,
    ) -> None:
        if not DOCKER_AVAILABLE:
            raise RuntimeError(MISSING)
        self.metrics_collector = metrics_collector
        self.client = docker_client
        self.alert_threshold = alert_threshold
        self.cleanup_enabled = cleanup_enabled
        self._collected = collector.coerce(metrics_collector)
        self._last_stats_time: dict[str, float] = {}  # seconds that a look took
        self._source: Source = OwnSandboxes() if docker_client is None else _reach(docker_client)

    def get_container_stats(self, container_id: str) -> ContainerStats | None:
        """What one uses now; None if there is none of this id."""
        began = time.perf_counter()
        try:
            stats = self._source.one(container_id)
        except Missing:
            return None
        self._took(container_id, began)
        self._collected.usage(stats)
        return stats

    def get_running_containers(self) -> list[ContainerStats]:
        began = time.perf_counter()
        found = self._source.running()
        self._took("running", began)
        for stats in found:
            self._collected.usage(stats)
        self._collected.gauge("sandbox_containers_running", len(found))
        return found

    def monitor_all_containers(self) -> dict[str, ContainerStats]:
        """Those that run and those that are left over, by id."""
        began = time.perf_counter()
        found = self._source.every()
        self._took("all", began)
        for stats in found:
            self._collected.usage(stats)
        return {stats.container_id: stats for stats in found}

    def scan_orphaned_containers(self) -> list[str]:
        """The ids of ours whose owner has died; at `alert_threshold` and more, with a warning."""
        found = self._source.orphans()
        self._collected.gauge("sandbox_containers_orphaned", len(found))
        if found and len(found) >= self.alert_threshold:
            log.warning(
                "%d orphaned containers (alert from %d on)", len(found), self.alert_threshold
            )
            self._collected.error("orphaned_containers_alert")
        return found

    def cleanup_orphaned_containers(
        self, container_ids: list[str] | None = None, force: bool = True
    ) -> int:
        """Remove these orphans (None: all), and tell how many are gone. What is not ours, or is in
        use, is left alone; a removal that fails is logged and does not stop the others."""
        if not self.cleanup_enabled:
            return 0
        wanted = self.scan_orphaned_containers() if container_ids is None else container_ids
        cleaned = 0
        for container_id in wanted:
            try:
                removed = self._source.remove(container_id, force=force)
            except Missing:
                removed = True  # somebody else was faster
            except Exception as error:
                log.error("container %s could not be removed: %s", container_id, error)
                continue
            if removed:
                cleaned += 1
            else:
                log.warning("container %s is not ours to remove", container_id)
        if cleaned:
            self._collected.counter("sandbox_containers_cleaned_total", cleaned)
        return cleaned

    def kill_container(self, container_id: str) -> bool:
        """End one that runs, at once. False if it is not ours; raises Missing if there is none."""
        return self._source.kill(container_id)

    def check_resource_alerts(
        self,
        memory_threshold: float = 90.0,
        cpu_threshold: float = 90.0,
        *,
        memory_threshold_percent: float | None = None,
        cpu_threshold_percent: float | None = None,
    ) -> list[dict[str, Any]]:
        """Those above a threshold, in percent: of the memory limit, and of one processor."""
        if memory_threshold_percent is not None:
            memory_threshold = memory_threshold_percent
        if cpu_threshold_percent is not None:
            cpu_threshold = cpu_threshold_percent
        alerts = []
        for stats in self.get_running_containers():
            violations = {
                **_violation("memory", stats.memory_percent, memory_threshold),
                **_violation("cpu", stats.cpu_percent, cpu_threshold),
            }
            if violations:
                alerts.append({**stats.to_dict(), **violations})
                log.warning("container %s: %s", stats.container_id, ", ".join(violations))
        return alerts

    def get_monitoring_overhead(self) -> float:
        """Percent of one processor that looking every ten seconds takes."""
        if not self._last_stats_time:
            return 0.0
        average = sum(self._last_stats_time.values()) / len(self._last_stats_time)
        return average / INTERVAL * 100

    def _took(self, what: str, began: float) -> None:
        if len(self._last_stats_time) >= 1000:
            self._last_stats_time.clear()
        self._last_stats_time[what] = time.perf_counter() - began

    def close(self) -> None:
        """Let go of the client, if one was given."""
        self._source.close()

    def __enter__(self) -> ContainerMonitor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _reach(client: Any) -> Source:
    try:
        client.ping()
    except Exception as error:
        raise RuntimeError(f"Failed to connect to Docker daemon: {error}") from error
    return ClientContainers(client)


def _violation(kind: str, current: float, threshold: float) -> Mapping[str, Mapping[str, float]]:
    if current < threshold:
        return {}
    return {f"{kind}_violation": {"current": current, "threshold": threshold}}
