"""ContainerStats: what one container or sandbox uses now; and the metrics made of it."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

import anyio
from anyio.abc import Listener, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from belljar import runtime
from belljar.errors import InvalidOption, SandboxError
from belljar.observe.metrics import Metrics
from belljar.observe.sampling import Monitor
from belljar.runtime import wait

log = logging.getLogger(__name__)

# True if sandboxes can run here: natively on Linux; in containers with the extra "docker".
DOCKER_AVAILABLE = sys.platform == "linux" or importlib.util.find_spec("h11") is not None

MISSING = (
    "Docker SDK not available. Install with: pip install docker\n"
    "  hint: Belljar needs no Docker SDK: pip install h11, or use a Linux host"
)

MB = 2**20


class ContainerStatus(Enum):
    RUNNING = "running"
    EXITED = "exited"
    CREATED = "created"
    PAUSED = "paused"
    RESTARTING = "restarting"
    REMOVING = "removing"
    DEAD = "dead"


@dataclass
class ContainerStats(Mapping[str, Any]):
    """Readable by attribute, and as a dictionary: `stats["memory_percent"]`."""

    container_id: str
    container_name: str
    status: ContainerStatus
    cpu_percent: float = 0.0  # of one processor
    memory_usage_mb: float = 0.0
    memory_limit_mb: float = 0.0
    memory_percent: float = 0.0  # of its limit
    processes: int = 0  # threads are counted too
    created_at: datetime | None = None
    finished_at: datetime | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            **vars(self),
            "status": self.status.value,
            "memory_usage": int(self.memory_usage_mb * MB),  # bytes
            "memory_limit": int(self.memory_limit_mb * MB),  # bytes
            "created_at": self.created_at.isoformat() if self.created_at else None,
            "finished_at": self.finished_at.isoformat() if self.finished_at else None,
        }

    def __getitem__(self, name: str) -> Any:
        return self.to_dict()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    def __len__(self) -> int:
        return len(self.to_dict())


def read_docker_stats(container: Any) -> ContainerStats:
    """The stats of a container, read from its object of the Docker SDK."""
    container.reload()
    try:
        status = ContainerStatus(container.status.lower())
    except ValueError:
        status = ContainerStatus.EXITED
    state = container.attrs.get("State", {})
    made = ContainerStats(
        container_id=container.short_id,
        container_name=container.name,
        status=status,
        created_at=_moment(state.get("Created") or container.attrs.get("Created")),
        finished_at=_moment(state.get("FinishedAt")),
    )
    if status is ContainerStatus.RUNNING:
        _measure(made, container.stats(stream=False))
    return made


def _measure(made: ContainerStats, read: dict[str, Any]) -> None:
    memory = read.get("memory_stats") or {}
    used, limit = memory.get("usage", 0), memory.get("limit", 0)
    made.memory_usage_mb, made.memory_limit_mb = used / MB, limit / MB
    made.memory_percent = used / limit * 100 if limit else 0.0
    made.processes = (read.get("pids_stats") or {}).get("current") or 0
    now, before = read.get("cpu_stats") or {}, read.get("precpu_stats") or {}
    spent = _total(now) - _total(before)
    passed = now.get("system_cpu_usage", 0) - before.get("system_cpu_usage", 0)
    if spent > 0 and passed > 0:
        made.cpu_percent = spent / passed * now.get("online_cpus", 1) * 100


def _total(cpu: dict[str, Any]) -> int:
    return int((cpu.get("cpu_usage") or {}).get("total_usage", 0))


def _moment(text: object) -> datetime | None:
    """None also for the year 1, which an engine writes for "never"."""
    if not isinstance(text, str) or text.startswith("0001-"):
        return None
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None


# -- metrics: to a collector of the caller's -------------------------------------------------

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


USAGE = "sandbox_container_"  # the gauges of one container, which have these labels
LABELS = ("container_id", "container_name", "status")


class NoMetrics:
    """Drops everything. The others record to what the caller gave."""

    def gauge(self, name: str, value: float, labels: dict[str, str] | None = None) -> None:
        """Record the current value."""

    def counter(self, name: str, value: float) -> None:
        """Add to a total."""
        self.gauge(name, value)

    def error(self, kind: str) -> None:
        """Record an alert."""
        self.counter("sandbox_errors_total", 1)

    def usage(self, stats: ContainerStats) -> None:
        labels = {name: stats[name] for name in LABELS}
        for name in ("memory_usage_mb", "memory_percent", "cpu_percent"):
            self.gauge(f"{USAGE}{name}", stats[name], labels)


class RegistryMetrics(NoMetrics):
    """Records to the prometheus_client registry of Belljar's Metrics."""

    def __init__(self, registry: Any) -> None:
        from prometheus_client import Counter, Gauge

        self._made: dict[str, Any] = {}
        for name, meaning in GAUGES.items():
            names = LABELS if name.startswith(USAGE) else ()
            self._made[name] = Gauge(name, meaning, names, registry=registry)
        for name, meaning in COUNTERS.items():
            self._made[name] = Counter(name, meaning, registry=registry)

    def gauge(self, name: str, value: float, labels: dict[str, str] | None = None) -> None:
        made = self._made[name]
        (made.labels(**labels) if labels else made).set(value)

    def counter(self, name: str, value: float) -> None:
        self._made[name].inc(value)


class CollectorMetrics(NoMetrics):
    """Records to the strategy generator's collector, which has `metrics` by name, `record_error`,
    and `_register_metric` for new ones."""

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

    def error(self, kind: str) -> None:
        self._given.record_error(kind)


def coerce_collector(given: Any) -> NoMetrics:
    if given is None:
        return NoMetrics()
    if getattr(given, "registry", None) is not None:
        return RegistryMetrics(given.registry)
    if hasattr(given, "metrics") and hasattr(given, "record_error"):
        return CollectorMetrics(given)
    raise InvalidOption(
        f"metrics_collector is a {type(given).__name__}, which cannot record metrics",
        hint="give belljar.observe's Metrics, or None",
    )


# -- metrics: served to Prometheus ----------------------------------------------------------
# One server per port, as long as the runtime: a scraper wants one address for the life of the
# process, while executors come and go. The server is a task of the runtime, and needs no thread.

ADDRESS = "127.0.0.1"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_REQUEST = 8192  # bytes
REQUEST_TIMEOUT = 5.0
SAMPLE_TIMEOUT = 8.0  # a scraper usually waits 10 s
BAD_REQUEST = (anyio.DelimiterNotFound, anyio.IncompleteRead)


class MetricsServer:
    """Counts what happens in this process, and answers scrapes on a port until the runtime ends."""

    def __init__(self) -> None:
        self._monitor = Monitor()
        self._metrics = Metrics(per_sandbox=True)
        self._metrics.watch(self._monitor)

    async def start(self, port: int) -> None:
        """Raises OSError if the port is taken."""
        listener = await anyio.create_tcp_listener(local_host=ADDRESS, local_port=port)
        self._metrics.subscribe()
        runtime.current().submit(functools.partial(self._serve, listener))

    async def _serve(self, listener: Listener[SocketStream]) -> None:
        try:
            async with listener:
                await listener.serve(self._answer)
        finally:
            self._metrics.close()

    async def _answer(self, stream: SocketStream) -> None:
        async with stream:
            try:
                with anyio.fail_after(REQUEST_TIMEOUT):
                    reader = BufferedByteReceiveStream(stream)
                    request = await reader.receive_until(b"\r\n\r\n", MOST_REQUEST)
                status, body = await self._page(request)
                head = f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\n"
                head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                with anyio.fail_after(REQUEST_TIMEOUT):
                    await stream.send(head.encode() + body)
            except (TimeoutError, anyio.BrokenResourceError, *BAD_REQUEST) as error:
                log.debug("a scrape was not answered: %r", error)

    async def _page(self, request: bytes) -> tuple[str, bytes]:
        method, path = [*request.split(maxsplit=2), b"", b""][:2]
        if method != b"GET" or path.partition(b"?")[0] not in (b"/", b"/metrics"):
            return "404 Not Found", b"metrics are at /metrics\n"
        with anyio.move_on_after(SAMPLE_TIMEOUT):
            await self._monitor.sample()
        return "200 OK", self._metrics.text().encode()


_lock = threading.Lock()
_served: dict[int, runtime.Runtime] = {}  # by port
_complained: set[int] = set()


def serve_metrics(port: int) -> None:
    """Serve metrics on this port, unless they are already. If that fails, it logs one warning:
    metrics must not keep code from running."""
    with _lock:
        current = runtime.current()
        if _served.get(port) is current:
            return
        try:
            wait(MetricsServer().start, port)
            _served[port] = current
        except (SandboxError, OSError) as error:
            if port not in _complained:
                _complained.add(port)
                log.warning("metrics are not served on %s:%d: %s", ADDRESS, port, error)


def _after_fork() -> None:
    """Another thread of the parent may hold the lock."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
