"""Where ContainerMonitor looks: at Belljar's own sandboxes, or through a Docker client.

Both answer the same questions. Containers of anybody else are neither listed nor removed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Protocol

from belljar import events
from belljar.compat.executor import orphan_list
from belljar.compat.executor.container_stats import MB, ContainerStats, ContainerStatus
from belljar.compat.executor.identity import container_id as known_as
from belljar.observe import orphans
from belljar.observe.sampling import Monitor
from belljar.sandbox.blocking import wait

FINLAB_LABEL = "finlab-sandbox"  # what containers of the system of before carry
GONE = ("exited", "dead", "created")


class Missing(Exception):
    """There is no such container."""


class Source(Protocol):
    def one(self, container_id: str) -> ContainerStats:
        """Raises Missing."""

    def running(self) -> list[ContainerStats]: ...

    def every(self) -> list[ContainerStats]: ...

    def orphans(self) -> list[str]: ...

    def remove(self, container_id: str, *, force: bool) -> bool:
        """False: it is not ours. Raises Missing, or what went wrong."""

    def kill(self, container_id: str) -> bool:
        """The same for one that runs: it is ended, its owner removes it."""

    def close(self) -> None: ...


class OwnSandboxes:
    """The live sandboxes of this process, and what dead processes left."""

    def __init__(self) -> None:
        self._monitor = Monitor()

    def one(self, container_id: str) -> ContainerStats:
        for stats in self.running():
            if container_id and stats.container_id.startswith(container_id):
                return stats
        for left in orphan_list.find():
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
                    container_id=known_as(sandbox),
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
        return [*self.running(), *(_orphan(left) for left in orphan_list.find())]

    def orphans(self) -> list[str]:
        return [left["id"] for left in orphan_list.find()]

    def remove(self, container_id: str, *, force: bool) -> bool:
        """Sweeps all orphans: whose owner is dead is decided there, again, and nowhere else."""
        known = {left["id"]: left for left in orphan_list.find()}
        if container_id not in known:
            if any(known_as(sandbox) == container_id for sandbox in events.live()):
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
            if known_as(sandbox) == container_id:
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
    """The containers that a Docker client of the caller's knows and that carry the old label."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def one(self, container_id: str) -> ContainerStats:
        with _missing():
            return stats_of(self._client.containers.get(container_id))

    def running(self) -> list[ContainerStats]:
        return self._list(status="running")

    def every(self) -> list[ContainerStats]:
        return self._list()

    def _list(self, **filters: object) -> list[ContainerStats]:
        listed = self._client.containers.list(all=True, filters={"label": FINLAB_LABEL, **filters})
        return [stats_of(each) for each in listed]

    def orphans(self) -> list[str]:
        filters = {"label": FINLAB_LABEL, "status": list(GONE)}
        return [
            str(each.short_id) for each in self._client.containers.list(all=True, filters=filters)
        ]

    def remove(self, container_id: str, *, force: bool) -> bool:
        with _missing():
            container = self._ours(container_id)
            if container is None:
                return False
            container.remove(force=force)
            return True

    def kill(self, container_id: str) -> bool:
        with _missing():
            container = self._ours(container_id)
            if container is None:
                return False
            container.kill(signal="SIGKILL")
            return True

    def _ours(self, container_id: str) -> Any | None:
        container = self._client.containers.get(container_id)
        return container if FINLAB_LABEL in (container.labels or {}) else None

    def close(self) -> None:
        self._client.close()


@contextlib.contextmanager
def _missing() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # By its name: the library it comes from is the caller's, and need not be installed here.
        if type(error).__name__ == "NotFound":
            raise Missing(str(error)) from error
        raise


def stats_of(container: Any) -> ContainerStats:
    """What an object of the Docker SDK says of its container."""
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
    """An engine writes the year 1 where there was no such moment."""
    if not isinstance(text, str) or text.startswith("0001-"):
        return None
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
