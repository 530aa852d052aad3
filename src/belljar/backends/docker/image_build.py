"""An Environment becomes an image: a container of the base image, in which the steps of
image_steps.py run, is committed.

Not a Dockerfile: secrets need BuildKit, and BuildKit a session that only its own client speaks.
A container and one attached stream do with any engine, and what goes in through the stream to a
tmpfs is in no layer and in no history.

The container's name is made of the image's key. It exists once on an engine, so it is also the
lock between processes, and between hosts: who finds it taken waits for the image. Its steps end
when the stream does, and the engine removes it then, so a build does not outlive its process.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from belljar.backends.docker import image_index, image_key, image_steps, owner, removal
from belljar.backends.docker.engine import Engine, EngineError
from belljar.backends.docker.image_failure import explained
from belljar.backends.docker.image_key import Wanted
from belljar.backends.docker.image_progress import Teller
from belljar.backends.docker.image_talk import Failure, Talk
from belljar.backends.docker.stream import AttachedStream
from belljar.errors import EnvironmentBuildError
from belljar.requirement import shown
from belljar.uv_tool import find_uv

if TYPE_CHECKING:
    from belljar.backends.docker.spec import Facts

PYTHON = f"{image_steps.ROOT}/bin/python"
USER_ID = 1000
CREATE_TIMEOUT = 60.0
COMMIT_TIMEOUT = 600.0
CHUNK = 256 * 1024
TMPFS_SIZE = "512m"  # an upper bound; uv and the settings take 40 MiB

# As PID 1 of the container: the program's length, then the program, then what it reads itself.
BOOTSTRAP = (
    "import sys\n"
    "size = int(sys.stdin.buffer.readline())\n"
    "exec(compile(sys.stdin.buffer.read(size), 'belljar-build', 'exec'))\n"
)


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be built, and how."""

    wanted: Wanted
    key: str
    base: Mapping[str, Any]  # as inspected
    ca_bundle: str | os.PathLike[str] | None = None
    network: str | None = None  # of the build container; None: the engine's default
    project: str | None = None

    @property
    def container(self) -> str:
        return f"belljar-build-{self.key}"

    @property
    def tag(self) -> str:
        return f"{image_key.repository(self.wanted.environment.name)}:{self.key}"


@dataclass
class Luggage:
    """What is sent into the container: one line of JSON, then the files in order."""

    request: dict[str, Any]
    files: list[Path | bytes] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, place: str, content: Path | bytes, mode: int = 0o600) -> None:
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        self.request["files"].append((place, size, mode))
        self.files.append(content)


async def build(engine: Engine, order: Order, facts: Facts, teller: Teller) -> str:
    """Make the image and give its id. Needs that nobody else has the container (see `held`)."""
    luggage = await anyio.to_thread.run_sync(pack, order)
    for note in luggage.notes:
        teller.note(note)
    async with (
        held(engine, order, facts) as container,
        # Until the image is there: with the stream, the container ends.
        _attached(engine, container, order) as stream,
    ):
        told = await Talk(stream, teller).run(pieces(luggage))
        if isinstance(told, Failure):
            raise explained(told, order.wanted)
        teller.say("compiling", "storing the image")
        made = await engine.request(
            "POST",
            "/commit",
            query=_commit_query(container, order),
            body=committed(order, told),
            timeout=COMMIT_TIMEOUT,
        )
        return str(made["Id"])


# -- what goes in -------------------------------------------------------------------------------


def pack(order: Order) -> Luggage:
    """Blocks: reads this host's settings and looks at files."""
    handed = image_index.collect(os.environ, order.ca_bundle)
    environment = order.wanted.environment
    request: dict[str, Any] = {
        "python": order.wanted.python,
        "env": handed.env,
        "paths": {name: f"secret:{file}" for name, file in handed.paths.items()},
        "arguments": [
            *handed.arguments,
            *(() if environment.allow_builds else ("--only-binary", ":all:")),
        ],
        "packages": [],
        "files": [],
        "uid": USER_ID,
        "description": {
            "name": environment.name,
            "key": order.key,
            "packages": [image_key.without_password(shown(each)) for each in environment.packages],
        },
    }
    luggage = Luggage(request, notes=handed.notes)
    uv = Path(find_uv())
    if _runs_on(uv, str(order.base.get("Architecture", ""))):
        luggage.add("secret:uv", uv, 0o700)
    for name, content in handed.files.items():
        luggage.add(f"secret:{name}", content)
    for number, package in enumerate(environment.packages):
        if package.startswith("/"):  # a wheel of this host
            place = f"work:wheels/{number}/{Path(package).name}"
            luggage.add(place, Path(package))
            package = place
        request["packages"].append(package)
    return luggage


_MACHINES = {"amd64": 62, "arm64": 183, "386": 3, "arm": 40, "ppc64le": 21, "s390x": 22}


def _runs_on(binary: Path, architecture: str) -> bool:
    """Whether it may run there; whether it does is tried in the container."""
    with binary.open("rb") as file:
        head = file.read(20)
    machine = int.from_bytes(head[18:20], "big" if architecture == "s390x" else "little")
    return head[:4] == b"\x7fELF" and machine == _MACHINES.get(architecture)


async def pieces(luggage: Luggage) -> AsyncIterator[bytes]:
    program = await anyio.to_thread.run_sync(Path(image_steps.__file__).read_bytes)
    yield f"{len(program)}\n".encode() + program
    yield json.dumps(luggage.request).encode() + b"\n"
    for content, (place, size, _) in zip(luggage.files, luggage.request["files"], strict=True):
        if isinstance(content, bytes):
            yield content
            continue
        async with await anyio.open_file(content, "rb") as file:
            left = size
            while left:
                piece = await file.read(min(CHUNK, left))
                if not piece:
                    raise EnvironmentBuildError(f"{content} changed while it was read ({place})")
                left -= len(piece)
                yield piece


# -- the container ------------------------------------------------------------------------------


@asynccontextmanager
async def _attached(engine: Engine, container: str, order: Order) -> AsyncIterator[AttachedStream]:
    """Start it, with its standard input and output connected to us."""
    query = dict.fromkeys(("stream", "stdin", "stdout", "stderr"), True)
    stream = AttachedStream(await engine.upgrade(f"/containers/{container}/attach", query=query))
    try:
        try:
            await engine.request("POST", f"/containers/{container}/start", timeout=CREATE_TIMEOUT)
        except EngineError as error:
            if error.status == 0:
                raise
            raise explained(Failure(error.message, kind="start"), order.wanted) from error
        yield stream
    finally:
        stream.close()


@asynccontextmanager
async def held(engine: Engine, order: Order, facts: Facts) -> AsyncIterator[str]:
    """The build container, made and removed. Raises EngineError with status 409 if it is taken."""
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
        if error.status == 0:  # it may have been made all the same
            await _remove_ours(engine, order)
        raise
    container = str(made["Id"])
    try:
        await anyio.lowlevel.checkpoint()
        yield container
    finally:
        with anyio.CancelScope(shield=True):
            await removal.remove(engine, container)


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


def committed(order: Order, told: Mapping[str, Any]) -> dict[str, object]:
    """The configuration of the image. The engine adds what the container has and this has not."""
    base_env = dict(
        each.partition("=")[::2] for each in order.base.get("Config", {}).get("Env") or []
    )
    path = base_env.get("PATH") or "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    # Containers of the image have its labels, and labels cannot be taken away: emptied, they name
    # no owner.
    no_owner = dict.fromkeys(owner.labels("", order.project), "") | {owner.BUILD: ""}
    return {
        "Env": [f"PATH={image_steps.ROOT}/bin:{path}", f"VIRTUAL_ENV={image_steps.ROOT}"],
        "Entrypoint": [],
        "Cmd": [PYTHON],
        "User": f"{USER_ID}:{USER_ID}",
        "WorkingDir": "/workspace",
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": no_owner | image_key.labels(order.wanted, order.key, told),
    }


def _commit_query(container: str, order: Order) -> dict[str, object]:
    repository, _, tag = order.tag.rpartition(":")
    # Its one program waits for nothing but the end, so it need not be paused.
    return {"container": container, "repo": repository, "tag": tag, "pause": False}
