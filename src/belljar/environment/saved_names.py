"""Environments that `belljar env build` was told about, so that their name can be used later.

One small file for each in the cache, beside the directories that were built from it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import tempfile
from pathlib import Path

from belljar.environment import directories
from belljar.environment.environment import BUILTIN, Environment, list_built
from belljar.environment.store import cache_root
from belljar.errors import EnvironmentBuildError, InvalidOption, unknown_option


def load(name: str) -> Environment:
    """The saved environment of this name."""
    if "=" in name:
        raise InvalidOption(
            f"{name!r} is not the name of an environment",
            hint="it selects the packages; variables are set with env={...}, on the command line "
            f"with --set-env {name}",
        )
    paths = _paths()
    if name not in paths:
        if any(each.name == name for each in list_built()):
            raise InvalidOption(
                f"the environment {name!r} was made in Python; its description is not known here",
                hint=f"give the Environment itself, or describe it once: belljar env build {name} "
                "--packages ...",
            )
        raise unknown_option("environment", name, names())
    return _load(paths[name])


def names() -> list[str]:
    return [*BUILTIN, *(name for name in _paths() if name not in BUILTIN)]


def save(environment: Environment) -> None:
    """Written beside and renamed, so that nobody reads half of it."""
    directory = _directory()
    try:
        directories.make(directory, directories.CACHE)
        # Readable for us alone: a package may be an address with a password.
        descriptor, scratch = tempfile.mkstemp(dir=directory, suffix=".new")
        with os.fdopen(descriptor, "w") as file:
            json.dump(dataclasses.asdict(environment), file, indent=1)
        os.replace(scratch, directory / f"{environment.name}.json")
    except OSError as error:
        raise EnvironmentBuildError(
            f"cannot remember the environment in {directory}: {error.strerror}",
            hint="set BELLJAR_CACHE to a directory you may write to",
        ) from error


def forget(name: str) -> bool:
    path = _paths().get(name)
    if path is None:
        return False
    path.unlink(missing_ok=True)
    return True


def _directory() -> Path:
    return cache_root() / "named"


def _paths() -> dict[str, Path]:
    return {path.stem: path for path in sorted(_directory().glob("*.json"))}


def _load(path: Path) -> Environment:
    # Its packages are imported with our rights before a guest is confined, so nobody else may
    # have chosen them.
    try:
        with path.open() as file:
            status = os.fstat(file.fileno())
            if status.st_uid not in (0, os.geteuid()) or status.st_mode & (
                stat.S_IWGRP | stat.S_IWOTH
            ):
                raise EnvironmentBuildError(
                    f"{path} belongs to, or can be written by, somebody else",
                    hint="remove it and build the environment again",
                )
            described = json.load(file)
        return Environment(**described)
    except (OSError, ValueError, TypeError) as error:
        raise EnvironmentBuildError(
            f"cannot read the description of the environment in {path}: {error}",
            hint=f"make it anew: belljar env build {path.stem} --packages ...",
        ) from error
