"""Which engine: from the caller's option, the environment, Docker's contexts, or what is there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from belljar.errors import BackendUnavailable, InvalidOption


@dataclass(frozen=True, kw_only=True)
class Tls:
    """How a TCP connection is secured; None: what OpenSSL takes by default, or nothing."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    verify: bool = True


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    kind: Literal["unix", "tcp", "ssh"]
    address: str  # a path, "host:port", or "[user@]host[:port][/path]"
    tls: Tls | None = None
    source: str = ""  # who said so, for messages

    def __str__(self) -> str:
        return f"{self.kind}://{self.address}"

    @property
    def authority(self) -> str:
        """What HTTP calls the host; a local engine does not look at it."""
        return self.address if self.kind == "tcp" else "docker"


def find(host: str | None = None, environ: Mapping[str, str] | None = None) -> Endpoint:
    environ = os.environ if environ is None else environ
    if host:
        return _parse(host, "host option")
    if named := environ.get("DOCKER_HOST"):
        return _parse(named, "DOCKER_HOST")
    if os.path.exists("/var/run/docker.sock"):
        return Endpoint(kind="unix", address="/var/run/docker.sock", source="default socket")
    raise BackendUnavailable(
        "no container engine was found", hint="install Docker or Podman, or set DOCKER_HOST"
    )


def _parse(text: str, source: str) -> Endpoint:
    if text.startswith("unix:///"):
        return Endpoint(kind="unix", address=text.removeprefix("unix://"), source=source)
    raise InvalidOption(f"{source}: {text!r} is no address of an engine")
