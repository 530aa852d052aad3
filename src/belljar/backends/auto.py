"""Which backend a name stands for.

`auto` is native where this host allows it, else docker, else an error for both. Whether native is
possible shows when its first guest is confined, not before. What was chosen then stays for this
process: a host that has once held a native guest is not left for an engine because of a failure
that passes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

from belljar.backends.base import Backend, Guest, GuestSpec, Host
from belljar.backends.docker import settings
from belljar.errors import (
    BackendUnavailable,
    InvalidOption,
    LimitNotEnforceable,
    unknown_option,
)

Choice = Literal["native", "docker"]
BACKENDS = ("auto", "native", "docker")
WANTED = "BELLJAR_BACKEND"  # what "auto" means, if it is set


def resolve_backend(name: str, environ: Mapping[str, str] | None = None) -> str:
    """The backend that a name stands for; BELLJAR_BACKEND says what "auto" is."""
    if name not in BACKENDS:
        raise unknown_option("backend", name, BACKENDS)
    wanted = (os.environ if environ is None else environ).get(WANTED)
    if name != "auto" or not wanted:
        return name
    if wanted not in BACKENDS:
        raise InvalidOption(
            f"{WANTED}={wanted[:100]!r} is not a backend", hint=f"one of {', '.join(BACKENDS)}"
        )
    return wanted


def docker_backend() -> Callable[[Host], Backend]:
    """The docker backend's class, imported when it is first used. Raises BackendUnavailable if the
    extra that it needs is not installed."""
    from belljar.backends.docker.backend import DockerBackend
    from belljar.backends.docker.client.http import require_h11

    require_h11()
    return DockerBackend


class AutoBackend:
    name = "auto"

    def __init__(self, backend: Callable[[str], Backend]) -> None:
        """`backend` gives the backend of a name, and raises BackendUnavailable."""
        self._backend = backend
        self._chosen: Choice | None = None
        self._native: BackendUnavailable | None = None  # why docker was chosen

    async def start(self, spec: GuestSpec) -> Guest:
        if self._chosen != "docker":
            try:
                guest = await self._backend("native").start(spec)
            except LimitNotEnforceable:
                raise  # the host allows native guests; to go elsewhere is for the caller to say
            except BackendUnavailable as error:
                if self._chosen == "native":
                    raise
                self._native = error
            else:
                self._chosen = "native"
                return guest
        return await self._start_in_docker(spec)

    async def _start_in_docker(self, spec: GuestSpec) -> Guest:
        spec = replace(
            spec, settings=settings.fill_from_environment(settings.docker_settings(spec.settings))
        )
        try:
            guest = await self._backend("docker").start(spec)
        except LimitNotEnforceable:
            raise
        except BackendUnavailable as error:
            if self._chosen is None and self._native is not None:
                raise _neither(self._native, error) from error
            raise
        if self._chosen is None:
            self._chosen = "docker"
        return guest

    def close(self) -> None:
        """The guests are those of the backends themselves, which the runtime closes."""

    def abandon(self) -> None:
        """As close()."""


def _neither(native: BackendUnavailable, docker: BackendUnavailable) -> BackendUnavailable:
    hints = [
        f"{name}: {error.hint}"
        for name, error in (("for native", native), ("for docker", docker))
        if error.hint
    ]
    return BackendUnavailable(
        f"neither native nor docker can be had here. native: {native.message}; "
        f"docker: {docker.message}",
        hint="; ".join(hints) or "`belljar doctor` tells what this host allows",
    )
