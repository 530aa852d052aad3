"""DockerConfig: the options of DockerExecutor, with their ranges, and as a YAML file.

A value is checked when it is given, and again when it is assigned. What an option does to a
sandbox is in plan.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from belljar.errors import nearest

DEFAULT_IMAGE = "python:3.10-slim"  # stands for Belljar's own Environment "data"
DEFAULT_PATH = "config/docker_config.yaml"
DEFAULT_SECCOMP = "config/seccomp_profile.json"
NETWORK_MODES = ("none", "bridge", "host")

_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([kmgt])", re.ASCII | re.IGNORECASE)
_UNITS = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SMALLEST, _LARGEST = 2**20, 64 * 2**30


@dataclass
class DockerConfig:
    """How DockerExecutor runs code.

    >>> DockerConfig(memory_limit="1g", cpu_limit=0.25).to_dict()["docker"]["memory_limit"]
    '1g'
    """

    enabled: bool = True
    image: str = DEFAULT_IMAGE
    memory_limit: str = "2g"
    memory_swap_limit: str | None = None  # memory and swap together; None: that of the memory
    cpu_limit: float = 0.5  # processors
    timeout_seconds: int = 600  # of one execution
    network_mode: str = "none"
    read_only: bool = True
    tmpfs_path: str = "/tmp"
    tmpfs_size: str = "1g"
    tmpfs_options: str = "rw,noexec,nosuid"
    seccomp_profile: str = DEFAULT_SECCOMP
    output_dir: str = "sandbox_output"  # files that the code wrote are saved below it
    cleanup_on_exit: bool = True
    fallback_to_direct: bool = False  # run code WITHOUT a sandbox where none can be had
    export_container_stats: bool = True
    alert_on_orphaned_containers: int = 3  # more than these are worth a warning
    prometheus_port: int = 8000
    runtime_monitor_enabled: bool = True  # end what stays close to its limits

    def __new__(cls, *args: object, **given: object) -> Self:
        """For the nearest name in the error: what dataclasses say about one has none."""
        unknown = [name for name in given if name not in _CHECKS]
        if cls is DockerConfig and unknown:
            raise TypeError(f"DockerConfig has no option {unknown[0]!r}{_meant(unknown[0])}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if self.memory_swap_limit is None:
            self.memory_swap_limit = self.memory_limit

    def __setattr__(self, name: str, value: object) -> None:
        if type(self) is DockerConfig and name not in _CHECKS:
            raise AttributeError(f"DockerConfig has no option {name!r}{_meant(name)}")
        if name in _CHECKS and not (name == "memory_swap_limit" and value is None):
            _CHECKS[name](name, value)
        # A swap limit that nobody chose stays that of the memory.
        follows = name == "memory_limit" and self.__dict__.get("memory_swap_limit") == (
            self.__dict__.get("memory_limit", "")
        )
        object.__setattr__(self, name, value)
        if follows:
            object.__setattr__(self, "memory_swap_limit", value)

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str] | None = None) -> Self:
        """Load `docker:` and `monitoring:` of a YAML file (default: config/docker_config.yaml).

        `${VAR}` and `${VAR:default}` are replaced from the environment. Without a file at the
        default path the defaults hold. Raises FileNotFoundError if another one is not there,
        ValueError for what it should not say, and for a file that nobody named and that somebody
        else could have written.
        """
        from belljar.compat.executor import config_file

        file = DEFAULT_PATH if path is None else os.fspath(path)
        given = config_file.read(file, os.environ, met=path is None)
        try:
            return cls(**given)
        except ValueError as error:
            raise ValueError(f"Invalid configuration in {file}: {error}") from None

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """The same as nested data, in the shape of the YAML file."""
        docker: dict[str, Any] = {name: getattr(self, name) for name in DOCKER_KEYS}
        docker["tmpfs"] = {key: getattr(self, f"tmpfs_{key}") for key in TMPFS_KEYS}
        return {"docker": docker, "monitoring": {k: getattr(self, k) for k in MONITORING_KEYS}}


TMPFS_KEYS = ("path", "size", "options")
MONITORING_KEYS = (
    "export_container_stats",
    "alert_on_orphaned_containers",
    "prometheus_port",
    "runtime_monitor_enabled",
)
DOCKER_KEYS = tuple(
    name
    for name in DockerConfig.__dataclass_fields__
    if name not in MONITORING_KEYS and not name.startswith("tmpfs_")
)


def _meant(name: str) -> str:
    found = nearest(name, _CHECKS)
    return "" if found is None else f"; did you mean {found!r}?"


def size(text: str) -> int:
    """The bytes that a size of this configuration means."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a size")
    return int(float(found[1]) * _UNITS[found[2].lower()])


def _is_size(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{name} must be string, got {type(value).__name__}")
    if _SIZE.fullmatch(value) is None:
        raise ValueError(
            f"Invalid {name} format {value[:100]!r}: a number and a unit, such as '512m' or '2g'"
        )
    if size(value) < _SMALLEST:
        raise ValueError(f"{name} too small (min 1m), got {value!r}")
    if size(value) > _LARGEST:
        raise ValueError(f"{name} too large (max 64g), got {value!r}")


def _is_cpus(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} must be numeric, got {type(value).__name__}")
    if not value > 0:
        raise ValueError(f"{name} must be positive, got {value}")
    if value > 64:
        raise ValueError(f"{name} too high (max 64), got {value}")


def _is_integer(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be integer, got {type(value).__name__}")
    return value


def _is_seconds(name: str, value: object) -> None:
    seconds = _is_integer(name, value)
    if seconds <= 0:
        raise ValueError(f"{name} must be positive, got {seconds}")
    if seconds > 3600:
        raise ValueError(f"{name} too high (max 3600), got {seconds}")


def _is_count(name: str, value: object) -> None:
    if _is_integer(name, value) < 0:
        raise ValueError(f"{name} must be non-negative, got {value}")


def _is_port(name: str, value: object) -> None:
    if not 1024 <= _is_integer(name, value) <= 65535:
        raise ValueError(f"{name} must be in range 1024-65535, got {value}")


def _is_network(name: str, value: object) -> None:
    if value not in NETWORK_MODES:
        raise ValueError(f"Invalid {name} {value!r}: one of {', '.join(NETWORK_MODES)}")


def _is_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")


def _is_text(name: str, value: object) -> None:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"{name} must be string, got {type(value).__name__}")


_CHECKS: Mapping[str, Callable[[str, object], object]] = {
    "enabled": _is_flag,
    "image": _is_text,
    "memory_limit": _is_size,
    "memory_swap_limit": _is_size,
    "cpu_limit": _is_cpus,
    "timeout_seconds": _is_seconds,
    "network_mode": _is_network,
    "read_only": _is_flag,
    "tmpfs_path": _is_text,
    "tmpfs_size": _is_size,
    "tmpfs_options": _is_text,
    "seccomp_profile": _is_text,
    "output_dir": _is_text,
    "cleanup_on_exit": _is_flag,
    "fallback_to_direct": _is_flag,
    "export_container_stats": _is_flag,
    "alert_on_orphaned_containers": _is_count,
    "prometheus_port": _is_port,
    "runtime_monitor_enabled": _is_flag,
}
