"""The YAML file of DockerConfig: sections, nested tmpfs, variables, and keys that do not exist."""

from __future__ import annotations

import importlib.util
import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from belljar.compat.executor import docker_config
from belljar.config import config_files
from belljar.config.config_files import ConfigError
from belljar.errors import InvalidOption, SandboxError, unknown_option

log = logging.getLogger(__name__)

SECTIONS = ("docker", "monitoring")
_NUMBERS = ("cpu_limit", "timeout_seconds", "alert_on_orphaned_containers", "prometheus_port")


def read(
    path: str | os.PathLike[str], environ: Mapping[str, str], *, met: bool = False
) -> dict[str, Any]:
    """The keyword arguments for DockerConfig; none if there is no file at the default path.

    `met`: nobody named the file, it is only where one is looked for.
    """
    file = Path(path)
    if not file.exists():
        if file == Path(docker_config.DEFAULT_PATH):
            log.info("there is no %s: the defaults of DockerConfig hold", file)
            return {}
        raise FileNotFoundError(
            f"Config file not found: {file.absolute()}\n"
            "  hint: give the path of a file that is there, or DockerConfig() for the defaults"
        )
    if met and is_foreign(file):
        raise ValueError(
            f"{file.absolute()} belongs to, or can be written by, somebody else\n"
            f"  hint: if it is meant, name it: DockerConfig.from_yaml({str(file)!r})"
        )
    try:
        with file.open("rb") as opened:
            raw = opened.read(config_files.MAX_SIZE + 1)
        text = raw.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"Failed to read config file {file}: {error}") from None
    if len(raw) > config_files.MAX_SIZE:
        raise ValueError(f"Config file {file} has more than {config_files.MAX_SIZE} bytes")
    return parse(text, file, environ)


def is_foreign(file: Path) -> bool:
    """Whether somebody else could have written a file below the current directory, or could
    exchange it: it could turn the sandbox off."""
    return any(_is_foreign(each) for each in (Path.cwd(), file.parent, file))


def _is_foreign(path: Path) -> bool:
    for status in (os.lstat(path), os.stat(path)):
        if status.st_uid not in (0, os.geteuid()):
            return True
    # A group of one's own is what many systems give, and a umask that lets it write.
    group = stat.S_IWGRP if status.st_gid != status.st_uid else 0
    sticky = status.st_mode & stat.S_ISVTX and stat.S_ISDIR(status.st_mode)
    return bool(status.st_mode & (stat.S_IWOTH | group)) and not sticky


def parse(text: str, source: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    if importlib.util.find_spec("yaml") is None:
        raise RuntimeError("YAML files need PyYAML. Install with: pip install pyyaml")
    try:
        data, _ = config_files.parse_yaml(source, text)
    except ConfigError as error:
        raise ValueError(f"Failed to parse YAML from {error}") from None
    try:
        return _flatten(_section(data, "the file", SECTIONS), environ)
    except SandboxError as error:  # an unknown key, a variable that is not set: as a ValueError
        raise ValueError(f"Invalid configuration in {source}: {error}") from None


def _flatten(sections: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    docker = dict(_section(sections.get("docker"), "docker", _HOMES["docker"]))
    monitoring = _section(sections.get("monitoring"), "monitoring", _HOMES["monitoring"])
    tmpfs = _section(docker.pop("tmpfs", None), "docker.tmpfs", _HOMES["docker.tmpfs"])
    merged = {**docker, **{f"tmpfs_{key}": tmpfs[key] for key in tmpfs}, **monitoring}
    return {key: _substituted(key, value, environ) for key, value in merged.items()}


_TMPFS = tuple(f"tmpfs_{key}" for key in docker_config.TMPFS_KEYS)
_HOMES: Mapping[str, tuple[str, ...]] = {
    "docker": (*docker_config.DOCKER_KEYS, "tmpfs", *_TMPFS),
    "monitoring": docker_config.MONITORING_KEYS,
    "docker.tmpfs": docker_config.TMPFS_KEYS,
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
        if key not in known:
            raise _misplaced(name, str(key)) or unknown_option(f"key in {name}:", str(key), known)
    return data


def _misplaced(section: str, key: str) -> InvalidOption | None:
    """The error for an option that exists, but in another section; None if it does not."""
    for home, keys in _HOMES.items():
        if key in keys and home != section:
            return InvalidOption(
                f"{key!r} does not belong in {section}", hint=f"put it below {home}:"
            )
    return None


def _substituted(key: str, value: Any, environ: Mapping[str, str]) -> Any:
    """A text with its variables replaced; for an option that is no text, what that text means."""
    if not isinstance(value, str) or "${" not in value:
        return value
    text = config_files.substitute(value, environ)
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
