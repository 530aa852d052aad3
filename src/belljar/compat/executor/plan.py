"""What each option of DockerConfig means for a sandbox. An option that cannot be kept is an error.

Decides only; docker_executor.py acts. `OPTIONS` says in words what each one does, for the docs and
for a test that walks through all of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from belljar.backends.docker.settings import Docker
from belljar.compat.executor import config_file
from belljar.compat.executor.docker_config import DEFAULT_SECCOMP, DockerConfig, size
from belljar.compat.where import Placed
from belljar.environment.environment import BUILTIN
from belljar.errors import InvalidOption
from belljar.limits import RULES, Limits

# Where the code may write besides /tmp. Not /workspace: code of this system expects that to be
# read-only. What is written here is saved below output_dir.
OUTPUT = "/output"

LOGS = "16m"  # of one execution that are kept; there was no limit once

# In a container, which is used once, code imports for itself: what it does not need is not waited
# for. Natively the imports are done once, for all sandboxes of the process.
ONE_USE = replace(BUILTIN["data"], preload=(), warmup="")

OPTIONS: Mapping[str, str] = {
    "enabled": "False: execute() refuses, unless fallback_to_direct is True",
    "image": "python:3.10-slim is Belljar's Environment `data`; another one needs docker",
    "memory_limit": "the memory limit of the sandbox",
    "memory_swap_limit": "memory and swap together; there is no swap, so it equals memory_limit",
    "cpu_limit": "the processors of the sandbox",
    "timeout_seconds": "the code is killed after it",
    "network_mode": "none; bridge needs docker, and opens the network; host is an error",
    "read_only": "True; False is an error, as only /tmp and /output are ever writable",
    "tmpfs_path": "/tmp; another path is an error",
    "tmpfs_size": "what fits into /tmp",
    "tmpfs_options": (
        "rw, nosuid and nodev hold always, noexec if it is there; exec is the same as no noexec; "
        "others are errors"
    ),
    "seccomp_profile": (
        "a file: that profile, on docker; natively Belljar's own holds, with a warning, unless the "
        "file is a copy of it. Empty, or the default path where no file is: Belljar's own. Another "
        "missing file: an error"
    ),
    "output_dir": (
        "files that the code wrote to /output are saved below it; that needs validate=False, or a "
        "policy= that allows the path"
    ),
    "cleanup_on_exit": "False: the sandbox is kept until cleanup_all() or close()",
    "fallback_to_direct": "True: code runs WITHOUT a sandbox where none can be had, with warnings",
    "export_container_stats": "True: metrics are counted and served on prometheus_port",
    "alert_on_orphaned_containers": "more than so many orphans are logged as a warning",
    "prometheus_port": "where metrics are served, on 127.0.0.1",
    "runtime_monitor_enabled": (
        "True: a RuntimeMonitor, which looks every 5 s, ends code that uses 95 % of a processor or "
        "more three times in a row, 95 % of its memory twice in a row, or 80 % of both at once"
    ),
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    backend: str  # "native" or "docker"
    options: Mapping[str, Any]  # for Sandbox
    notes: tuple[str, ...] = ()  # what the caller should know, though it is no error


def make(config: DockerConfig, placed: Placed, timeout: float) -> Plan:
    """Raises InvalidOption for what cannot be kept where the sandbox will be."""
    _check_fixed(config)
    docker = placed.backend == "docker"
    options: dict[str, Any] = {
        **placed.options,
        "limits": Limits(
            memory=_memory(config),
            cpus=float(config.cpu_limit),
            tmp=size(config.tmpfs_size),
            timeout=float(timeout),
            output=LOGS,
        ),
        "workdir": OUTPUT,
        "network": _network(config, docker=docker),
        "noexec": _noexec(config.tmpfs_options),
        "strict": _strict(config),
    }
    profile = _profile(config.seccomp_profile, docker=docker)
    notes: tuple[str, ...] = ()
    if docker:
        given = options["backend"]
        engine = given if isinstance(given, Docker) else Docker()
        # As before, an image that is not there is not fetched: the error names the command.
        options["backend"] = replace(engine, seccomp=profile, pull="never")
        if options.get("environment") == "data":
            options["environment"] = ONE_USE
    elif profile is not None and not _is_own(profile):
        notes = (
            f"seccomp_profile={config.seccomp_profile!r} is for docker. This sandbox is native: "
            "Belljar's own profile holds, which refuses every call that it does not list",
        )
    return Plan(backend=placed.backend, options=options, notes=notes)


def _strict(config: DockerConfig) -> bool | None:
    """Where a host cannot limit memory and processors, a limit somebody chose gets a warning, and
    the defaults, which are all written out here, do not."""
    default = DockerConfig()
    chosen = (config.memory_limit, config.cpu_limit) != (default.memory_limit, default.cpu_limit)
    return None if chosen else False


def _check_fixed(config: DockerConfig) -> None:
    if not config.read_only:
        raise InvalidOption(
            "read_only=False: the file system of a sandbox is always read-only",
            hint=f"code may write to /tmp and {OUTPUT}; leave read_only=True",
        )
    if config.tmpfs_path.rstrip("/") != "/tmp":
        raise InvalidOption(
            f"tmpfs_path={config.tmpfs_path!r}: the writable tmpfs of a sandbox is /tmp",
            hint='leave tmpfs_path="/tmp", and let the code write there',
        )


def _memory(config: DockerConfig) -> int:
    memory = size(config.memory_limit)
    swap = memory if config.memory_swap_limit is None else size(config.memory_swap_limit)
    if swap != memory:
        raise InvalidOption(
            f"memory_swap_limit={config.memory_swap_limit!r} with memory_limit="
            f"{config.memory_limit!r}: a sandbox has no swap",
            hint="give both the same value, or leave memory_swap_limit out",
        )
    if memory < RULES["memory"].low:
        raise InvalidOption(
            f"memory_limit={config.memory_limit!r} is too little for Python to start",
            hint="16m at least; with pandas imported, 128m",
        )
    return memory


def _network(config: DockerConfig, *, docker: bool) -> str:
    if config.network_mode == "none":
        return "none"
    if config.network_mode == "host":
        raise InvalidOption(
            "network_mode='host' would give the code every service of this machine",
            hint="network_mode='bridge' opens the network from a container",
        )
    if not docker:
        raise InvalidOption(
            "network_mode='bridge' needs docker, and this sandbox is native",
            hint='backend="docker", or network_mode="none"',
        )
    return "open"


def _noexec(given: str) -> bool:
    words = [word.strip() for word in given.split(",") if word.strip()]
    for word in words:
        if word not in ("rw", "noexec", "exec", "nosuid", "nodev"):
            raise InvalidOption(
                f"tmpfs_options: {word!r} is not supported",
                hint="rw, noexec or exec, nosuid, nodev; the size is tmpfs_size",
            )
    if "exec" in words and "noexec" in words:
        raise InvalidOption("tmpfs_options has both exec and noexec")
    return "noexec" in words


def _profile(given: str, *, docker: bool) -> Path | None:
    """The caller's seccomp profile; None: there is none, and Belljar's own holds, an allow-list."""
    if not given:
        return None
    path = Path(given)
    if not path.exists():
        if given == DEFAULT_SECCOMP:
            return None
        raise InvalidOption(
            f"Seccomp profile not found: {given}",
            hint="give a file that exists, or leave seccomp_profile out for Belljar's own",
        )
    if docker and given == DEFAULT_SECCOMP and config_file.is_foreign(path):
        raise InvalidOption(
            f"{path.absolute()} belongs to, or can be written by, somebody else",
            hint=f'if it is meant, name it: seccomp_profile="./{given}"; "" is Belljar\'s own',
        )
    return path


def _is_own(path: Path) -> bool:
    own = resources.files("belljar.backends.linux").joinpath("seccomp.json")
    try:
        return bool(json.loads(path.read_bytes()) == json.loads(own.read_bytes()))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidOption(f"seccomp_profile={str(path)!r} cannot be read: {error}") from None
