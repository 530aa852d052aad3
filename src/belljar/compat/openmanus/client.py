"""Clients: one sandbox behind the interface that OpenManus' agents and tools use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Protocol, Self

from belljar.backends.docker.settings import Docker
from belljar.compat.openmanus.config import SettingsLike
from belljar.compat.openmanus.core.sandbox import DockerSandbox


class SandboxFileOperations(Protocol):
    """What a tool that works on files needs of a client."""

    async def copy_from(self, container_path: str, local_path: str) -> None: ...

    async def copy_to(self, local_path: str, container_path: str) -> None: ...

    async def read_file(self, path: str) -> str: ...

    async def write_file(self, path: str, content: str) -> None: ...


class BaseSandboxClient(ABC):
    """What agents and tools call. One sandbox at a time."""

    @abstractmethod
    async def create(
        self,
        config: SettingsLike | None = None,
        volume_bindings: Mapping[str, str] | None = None,
    ) -> None:
        """Start the sandbox."""

    @abstractmethod
    async def run_command(self, command: str, timeout: float | None = None) -> str:
        """Run a command and return its output."""

    @abstractmethod
    async def copy_from(self, container_path: str, local_path: str) -> None:
        """Copy a file or directory to this host."""

    @abstractmethod
    async def copy_to(self, local_path: str, container_path: str) -> None:
        """Copy a file or directory into the sandbox."""

    @abstractmethod
    async def read_file(self, path: str) -> str:
        """The text of a file."""

    @abstractmethod
    async def write_file(self, path: str, content: str) -> None:
        """Write a file."""

    @abstractmethod
    async def cleanup(self) -> None:
        """Close the sandbox."""


class LocalSandboxClient(BaseSandboxClient):
    """A client with one DockerSandbox. Its methods raise RuntimeError before create()."""

    def __init__(self, *, backend: str | Docker | None = None) -> None:
        self._backend = backend
        self.sandbox: DockerSandbox | None = None

    def __deepcopy__(self, memo: object) -> Self:
        """Itself. pydantic copies the default values of a tool's fields. With a copy of
        SANDBOX_CLIENT, the agent's cleanup() would not close the tool's sandbox."""
        return self

    def _created(self) -> DockerSandbox:
        if self.sandbox is None:
            raise RuntimeError("Sandbox not initialized")
        return self.sandbox

    async def create(
        self,
        config: SettingsLike | None = None,
        volume_bindings: Mapping[str, str] | None = None,
    ) -> None:
        """Start the sandbox. An earlier one is closed first."""
        await self.cleanup()
        sandbox = DockerSandbox(config, volume_bindings, backend=self._backend)
        await sandbox.create()
        self.sandbox = sandbox

    async def run_command(self, command: str, timeout: float | None = None) -> str:
        return await self._created().run_command(command, timeout)

    async def copy_from(self, container_path: str, local_path: str) -> None:
        await self._created().copy_from(container_path, local_path)

    async def copy_to(self, local_path: str, container_path: str) -> None:
        await self._created().copy_to(local_path, container_path)

    async def read_file(self, path: str) -> str:
        return await self._created().read_file(path)

    async def write_file(self, path: str, content: str) -> None:
        await self._created().write_file(path, content)

    async def cleanup(self) -> None:
        """Close the sandbox, if there is one. May be called twice."""
        sandbox, self.sandbox = self.sandbox, None
        if sandbox is not None:
            await sandbox.cleanup()


def create_sandbox_client(*, backend: str | Docker | None = None) -> LocalSandboxClient:
    """A new client, without a sandbox yet."""
    return LocalSandboxClient(backend=backend)


SANDBOX_CLIENT = create_sandbox_client()
