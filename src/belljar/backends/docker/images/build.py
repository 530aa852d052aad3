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

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel

from belljar.backends.docker import owner, removal
from belljar.backends.docker.client.dial import Connection
from belljar.backends.docker.client.engine import Engine, EngineError
from belljar.backends.docker.facts import Facts
from belljar.backends.docker.images.build_failure import explained
from belljar.backends.docker.images.build_inputs import Order, pack, pieces
from belljar.backends.docker.images.build_script import ROOT
from belljar.backends.docker.images.build_stream import Failure, Talk
from belljar.backends.docker.images.commit import commit
from belljar.backends.docker.images.progress import Teller
from belljar.backends.docker.spec import as_mounted
from belljar.errors import EnvironmentBuildError

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


class Taken(Exception):
    """Somebody else has the build container."""


async def build(engine: Engine, order: Order, facts: Facts, teller: Teller) -> str:
    """Make the image and give its id. Raises Taken if somebody else is making it."""
    _refuse_volumes(order)
    luggage = await anyio.to_thread.run_sync(pack, order)
    teller.hide(luggage.secrets)
    for note in luggage.notes:
        teller.note(note)
    async with (
        held(engine, order, facts) as container,
        # Until the image is there: with the stream, the container ends.
        _attached(engine, container, order) as connection,
    ):
        told = await Talk(connection, teller).run(pieces(luggage))
        if isinstance(told, Failure):
            raise explained(told, order.wanted, luggage.secrets)
        teller.say("compiling", "storing the image")
        return await commit(engine, container, order, told, facts)


def _refuse_volumes(order: Order) -> None:
    for volume in (order.base.get("Config") or {}).get("Volumes") or ():
        if f"{ROOT}/".startswith(f"{as_mounted(str(volume)).rstrip('/')}/"):
            raise EnvironmentBuildError(
                f"image {order.wanted.base!r} declares {volume} as a volume, and what is written "
                "to a volume does not become part of an image",
                hint="choose another base image: Docker(base=…) or BELLJAR_DOCKER_BASE",
            )


# -- the container ------------------------------------------------------------------------------


@asynccontextmanager
async def _attached(engine: Engine, container: str, order: Order) -> AsyncIterator[Connection]:
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
            raise explained(Failure(error.message, kind="start"), order.wanted) from error
        yield connection
    finally:
        if connection is not None:
            connection.close()


@asynccontextmanager
async def held(engine: Engine, order: Order, facts: Facts) -> AsyncIterator[str]:
    """The build container, made and removed."""
    try:
        with anyio.CancelScope(shield=True):  # else nobody would know whether it was made
            made = await engine.request(
                "POST",
                "/containers/create",
                query={"name": order.container, "platform": order.wanted.platform},
                body=created(order, facts),
                timeout=CREATE_TIMEOUT,
            )
    except EngineError as error:
        # Podman 4 gives no status for it.
        if error.status == _CONFLICT or "is already in use" in error.message:
            raise Taken from error
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
                await removal.remove(engine, container)
            except EngineError as error:
                # It ends with its stream, and the engine was told to remove it then; or a sweep
                # does.
                log.warning("the build container %s stays for now: %s", order.container, error)
            in_use.discard(container)


async def _remove_ours(engine: Engine, order: Order) -> None:
    with anyio.CancelScope(shield=True):
        try:
            found = await engine.request("GET", f"/containers/{order.container}/json", timeout=5.0)
            if owner.is_ours(found["Config"].get("Labels") or {}):
                await removal.remove(engine, str(found["Id"]))
        except EngineError:
            return  # it hangs or is away; the sweep will find the container by its labels


def created(order: Order, facts: Facts) -> dict[str, object]:
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
