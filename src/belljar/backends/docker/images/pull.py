"""Pulls images from a registry, with the credentials of the docker command.

~/.docker/config.json (or $DOCKER_CONFIG) has them under `auths`, or names a program that knows
them: `credHelpers` for one registry, `credsStore` for all.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio

from belljar.backends.docker.client.endpoint import config_directory
from belljar.backends.docker.client.engine import Engine, EngineError
from belljar.backends.docker.images.build_stream import Reporter
from belljar.backends.docker.settings import IMAGE
from belljar.errors import EnvironmentBuildError
from belljar.text import printable


async def pull_image(
    engine: Engine, reference: str, platform: str | None, reporter: Reporter
) -> None:
    """Pull the image. Raises EnvironmentBuildError, with a hint, if that fails."""
    reporter.say("downloading", f"pulling image {reference}")
    name, tag = split_reference(reference)
    query = {"fromImage": name, "tag": tag, "platform": platform}
    headers = await pull_auth_header(reference)
    layers = PullProgress()
    try:
        async with engine.lines("POST", "/images/create", query=query, headers=headers) as lines:
            async for line in lines:
                if "error" in line:
                    raise EngineError(printable(str(line["error"])), status=500)
                layers.take(line)
                reporter.say("downloading", f"pulling image {reference}{layers}")
    except EngineError as error:
        if error.status == 0:
            raise
        raise pull_error(reference, error.message, platform) from error
    reporter.say("finished", f"image {reference} pulled{layers}")


def split_reference(reference: str) -> tuple[str, str]:
    """Name, and tag or digest. Without a tag the engine would pull every tag of the name.

    >>> split_reference("localhost:5000/a"), split_reference("python:3.12")
    (('localhost:5000/a', 'latest'), ('python', '3.12'))
    """
    match = IMAGE.fullmatch(reference)
    assert match is not None, "check_image() has seen it"
    return match["name"], match["digest"] or match["tag"] or "latest"


class PullProgress:
    """How much of each layer of an image has come."""

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


# A pattern of the engine's message -> the hint.
_REMEDIES = (
    (
        r"denied|unauthorized|authentication required|no basic auth",
        "is the name right? if it needs credentials: docker login",
    ),
    (
        r"no matching manifest|platform",
        "the image is not made for this platform; docker manifest inspect lists its platforms",
    ),
    (r"manifest unknown|not found|manifest for", "check the name and the tag"),
    (
        r"x509|certificate",
        "the engine does not trust the registry: put its certificate into "
        "/etc/docker/certs.d/<registry>/ca.crt on the engine's machine",
    ),
    (r"toomanyrequests|rate limit", "docker login raises the registry's limit"),
    (r"no space left", "the engine's disk is full; docker system df, belljar image prune"),
)
OFFLINE = (
    "if the engine cannot reach the registry, load the image yourself: `docker save IMAGE | docker "
    "load` from another machine, or `docker import` of a root directory with python3; then name it "
    "with image=, or with base= (BELLJAR_DOCKER_BASE) for Environments"
)


def pull_error(reference: str, said: str, platform: str | None = None) -> EnvironmentBuildError:
    hint = next((hint for pattern, hint in _REMEDIES if re.search(pattern, said, re.I)), OFFLINE)
    where = f" for {platform}" if platform else ""
    return EnvironmentBuildError(
        f"the engine has no image {reference!r}{where}, and could not pull it: {said}", hint=hint
    )


def missing_error(reference: str, platform: str | None = None) -> EnvironmentBuildError:
    where = f" for {platform}" if platform else ""
    return EnvironmentBuildError(
        f"the engine has no image {reference!r}{where}, and pull='never' forbids to pull it",
        hint=f"docker pull {reference}, or pull='missing'; {OFFLINE}",
    )


# -- credentials --------------------------------------------------------------------------------

DOCKER_HUB = "https://index.docker.io/v1/"
HELPER_TIMEOUT = 30.0


def registry_of(reference: str) -> str:
    """The registry of an image, as Docker's configuration names it.

    >>> registry_of("python:3.12"), registry_of("quay.io/team/app"), registry_of("localhost:5000/a")
    ('https://index.docker.io/v1/', 'quay.io', 'localhost:5000')
    """
    first, slash, _ = reference.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        return DOCKER_HUB
    return DOCKER_HUB if first in ("docker.io", "index.docker.io") else first


async def pull_auth_header(
    reference: str, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The header of a request that pulls `reference`; empty without credentials."""
    config = await anyio.to_thread.run_sync(_read_config, environ)
    found = await _find_credentials(config, registry_of(reference))
    return {"X-Registry-Auth": _encode_auth(found)} if found else {}


async def build_auth_header(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The header of a build, which may pull from any registry that the configuration names."""
    config = await anyio.to_thread.run_sync(_read_config, environ)
    names = {*_table(config.get("auths")), *_table(config.get("credHelpers"))}
    found = {name: known for name in names if (known := await _find_credentials(config, name))}
    return {"X-Registry-Config": _encode_auth(found)} if found else {}


def _encode_auth(found: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(found).encode()).decode()


def _read_config(environ: Mapping[str, str]) -> dict[str, Any]:
    path = Path(config_directory(environ), "config.json")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return {}
    except (OSError, ValueError) as error:
        raise EnvironmentBuildError(
            f"cannot read Docker's configuration {path}: {error}", hint="repair or remove it"
        ) from error
    return _table(config)


def _table(value: object) -> dict[str, Any]:
    """A table of the file; other programs write it too, with null for an empty one."""
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


async def _find_credentials(config: Mapping[str, Any], registry: str) -> dict[str, str] | None:
    helper = _table(config.get("credHelpers")).get(_strip_scheme(registry)) or config.get(
        "credsStore"
    )
    if _text(helper):
        return await _ask_helper(_text(helper), registry)
    for name, entry in _table(config.get("auths")).items():
        if _strip_scheme(name) == _strip_scheme(registry):
            return _parse_entry(_table(entry), registry)
    return None


def _strip_scheme(registry: str) -> str:
    """The host of a registry: `auths` has registries with and without scheme and path."""
    return registry.partition("://")[2].partition("/")[0] if "://" in registry else registry


def _parse_entry(entry: Mapping[str, object], registry: str) -> dict[str, str] | None:
    if token := _text(entry.get("identitytoken")):
        return _login(registry, "<token>", token)
    username, password = _text(entry.get("username")), _text(entry.get("password"))
    if auth := entry.get("auth"):
        try:
            decoded = base64.b64decode(_text(auth)).decode() if _text(auth) else None
        except ValueError:  # of base64, or of UTF-8
            decoded = None
        if decoded is None:
            raise EnvironmentBuildError(
                f"Docker's configuration has unreadable credentials for {registry}",
                hint=f"docker login {_strip_scheme(registry)}",
            )
        username, _, password = decoded.partition(":")
    return _login(registry, username, password.rstrip("\0")) if username else None


def _login(registry: str, username: str, secret: str) -> dict[str, str]:
    if username == "<token>":
        return {"identitytoken": secret, "serveraddress": registry}
    return {"username": username, "password": secret, "serveraddress": registry}


async def _ask_helper(helper: str, registry: str) -> dict[str, str] | None:
    program = shutil.which(f"docker-credential-{os.path.basename(helper)}")
    if program is None:
        # As the docker command does: most images need no credentials.
        return None
    with anyio.move_on_after(HELPER_TIMEOUT):
        done = await anyio.run_process([program, "get"], input=registry.encode(), check=False)
        if done.returncode != 0:  # it has no credentials
            return None
        try:
            said = json.loads(done.stdout)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            # Without its output, which may be a password.
            raise EnvironmentBuildError(f"{program} did not print a JSON object") from None
        return _login(registry, _text(said.get("Username")), _text(said.get("Secret")))
    raise EnvironmentBuildError(
        f"{program} did not answer in {HELPER_TIMEOUT:g} s",
        hint=f"try it: echo {registry} | {program} get",
    )
