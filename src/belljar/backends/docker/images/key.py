"""Names of the images that Environments become: the tag, the labels, the hash. Pure.

The key is the hash of everything that decides the content, so an image of a tag never changes. The
recipe is the same without the id of the base image: by it an image is found on an engine that has
it, but not the image it was built on (`docker save` on one machine, `docker load` on another).
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from belljar.backends.docker.images.build_script import bare_addresses
from belljar.environment.environment import Environment
from belljar.environment.interpreter import find_interpreter
from belljar.environment.requirement import fingerprint_package, hide_secrets

LAYOUT = 1  # of what is built; a new number makes every image be built anew

IMAGE = "belljar.image"
ENVIRONMENT = "belljar.environment"
KEY = "belljar.key"
RECIPE = "belljar.recipe"
PACKAGES = "belljar.packages"
LOCK = "belljar.lock"
BASE = "belljar.base"
CREATED = "belljar.created"
PYTHON = "belljar.python"
DOCKERFILE = "belljar.dockerfile"  # instead of most of the above

MOMENT = "%Y-%m-%dT%H:%M:%SZ"
_VERSION = re.compile(r"3\.\d+(\.\d+)?")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """An Environment as an image: what is known before an engine is asked."""

    environment: Environment
    python: str | None  # the version asked for
    base: str  # the reference of the base image
    platform: str | None
    fingerprints: tuple[str, ...]

    @property
    def recipe(self) -> str:
        return hashed([*self._parts(), self.base])

    def key(self, base_id: str) -> str:
        return hashed([*self._parts(), base_id])

    def _parts(self) -> list[object]:
        return [
            LAYOUT,
            list(self.fingerprints),
            self.python,
            self.platform,
            self.environment.allow_builds,
        ]


def want(environment: Environment, base: str | None, platform: str | None) -> Wanted:
    """Blocks, when there are local wheels to be read or an interpreter to be asked."""
    python = python_version(environment)
    return Wanted(
        environment=environment,
        python=python,
        base=base or f"python:{_minor(python)}-slim",
        platform=platform,
        fingerprints=tuple(sorted(map(fingerprint_package, environment.packages))),
    )


def python_version(environment: Environment) -> str | None:
    """The version asked for. A path is one of this host: its version is what counts."""
    python = environment.python
    if python is None or _VERSION.fullmatch(python):
        return python
    return find_interpreter(python).short_version


def _minor(python: str | None) -> str:
    if python is None:
        return f"{sys.version_info.major}.{sys.version_info.minor}"
    return ".".join(python.split(".")[:2])


def hashed(parts: list[object]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def repository(name: str) -> str:
    """The part of the tag for people.

    >>> repository("My.Env_--x_")
    'belljar/my.env-x'
    """
    name = re.sub(r"[._-]{2,}", "-", name.lower()).strip("._-")
    return f"belljar/{name}"


def own_tags(image: Mapping[str, Any]) -> list[str]:
    """The names by which an image, inspected or listed, is one of ours.

    Not its labels alone: whoever builds FROM one of our images inherits them.
    """
    labels = image.get("Labels") or (image.get("Config") or {}).get("Labels") or {}
    key = labels.get(KEY)
    if labels.get(IMAGE) != "1" or not key:
        return []
    ours = re.compile(rf"(localhost/)?belljar/[^:/]+:{re.escape(key)}")
    # Podman adds the name of a registry to names that have none.
    tags = [str(tag).removeprefix("docker.io/") for tag in image.get("RepoTags") or []]
    return [tag for tag in tags if ours.fullmatch(tag)]


def labels(wanted: Wanted, key: str, facts: Mapping[str, object]) -> dict[str, str]:
    """`facts`: what the steps in the container told at their end."""
    packages = [without_password(hide_secrets(package)) for package in wanted.environment.packages]
    return {
        IMAGE: "1",
        ENVIRONMENT: wanted.environment.name,
        KEY: key,
        RECIPE: wanted.recipe,
        PACKAGES: json.dumps(packages, separators=(",", ":")).replace(" ", "\\u0020"),
        LOCK: str(facts["lock"]),
        BASE: wanted.base,
        CREATED: now(),
        PYTHON: str(facts["python"]),
    }


def now() -> str:
    return time.strftime(MOMENT, time.gmtime())


def without_password(text: str, secrets: Iterable[str] = ()) -> str:
    """What may be shown of a text: nothing of `secrets`, no password in an address.

    >>> without_password("a @ https://me:secret@example.org/a.whl?token=secret")
    'a @ https://***@example.org/a.whl?***'
    """
    text = bare_addresses(text, "***@", "?***")
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
