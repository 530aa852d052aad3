"""Belljar's images on an engine: how they are named and labelled, listed and removed.

The key of an image is the hash of everything that decides its content, so the image of a tag never
changes. The recipe is the same hash without the id of the base image. It finds an image on an
engine that lacks the base image (`docker save` on one machine, `docker load` on another).
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from belljar.backends.docker import owner
from belljar.backends.docker.client.engine import Engine, EngineError
from belljar.backends.docker.settings import Docker
from belljar.environment.environment import Environment
from belljar.environment.interpreter import NEWEST, find_interpreter
from belljar.environment.requirement import fingerprint_package, hide_secrets
from belljar.errors import EnvironmentBuildError

REMOVE_TIMEOUT = 120.0
INSPECT_TIMEOUT = 30.0

LAYOUT = 1  # of what is built; a new number rebuilds every image

IMAGE = "belljar.image"
ENVIRONMENT = "belljar.environment"
KEY = "belljar.key"
RECIPE = "belljar.recipe"
PACKAGES = "belljar.packages"
LOCK = "belljar.lock"
BASE = "belljar.base"
CREATED = "belljar.created"
PYTHON_LABEL = "belljar.python"
DOCKERFILE = "belljar.dockerfile"  # instead of most of the above

_VERSION = re.compile(r"3\.\d+(\.\d+)?")


@dataclass(frozen=True, kw_only=True)
class ImagePlan:
    """The image of an Environment, as far as it is known without an engine."""

    environment: Environment
    python: str | None  # the version asked for
    base: str  # the reference of the base image
    platform: str | None
    fingerprints: tuple[str, ...]

    @property
    def recipe(self) -> str:
        return self.key(self.base)

    def key(self, base_id: str) -> str:
        builds = self.environment.allow_builds
        parts = [LAYOUT, list(self.fingerprints), self.python, self.platform, builds, base_id]
        return hash_parts(parts)


def plan_image(environment: Environment, base: str | None, platform: str | None) -> ImagePlan:
    """Blocks if it has to read local wheels or to run an interpreter."""
    # An image comes with its own Python: "newest" is about this host.
    python = None if environment.python == NEWEST else environment.python
    if python is not None and not _VERSION.fullmatch(python):  # a path on this host
        python = find_interpreter(python).short_version
    minor = ".".join(python.split(".")[:2]) if python else "{}.{}".format(*sys.version_info)
    return ImagePlan(
        environment=environment,
        python=python,
        base=base or f"python:{minor}-slim",
        platform=platform,
        fingerprints=tuple(sorted(map(fingerprint_package, environment.packages))),
    )


async def plan_in_thread(environment: Environment, docker: Docker) -> ImagePlan:
    return await anyio.to_thread.run_sync(plan_image, environment, docker.base, docker.platform)


def hash_parts(parts: list[object]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def repository_name(name: str) -> str:
    """The readable part of the tag.

    >>> repository_name("My.Env_--x_")
    'belljar/my.env-x'
    """
    name = re.sub(r"[._-]{2,}", "-", name.lower()).strip("._-")
    return f"belljar/{name}"


def own_tags(image: Mapping[str, Any]) -> list[str]:
    """The tags that Belljar gave to an image, inspected or listed.

    Labels alone do not tell: an image built FROM one of Belljar's inherits them.
    """
    labels = image.get("Labels") or (image.get("Config") or {}).get("Labels") or {}
    key = labels.get(KEY)
    if labels.get(IMAGE) != "1" or not key:
        return []
    ours = re.compile(rf"(localhost/)?belljar/[^:/]+:{re.escape(key)}")
    # Podman adds the name of a registry to a name without one.
    tags = [str(tag).removeprefix("docker.io/") for tag in image.get("RepoTags") or []]
    return [tag for tag in tags if ours.fullmatch(tag)]


def image_labels(plan: ImagePlan, key: str, facts: Mapping[str, object]) -> dict[str, str]:
    """`facts`: what the program in the container reported at its end."""
    packages = [hide_secrets(package) for package in plan.environment.packages]
    return {
        IMAGE: "1",
        ENVIRONMENT: plan.environment.name,
        KEY: key,
        RECIPE: plan.recipe,
        PACKAGES: json.dumps(packages, separators=(",", ":")).replace(" ", "\\u0020"),
        LOCK: str(facts["lock"]),
        BASE: plan.base,
        CREATED: owner.current_moment(),
        PYTHON_LABEL: str(facts["python"]),
    }


# -- what the engine has ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ListedImage:
    """One image under one of its names."""

    name: str  # of the Environment, or of the Dockerfile's directory
    key: str
    tag: str
    id: str
    python: str  # its version; "" for a Dockerfile
    packages: tuple[str, ...]  # as the Environment names them
    base: str
    dockerfile: str  # its file name; "" for an Environment
    created: float  # seconds since the epoch
    size: int  # bytes, with the layers it shares
    containers: int  # that were made from it and still exist


async def inspect_image(
    engine: Engine, reference: str, platform: str | None = None
) -> dict[str, Any] | None:
    """What the engine says about an image; None if it has no such image for the platform."""
    try:
        found = await engine.request("GET", f"/images/{reference}/json", timeout=INSPECT_TIMEOUT)
    except EngineError as error:
        if error.status == 404:
            return None
        raise
    return found if found is not None and _is_for(found, platform) else None


def _is_for(found: dict[str, Any], platform: str | None) -> bool:
    if platform is None:
        return True
    system, machine, *variant = platform.split("/")
    if (found.get("Os"), found.get("Architecture")) != (system, machine):
        return False
    return not variant or found.get("Variant") in (*variant, "", None)


async def list_images(engine: Engine) -> list[ListedImage]:
    """Belljar's images, the newest first."""
    filters = {"label": [f"{IMAGE}=1"]}
    listed = await engine.request("GET", "/images/json", query={"filters": filters})
    containers = await engine.request("GET", "/containers/json", query={"all": True})
    # An engine may list a removed container for ever, but without a name.
    used = [str(each.get("ImageID", "")) for each in containers or [] if each.get("Names")]
    found = [image for each in listed or [] for image in _listed(each, used)]
    return sorted(found, key=lambda each: each.created, reverse=True)


def _listed(image: Mapping[str, Any], used: Sequence[str]) -> Iterable[ListedImage]:
    labels: Mapping[str, str] = image.get("Labels") or {}
    dockerfile = labels.get(DOCKERFILE, "")
    # A Dockerfile's image may inherit the other labels of the image it starts from.
    known = {} if dockerfile else labels
    for tag in own_tags(image):
        repository = tag.rpartition(":")[0].rpartition("/")[2]
        # An image that two Environments share has the name of the first.
        name = known.get(ENVIRONMENT) or "-"
        ours = repository_name(name).endswith(f"/{repository}")
        yield ListedImage(
            name=name if ours else repository,
            key=labels[KEY],
            tag=tag,
            id=str(image["Id"]),
            python=known.get(PYTHON_LABEL, ""),
            packages=_packages(known.get(PACKAGES, "")),
            base=known.get(BASE, ""),
            dockerfile=dockerfile,
            created=_created(known, image),
            size=int(image.get("Size", 0)),
            containers=used.count(str(image["Id"])),
        )


def _packages(label: str) -> tuple[str, ...]:
    try:
        return tuple(map(str, json.loads(label)))
    except (ValueError, TypeError):
        return ()


def _created(labels: Mapping[str, str], image: Mapping[str, Any]) -> float:
    try:
        return owner.parse_moment(labels[CREATED])
    except (KeyError, ValueError):  # not Belljar's label: the engine's own time will do
        return float(image.get("Created", 0))


def find_by_name(images: Iterable[ListedImage], name: str) -> list[ListedImage]:
    """The images with this name, key, tag or id."""
    return [each for each in images if name in (each.name, each.key, each.tag, each.id)]


async def remove_image(engine: Engine, image: ListedImage) -> None:
    """Remove the tag; with its last tag, the engine removes the image. It may be gone already."""
    try:
        await engine.request("DELETE", f"/images/{image.tag}", timeout=REMOVE_TIMEOUT)
    except EngineError as error:
        if error.status == 404:
            return
        if error.status != 409:
            raise
        raise EnvironmentBuildError(
            f"image {image.tag} is in use: {error.message}",
            hint="close the sandboxes that use it; `belljar gc` removes those of dead processes",
        ) from error


async def current_keys(
    engine: Engine, environments: Iterable[Environment], docker: Docker
) -> dict[str, str | None]:
    """The keys that images of these Environments have now; None where that is unknown."""
    keys: dict[str, str | None] = {}
    for environment in environments:
        try:
            plan = await plan_in_thread(environment, docker)
        except EnvironmentBuildError:  # a wheel or its Python is gone
            keys[environment.name] = None
            continue
        base = await inspect_image(engine, plan.base, docker.platform)
        keys[environment.name] = None if base is None else plan.key(str(base["Id"]))
    return keys


def find_unneeded(
    images: Iterable[ListedImage], current: Mapping[str, str | None], *, everything: bool = False
) -> list[ListedImage]:
    """The images that prune removes: without containers, and with a newer image of their name.

    `current`: known Environments and their keys (None: the key is unknown now). The image with a
    known key stays, even if another is newer. `everything`: also the newest images.
    """
    found: list[ListedImage] = []
    by_name: dict[tuple[str, bool], list[ListedImage]] = {}
    for each in sorted(images, key=lambda each: each.created, reverse=True):
        by_name.setdefault((each.name, bool(each.dockerfile)), []).append(each)
    for (name, is_dockerfile), versions in by_name.items():
        key = None if is_dockerfile else current.get(name)
        kept = key if any(each.key == key for each in versions) else versions[0].key
        found += [each for each in versions if everything or each.key != kept]
    return [each for each in found if not each.containers]
