"""The images of ours that an engine has: listed, removed, and which of them nobody needs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import anyio

from belljar.backends.docker.client.engine import Engine, EngineError
from belljar.backends.docker.images import key, pull
from belljar.backends.docker.settings import Docker
from belljar.environment.environment import Environment
from belljar.errors import EnvironmentBuildError

REMOVE_TIMEOUT = 120.0
_NOT_FOUND, _CONFLICT = 404, 409


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One image under one of its names."""

    name: str  # of the Environment, or of the Dockerfile's directory
    key: str
    tag: str
    id: str
    python: str  # its version; "" for a Dockerfile
    packages: tuple[str, ...]  # as asked for
    base: str
    dockerfile: str  # its file name; "" for an Environment
    created: float  # seconds since the epoch
    size: int  # bytes, with the layers it shares
    containers: int  # that were made from it and still exist


async def list_images(engine: Engine) -> list[Listed]:
    """Ours only, the newest first."""
    filters = {"label": [f"{key.IMAGE}=1"]}
    listed = await engine.request("GET", "/images/json", query={"filters": filters})
    containers = await engine.request("GET", "/containers/json", query={"all": True})
    # One that is gone may stay in an engine's list for ever, but without a name.
    used = [str(each.get("ImageID", "")) for each in containers or [] if each.get("Names")]
    found = [image for each in listed or [] for image in _listed(each, used)]
    return sorted(found, key=lambda each: each.created, reverse=True)


def _listed(image: Mapping[str, Any], used: Sequence[str]) -> Iterable[Listed]:
    labels: Mapping[str, str] = image.get("Labels") or {}
    for tag in key.own_tags(image):
        dockerfile = labels.get(key.DOCKERFILE, "")
        repository = tag.rpartition(":")[0].rpartition("/")[2]
        name = labels.get(key.ENVIRONMENT, "")
        # The labels of a Dockerfile's image may come from the one it starts from; and an image
        # that two Environments share has the name of the first.
        ours = not dockerfile and key.repository(name or "-").endswith(f"/{repository}")
        yield Listed(
            name=name if ours else repository,
            key=labels[key.KEY],
            tag=tag,
            id=str(image["Id"]),
            python="" if dockerfile else labels.get(key.PYTHON, ""),
            packages=() if dockerfile else _packages(labels.get(key.PACKAGES, "")),
            base="" if dockerfile else labels.get(key.BASE, ""),
            dockerfile=dockerfile,
            created=_created(labels, image, from_label=not dockerfile),
            size=int(image.get("Size", 0)),
            containers=used.count(str(image["Id"])),
        )


def _packages(label: str) -> tuple[str, ...]:
    try:
        return tuple(map(str, json.loads(label)))
    except (ValueError, TypeError):
        return ()


def _created(labels: Mapping[str, str], image: Mapping[str, Any], *, from_label: bool) -> float:
    if from_label:
        try:
            moment = datetime.strptime(labels[key.CREATED], key.MOMENT)
            return moment.replace(tzinfo=UTC).timestamp()
        except (KeyError, ValueError):
            pass  # another's hand was at the label; the engine's own time will do
    return float(image.get("Created", 0))


def named(images: Iterable[Listed], name: str) -> list[Listed]:
    """Those that a person means by a name, a key or a tag."""
    return [each for each in images if name in (each.name, each.key, each.tag, each.id)]


async def remove(engine: Engine, image: Listed) -> None:
    """Take the name away; with its last name, the image goes. Gone already is fine."""
    try:
        await engine.request("DELETE", f"/images/{image.tag}", timeout=REMOVE_TIMEOUT)
    except EngineError as error:
        if error.status == _NOT_FOUND:
            return
        if error.status != _CONFLICT:
            raise
        raise EnvironmentBuildError(
            f"image {image.tag} is in use: {error.message}",
            hint="close the sandboxes that use it; `belljar gc` removes those of dead processes",
        ) from error


async def current_keys(
    engine: Engine, environments: Iterable[Environment], docker: Docker
) -> dict[str, str | None]:
    """The keys that the images of these have now; None where that cannot be told."""
    keys: dict[str, str | None] = {}
    for environment in environments:
        try:
            wanted = await anyio.to_thread.run_sync(
                key.want, environment, docker.base, docker.platform
            )
        except EnvironmentBuildError:  # a wheel of it is gone, or its Python
            keys[environment.name] = None
            continue
        base = await pull.inspect(engine, wanted.base, docker.platform)
        keys[environment.name] = None if base is None else wanted.key(str(base["Id"]))
    return keys


def superfluous(
    images: Iterable[Listed], current: Mapping[str, str | None], *, everything: bool = False
) -> list[Listed]:
    """What prune removes: no container was made from it, and there is a newer one of its name.

    `current`: Environments whose description is known, and their keys (None: not known now).
    Where a key is known, that image stays, whichever is newer. `everything`: also the newest.
    """
    found: list[Listed] = []
    by_name: dict[tuple[str, bool], list[Listed]] = {}
    for each in sorted(images, key=lambda each: each.created, reverse=True):
        by_name.setdefault((each.name, bool(each.dockerfile)), []).append(each)
    for (name, is_dockerfile), versions in by_name.items():
        key = None if is_dockerfile else current.get(name)
        kept = key if any(each.key == key for each in versions) else versions[0].key
        found += [each for each in versions if everything or each.key != kept]
    return [each for each in found if not each.containers]
