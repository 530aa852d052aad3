"""RuntimeMonitor: kills sandboxes that use more than a policy allows, and lists them.

The limits of a sandbox hold without it. It kills a sandbox that stays close to them for a while:
`judge` decides, the thread acts.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from belljar.compat.executor.container_monitor import ContainerMonitor, Missing
from belljar.compat.executor.container_stats import DOCKER_AVAILABLE as DOCKER_AVAILABLE
from belljar.compat.executor.container_stats import MISSING, ContainerStats

log = logging.getLogger(__name__)

MOST_EVENTS = 1000  # that are kept, the newest


class ViolationType(Enum):
    CPU_SPIKE = "cpu_spike"
    MEMORY_SPIKE = "memory_spike"
    FORK_BOMB = "fork_bomb"
    COMBINED_ANOMALY = "combined_anomaly"


@dataclass
class SecurityEvent:
    timestamp: datetime
    container_id: str
    container_name: str
    violation_type: ViolationType
    details: dict[str, Any]
    action_taken: str
    success: bool

    def to_dict(self) -> dict[str, Any]:
        moment = self.timestamp.isoformat()
        return {**vars(self), "timestamp": moment, "violation_type": self.violation_type.value}

    def __str__(self) -> str:
        told = ", ".join(f"{name} {value:g}" for name, value in self.details.items())
        return f"{self.violation_type.value} ({told})"


@dataclass
class SecurityPolicy:
    """Processors in percent of one, memory in percent of its limit."""

    cpu_threshold_percent: float = 95.0
    cpu_spike_count: int = 3  # checks in a row
    memory_threshold_percent: float = 95.0
    memory_spike_count: int = 2  # checks in a row
    fork_bomb_threshold: int = 90  # processes and threads
    combined_cpu_threshold: float = 80.0  # both of these at once
    combined_memory_threshold: float = 80.0
    check_interval_seconds: float = 5.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ValueError(f"{name} must be positive, got {value!r}")


@dataclass
class ContainerState:
    container_id: str
    cpu_violations: int = 0  # in a row
    memory_violations: int = 0  # in a row
    kill_attempted: bool = False


Violation = tuple[ViolationType, dict[str, Any]]


def judge(policy: SecurityPolicy, state: ContainerState, stats: ContainerStats) -> Violation | None:
    """The violation that these numbers are, after the earlier ones that `state` counts."""
    cpu, memory = stats.cpu_percent, stats.memory_percent
    high = cpu >= policy.cpu_threshold_percent
    state.cpu_violations = state.cpu_violations + 1 if high else 0
    full = memory >= policy.memory_threshold_percent
    state.memory_violations = state.memory_violations + 1 if full else 0
    if state.cpu_violations >= policy.cpu_spike_count:
        return ViolationType.CPU_SPIKE, {
            "cpu_percent": cpu,
            "threshold": policy.cpu_threshold_percent,
            "spike_count": state.cpu_violations,
        }
    if state.memory_violations >= policy.memory_spike_count:
        return ViolationType.MEMORY_SPIKE, {
            "memory_percent": memory,
            "threshold": policy.memory_threshold_percent,
            "spike_count": state.memory_violations,
        }
    if cpu >= policy.combined_cpu_threshold and memory >= policy.combined_memory_threshold:
        return ViolationType.COMBINED_ANOMALY, {
            "cpu_percent": cpu,
            "memory_percent": memory,
            "cpu_threshold": policy.combined_cpu_threshold,
            "memory_threshold": policy.combined_memory_threshold,
        }
    if stats.processes >= policy.fork_bomb_threshold:
        counts = {"processes": stats.processes, "threshold": policy.fork_bomb_threshold}
        return ViolationType.FORK_BOMB, counts
    return None


class RuntimeMonitor:
    """Watches the containers of add_container(), from start() to stop().

    Without a `docker_client`, sandboxes of this process; with one, the containers it knows.
    """

    def __init__(
        self,
        policy: SecurityPolicy | None = None,
        container_monitor: ContainerMonitor | None = None,
        docker_client: Any = None,
        enabled: bool = True,
    ) -> None:
        if not DOCKER_AVAILABLE:
            raise RuntimeError(MISSING)
        self.policy = policy or SecurityPolicy()
        self.enabled = enabled
        self.client = docker_client
        self.container_monitor = container_monitor or ContainerMonitor(
            docker_client=docker_client, cleanup_enabled=False
        )
        self._lock = threading.Lock()
        self._monitored_containers: dict[str, ContainerState] = {}
        self._security_events: deque[SecurityEvent] = deque(maxlen=MOST_EVENTS)
        self._event_callbacks: list[Callable[[SecurityEvent], object]] = []
        self._stop_event = threading.Event()
        self._monitoring_thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch in a thread. Does nothing if it watches already, or is not enabled."""
        with self._lock:
            running = self._monitoring_thread is not None and self._monitoring_thread.is_alive()
            if not self.enabled or (running and not self._stop_event.is_set()):
                return
            self._stop_event = threading.Event()
            self._monitoring_thread = threading.Thread(
                # Not a method: the thread must not keep an otherwise unreferenced monitor alive.
                target=_watch,
                args=(weakref.ref(self), self._stop_event, self.policy.check_interval_seconds),
                name="RuntimeMonitor",
                daemon=True,
            )
            self._monitoring_thread.start()

    def stop(self, timeout: float = 10.0) -> None:
        """Stop watching; waits for a check that is under way. May be called twice."""
        self._stop_event.set()
        thread = self._monitoring_thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(timeout)
        if thread.is_alive():
            log.warning("a check of the RuntimeMonitor did not end within %g s", timeout)

    def add_container(self, container_id: str) -> None:
        with self._lock:
            self._monitored_containers.setdefault(container_id, ContainerState(container_id))

    def remove_container(self, container_id: str) -> None:
        with self._lock:
            self._monitored_containers.pop(container_id, None)

    def get_monitored_containers(self) -> list[str]:
        with self._lock:
            return list(self._monitored_containers)

    # -- one check --------------------------------------------------------------------------

    def _check_all_containers(self) -> None:
        with self._lock:
            every = self._monitored_containers.values()
            states = [each for each in every if not each.kill_attempted]
        if not states:
            return
        found = self.container_monitor.get_running_containers()
        for state in states:
            stats = next((each for each in found if _is(each, state.container_id)), None)
            if stats is not None and (violation := judge(self.policy, state, stats)):
                self._kill(state, stats, violation)

    def _kill(self, state: ContainerState, stats: ContainerStats, violation: Violation) -> None:
        state.kill_attempted = True
        event = SecurityEvent(
            timestamp=datetime.now(),
            container_id=state.container_id,
            container_name=stats.container_name,
            violation_type=violation[0],
            details=violation[1],
            action_taken="kill_container",
            success=True,
        )
        with self._lock:  # before the kill: the executor looks here for why its code was killed
            self._security_events.append(event)
        log.warning("killing container %s: %s", state.container_id, event)
        event.success = self._kill_container(state.container_id)
        for callback in self._event_callbacks:
            try:
                callback(event)
            except Exception:
                log.exception("a callback of the RuntimeMonitor failed")

    def _kill_container(self, container_id: str) -> bool:
        try:
            return self.container_monitor.kill_container(container_id)
        except Missing:
            return False  # it has ended by itself
        except Exception as error:
            log.error("container %s could not be killed: %s", container_id, error)
            return False

    # -- what it has done -------------------------------------------------------------------

    def get_security_events(self, limit: int | None = None) -> list[SecurityEvent]:
        """The newest first."""
        with self._lock:
            return list(reversed(self._security_events))[: limit or None]

    def register_callback(self, callback: Callable[[SecurityEvent], object]) -> None:
        """The watching thread calls it with each event."""
        self._event_callbacks.append(callback)

    def get_statistics(self) -> dict[str, Any]:
        events = self.get_security_events()
        kinds = [each.violation_type for each in events]
        return {
            "monitored_containers": len(self.get_monitored_containers()),
            "total_security_events": len(events),
            "events_by_type": {kind.value: kinds.count(kind) for kind in ViolationType},
            "successful_kills": sum(each.success for each in events),
            "monitoring_enabled": self.enabled,
            "policy": {
                "cpu_threshold": self.policy.cpu_threshold_percent,
                "memory_threshold": self.policy.memory_threshold_percent,
                "check_interval": self.policy.check_interval_seconds,
            },
        }

    def close(self) -> None:
        self.stop()
        self.container_monitor.close()


def _watch(monitor: weakref.ref[RuntimeMonitor], stopped: threading.Event, interval: float) -> None:
    while not stopped.wait(interval):
        watching = monitor()
        if watching is None:
            return
        try:
            watching._check_all_containers()
        except Exception:  # the next check may succeed
            log.exception("a check of the RuntimeMonitor failed")
        del watching


def _is(stats: ContainerStats, container_id: str) -> bool:
    """Compares by prefix: a Docker client lists short ids."""
    return container_id.startswith(stats.container_id) or stats.container_id.startswith(
        container_id
    )
