"""Builds the image of an Environment: runs build_script.py in a container of the base image, and
commits that container.

It does not use a Dockerfile: secrets would need BuildKit, and BuildKit a session that only its own
client speaks. A container and one attached stream work with any engine, and what goes through the
stream to a tmpfs is in no layer and in no history.

The image's key is in the container's name, which exists once on an engine. So the name is a lock
between processes and between hosts: a process that finds it taken waits for the image. The program
ends when the stream does, and then the engine removes the container, so a build does not outlive
its process. If the base image's `python3` does not read its input, the next sweep removes it.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel

from belljar.backends.docker import cleanup, owner
from belljar.backends.docker.client.connect import Connection
from belljar.backends.docker.client.engine import Engine, EngineError
from belljar.backends.docker.images import image_store
from belljar.backends.docker.images.build_script import ROOT
from belljar.backends.docker.images.build_stream import (
    BOOTSTRAP,
    USER_ID,
    BuildOrder,
    BuildStream,
    Failure,
    Reporter,
    collect_inputs,
    stream_inputs,
)
from belljar.backends.docker.images.image_store import ImagePlan
from belljar.backends.docker.isolation import EngineFacts
from belljar.backends.docker.spec import normalize_path
from belljar.environment.addresses import hide_credentials
from belljar.environment.requirement import (
    UNSOLVABLE,
    hide_secrets,
    install_error,
    join_packages,
)
from belljar.errors import EnvironmentBuildError
from belljar.text import printable

CREATE_TIMEOUT = 20.0
START_TIMEOUT = 60.0
TMPFS_SIZE = "512m"  # an upper bound; uv and the settings take 40 MiB
MOST_TASKS = 4096  # as many as a compiler on a large machine wants, but no fork bomb

log = logging.getLogger("belljar")
in_use: set[str] = set()  # build containers of this process


class BuildTaken(Exception):
    """Another process has the build container."""


async def build_image(
    engine: Engine, order: BuildOrder, facts: EngineFacts, reporter: Reporter
) -> str:
    """Build the image and return its id. Raises BuildTaken if another process builds it."""
    _refuse_volumes(order)
    request, settings = await anyio.to_thread.run_sync(collect_inputs, order)
    reporter.hide(settings.secrets)
    for note in settings.notes:
        reporter.note(note)
    async with (
        build_container(engine, order, facts) as container,
        # Open until the image exists: the container ends with this stream.
        _attached(engine, container, order) as connection,
    ):
        inputs = stream_inputs(request, settings.files.values())
        report = await BuildStream(connection, reporter).run(inputs)
        if isinstance(report, Failure):
            raise explain_failure(report, order.plan, settings.secrets)
        reporter.say("compiling", "storing the image")
        return await commit_image(engine, container, order, report, facts)


def _refuse_volumes(order: BuildOrder) -> None:
    for volume in (order.base.get("Config") or {}).get("Volumes") or ():
        if f"{ROOT}/".startswith(f"{normalize_path(str(volume)).rstrip('/')}/"):
            raise EnvironmentBuildError(
                f"image {order.plan.base!r} declares {volume} as a volume, and files in a volume "
                "do not become part of an image",
                hint="choose another base image: Docker(base=…) or BELLJAR_DOCKER_BASE",
            )


# -- the container ------------------------------------------------------------------------------


@asynccontextmanager
async def _attached(engine: Engine, container: str, order: BuildOrder) -> AsyncIterator[Connection]:
    """Start it, attached to its standard input and output."""
    query = dict.fromkeys(("stream", "stdin", "stdout", "stderr"), True)
    path = f"/containers/{container}"
    connection: Connection | None = None
    try:
        try:
            connection = await engine.upgrade(f"{path}/attach", query=query)
            await engine.request("POST", f"{path}/start", timeout=START_TIMEOUT)
        except EngineError as error:
            if error.status == 0:
                raise
            raise explain_failure(Failure(error.message, kind="start"), order.plan) from error
        yield connection
    finally:
        if connection is not None:
            connection.close()


@asynccontextmanager
async def build_container(
    engine: Engine, order: BuildOrder, facts: EngineFacts
) -> AsyncIterator[str]:
    """Create the build container, and remove it at the end."""
    try:
        with anyio.CancelScope(shield=True):  # the engine completes a cancelled request too
            made = await engine.request(
                "POST",
                "/containers/create",
                query={"name": order.container, "platform": order.plan.platform},
                body=container_body(order, facts),
                timeout=CREATE_TIMEOUT,
            )
    except EngineError as error:
        # Podman 4 has no status for it.
        if error.status == 409 or "is already in use" in error.message:
            raise BuildTaken from error
        if error.status == 0:  # the container may exist
            await _remove_ours(engine, order)
        raise
    container = str(made["Id"])
    in_use.add(container)
    try:
        await anyio.lowlevel.checkpoint()
        yield container
    finally:
        with anyio.CancelScope(shield=True):
            try:
                await cleanup.remove_container(engine, container)
            except EngineError as error:
                # The engine removes it when its stream ends; if not, a sweep does.
                log.warning("cannot remove the build container %s now: %s", order.container, error)
            in_use.discard(container)


async def _remove_ours(engine: Engine, order: BuildOrder) -> None:
    with anyio.CancelScope(shield=True):
        try:
            found = await engine.request("GET", f"/containers/{order.container}/json", timeout=5.0)
            if owner.is_ours(found["Config"].get("Labels") or {}):
                await cleanup.remove_container(engine, str(found["Id"]))
        except EngineError:
            return  # the engine hangs or is away; the sweep finds the container by its labels


def container_body(order: BuildOrder, facts: EngineFacts) -> dict[str, object]:
    """The request for the build container."""
    labels = owner.labels(f"build-{order.key}", order.docker.project) | {owner.BUILD: order.key}
    host: dict[str, object] = {
        "AutoRemove": True,
        "Init": False,
        "CapDrop": ["ALL"],
        "CapAdd": ["CHOWN", "DAC_OVERRIDE", "FOWNER"],
        "SecurityOpt": ["no-new-privileges"],
        # Executable, because uv is in it.
        "Tmpfs": {"/tmp": f"rw,exec,nosuid,nodev,mode=0700,size={TMPFS_SIZE}"},
        "PidsLimit": MOST_TASKS,
        "LogConfig": {"Type": "none"},
    }
    if order.docker.build_network is not None:
        host["NetworkMode"] = order.docker.build_network
    # gVisor keeps written files in a file of its own, where a commit does not find them.
    if facts.default_runtime not in ("runc", "crun", "") and "runc" in facts.runtimes:
        host["Runtime"] = "runc"
    return {
        "Image": order.base["Id"],
        "Entrypoint": ["python3"],
        "Cmd": ["-c", BOOTSTRAP],
        "WorkingDir": "/",
        "User": "0:0",
        "Labels": labels,
        "Healthcheck": {"Test": ["NONE"]},
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "HostConfig": host,
    }


# -- the image ----------------------------------------------------------------------------------

GUEST_PYTHON = f"{ROOT}/bin/python"
COMMIT_TIMEOUT = 600.0  # seconds; the engine copies or counts some hundred megabytes
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


async def commit_image(
    engine: Engine, container: str, order: BuildOrder, report: Mapping[str, Any], facts: EngineFacts
) -> str:
    """Make the image and return its id. `report`: the facts from the program in the container."""
    repository, _, tag = order.tag.rpartition(":")
    # Its only program waits for its end, so it need not be paused.
    query = {"container": container, "repo": repository, "tag": tag, "pause": False}
    config = image_config(order, report)
    if facts.engine == "podman":  # it ignores the configuration
        query["changes"] = config_as_instructions(config)
    made = await engine.request("POST", "/commit", query=query, body=config, timeout=COMMIT_TIMEOUT)
    image = str(made["Id"])
    if facts.engine == "podman":  # it does not always set the name
        await engine.request("POST", f"/images/{image}/tag", query={"repo": repository, "tag": tag})
    return image


def image_config(order: BuildOrder, report: Mapping[str, Any]) -> dict[str, Any]:
    """The image's configuration. The engine adds what the build container had and this lacks:
    therefore that one has no variables."""
    inherited = (order.base.get("Config") or {}).get("Env") or []
    path = dict(each.partition("=")[::2] for each in inherited).get("PATH") or _DEFAULT_PATH
    # Containers inherit the image's labels, which cannot be removed: empty, they name no owner.
    no_owner = dict.fromkeys(owner.labels(""), "")
    return {
        "Env": [f"PATH={ROOT}/bin:{path}", f"VIRTUAL_ENV={ROOT}"],
        "Entrypoint": [],
        "Cmd": [GUEST_PYTHON],
        "User": f"{USER_ID}:{USER_ID}",
        "WorkingDir": "/workspace",
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": no_owner | image_store.image_labels(order.plan, order.key, report),
    }


def config_as_instructions(config: Mapping[str, Any]) -> str:
    """The configuration as instructions of a Dockerfile. Podman reads values without quotes; no
    value has white space."""
    return "\n".join(
        [
            *(f"ENV {each}" for each in config["Env"]),
            f"ENTRYPOINT {json.dumps(config['Entrypoint'])}",
            f"CMD {json.dumps(config['Cmd'])}",
            f"USER {config['User']}",
            f"WORKDIR {config['WorkingDir']}",
            *(f"LABEL {name}={value}" for name, value in config["Labels"].items()),
        ]
    )


# -- errors -------------------------------------------------------------------------------------

# A pattern of uv's message -> the hint. The first match counts.
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
_ENDED = "was it removed, did the engine stop, or is its machine out of memory or disk space?"


def explain_failure(
    failure: Failure, plan: ImagePlan, secrets: Iterable[str] = ()
) -> EnvironmentBuildError:
    """The error for a failed build. `secrets`: inputs of the build that it must not show."""
    base = plan.base
    message, *lines = (
        printable(hide_credentials(text, secrets)) for text in (failure.message, *failure.lines)
    )
    if failure.kind in ("python", "root"):
        name = plan.environment.name
        return EnvironmentBuildError(
            f"environment {name!r} cannot be built on image {base!r}: {message}",
            hint="choose another base image: Docker(base=…) or BELLJAR_DOCKER_BASE",
        )
    if failure.kind == "start":
        return _start_failure(message, base)
    if failure.kind == "uv":
        return install_error(
            f"{message} in a container of image {base!r}",
            lines,
            hint="this host's uv does not run there, and the image has no uv and no pip that "
            "installs it; choose a base image with uv or pip",
        )
    packages = hide_credentials(
        join_packages(list(map(hide_secrets, plan.environment.packages))), secrets
    )
    said = f"installing {packages} on image {base!r} failed ({message})"
    hint = _ENDED if failure.kind == "ended" else None
    return install_error(said, lines, remedies=_REMEDIES, hint=hint)


def _start_failure(message: str, base: str) -> EnvironmentBuildError:
    if re.search(r"executable file not found|python3.*[Nn]o such file or directory", message):
        return EnvironmentBuildError(
            f"image {base!r} has no python3, so nothing can be built on it",
            hint="choose a base image with Python 3.9 or later, such as python:3.12-slim",
        )
    hint = None
    if "exec format error" in message:
        hint = "the image is for another kind of processor; platform=, or emulation by binfmt_misc"
    elif "network" in message:
        hint = "BELLJAR_BUILD_NETWORK=host lets builds use the network of the engine's machine"
    return EnvironmentBuildError(
        f"a container of image {base!r} does not start: {message}", hint=hint
    )
