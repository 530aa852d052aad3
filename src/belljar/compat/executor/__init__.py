"""The strategy generator's `src.sandbox` under its own names, over Belljar's sandboxes.

from belljar.compat.executor.docker_executor import DockerExecutor
from belljar.compat.executor.docker_config import DockerConfig
"""

from __future__ import annotations

from belljar.compat.executor.container_monitor import (
    ContainerMonitor,
    ContainerStats,
    ContainerStatus,
)
from belljar.compat.executor.docker_config import DockerConfig
from belljar.compat.executor.docker_executor import DockerExecutor
from belljar.compat.executor.runtime_monitor import RuntimeMonitor, SecurityPolicy
from belljar.compat.executor.security_validator import SecurityValidator

__all__ = [
    "ContainerMonitor",
    "ContainerStats",
    "ContainerStatus",
    "DockerConfig",
    "DockerExecutor",
    "RuntimeMonitor",
    "SecurityPolicy",
    "SecurityValidator",
]
