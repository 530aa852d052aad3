"""DockerConfig: the options of DockerExecutor, with their ranges, and as a YAML file.

A value is checked when it is given, and again when it is assigned. translate.py says what an
option does to a sandbox.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from belljar.config import config_files, substitute
from belljar.config.config_files import ConfigError
from belljar.config.kinds import parse_number
from belljar.errors import InvalidOption, SandboxError, nearest, unknown_option
from belljar.limits import parse_size

log = logging.getLogger(__name__)

DEFAULT_IMAGE = "python:3.10-slim"  # stands for Belljar's own Environment "data"
DEFAULT_PATH = "config/docker_config.yaml"
DEFAULT_SECCOMP = "config/seccomp_profile.json"
NETWORK_MODES = ("none", "bridge", "host")

_SIZE = re.compile(r"\d{1,12}(\.\d{1,6})?[kmgt]", re.ASCII | re.IGNORECASE)
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
    fallback_to_direct: bool = False  # run code WITHOUT a sandbox if no sandbox can start
    export_container_stats: bool = True
    alert_on_orphaned_containers: int = 3  # more are logged as a warning
    prometheus_port: int = 8000
    runtime_monitor_enabled: bool = True  # kill code that stays close to its limits

    def __new__(cls, *args: object, **given: object) -> Self:
        """Here for the error: that of a dataclass does not suggest the nearest name."""
        unknown = [name for name in given if name not in _CHECKS]
        if cls is DockerConfig and unknown:
            raise TypeError(f"DockerConfig has no option {unknown[0]!r}{_suggest(unknown[0])}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if self.memory_swap_limit is None:
            self.memory_swap_limit = self.memory_limit

    def __setattr__(self, name: str, value: object) -> None:
        if type(self) is DockerConfig and name not in _CHECKS:
            raise AttributeError(f"DockerConfig has no option {name!r}{_suggest(name)}")
        if name in _CHECKS and not (name == "memory_swap_limit" and value is None):
            _CHECKS[name](name, value)
        # A swap limit that was not chosen stays equal to the memory limit.
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
        default path the defaults hold. Raises FileNotFoundError for another path without a file,
        and ValueError for invalid content, and for a file at the default path that another user
        may have written.
        """
        file = DEFAULT_PATH if path is None else os.fspath(path)
        given = read_config_file(Path(file), named=path is not None)
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


def _suggest(name: str) -> str:
    found = nearest(name, _CHECKS)
    return "" if found is None else f"; did you mean {found!r}?"


def _is_size(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{name} must be string, got {type(value).__name__}")
    if _SIZE.fullmatch(value) is None:
        raise ValueError(
            f"Invalid {name} format {value[:100]!r}: a number and a unit, such as '512m' or '2g'"
        )
    size = parse_size(value, field=name)
    if size < _SMALLEST:
        raise ValueError(f"{name} too small (min 1m), got {value!r}")
    if size > _LARGEST:
        raise ValueError(f"{name} too large (max 64g), got {value!r}")


def _is_cpus(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} must be numeric, got {type(value).__name__}")
    _check_range(name, value, 64)


def _is_integer(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be integer, got {type(value).__name__}")
    return value


def _is_seconds(name: str, value: object) -> None:
    _check_range(name, _is_integer(name, value), 3600)


def _check_range(name: str, value: float, most: int) -> None:
    if not value > 0:
        raise ValueError(f"{name} must be positive, got {value}")
    if value > most:
        raise ValueError(f"{name} too high (max {most}), got {value}")


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
    # By the type of the default, unless the option has a range.
    **{
        name: _is_flag if isinstance(field.default, bool) else _is_text
        for name, field in DockerConfig.__dataclass_fields__.items()
    },
    **dict.fromkeys(("memory_limit", "memory_swap_limit", "tmpfs_size"), _is_size),
    "cpu_limit": _is_cpus,
    "timeout_seconds": _is_seconds,
    "network_mode": _is_network,
    "alert_on_orphaned_containers": _is_count,
    "prometheus_port": _is_port,
}


# -- the YAML file: sections, nested tmpfs, variables ----------------------------------------


def read_config_file(file: Path, *, named: bool) -> dict[str, Any]:
    """The keyword arguments for DockerConfig; empty without a file at the default path.

    `named=False`: the caller did not name the file, so only this user may be able to write it.
    """
    if not file.exists():
        if file == Path(DEFAULT_PATH):
            log.info("there is no %s; DockerConfig uses its defaults", file)
            return {}
        raise FileNotFoundError(
            f"Config file not found: {file.absolute()}\n"
            "  hint: give the path of an existing file, or use DockerConfig() for the defaults"
        )
    if not named and is_foreign(file):
        raise ValueError(
            f"another user owns {file.absolute()} or may write to it\n"
            f"  hint: if you trust it, name it: DockerConfig.from_yaml({str(file)!r})"
        )
    try:
        with file.open("rb") as opened:
            raw = opened.read(config_files.MAX_SIZE + 1)
        text = raw.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"Failed to read config file {file}: {error}") from None
    if len(raw) > config_files.MAX_SIZE:
        raise ValueError(f"Config file {file} has more than {config_files.MAX_SIZE} bytes")
    return parse_yaml(text, file)


def is_foreign(file: Path) -> bool:
    """True if another user may write or replace a file below the current directory: such a file
    could turn the sandbox off."""
    for path in (Path.cwd(), file.parent, file):
        status = os.stat(path)
        # Many systems give each user a private group, and a umask that lets it write.
        others = stat.S_IWOTH | (stat.S_IWGRP if status.st_gid != status.st_uid else 0)
        sticky = status.st_mode & stat.S_ISVTX and stat.S_ISDIR(status.st_mode)
        owners = {status.st_uid, os.lstat(path).st_uid}
        if not owners <= {0, os.geteuid()} or (status.st_mode & others and not sticky):
            return True
    return False


def parse_yaml(text: str, source: Path) -> dict[str, Any]:
    if importlib.util.find_spec("yaml") is None:
        raise RuntimeError("YAML files need PyYAML. Install with: pip install pyyaml")
    try:
        data, _ = config_files.parse_yaml(source, text)
    except ConfigError as error:
        raise ValueError(f"Failed to parse YAML from {error}") from None
    try:
        return _flatten(_section(data, "the file", ("docker", "monitoring")))
    except SandboxError as error:  # an unknown key, a variable that is not set: as a ValueError
        raise ValueError(f"Invalid configuration in {source}: {error}") from None


def _flatten(sections: Mapping[str, Any]) -> dict[str, Any]:
    docker = dict(_section(sections.get("docker"), "docker", _HOMES["docker"]))
    monitoring = _section(sections.get("monitoring"), "monitoring", _HOMES["monitoring"])
    tmpfs = _section(docker.pop("tmpfs", None), "docker.tmpfs", _HOMES["docker.tmpfs"])
    merged = {**docker, **{f"tmpfs_{key}": tmpfs[key] for key in tmpfs}, **monitoring}
    return {key: _substitute(key, value) for key, value in merged.items()}


_HOMES: Mapping[str, tuple[str, ...]] = {
    "docker": (*DOCKER_KEYS, "tmpfs", *(f"tmpfs_{key}" for key in TMPFS_KEYS)),
    "monitoring": MONITORING_KEYS,
    "docker.tmpfs": TMPFS_KEYS,
}


def _section(data: Any, name: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise InvalidOption(
            f"{name} must be a mapping, not {type(data).__name__}",
            hint="docker:, and options indented below",
        )
    for key in data:
        if key in known:
            continue
        for home, keys in _HOMES.items():
            if key in keys:
                raise InvalidOption(
                    f"{key!r} does not belong in {name}", hint=f"put it below {home}:"
                )
        raise unknown_option(f"key in {name}:", str(key), known)
    return data


def _substitute(key: str, value: Any) -> Any:
    """Replace variables in a text; parse the result if the option is a number or a flag."""
    if not isinstance(value, str) or "${" not in value:
        return value
    text = substitute(value, os.environ)
    default = getattr(DockerConfig, key)
    if isinstance(default, bool):
        return {"true": True, "false": False}.get(text.lower(), text)
    return parse_number(text) if isinstance(default, (int, float)) else text
