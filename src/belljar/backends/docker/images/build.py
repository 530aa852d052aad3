"""An Environment becomes an image: a container of the base image, in which the steps of
image_steps.py run, is committed.

Not a Dockerfile: secrets need BuildKit, and BuildKit a session that only its own client speaks.
A container and one attached stream do with any engine, and what goes in through the stream to a
tmpfs is in no layer and in no history.

The container's name is made of the image's key. It exists once on an engine, so it is also the
lock between processes, and between hosts: who finds it taken waits for the image. Its steps end
when the stream does, and the engine removes it then, so a build does not outlive its process: if
the base image's Python is one. Of a program that does not read its input, the next sweep does.
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
from belljar.backends.docker.spec import as_mounted
from belljar.environment.addresses import hide_credentials
from belljar.environment.requirement import UNSOLVABLE, few, shown, why_unsolvable
from belljar.errors import EnvironmentBuildError
from belljar.text import printable

CREATE_TIMEOUT = 20.0
START_TIMEOUT = 60.0
TMPFS_SIZE = "512m"  # an upper bound; uv and the settings take 40 MiB
MOST_TASKS = 4096  # as many as a compiler on a large machine wants, but no fork bomb

_CONFLICT = 409

log = logging.getLogger("belljar")
in_use: set[str] = set()  # build containers of this process

# As PID 1 of the container: the program's length, then the program, then what it reads itself.
BOOTSTRAP = (
    "import sys\n"
    "size = int(sys.stdin.buffer.readline())\n"
    "exec(compile(sys.stdin.buffer.read(size), 'belljar-build', 'exec'))\n"
)


class BuildTaken(Exception):
    """Somebody else has the build container."""


async def build_image(
    engine: Engine, order: BuildOrder, facts: EngineFacts, reporter: Reporter
) -> str:
    """Make the image and give its id. Raises Taken if somebody else is making it."""
    _refuse_volumes(order)
    inputs = await anyio.to_thread.run_sync(collect_inputs, order)
    reporter.hide(inputs.secrets)
    for note in inputs.notes:
        reporter.note(note)
    async with (
        build_container(engine, order, facts) as container,
        # Until the image is there: with the stream, the container ends.
        _attached(engine, container, order) as connection,
    ):
        told = await BuildStream(connection, reporter).run(stream_inputs(inputs))
        if isinstance(told, Failure):
            raise explain_failure(told, order.plan, inputs.secrets)
        reporter.say("compiling", "storing the image")
        return await commit_image(engine, container, order, told, facts)


def _refuse_volumes(order: BuildOrder) -> None:
    for volume in (order.base.get("Config") or {}).get("Volumes") or ():
        if f"{ROOT}/".startswith(f"{as_mounted(str(volume)).rstrip('/')}/"):
            raise EnvironmentBuildError(
                f"image {order.plan.base!r} declares {volume} as a volume, and what is written "
                "to a volume does not become part of an image",
                hint="choose another base image: Docker(base=…) or BELLJAR_DOCKER_BASE",
            )


# -- the container ------------------------------------------------------------------------------


@asynccontextmanager
async def _attached(engine: Engine, container: str, order: BuildOrder) -> AsyncIterator[Connection]:
    """Start it, with its standard input and output connected to us."""
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
    """The build container, made and removed."""
    try:
        with anyio.CancelScope(shield=True):  # else nobody would know whether it was made
            made = await engine.request(
                "POST",
                "/containers/create",
                query={"name": order.container, "platform": order.plan.platform},
                body=container_body(order, facts),
                timeout=CREATE_TIMEOUT,
            )
    except EngineError as error:
        # Podman 4 gives no status for it.
        if error.status == _CONFLICT or "is already in use" in error.message:
            raise BuildTaken from error
        if error.status == 0:  # it may have been made all the same
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
                # It ends with its stream, and the engine was told to remove it then; or a sweep
                # does.
                log.warning("the build container %s stays for now: %s", order.container, error)
            in_use.discard(container)


async def _remove_ours(engine: Engine, order: BuildOrder) -> None:
    with anyio.CancelScope(shield=True):
        try:
            found = await engine.request("GET", f"/containers/{order.container}/json", timeout=5.0)
            if owner.is_ours(found["Config"].get("Labels") or {}):
                await cleanup.remove_container(engine, str(found["Id"]))
        except EngineError:
            return  # it hangs or is away; the sweep will find the container by its labels


def container_body(order: BuildOrder, facts: EngineFacts) -> dict[str, object]:
    """The body that makes the build container. Pure, but for the labels of this process."""
    labels = owner.labels(f"build-{order.key}", order.project) | {owner.BUILD: order.key}
    host: dict[str, object] = {
        "AutoRemove": True,
        "Init": False,
        "CapDrop": ["ALL"],
        "CapAdd": ["CHOWN", "DAC_OVERRIDE", "FOWNER"],
        "SecurityOpt": ["no-new-privileges"],
        # Executable, because uv lies there too.
        "Tmpfs": {"/tmp": f"rw,exec,nosuid,nodev,mode=0700,size={TMPFS_SIZE}"},
        "PidsLimit": MOST_TASKS,
        "LogConfig": {"Type": "none"},
    }
    if order.network is not None:
        host["NetworkMode"] = order.network
    # gVisor keeps what is written in a file of its own, where a commit does not find it.
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


def explain_failure(
    failure: Failure, wanted: ImagePlan, secrets: Iterable[str] = ()
) -> EnvironmentBuildError:
    """`secrets`: what the build was handed, and its error may not show."""
    name, base = wanted.environment.name, wanted.base
    failure = Failure(
        printable(hide_credentials(failure.message, secrets)),
        failure.kind,
        tuple(printable(hide_credentials(line, secrets)) for line in failure.lines),
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
    packages = hide_credentials(few(list(map(shown, wanted.environment.packages))), secrets)
    said = "\n".join(failure.lines)
    hint = next((hint for pattern, hint in _REMEDIES if re.search(pattern, said)), None)
    if failure.kind == "ended":
        hint = "was it removed, did the engine stop, or is its machine out of memory or disk space?"
    message = f"installing {packages} on image {base!r} failed ({failure.message})"
    if (why := why_unsolvable(said)) is not None:
        message = f"{why}; {message}"
    return EnvironmentBuildError("\n".join([message, *_shown(failure)]), hint=hint)


def _not_started(failure: Failure, wanted: ImagePlan) -> EnvironmentBuildError:
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


GUEST_PYTHON = f"{ROOT}/bin/python"
COMMIT_TIMEOUT = 600.0  # seconds; some hundred megabytes are copied, or at least counted
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


async def commit_image(
    engine: Engine, container: str, order: BuildOrder, told: Mapping[str, Any], facts: EngineFacts
) -> str:
    """Make the image, and give its id. `told`: what the steps in the container said at the end."""
    repository, _, tag = order.tag.rpartition(":")
    # Its one program waits for nothing but the end, so it need not be paused.
    query = {"container": container, "repo": repository, "tag": tag, "pause": False}
    config = image_config(order, told)
    if facts.engine == "podman":  # reads a configuration, and forgets it
        query["changes"] = config_as_instructions(config)
    made = await engine.request("POST", "/commit", query=query, body=config, timeout=COMMIT_TIMEOUT)
    image = str(made["Id"])
    if facts.engine == "podman":  # gives the name only now and then
        await engine.request("POST", f"/images/{image}/tag", query={"repo": repository, "tag": tag})
    return image


def image_config(order: BuildOrder, told: Mapping[str, Any]) -> dict[str, Any]:
    """What a container of the image has by itself. To this the engine adds what the build
    container had, where this says nothing: that one therefore has no variables."""
    inherited = (order.base.get("Config") or {}).get("Env") or []
    path = dict(each.partition("=")[::2] for each in inherited).get("PATH") or _DEFAULT_PATH
    # Containers of the image have its labels, and labels cannot be taken away: emptied, they name
    # no owner.
    no_owner = dict.fromkeys(owner.labels(""), "")
    return {
        "Env": [f"PATH={ROOT}/bin:{path}", f"VIRTUAL_ENV={ROOT}"],
        "Entrypoint": [],
        "Cmd": [GUEST_PYTHON],
        "User": f"{USER_ID}:{USER_ID}",
        "WorkingDir": "/workspace",
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": no_owner | image_store.image_labels(order.plan, order.key, told),
    }


def config_as_instructions(config: Mapping[str, Any]) -> str:
    """The same as instructions of a Dockerfile. Values go without quotes, as Podman reads them;
    none has white space."""
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
