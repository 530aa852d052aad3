"""What a build container is sent: the program of its steps, what it is to do, and files.

One line of JSON, then the files it names in their order: uv, this host's index settings, wheels.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from belljar.backends.docker.images import build_script, index
from belljar.backends.docker.images.key import Wanted, repository, without_password
from belljar.environment.requirement import hide_secrets
from belljar.environment.uv import find_uv
from belljar.errors import EnvironmentBuildError

USER_ID = 1000
CHUNK = 256 * 1024


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be built, and how."""

    wanted: Wanted
    key: str
    base: Mapping[str, Any]  # as inspected
    ca_bundle: str | os.PathLike[str] | None = None
    network: str | None = None  # of the build container; None: the engine's default
    project: str | None = None

    @property
    def container(self) -> str:
        return f"belljar-build-{self.key}"

    @property
    def tag(self) -> str:
        return f"{repository(self.wanted.environment.name)}:{self.key}"


@dataclass
class Luggage:
    """What is sent into the container: one line of JSON, then the files in order."""

    request: dict[str, Any]
    files: list[Path | bytes] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    secrets: frozenset[str] = frozenset()  # that are in it, and may be shown nowhere

    def add(self, place: str, content: Path | bytes, mode: int = 0o600) -> None:
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        self.request["files"].append((place, size, mode))
        self.files.append(content)


def pack(order: Order) -> Luggage:
    """Blocks: reads this host's settings and looks at files."""
    handed = index.collect(os.environ, order.ca_bundle)
    environment = order.wanted.environment
    request: dict[str, Any] = {
        "python": order.wanted.python,
        "env": handed.env,
        "paths": {name: f"secret:{file}" for name, file in handed.paths.items()},
        "arguments": [
            *handed.arguments,
            *(() if environment.allow_builds else ("--only-binary", ":all:")),
        ],
        "packages": [],
        "files": [],
        "uid": USER_ID,
        "description": {
            "name": environment.name,
            "key": order.key,
            "packages": [without_password(hide_secrets(each)) for each in environment.packages],
        },
    }
    secrets = index.secrets_of(environment.packages)
    luggage = Luggage(request, notes=handed.notes, secrets=handed.secrets | secrets)
    uv = Path(find_uv())
    if _runs_on(uv, str(order.base.get("Architecture", ""))):
        luggage.add("secret:uv", uv, 0o700)
    for name, content in handed.files.items():
        luggage.add(f"secret:{name}", content)
    for number, package in enumerate(environment.packages):
        if package.startswith("/"):  # a wheel of this host
            place = f"work:wheels/{number}/{Path(package).name}"
            luggage.add(place, Path(package))
            package = place
        request["packages"].append(package)
    return luggage


_MACHINES = {"amd64": 62, "arm64": 183, "386": 3, "arm": 40, "ppc64le": 21, "s390x": 22}


def _runs_on(binary: Path, architecture: str) -> bool:
    """Whether it may run there; whether it does is tried in the container."""
    with binary.open("rb") as file:
        head = file.read(20)
    machine = int.from_bytes(head[18:20], "big" if architecture == "s390x" else "little")
    return head[:4] == b"\x7fELF" and machine == _MACHINES.get(architecture)


async def pieces(luggage: Luggage) -> AsyncGenerator[bytes]:
    program = await anyio.to_thread.run_sync(Path(build_script.__file__).read_bytes)
    yield f"{len(program)}\n".encode() + program
    yield json.dumps(luggage.request).encode() + b"\n"
    for content, (place, size, _) in zip(luggage.files, luggage.request["files"], strict=True):
        if isinstance(content, bytes):
            yield content
            continue
        # Closed without waiting: where there is to be waited, a cancelled task gets no further.
        with content.open("rb") as file:
            left = size
            while left:
                piece = await anyio.to_thread.run_sync(file.read, min(CHUNK, left))
                if not piece:
                    raise EnvironmentBuildError(f"{content} changed while it was read ({place})")
                left -= len(piece)
                yield piece
