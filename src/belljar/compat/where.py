"""Where an adapter's sandboxes live: in containers if an engine answers, else natively.

Those systems know Docker only, and name images. Their users get containers where they have an
engine, and an image of theirs when they name one. The name that an adapter has by default stands
for Belljar's own Environment, which has the packages that their documents promise.
"""

from __future__ import annotations

import importlib
import logging
import os
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass

import anyio.to_thread

from belljar import runtime
from belljar.backends.docker.settings import Docker
from belljar.environment.environment import Environment, is_built
from belljar.errors import BackendUnavailable, InvalidOption, SandboxError
from belljar.sandbox.blocking import Sandbox, wait
from belljar.sandbox.options import Options

PING_TIMEOUT = 5.0

_AT_START = (
    "importlib.readers",
    "belljar.backends.docker.client.contexts",
    "belljar.backends.native.backend",
    "belljar.observe.presence",
)
_log = logging.getLogger("belljar")


@dataclass(frozen=True, kw_only=True)
class Placed:
    backend: str  # "native" or "docker"
    options: Mapping[str, object]  # for Sandbox and AsyncSandbox


async def place(
    backend: str | Docker | None,
    *,
    image: str | None,
    default_image: str,
    environment: str | Environment = "data",
    prefer_local: bool = False,
    dockerfile: str | os.PathLike[str] | None = None,
) -> Placed:
    """`backend` None or "auto": what BELLJAR_BACKEND says, else docker if an engine answers, else
    native. `prefer_local`: an image of the default's name that the engine has is used."""
    own = dockerfile is not None or image not in (None, default_image)
    brought = isinstance(backend, Docker) and backend.own  # in it the environment has no meaning
    name = "docker" if isinstance(backend, Docker) else runtime.resolve_backend(backend or "auto")
    if name == "auto":
        name = "docker" if own or await engine_answers() else "native"
    if name == "native":
        if own:
            raise InvalidOption(
                f"an image needs an engine, and this sandbox is native: {image or dockerfile}",
                hint='backend="docker", or leave the image out',
            )
        return Placed(backend=name, options={"backend": name, "environment": environment})
    options: dict[str, object] = {"backend": backend if isinstance(backend, Docker) else name}
    if dockerfile is not None:
        options["dockerfile"] = dockerfile
    elif image is not None and (own or (prefer_local and not brought and await has_image(image))):
        options["image"] = image
    elif not brought:
        options["environment"] = environment
    return Placed(backend=name, options=options)


def place_now(
    backend: str | Docker | None,
    *,
    image: str | None,
    default_image: str,
    environment: str | Environment = "data",
    prefer_local: bool = False,
    dockerfile: str | os.PathLike[str] | None = None,
) -> Placed:
    """The same for blocking adapters."""
    return wait(
        place,
        backend,
        image=image,
        default_image=default_image,
        environment=environment,
        prefer_local=prefer_local,
        dockerfile=dockerfile,
    )


def import_ahead() -> None:
    """Import in this thread what the start of a sandbox imports. In the background, a fork of the
    process would leave its child waiting for ever for imports that no thread of it goes on with."""
    for name in _AT_START:
        importlib.import_module(name)
    sysconfig.get_config_vars()


def start_ahead(sandbox: Sandbox) -> None:
    """Start it in the background, so that its first answer need not wait for that; unless
    something would have to be built or fetched. What goes wrong is said when it is used."""
    inner = sandbox._sandbox
    import_ahead()

    async def start() -> None:
        try:
            if await _is_ready(inner._options):
                await inner.start()
        except (SandboxError, OSError) as error:
            _log.debug("sandbox %s could not be started ahead: %s", inner.id, error)

    runtime.current().submit(start)


async def _is_ready(options: Options) -> bool:
    if options.backend == "native":
        return await anyio.to_thread.run_sync(is_built, options.environment)
    from belljar.backends.docker.client import endpoint
    from belljar.backends.docker.client.engine import Engine
    from belljar.backends.docker.images import resolve

    engine = Engine(endpoint.find(options.docker.host))
    return await resolve.is_there(engine, options.environment, options.docker)


def asks_for_docker(backend: str | Docker | None) -> bool:
    """Whether the caller or BELLJAR_BACKEND asks for containers, and for nothing else."""
    return isinstance(backend, Docker) or runtime.resolve_backend(backend or "auto") == "docker"


async def engine_answers() -> bool:
    """Whether there is an engine, and what is needed to talk to it."""
    try:
        await ask_engine("/version", timeout=PING_TIMEOUT)
    except SandboxError:
        return False
    return True


async def has_image(name: str) -> bool:
    """Whether the engine has it. Raises SandboxError if there is no engine."""
    from belljar.backends.docker.client.engine import EngineError

    try:
        await ask_engine(f"/images/{name}/json")
    except EngineError as error:
        if error.status != 404:
            raise
        return False
    return True


async def ask_engine(path: str, *, timeout: float = 30.0) -> object:
    """What the engine says, as data. Raises BackendUnavailable where there is none."""
    runtime.docker_backend()  # raises if the extra is not installed
    from belljar.backends.docker.client import endpoint
    from belljar.backends.docker.client.engine import Engine, EngineError

    try:
        found: object = await Engine(endpoint.find()).request("GET", path, timeout=timeout)
    except EngineError as error:
        if error.status == 0:
            raise BackendUnavailable(error.message, hint=error.hint) from error
        raise
    return found
