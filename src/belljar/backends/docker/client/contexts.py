"""Docker's contexts: named engines, as `docker context` keeps them on disk."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from typing import Any

from belljar.errors import BackendUnavailable

MAX_FILE = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Context:
    host: str
    verify: bool
    tls: str  # the directory of its ca.pem, cert.pem, key.pem; often there is none


def current(directory: str) -> str | None:
    """The context chosen by `docker context use`, if any."""
    path = os.path.join(directory, "config.json")
    try:
        name = _read(path).get("currentContext")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        # Somebody else's home, as after `sudo`: his contexts are not ours.
        return None
    return name if isinstance(name, str) else None


def read(directory: str, name: str, source: str) -> Context:
    """The context `name`. Raises BackendUnavailable if it is not there; `source` chose it."""
    identity = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
    path = os.path.join(directory, "contexts", "meta", identity, "meta.json")
    hint = f"`docker context ls` lists what there is; {source} chose this one"
    try:
        endpoints = _read(path).get("Endpoints")
    except OSError as error:
        raise BackendUnavailable(
            f"there is no Docker context {name!r}: {error.strerror}", hint=hint
        ) from error
    docker = endpoints.get("docker") if isinstance(endpoints, dict) else None
    host = docker.get("Host") if isinstance(docker, dict) else None
    if not isinstance(docker, dict) or not isinstance(host, str) or not host:
        raise BackendUnavailable(f"the Docker context {name!r} names no engine", hint=hint)
    return Context(
        host=host,
        verify=docker.get("SkipTLSVerify") is not True,
        tls=os.path.join(directory, "contexts", "tls", identity, "docker"),
    )


def _read(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        text = file.read(MAX_FILE)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BackendUnavailable(
            f"{path} is no JSON: {error}", hint="repair it, or set DOCKER_HOST"
        ) from error
    return found if isinstance(found, dict) else {}
