"""Where an adapter's sandboxes run: on which backend, from which image, on which event loop.

The adapted systems know only Docker, and name images. Their users get containers if an engine
answers, else native sandboxes. An image that the user names is used. The default image name of an
adapter stands for Belljar's own Environment, which has the packages that their documents promise.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import queue
import sysconfig
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import anyio
import anyio.to_thread

from belljar import runtime
from belljar.backends import auto
from belljar.backends.docker.client.engine_errors import EngineError
from belljar.backends.docker.settings import Docker
from belljar.backends.event_loop import here, post
from belljar.backends.native.zygote_client import check_host
from belljar.environment.environment import Environment, is_built
from belljar.errors import BackendUnavailable, EnvironmentBuildError, InvalidOption, SandboxError
from belljar.results.execution import Execution, Outcome
from belljar.runtime import Work, wait
from belljar.sandbox.blocking import Sandbox
from belljar.sandbox.options import Options, SandboxOptions, make_options
from belljar.sandbox.sandbox import AsyncSandbox

if TYPE_CHECKING:
    from belljar.backends.docker.client.engine import Engine

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


async def place(
    backend: str | Docker | None,
    *,
    image: str | None,
    default_image: str,
    environment: str | Environment = "data",
    prefer_local: bool = False,
    dockerfile: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Choose the backend and what the sandbox finds there; return them as options of Sandbox. The
    option "backend" is "native", "docker", or the given Docker.

    `backend` None or "auto": BELLJAR_BACKEND decides, else docker if an engine answers, else
    native. `prefer_local`: if the engine has an image of the default name, use it.
    """
    named = dockerfile is not None or image not in (None, default_image)
    # The settings name an image already, and an environment has no meaning in it.
    has_image_set = isinstance(backend, Docker) and backend.own
    name = "docker" if isinstance(backend, Docker) else auto.resolve_backend(backend or "auto")
    if name == "auto":
        name = "docker" if named or await engine_answers() else "native"
    if name == "native":
        if named:
            raise InvalidOption(
                f"an image needs an engine, and this sandbox is native: {image or dockerfile}",
                hint='backend="docker", or leave the image out',
            )
        return {"backend": name, "environment": environment}
    options: dict[str, Any] = {"backend": backend if isinstance(backend, Docker) else name}
    if dockerfile is not None:
        options["dockerfile"] = dockerfile
    elif image is not None and (
        named or (prefer_local and not has_image_set and await has_image(image))
    ):
        options["image"] = image
    elif not has_image_set:
        options["environment"] = environment
    return options


def check_backend(options: Mapping[str, Any]) -> None:
    """Raise SandboxError if no sandbox with these options of `place` can start."""
    if options["backend"] == "native":
        check_host()
    else:
        wait(ask_engine, "/version", timeout=PING_TIMEOUT)


def asks_for_docker(backend: str | Docker | None) -> bool:
    """True if the caller or BELLJAR_BACKEND asks for containers only."""
    return isinstance(backend, Docker) or auto.resolve_backend(backend or "auto") == "docker"


def succeeded(execution: Execution) -> bool:
    """sys.exit(0) is a success, as it is for a process."""
    return execution.ok or (execution.outcome is Outcome.exit and execution.exit_code == 0)


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
    try:
        await ask_engine(f"/images/{name}/json")
    except EngineError as error:
        if error.status != 404:
            raise
        return False
    return True


async def ask_engine(path: str, *, timeout: float = 30.0) -> None:
    """GET a path of the engine's API. Raises BackendUnavailable without an engine."""
    try:
        await find_engine().request("GET", path, timeout=timeout)
    except EngineError as error:
        if error.status == 0:
            raise BackendUnavailable(error.message, hint=error.hint) from error
        raise


def find_engine(host: str | None = None) -> Engine:
    """Raises BackendUnavailable if the extra to talk to it is not installed."""
    auto.docker_backend()
    from belljar.backends.docker.client import endpoint
    from belljar.backends.docker.client.engine import Engine

    return Engine(endpoint.find_endpoint(host))


async def _is_ready(options: Options) -> bool:
    """True if the sandbox can start without a build or a download."""
    if options.backend == "native":
        return await anyio.to_thread.run_sync(is_built, options.environment)
    from belljar.backends.docker.images.resolve import image_exists

    engine = find_engine(options.docker.host)
    return await image_exists(engine, options.environment, options.docker)


# -- a start in the background --------------------------------------------------------------


class HeadStart:
    """A sandbox that starts in the background when its adapter is made, so that the first code
    waits less. Until it is taken, the sandbox ends with this object."""

    def __init__(
        self, places: Sequence[Mapping[str, Any]], *, build: bool = True, preload: bool = True
    ) -> None:
        """`places`: options of Sandbox, in the order in which they are tried. The next is tried
        if the one before cannot get its Environment: its image is not there and cannot be made.
        `build=False`: a sandbox that needs a build or a download is not started. `preload=False`:
        nothing is imported in a container before the code, so that it is ready sooner.

        Raises InvalidOption at once. `take` raises all other errors.
        """
        checked = [make_options(cast(SandboxOptions, options)) for options in places]
        self._sandboxes = [Sandbox._from_options(replace(o, ahead=preload)) for o in checked]
        # Import here what the start imports. If the background thread imported it, a fork of the
        # process would leave import locks in the child that no thread releases.
        for name in _IMPORTED_BY_START:
            importlib.import_module(name)
        sysconfig.get_config_vars()
        self._runtime = runtime.current()
        self._work: Work[Sandbox] = Work(functools.partial(_start_one, self._sandboxes, build))
        self._work.begin()
        # Kills the sandbox without waiting, once.
        self._inner = [sandbox._sandbox for sandbox in self._sandboxes]
        self.discard = weakref.finalize(self, kill_soon, self._inner, self._work)
        self.discard.atexit = False  # the runtime kills all sandboxes at exit

    @property
    def failed(self) -> bool:
        return isinstance(self._work._error, SandboxError)

    def take(self) -> Sandbox | None:
        """Wait for the start and return the sandbox. None if it was not started, has ended, or
        belongs to the parent of this forked process. Raises the error of a failed start."""
        if self._runtime is not runtime.current():
            return None
        try:
            sandbox = self._work.finish()
        except BaseException:  # a traceback may keep this object for long
            self.discard()
            raise
        self.discard.detach()
        return sandbox if sandbox.alive else None

    def close(self) -> None:
        """Kill the sandbox, also while it starts; nothing is left when this returns."""
        self.discard.detach()
        if self._runtime.pid == os.getpid():
            wait(_kill, self._inner, self._work)


async def _start_one(sandboxes: Sequence[Sandbox], build: bool) -> Sandbox:
    failed: list[SandboxError] = []
    for sandbox in sandboxes:
        inner = sandbox._sandbox
        try:
            if build or await _is_ready(inner._options):
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
    raise failed[0]


def kill_soon(sandboxes: Sequence[AsyncSandbox], start: Work[Any] | None = None) -> None:
    """Kill sandboxes, also while they `start`, without waiting. For finalizers: may be called from
    any thread, and does nothing in a fork."""

    async def kill() -> None:
        try:
            await _kill(sandboxes, start)
        except SandboxError as error:  # the runtime kills it at exit
            _log.debug("an unused sandbox could not be killed: %s", error)

    if all(sandbox._lifecycle.pid == os.getpid() for sandbox in sandboxes):
        runtime.current().submit(kill)


async def _kill(sandboxes: Sequence[AsyncSandbox], start: Work[Any] | None) -> None:
    if start is not None:
        start.cancel()
    for sandbox in sandboxes:
        await sandbox.kill()


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
        self._loop = here()

    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        post(self._loop, self.rung.set)  # if the caller's loop has ended, no task waits
