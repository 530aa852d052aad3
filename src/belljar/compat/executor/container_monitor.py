"""ContainerMonitor: what sandboxes use, and the orphans of dead processes.

It looks at Belljar's own sandboxes, or at containers through a Docker client. Containers of other
programs are neither listed nor removed.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from belljar import events
from belljar.backends import docker as docker  # older programs replace this name in their tests
from belljar.compat.executor import container_stats
from belljar.compat.executor.container_stats import DOCKER_AVAILABLE as DOCKER_AVAILABLE
from belljar.compat.executor.container_stats import MB, MISSING, ContainerStats, ContainerStatus
from belljar.observe import orphans
from belljar.observe.sampling import Monitor
from belljar.runtime import wait
from belljar.sandbox.blocking import Sandbox
from belljar.sandbox.sandbox import AsyncSandbox

__all__ = ["ContainerMonitor", "ContainerStats", "ContainerStatus"]

log = logging.getLogger(__name__)

FINLAB_LABEL = "finlab-sandbox"  # what containers of the strategy generator carry

INTERVAL = 10.0  # seconds between two looks, as get_monitoring_overhead() assumes


class ContainerMonitor:
    """Looks at the sandboxes of this process. With a `docker_client` (of the Docker SDK), at its
    containers with the label `finlab-sandbox`, which the strategy generator made.

    `metrics_collector`: Belljar's Metrics, or the strategy generator's collector.
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
        self._collected = container_stats.coerce_collector(metrics_collector)
        self._last_stats_time: dict[str, float] = {}  # seconds that a look took
        self._source = OwnSandboxes() if docker_client is None else ClientContainers(docker_client)

    def get_container_stats(self, container_id: str) -> ContainerStats | None:
        """What a container uses now; None if no container has this id."""
        began = time.perf_counter()
        try:
            stats = self._source.one(container_id)
        except Missing:
            return None
        self._record(container_id, began, [stats])
        return stats

    def get_running_containers(self) -> list[ContainerStats]:
        began = time.perf_counter()
        found = self._source.running()
        self._record("running", began, found)
        self._collected.gauge("sandbox_containers_running", len(found))
        return found

    def monitor_all_containers(self) -> dict[str, ContainerStats]:
        """Running containers and orphans, by id."""
        began = time.perf_counter()
        found = self._source.every()
        self._record("all", began, found)
        return {stats.container_id: stats for stats in found}

    def scan_orphaned_containers(self) -> list[str]:
        """The ids of orphans; logs a warning if there are `alert_threshold` or more."""
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
        """Remove these orphans (None: all), and return how many are gone. Containers of other
        programs and containers in use stay; a failed removal is logged and does not stop the
        others."""
        if not self.cleanup_enabled:
            return 0
        wanted = self.scan_orphaned_containers() if container_ids is None else container_ids
        cleaned = 0
        for container_id in wanted:
            try:
                removed = self._source.remove(container_id, force=force)
            except Missing:
                removed = True  # another process was faster
            except Exception as error:
                log.error("container %s could not be removed: %s", container_id, error)
                continue
            if removed:
                cleaned += 1
            else:
                log.warning("container %s is in use or not Belljar's; not removed", container_id)
        if cleaned:
            self._collected.counter("sandbox_containers_cleaned_total", cleaned)
        return cleaned

    def kill_container(self, container_id: str) -> bool:
        """Kill a running container. False if it belongs to another program; raises Missing."""
        return self._source.kill(container_id)

    def check_resource_alerts(
        self,
        memory_threshold: float = 90.0,
        cpu_threshold: float = 90.0,
        *,
        memory_threshold_percent: float | None = None,
        cpu_threshold_percent: float | None = None,
    ) -> list[dict[str, Any]]:
        """Containers above a threshold, in percent of the memory limit and of one processor."""
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
        """Percent of one processor that a look every ten seconds takes."""
        if not self._last_stats_time:
            return 0.0
        average = sum(self._last_stats_time.values()) / len(self._last_stats_time)
        return average / INTERVAL * 100

    def _record(self, what: str, began: float, found: list[ContainerStats]) -> None:
        if len(self._last_stats_time) >= 1000:
            self._last_stats_time.clear()
        self._last_stats_time[what] = time.perf_counter() - began
        for stats in found:
            self._collected.usage(stats)

    def close(self) -> None:
        """Close the client, if one was given."""
        self._source.close()

    def __enter__(self) -> ContainerMonitor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _violation(kind: str, current: float, threshold: float) -> Mapping[str, Mapping[str, float]]:
    if current < threshold:
        return {}
    return {f"{kind}_violation": {"current": current, "threshold": threshold}}


class Missing(Exception):
    """There is no such container."""


class OwnSandboxes:
    """The live sandboxes of this process, and what dead processes left."""

    def __init__(self) -> None:
        self._monitor = Monitor()

    def one(self, container_id: str) -> ContainerStats:
        """Raises Missing."""
        for stats in self.running():
            if container_id and stats.container_id.startswith(container_id):
                return stats
        for left in find_orphans():
            if container_id and container_id in (left["id"], left["short_id"], left["name"]):
                return _orphan(left)
        raise Missing(container_id)

    def running(self) -> list[ContainerStats]:
        samples = wait(self._monitor.sample)
        found = []
        for sandbox in events.live():
            sample = samples.get(sandbox.id)
            memory = (sample.memory if sample else None) or 0
            found.append(
                ContainerStats(
                    container_id=get_container_id(sandbox),
                    container_name=sandbox.id,
                    status=ContainerStatus.RUNNING,
                    cpu_percent=(sample.cpu_percent if sample else None) or 0.0,
                    memory_usage_mb=memory / MB,
                    memory_limit_mb=sandbox.limits.memory / MB,
                    memory_percent=memory / sandbox.limits.memory * 100,
                    processes=(sample.processes if sample else None) or 0,
                )
            )
        return found

    def every(self) -> list[ContainerStats]:
        return [*self.running(), *(_orphan(left) for left in find_orphans())]

    def orphans(self) -> list[str]:
        return [left["id"] for left in find_orphans()]

    def remove(self, container_id: str, *, force: bool) -> bool:
        """False if it is in use. Raises Missing, or why the removal failed.

        Sweeps all orphans: `collect_orphans` alone decides, again, whose owner is dead."""
        known = {left["id"]: left for left in find_orphans()}
        if container_id not in known:
            if any(get_container_id(sandbox) == container_id for sandbox in events.live()):
                return False  # it is in use
            raise Missing(container_id)
        swept = orphans.collect_orphans(known[container_id]["backend"])
        problems = [
            each.problem for each in swept.leftovers if container_id in (each.id, each.name)
        ]
        if any(problems):
            raise RuntimeError(problems[0])
        return True

    def kill(self, container_id: str) -> bool:
        for sandbox in events.live():
            if get_container_id(sandbox) == container_id:
                wait(sandbox.kill)
                return True
        raise Missing(container_id)

    def close(self) -> None:
        self._monitor.close()


def _orphan(left: dict[str, Any]) -> ContainerStats:
    return ContainerStats(
        container_id=left["id"], container_name=left["name"], status=ContainerStatus.DEAD
    )


class ClientContainers:
    """The containers with FINLAB_LABEL that the caller's Docker client knows."""

    def __init__(self, client: Any) -> None:
        try:
            client.ping()
        except Exception as error:
            raise RuntimeError(f"Failed to connect to Docker daemon: {error}") from error
        self._client = client

    def one(self, container_id: str) -> ContainerStats:
        with _missing():
            return container_stats.read_docker_stats(self._client.containers.get(container_id))

    def running(self) -> list[ContainerStats]:
        return [container_stats.read_docker_stats(each) for each in self._list(status="running")]

    def every(self) -> list[ContainerStats]:
        return [container_stats.read_docker_stats(each) for each in self._list()]

    def orphans(self) -> list[str]:
        return [str(each.short_id) for each in self._list(status=["exited", "dead", "created"])]

    def _list(self, **filters: object) -> Iterable[Any]:
        filters["label"] = FINLAB_LABEL
        found: Iterable[Any] = self._client.containers.list(all=True, filters=filters)
        return found

    def remove(self, container_id: str, *, force: bool) -> bool:
        return self._call(container_id, "remove", force=force)

    def kill(self, container_id: str) -> bool:
        return self._call(container_id, "kill", signal="SIGKILL")

    def _call(self, container_id: str, method: str, **options: object) -> bool:
        """False if it is another program's."""
        with _missing():
            container = self._client.containers.get(container_id)
            if FINLAB_LABEL not in (container.labels or {}):
                return False
            getattr(container, method)(**options)
            return True

    def close(self) -> None:
        self._client.close()


@contextlib.contextmanager
def _missing() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # By its name: it comes from the caller's library, which Belljar does not import.
        if type(error).__name__ == "NotFound":
            raise Missing(str(error)) from error
        raise


def find_orphans() -> list[dict[str, Any]]:
    """Leftovers with processes or a container whose owner is dead, as DockerExecutor lists them."""
    return [
        _list_orphan(each)
        for each in orphans.find_orphans().leftovers
        if each.kind in orphans.RUNNING
    ]


def _list_orphan(each: orphans.Leftover) -> dict[str, Any]:
    id = each.id or each.name
    return {
        "id": id,
        "short_id": id[:12] if each.id else each.name.rpartition("/")[2],
        "name": each.name,
        "status": "orphaned",
        "created": "unknown",
        "owner": each.owner,
        "backend": each.backend,
    }


def get_container_id(sandbox: Sandbox | AsyncSandbox) -> str:
    """The id that a started sandbox is listed by: its container's, or its own."""
    seen = sandbox.whereabouts
    return (seen.container if seen is not None else None) or sandbox.id
