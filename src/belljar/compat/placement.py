"""Where an adapter's sandboxes run: on which backend, from which image, on which event loop.

The adapted systems know only Docker, and name images. Their users get containers if an engine
answers, else native sandboxes. An image that the user names is used. The default image name of an
adapter stands for Belljar's own Environment, which has the packages that their documents promise.
"""

from __future__ import annotations

import importlib
import logging
import os
import queue
import sysconfig
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import anyio
import anyio.to_thread

from belljar import runtime
from belljar.backends import event_loop
from belljar.backends.docker.settings import Docker
from belljar.environment.environment import Environment, is_built
from belljar.errors import BackendUnavailable, EnvironmentBuildError, InvalidOption, SandboxError
from belljar.sandbox.blocking import Sandbox, Work, wait
from belljar.sandbox.options import Options

P = ParamSpec("P")
T = TypeVar("T")

PING_TIMEOUT = 5.0

_IMPORTED_BY_START = (
    "importlib.readers",
    "belljar.backends.docker.client.endpoint",
    "belljar.backends.native.backend",
    "belljar.guest",
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
    """Choose the backend and what the sandbox finds there.

    `backend` None or "auto": BELLJAR_BACKEND decides, else docker if an engine answers, else
    native. `prefer_local`: if the engine has an image of the default name, use it.
    """
    named = dockerfile is not None or image not in (None, default_image)
    # The settings name an image already, and an environment has no meaning in it.
    has_image_set = isinstance(backend, Docker) and backend.own
    name = "docker" if isinstance(backend, Docker) else runtime.resolve_backend(backend or "auto")
    if name == "auto":
        name = "docker" if named or await engine_answers() else "native"
    if name == "native":
        if named:
            raise InvalidOption(
                f"an image needs an engine, and this sandbox is native: {image or dockerfile}",
                hint='backend="docker", or leave the image out',
            )
        return Placed(backend=name, options={"backend": name, "environment": environment})
    options: dict[str, object] = {"backend": backend if isinstance(backend, Docker) else name}
    if dockerfile is not None:
        options["dockerfile"] = dockerfile
    elif image is not None and (
        named or (prefer_local and not has_image_set and await has_image(image))
    ):
        options["image"] = image
    elif not has_image_set:
        options["environment"] = environment
    return Placed(backend=name, options=options)


def asks_for_docker(backend: str | Docker | None) -> bool:
    """True if the caller or BELLJAR_BACKEND asks for containers only."""
    return isinstance(backend, Docker) or runtime.resolve_backend(backend or "auto") == "docker"


# -- the engine -----------------------------------------------------------------------------


async def engine_answers() -> bool:
    """True if an engine answers and the extra to talk to it is installed."""
    try:
        await ask_engine("/version", timeout=PING_TIMEOUT)
    except SandboxError:
        return False
    return True


async def has_image(name: str) -> bool:
    """True if the engine has the image. Raises SandboxError without an engine."""
    from belljar.backends.docker.client.engine import EngineError

    try:
        await ask_engine(f"/images/{name}/json")
    except EngineError as error:
        if error.status != 404:
            raise
        return False
    return True


async def ask_engine(path: str, *, timeout: float = 30.0) -> object:
    """GET a path of the engine's API. Raises BackendUnavailable without an engine."""
    runtime.docker_backend()  # raises if the extra is not installed
    from belljar.backends.docker.client import endpoint
    from belljar.backends.docker.client.engine import Engine, EngineError

    try:
        found: object = await Engine(endpoint.find_endpoint()).request("GET", path, timeout=timeout)
    except EngineError as error:
        if error.status == 0:
            raise BackendUnavailable(error.message, hint=error.hint) from error
        raise
    return found


async def _is_ready(options: Options) -> bool:
    """True if the sandbox can start without a build or a download."""
    if options.backend == "native":
        return await anyio.to_thread.run_sync(is_built, options.environment)
    from belljar.backends.docker.client import endpoint
    from belljar.backends.docker.client.engine import Engine
    from belljar.backends.docker.images import resolve

    engine = Engine(endpoint.find_endpoint(options.docker.host))
    return await resolve.image_exists(engine, options.environment, options.docker)


# -- a start in the background --------------------------------------------------------------


class HeadStart:
    """A sandbox that starts in the background when its adapter is made, so that the first code
    waits less. Its maker must call `take`, `close` or `discard`."""

    def __init__(self, places: Sequence[Mapping[str, Any]], *, build: bool = True) -> None:
        """`places`: options of Sandbox, in the order in which they are tried. The next is tried
        if the one before cannot get its Environment: its image is not there and cannot be made.
        `build=False`: a sandbox that needs a build or a download is not started.

        Raises InvalidOption at once. `take` raises all other errors.
        """
        self._sandboxes = [Sandbox(**options) for options in places]
        self._build = build
        # Import here what the start imports. If the background thread imported it, a fork of the
        # process would leave import locks in the child that no thread releases.
        for name in _IMPORTED_BY_START:
            importlib.import_module(name)
        sysconfig.get_config_vars()
        self.failed = False
        self._pid = os.getpid()
        self._runtime = runtime.current()
        self._work: Work[Sandbox] = Work(self._start)
        self._work.begin()

    async def _start(self) -> Sandbox:
        failed: list[SandboxError] = []
        for sandbox in self._sandboxes:
            inner = sandbox._sandbox
            try:
                if self._build or await _is_ready(inner._options):
                    await inner.start()
            except SandboxError as error:
                failed.append(error)
                if not isinstance(error, EnvironmentBuildError):
                    break
                continue
            if failed:
                _log.warning("%s; this sandbox runs natively instead", failed[0].message)
            return sandbox
        for other in failed[1:]:
            failed[0].add_note(f"and without it: {other}")
        self.failed = True
        raise failed[0]

    def take(self) -> Sandbox | None:
        """Wait for the start and return the sandbox. None if it was not started, has ended, or
        belongs to the parent of this forked process. Raises the error of a failed start."""
        if self._runtime is not runtime.current():
            return None
        sandbox = self._work.finish()
        return sandbox if sandbox.alive else None

    def close(self) -> None:
        """Kill the sandbox, also while it starts; nothing is left when this returns."""
        if self._pid == os.getpid():
            wait(self._kill)

    def discard(self) -> None:
        """Kill the sandbox without waiting. May be called from any thread."""
        if self._pid == os.getpid():
            runtime.current().submit(self._try_kill)

    async def _try_kill(self) -> None:
        try:
            await self._kill()
        except SandboxError as error:
            _log.debug("an unused sandbox could not be killed: %s", error)  # the runtime kills it

    async def _kill(self) -> None:
        self._work.cancel()
        for sandbox in self._sandboxes:
            await sandbox._sandbox.kill()


# -- from the caller's event loop to the runtime's ------------------------------------------


async def across(function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Await a call on the runtime's loop, from any event loop.

    Some adapted objects outlive event loops: OpenManus' SANDBOX_CLIENT is made at import, and one
    `asyncio.run` after the other uses it. So their sandboxes live on the runtime's loop. A
    cancelled caller cancels the call, and waits until it has ended.
    """
    bell = _Bell()
    work: Work[T] = Work(lambda: function(*args, **kwargs), bell)
    current = runtime.current()
    current.submit(work.run)
    try:
        await bell.rung.wait()
    except anyio.get_cancelled_exc_class():
        current.call_soon(work.cancel)
        with anyio.CancelScope(shield=True):
            await bell.rung.wait()
        raise
    return work.result()


class _Bell(queue.SimpleQueue[Any]):
    """The event queue of a Work: its end sets an Event on the loop that made this."""

    def __init__(self) -> None:
        self.rung = anyio.Event()
        self._loop = event_loop.here()

    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        event_loop.call_soon(self._loop, self.rung.set)  # no task waits if the loop has ended
