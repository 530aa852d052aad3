"""Images that the engine has, or fetches from a registry."""

from __future__ import annotations

import re
from typing import Any

from belljar.backends.docker.client.engine import Engine, EngineError
from belljar.backends.docker.images import auth
from belljar.backends.docker.images.progress import Teller
from belljar.errors import EnvironmentBuildError
from belljar.text import printable

NOT_FOUND = 404
INSPECT_TIMEOUT = 30.0


async def inspect(
    engine: Engine, reference: str, platform: str | None = None
) -> dict[str, Any] | None:
    """What the engine says about an image; None if it has none such for the platform."""
    try:
        found = await engine.request("GET", f"/images/{reference}/json", timeout=INSPECT_TIMEOUT)
    except EngineError as error:
        if error.status == NOT_FOUND:
            return None
        raise
    return found if found is not None and _fits(found, platform) else None


def _fits(found: dict[str, Any], platform: str | None) -> bool:
    if platform is None:
        return True
    system, machine, *variant = platform.split("/")
    if (found.get("Os"), found.get("Architecture")) != (system, machine):
        return False
    return not variant or found.get("Variant") in (*variant, "", None)


async def pull(engine: Engine, reference: str, platform: str | None, teller: Teller) -> None:
    """Fetch it. Raises EnvironmentBuildError with what to do when that fails."""
    teller.say("downloading", f"pulling image {reference}")
    name, tag = split(reference)
    query = {"fromImage": name, "tag": tag, "platform": platform}
    headers = await auth.header(reference)
    layers = Layers()
    try:
        async with engine.lines("POST", "/images/create", query=query, headers=headers) as lines:
            async for line in lines:
                if "error" in line:
                    raise EngineError(printable(str(line["error"])), status=500)
                layers.take(line)
                teller.say("downloading", f"pulling image {reference}{layers}")
    except EngineError as error:
        if error.status == 0:
            raise
        raise cannot_pull(reference, error.message, platform) from error
    teller.say("finished", f"image {reference} pulled{layers}")


def split(reference: str) -> tuple[str, str]:
    """Name, and tag or digest. Without either the engine would fetch every tag there is.

    >>> split("localhost:5000/a"), split("python:3.12"), split("a@sha256:00")
    (('localhost:5000/a', 'latest'), ('python', '3.12'), ('a', 'sha256:00'))
    """
    name, _, digest = reference.partition("@")
    match = re.fullmatch(r"(.+):([\w.-]+)", name)
    if match and "/" not in match[2]:
        name, tag = match[1], match[2]
    else:
        tag = "latest"
    return name, digest or tag


class Layers:
    """How far the parts of an image are."""

    def __init__(self) -> None:
        self._parts: dict[str, tuple[int, int]] = {}
        self._done: set[str] = set()

    def take(self, line: dict[str, Any]) -> None:
        part, status = str(line.get("id", "")), str(line.get("status", ""))
        detail = line.get("progressDetail") or {}
        if status == "Downloading" and detail.get("total"):
            self._parts[part] = (int(detail.get("current", 0)), int(detail["total"]))
        elif status in ("Pulling fs layer", "Waiting"):
            self._parts.setdefault(part, (0, 0))
        elif status in ("Download complete", "Pull complete", "Already exists"):
            self._done.add(part)
            if part in self._parts:
                self._parts[part] = (self._parts[part][1], self._parts[part][1])

    def __str__(self) -> str:
        total = sum(total for _, total in self._parts.values())
        if not total:
            return ""
        current = sum(current for current, _ in self._parts.values())
        parts = {*self._parts, *self._done}
        return (
            f" ({len(self._done)} of {len(parts)} layers, "
            f"{current / 2**20:.1f} of {total / 2**20:.1f} MiB)"
        )


# What the engine says -> what to do about it.
_REMEDIES = (
    (
        r"denied|unauthorized|authentication required|no basic auth",
        "is the name right? if it needs credentials: docker login",
    ),
    (
        r"no matching manifest|platform",
        "the image is not made for this platform; docker manifest inspect tells for which it is",
    ),
    (r"manifest unknown|not found|manifest for", "is the name, and the tag, right?"),
    (
        r"x509|certificate",
        "the engine does not trust the registry: its certificate belongs into "
        "/etc/docker/certs.d/<registry>/ca.crt on the engine's machine",
    ),
    (r"toomanyrequests|rate limit", "docker login raises the registry's limit"),
    (r"no space left", "the engine's disk is full; docker system df, belljar image prune"),
)
OFFLINE = (
    "without a way to the registry, bring the image there yourself: `docker save IMAGE | docker "
    "load` from another machine, or `docker import` of a root directory with python3; then name it "
    "with image=, or with base= (BELLJAR_DOCKER_BASE) for Environments"
)


def cannot_pull(reference: str, said: str, platform: str | None = None) -> EnvironmentBuildError:
    hint = next((hint for pattern, hint in _REMEDIES if re.search(pattern, said, re.I)), OFFLINE)
    where = f" for {platform}" if platform else ""
    return EnvironmentBuildError(
        f"the engine has no image {reference!r}{where}, and could not pull it: {said}", hint=hint
    )


def not_there(reference: str, platform: str | None = None) -> EnvironmentBuildError:
    where = f" for {platform}" if platform else ""
    return EnvironmentBuildError(
        f"the engine has no image {reference!r}{where}, and was told not to pull",
        hint=f"docker pull {reference}, or pull='missing'; {OFFLINE}",
    )
