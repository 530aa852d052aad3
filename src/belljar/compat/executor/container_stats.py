"""ContainerStats: what one container or sandbox uses now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

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
class ContainerStats:
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
            "container_id": self.container_id,
            "container_name": self.container_name,
            "status": self.status.value,
            "cpu_percent": self.cpu_percent,
            "memory_usage": int(self.memory_usage_mb * MB),  # bytes
            "memory_usage_mb": self.memory_usage_mb,
            "memory_limit": int(self.memory_limit_mb * MB),  # bytes
            "memory_limit_mb": self.memory_limit_mb,
            "memory_percent": self.memory_percent,
            "processes": self.processes,
            "created_at": self.created_at.isoformat() if self.created_at else None,
            "finished_at": self.finished_at.isoformat() if self.finished_at else None,
        }

    def __getitem__(self, name: str) -> Any:
        return self.to_dict()[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.to_dict().get(name, default)

    def keys(self) -> Iterator[str]:
        return iter(self.to_dict())

    def __contains__(self, name: object) -> bool:
        return name in self.to_dict()
