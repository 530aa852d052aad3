"""Container: a live sandbox, as OpenManus' code sees what docker-py calls a container."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping
from typing import ParamSpec, TypeVar

import anyio

from belljar.compat.openmanus.core.exceptions import SandboxError
from belljar.compat.openmanus.crossing import across
from belljar.compat.openmanus.sdk_container import SdkContainer, is_sdk_container
from belljar.compat.openmanus.volumes import Volumes
from belljar.sandbox.sandbox import AsyncSandbox
from belljar.sandbox.shell import AsyncShell

P = ParamSpec("P")
T = TypeVar("T")
SHORT = 12  # characters of an id that are enough to name it

_log = logging.getLogger("belljar")
_live: weakref.WeakSet[Container] = weakref.WeakSet()


class Container:
    """One sandbox with its volumes. All but `do` and `id` is called on the runtime's loop."""

    def __init__(self, sandbox: AsyncSandbox, volumes: Volumes) -> None:
        self.sandbox = sandbox
        self._volumes = volumes
        self._guest: object = None  # the one that the volumes were brought to
        self._id = sandbox.id
        self._loading = anyio.Lock()
        self.alive = True
        self.busy = 0  # operations under way; a manager does not sweep it meanwhile
        self.last_used = time.monotonic()

    @property
    def id(self) -> str:
        """The engine's id of the container; natively that of the sandbox."""
        seen = self.sandbox.whereabouts
        if seen is not None:
            self._id = seen.container or self.sandbox.id
        return self._id

    @property
    def short_id(self) -> str:
        return self.id[:SHORT]

    @property
    def name(self) -> str:
        return self.sandbox.id

    @property
    def status(self) -> str:
        return "running" if self.alive else "removed"

    def __repr__(self) -> str:
        return f"<Container {self.short_id} ({self.status})>"

    async def do(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """One operation on the sandbox, from whatever event loop."""
        return await across(self._do, lambda: function(*args, **kwargs))

    async def _do(self, function: Callable[[], Awaitable[T]]) -> T:
        if not self.alive:
            raise SandboxError("Sandbox not initialized", hint="it has been cleaned up")
        self.busy += 1
        try:
            await self._attend()
            await self._volumes.refresh(self.sandbox)
            try:
                return await function()
            finally:
                with anyio.CancelScope(shield=True):
                    await self._volumes.save(self.sandbox)
        finally:
            self.busy -= 1
            self.last_used = time.monotonic()

    @property
    def timeout(self) -> float | None:
        return self.sandbox.limits.timeout

    def shell(self, cwd: str, env: Mapping[str, str]) -> AsyncShell:
        return AsyncShell(self.sandbox, cwd=cwd, env=env)

    async def make_dir(self, path: str) -> None:
        await self.sandbox.files.make_dir(path)

    async def start(self) -> None:
        """Start it. What was made for it is gone if that fails."""
        try:
            await self._attend()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.close()
            raise
        _live.add(self)

    async def _attend(self) -> None:
        """The guest runs, and has the volumes. One that was lost (by its memory limit, say) is
        replaced by a new one."""
        async with self._loading:
            await self.sandbox.start()
            if self.sandbox.whereabouts == self._guest:
                return
            if self._guest is not None:
                _log.warning("sandbox %s was lost, and is started anew", self.sandbox.id)
            await self._volumes.load(self.sandbox)
            self._guest = self.sandbox.whereabouts

    async def close(self) -> None:
        """End it and leave nothing behind. May be called twice."""
        self.alive = False
        try:
            await self.sandbox.close()
        finally:
            self._volumes.close()

    async def kill(self) -> None:
        """The same at once, without a last look at its files."""
        self.alive = False
        try:
            await self.sandbox.kill()
        finally:
            self._volumes.close()


def resolve(given: object) -> Container | SdkContainer:
    """The live container that an object with an `id`, or an id or its beginning, stands for; or
    one that the caller has made with the Docker SDK."""
    if isinstance(given, (Container, SdkContainer)):
        return given
    name = given if isinstance(given, str) else getattr(given, "id", None)
    if isinstance(name, str) and len(name) >= SHORT:
        found = [each for each in list(_live) if each.alive and each.id.startswith(name)]
        if len(found) == 1:
            return found[0]
        if is_sdk_container(given):
            return SdkContainer(name)
    raise SandboxError(
        f"No such container: {name if isinstance(name, str) else given!r}",
        hint="a terminal opens on a sandbox of this process: DockerSandbox(...).container; or on "
        "what docker.from_env().containers.get(...) gives",
    )
