"""What a registry is told about who asks: the credentials of the docker command, found its way.

~/.docker/config.json (or $DOCKER_CONFIG) has them under `auths`, or names a program that knows
them: `credHelpers` for one registry, `credsStore` for all.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio

from belljar.errors import EnvironmentBuildError

DOCKER_HUB = "https://index.docker.io/v1/"
HELPER_TIMEOUT = 30.0


def registry_of(reference: str) -> str:
    """The registry that an image comes from, as the configuration names it.

    >>> registry_of("python:3.12"), registry_of("quay.io/team/app"), registry_of("localhost:5000/a")
    ('https://index.docker.io/v1/', 'quay.io', 'localhost:5000')
    """
    first, slash, _ = reference.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        return DOCKER_HUB
    return DOCKER_HUB if first in ("docker.io", "index.docker.io") else first


async def header(reference: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The header of a request that pulls `reference`; empty without credentials."""
    environ = os.environ if environ is None else environ
    config = await anyio.to_thread.run_sync(_config, environ)
    found = await _credentials(config, registry_of(reference))
    return {"X-Registry-Auth": _encoded(found)} if found else {}


async def all_known(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The header of a build, which may pull from any registry that the configuration names."""
    environ = os.environ if environ is None else environ
    config = await anyio.to_thread.run_sync(_config, environ)
    names = {*_table(config.get("auths")), *_table(config.get("credHelpers"))}
    found = {name: known for name in names if (known := await _credentials(config, name))}
    return {"X-Registry-Config": _encoded(found)} if found else {}


def _encoded(found: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(found).encode()).decode()


def _config(environ: Mapping[str, str]) -> dict[str, Any]:
    directory = environ.get("DOCKER_CONFIG") or Path(environ.get("HOME") or Path.home(), ".docker")
    path = Path(directory, "config.json")
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
    """Others write this file too, and null where there is nothing."""
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


async def _credentials(config: Mapping[str, Any], registry: str) -> dict[str, str] | None:
    helper = _table(config.get("credHelpers")).get(_bare(registry)) or config.get("credsStore")
    if _text(helper):
        return await _ask(_text(helper), registry)
    for name, entry in _table(config.get("auths")).items():
        if _bare(name) == _bare(registry):
            return _entry(_table(entry), registry)
    return None


def _bare(registry: str) -> str:
    """`auths` has registries with and without scheme and path."""
    return registry.partition("://")[2].partition("/")[0] if "://" in registry else registry


def _entry(entry: Mapping[str, object], registry: str) -> dict[str, str] | None:
    if token := _text(entry.get("identitytoken")):
        return {"identitytoken": token, "serveraddress": registry}
    username, password = _text(entry.get("username")), _text(entry.get("password"))
    if auth := entry.get("auth"):
        try:
            decoded = base64.b64decode(_text(auth)).decode() if _text(auth) else None
        except ValueError:  # of base64, or of UTF-8
            decoded = None
        if decoded is None:
            raise EnvironmentBuildError(
                f"Docker's configuration has unreadable credentials for {registry}",
                hint=f"docker login {_bare(registry)}",
            )
        username, _, password = decoded.partition(":")
    if not username:
        return None
    return {
        "username": username,
        "password": password.rstrip("\0"),
        "serveraddress": registry,
    }


async def _ask(helper: str, registry: str) -> dict[str, str] | None:
    program = shutil.which(f"docker-credential-{os.path.basename(helper)}")
    if program is None:
        # The docker command goes on without credentials too; most images need none.
        return None
    with anyio.move_on_after(HELPER_TIMEOUT):
        done = await anyio.run_process([program, "get"], input=registry.encode(), check=False)
        if done.returncode != 0:  # it says so when it has none
            return None
        try:
            said = json.loads(done.stdout)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            # Without what it said, which may be a password.
            raise EnvironmentBuildError(f"{program} does not answer as it should") from None
        username, secret = _text(said.get("Username")), _text(said.get("Secret"))
        if username == "<token>":
            return {"identitytoken": secret, "serveraddress": registry}
        return {"username": username, "password": secret, "serveraddress": registry}
    raise EnvironmentBuildError(
        f"{program} did not answer in {HELPER_TIMEOUT:g} s",
        hint=f"try it: echo {registry} | {program} get",
    )
