"""SandboxManager: DockerSandboxes by id, up to a maximum; idle ones are closed."""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, Self

import anyio

from belljar.backends.docker.settings import Docker
from belljar.compat import placement
from belljar.compat.openmanus.config import DEFAULT_IMAGE, SettingsLike
from belljar.compat.openmanus.core.sandbox import DockerSandbox
from belljar.compat.placement import across
from belljar.errors import ManagerFull, SandboxError
from belljar.pool.manager import AsyncSandboxManager
from belljar.runtime import wait
from belljar.sandbox.sandbox import AsyncSandbox

PATIENCE = 5.0  # seconds that a deletion waits for an operation under way

_log = logging.getLogger("belljar")


class SandboxManager:
    """Sandboxes by their ids. May be used from any event loop; the work runs on the runtime's.

    async with SandboxManager(max_sandboxes=10) as manager:
        sandbox_id = await manager.create_sandbox()
        async with manager.sandbox_operation(sandbox_id) as sandbox:
            print(await sandbox.run_command("echo hello"))
    """

    def __init__(
        self,
        max_sandboxes: int = 100,
        idle_timeout: float = 3600,
        cleanup_interval: float = 300,
        *,
        backend: str | Docker | None = None,
    ) -> None:
        """Times are in seconds. A sandbox is not idle during an operation."""
        self._backend = backend
        self._manager = AsyncSandboxManager(
            max_sandboxes=max_sandboxes,
            idle_timeout=idle_timeout,
            cleanup_interval=cleanup_interval,
            factory=_start,
        )
        self._made: dict[str, DockerSandbox] = {}

    # -- numbers ----------------------------------------------------------------------------

    @property
    def max_sandboxes(self) -> int:
        return self._manager.stats().max_sandboxes

    @property
    def cleanup_interval(self) -> float:
        return self._manager.stats().cleanup_interval

    @property
    def idle_timeout(self) -> float | None:
        return self._manager.stats().idle_timeout

    @idle_timeout.setter
    def idle_timeout(self, seconds: float) -> None:
        table = self._manager._table
        table.settings = replace(table.settings, idle_timeout=seconds)

    @property
    def _sandboxes(self) -> dict[str, DockerSandbox]:
        """The sandboxes that can be used now."""
        return {name: self._made[name] for name in wait(self._names)}

    @property
    def _last_used(self) -> dict[str, float]:
        used = {name: sandbox.container for name, sandbox in self._sandboxes.items()}
        return {name: live.last_used for name, live in used.items() if live is not None}

    async def _names(self) -> list[str]:
        there = self._manager.names()
        for name in [name for name in self._made if name not in there]:
            del self._made[name]  # it was swept
        return there

    def get_stats(self) -> dict[str, Any]:
        """The manager in numbers."""
        found = wait(self._stats)
        names = ("active_operations", "max_sandboxes", "idle_timeout", "cleanup_interval")
        numbers = {name: getattr(found, name) for name in (*names, "is_shutting_down")}
        return {"total_sandboxes": found.total, **numbers}

    async def _stats(self) -> Any:
        return self._manager.stats()

    # -- sandboxes --------------------------------------------------------------------------

    async def ensure_image(self, image: str) -> bool:
        """True if the engine has the image or can fetch it.

        The default image is always there: it stands for Belljar's own environment.
        """
        return await across(self._ensure_image, image)

    async def _ensure_image(self, image: str) -> bool:
        try:
            options = await placement.place(self._backend, image=image, default_image=DEFAULT_IMAGE)
            if "image" not in options or await placement.has_image(image):
                return True
            # A start fetches the image, and shows that it can be used.
            async with AsyncSandbox(**options):
                return True
        except SandboxError as error:
            _log.warning("image %s: %s", image, error)
            return False

    async def create_sandbox(
        self,
        config: SettingsLike | None = None,
        volume_bindings: Mapping[str, str] | None = None,
    ) -> str:
        """Start a sandbox and return its id. Several can start at the same time.

        Raises RuntimeError if the maximum is reached, or the start failed.
        """
        sandbox = DockerSandbox(config, volume_bindings, backend=self._backend)
        name = str(uuid.uuid4())
        try:
            await across(self._create, name, sandbox)
        except ManagerFull:
            raise RuntimeError(
                f"Maximum number of sandboxes ({self.max_sandboxes}) reached"
            ) from None
        except SandboxError as error:
            raise RuntimeError(f"Failed to create sandbox: {error}") from None
        except BaseException:  # cancelled: the caller will not get the id
            with anyio.CancelScope(shield=True):
                await across(self._delete, name)
            raise
        return name

    async def _create(self, name: str, sandbox: DockerSandbox) -> None:
        await self._manager.create(name, sandbox=sandbox)
        self._made[name] = sandbox

    async def get_sandbox(self, sandbox_id: str) -> DockerSandbox:
        """The sandbox of this id. Raises KeyError."""
        try:
            await across(self._manager.get, sandbox_id)
            return self._made[sandbox_id]
        except (KeyError, SandboxError):
            raise KeyError(f"Sandbox {sandbox_id} not found") from None

    @asynccontextmanager
    async def sandbox_operation(self, sandbox_id: str) -> AsyncIterator[DockerSandbox]:
        """The sandbox of this id, for one operation at a time; it is not swept meanwhile.

        Raises KeyError.
        """
        held = AsyncExitStack()
        try:
            await across(self._hold, held, sandbox_id)
            yield self._made[sandbox_id]
        finally:
            with anyio.CancelScope(shield=True):
                await across(held.aclose)

    async def _hold(self, held: AsyncExitStack, name: str) -> None:
        try:
            container = self._made[name].container
            if container is None:
                raise KeyError(name)
            await container.turn.acquire()
            held.callback(container.turn.release)
            await held.enter_async_context(self._manager.operation(name))
        except (KeyError, SandboxError):
            raise KeyError(f"Sandbox {name} not found") from None

    async def delete_sandbox(self, sandbox_id: str) -> None:
        """Close a sandbox. An operation under way has some seconds to end first. Does nothing if
        no sandbox has this id."""
        await across(self._delete, sandbox_id)

    async def _delete(self, name: str) -> None:
        container = self._made[name].container if name in self._made else None
        turn = ExitStack()
        if container is not None:
            with anyio.move_on_after(PATIENCE):
                await container.turn.acquire()
                turn.callback(container.turn.release)
        try:
            await self._manager.delete(name)
        except KeyError:
            return  # deleted or swept meanwhile, or an unknown id
        except SandboxError as error:
            _log.warning("sandbox %s: %s", name, error)
        finally:
            self._made.pop(name, None)
            turn.close()  # an operation that waits for its turn learns that the sandbox is gone

    def start_cleanup_task(self) -> None:
        """Does nothing: the manager sweeps idle sandboxes since the first was created."""

    async def _cleanup_idle_sandboxes(self) -> None:
        await across(self._manager.sweep)

    # -- the end ----------------------------------------------------------------------------

    async def cleanup(self) -> None:
        """Close all sandboxes, and accept no more. May be called twice."""
        try:
            await across(self._manager.close, grace=PATIENCE)
        except SandboxError as error:
            _log.warning("%s", error)
        self._made.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.cleanup()


async def _start(*, sandbox: DockerSandbox) -> Any:
    """The factory of the manager, which manages the containers of the sandboxes."""
    await sandbox.create()
    return sandbox.container
