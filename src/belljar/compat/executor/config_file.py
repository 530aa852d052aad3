"""The YAML file of DockerConfig: sections, nested tmpfs, variables, and keys that do not exist."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from belljar.compat.executor import docker_config
from belljar.errors import SandboxError, unknown_option

SECTIONS = ("docker", "monitoring")
_NUMBERS = ("cpu_limit", "timeout_seconds", "alert_on_orphaned_containers", "prometheus_port")


def read(path: str | os.PathLike[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """The keyword arguments for DockerConfig; none if there is no such file."""
    file = Path(path)
    if not file.exists():
        return {}
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"Failed to read config file {file}: {error}") from error
    return parse(text, str(file), environ)


def parse(text: str, source: str, environ: Mapping[str, str]) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise RuntimeError(
            "YAML files need PyYAML. Install with: pip install 'belljar[yaml]'"
        ) from None
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"Failed to parse YAML from {source}: {error}") from error
    try:
        return _flatten(_section(data, "the file", SECTIONS), environ)
    except SandboxError as error:  # an unknown key, a variable that is not set: as a ValueError
        raise ValueError(f"Invalid configuration in {source}: {error}") from error


def _flatten(sections: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    docker_keys = (*docker_config.DOCKER_KEYS, "tmpfs", *_TMPFS)
    docker = dict(_section(sections.get("docker"), "docker", docker_keys))
    monitoring = _section(sections.get("monitoring"), "monitoring", docker_config.MONITORING_KEYS)
    tmpfs = _section(docker.pop("tmpfs", None), "docker.tmpfs", docker_config.TMPFS_KEYS)
    merged = {**docker, **{f"tmpfs_{key}": tmpfs[key] for key in tmpfs}, **monitoring}
    return {key: _substituted(key, value, environ) for key, value in merged.items()}


_TMPFS = tuple(f"tmpfs_{key}" for key in docker_config.TMPFS_KEYS)


def _section(data: Any, name: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise ValueError(f"Invalid configuration: {name} must be a mapping, not {data!r}")
    for key in data:
        if key not in known:
            raise unknown_option(f"key in {name}:", str(key), known)
    return data


def _substituted(key: str, value: Any, environ: Mapping[str, str]) -> Any:
    """A text with its variables replaced; for an option that is no text, what that text means."""
    if not isinstance(value, str) or "${" not in value:
        return value
    from belljar.config import substitute

    text = substitute(value, environ)
    if key in _NUMBERS:
        return _number(text)
    flags = {"true": True, "false": False}
    is_flag = isinstance(getattr(docker_config.DockerConfig, key), bool)
    return flags.get(text.lower(), text) if is_flag else text


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text  # refused by the check of the option, by its name
