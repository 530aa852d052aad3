"""What went wrong in a build container, in words that say what to do. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from belljar.backends.docker.images.build_stream import Failure
from belljar.backends.docker.images.key import Wanted, without_password
from belljar.environment.requirement import (
    UNSOLVABLE,
    explain_conflict,
    hide_secrets,
    join_packages,
)
from belljar.errors import EnvironmentBuildError
from belljar.text import printable

SHOWN_LINES = 12  # of a complaint, from its start and again from its end

# What uv says -> what to do about it. The first that matches is given as the hint.
_REMEDIES = (
    (
        r"building from source is disabled|no usable wheels|Building source distributions|"
        r"--no-build|only-binary",
        "only ready-made wheels are installed; to build a package in the build container: "
        "Environment(…, allow_builds=True), or belljar image build NAME … --allow-builds",
    ),
    (
        r"certificate|UnknownIssuer|CERTIFICATE_VERIFY_FAILED",
        "name your CA bundle: Docker(ca_bundle=…), BELLJAR_CA_BUNDLE or SSL_CERT_FILE",
    ),
    (
        r"no index|--no-index|index lookups were disabled",
        "a directory of this host is no package index for a container; name a mirror by its URL in "
        "UV_DEFAULT_INDEX, or give the wheels themselves as packages (paths of .whl files)",
    ),
    (
        r"dns error|error sending request|Failed to fetch|[Cc]onnect|timed out|Could not resolve|"
        r"Temporary failure in name resolution",
        "the build container could not reach the package index; BELLJAR_BUILD_NETWORK=host lets it "
        "use the network of the engine's machine; UV_DEFAULT_INDEX or PIP_INDEX_URL name a mirror, "
        "HTTPS_PROXY a proxy",
    ),
    *UNSOLVABLE,
    (
        r"missing `distutils`",
        "the base image lacks a part of Python: python3-distutils, as Debian calls it",
    ),
    (r"[Nn]o space left", "the engine's disk is full; docker system df, belljar image prune"),
)


def explained(
    failure: Failure, wanted: Wanted, secrets: Iterable[str] = ()
) -> EnvironmentBuildError:
    """`secrets`: what the build was handed, and its error may not show."""
    name, base = wanted.environment.name, wanted.base
    failure = Failure(
        printable(without_password(failure.message, secrets)),
        failure.kind,
        tuple(printable(without_password(line, secrets)) for line in failure.lines),
    )
    if failure.kind in ("python", "root"):
        return EnvironmentBuildError(
            f"environment {name!r} cannot be built on image {base!r}: {failure.message}",
            hint="choose another base image: Docker(base=…) or BELLJAR_DOCKER_BASE",
        )
    if failure.kind == "start":
        return _not_started(failure, wanted)
    if failure.kind == "uv":
        return EnvironmentBuildError(
            "\n".join([f"{failure.message} in a container of image {base!r}", *_shown(failure)]),
            hint="this host's uv does not run there, the image has neither uv nor a pip that gets "
            "it; choose a base image with uv or pip",
        )
    packages = without_password(
        join_packages(list(map(hide_secrets, wanted.environment.packages))), secrets
    )
    said = "\n".join(failure.lines)
    hint = next((hint for pattern, hint in _REMEDIES if re.search(pattern, said)), None)
    if failure.kind == "ended":
        hint = "was it removed, did the engine stop, or is its machine out of memory or disk space?"
    message = f"installing {packages} on image {base!r} failed ({failure.message})"
    if (why := explain_conflict(said)) is not None:
        message = f"{why}; {message}"
    return EnvironmentBuildError("\n".join([message, *_shown(failure)]), hint=hint)


def _not_started(failure: Failure, wanted: Wanted) -> EnvironmentBuildError:
    missing = r"executable file not found|python3.*[Nn]o such file or directory"
    if re.search(missing, failure.message):
        return EnvironmentBuildError(
            f"image {wanted.base!r} has no python3, so nothing can be built on it",
            hint="choose a base image with Python 3.9 or later, such as python:3.12-slim",
        )
    hint = None
    if "exec format error" in failure.message:
        hint = "the image is for another kind of processor; platform=, or emulation by binfmt_misc"
    elif "network" in failure.message:
        hint = "BELLJAR_BUILD_NETWORK=host lets builds use the network of the engine's machine"
    return EnvironmentBuildError(
        f"a container of image {wanted.base!r} does not start: {failure.message}", hint=hint
    )


def _shown(failure: Failure) -> list[str]:
    lines = list(failure.lines)
    starts = [i for i, line in enumerate(lines) if re.match(r"\s*(error\b|×|ERROR)", line)]
    complaint = lines[starts[0] :] if starts else lines
    if len(complaint) > 2 * SHOWN_LINES:
        complaint = [*complaint[:SHOWN_LINES], "…", *complaint[-SHOWN_LINES:]]
    return complaint
