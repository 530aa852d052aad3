"""DockerSandbox: OpenManus' sandbox, with a terminal and files."""

from __future__ import annotations

import logging
import os
import posixpath
from collections.abc import Mapping
from typing import Any, Self

import anyio

from belljar.backends.docker.settings import Docker
from belljar.compat import placement
from belljar.compat.openmanus.config import DEFAULT_IMAGE, SettingsLike
from belljar.compat.openmanus.config import SandboxSettings as SandboxSettings
from belljar.compat.openmanus.container import Container, Volumes
from belljar.compat.openmanus.core.exceptions import SandboxTimeoutError as SandboxTimeoutError
from belljar.compat.openmanus.core.terminal import AsyncDockerizedTerminal, CommandOutput
from belljar.compat.placement import across
from belljar.environment.environment import resolve
from belljar.errors import InvalidOption, SandboxError
from belljar.files.transfer import Transfer
from belljar.limits import Limits
from belljar.sandbox.sandbox import AsyncSandbox

ENV = {"PYTHONUNBUFFERED": "1"}

_log = logging.getLogger("belljar")


class DockerSandbox:
    """One sandbox: a container where an engine answers, else a native one (`backend` chooses).

    async with DockerSandbox(SandboxSettings(memory_limit="1g")) as sandbox:
        await sandbox.write_file("hello.py", "print('hello')")
        print(await sandbox.run_command("python3 hello.py"))
    """

    def __init__(
        self,
        config: SettingsLike | None = None,
        volume_bindings: Mapping[str, str] | None = None,
        *,
        backend: str | Docker | None = None,
        limits: Limits | Mapping[str, object] | None = None,
    ) -> None:
        """`config` may be of any class that has the attributes of SandboxSettings.
        `volume_bindings` are directories of the host, which the sandbox may write to:
        {host path: path in the sandbox}. `limits` are Belljar's, beside those of the config."""
        self.config = SandboxSettings.coerce(config)
        self.volume_bindings = dict(volume_bindings or {})
        self._backend = backend
        self._limits = limits
        self._container: Container | None = None
        self._terminal: AsyncDockerizedTerminal | None = None

    @property
    def container(self) -> Container | None:
        """The live container, with its `id`; None before create() and after cleanup()."""
        live = self._container
        return live if live is not None and live.alive else None

    @property
    def terminal(self) -> AsyncDockerizedTerminal | None:
        return self._terminal if self.container is not None else None

    async def create(self) -> Self:
        """Start it, with a terminal in work_dir. Raises RuntimeError and leaves nothing behind."""
        if self.container is not None:
            raise RuntimeError("Failed to create sandbox: it exists already")
        try:
            await across(self.start)
            await self.open_terminal()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.cleanup()
            raise
        return self

    async def start(self) -> Container:
        """Start the sandbox, without its terminal. Called on the runtime's loop by `create`, which
        cleans up after a failure."""
        try:
            volumes = Volumes(self.volume_bindings, work_dir=self.config.work_dir)
            sandbox = AsyncSandbox(**await self._options(volumes))
            self._container = container = Container(sandbox, volumes)
            await container.start()
        except (SandboxError, OSError) as error:
            raise RuntimeError(f"Failed to create sandbox: {error}") from None
        return container

    async def _options(self, volumes: Volumes) -> dict[str, Any]:
        options = await placement.place(
            self._backend,
            image=self.config.image,
            default_image=DEFAULT_IMAGE,
            # Commands start new programs, which would not have the preloaded modules.
            environment=resolve("data").without_preload(),
            prefer_local=True,
        )
        return {
            **options,
            "limits": self.config.limits(self._limits),
            "network": "open" if self.config.network_enabled else "none",
            "workdir": self.config.work_dir,
            "workspace": volumes.workspace,
            "mounts": volumes.mounts,
        }

    async def open_terminal(self) -> None:
        """Open the terminal of `run_command`. Called after the start."""
        terminal = AsyncDockerizedTerminal(
            self._running(), self.config.work_dir, env_vars=ENV, default_timeout=self.config.timeout
        )
        await terminal.init()
        self._terminal = terminal

    def _running(self) -> Container:
        if self.container is None:
            raise RuntimeError("Sandbox not initialized")
        return self.container

    # -- commands and files -----------------------------------------------------------------

    async def run_command(self, cmd: str, timeout: float | None = None) -> CommandOutput:
        """Run a command in its terminal, whose variables and directory persist.

        Returns the output, with the attributes `exit_code`, `stdout` and `stderr`. Raises
        SandboxTimeoutError after `timeout` seconds (None: the config's).
        """
        if self.terminal is None:
            raise RuntimeError("Sandbox not initialized")
        return await self.terminal.run_command(cmd, timeout=timeout or self.config.timeout)

    async def read_file(self, path: str) -> str:
        """The text of a file. Raises FileNotFoundError. Relative paths are below work_dir."""
        live = self._running()
        try:
            return await live.do(live.sandbox.files.read, path)
        except FileNotFoundError:
            raise FileNotFoundError(f"File not found: {path}") from None
        except (SandboxError, OSError) as error:
            raise RuntimeError(f"Failed to read file: {error}") from None

    async def write_file(self, path: str, content: str) -> None:
        """Write a file, with the directories above it."""
        live = self._running()
        try:
            await live.do(live.sandbox.files.write, path, content)
        except (SandboxError, OSError) as error:
            raise RuntimeError(f"Failed to write file: {error}") from None

    async def copy_from(self, src_path: str, dst_path: str) -> None:
        """Copy a file or directory to this host; into `dst_path`, if that is a directory.

        Links of the sandbox are not followed here, and links that lead out are not made.
        """
        live = self._running()
        target = os.fspath(dst_path)
        try:
            if target.endswith("/"):
                os.makedirs(target, exist_ok=True)
            if os.path.isdir(target):
                target = os.path.join(target, self._name(src_path))
            moved = await live.do(live.sandbox.files.download, src_path, target)
        except FileNotFoundError:
            raise FileNotFoundError(f"Source file not found: {src_path}") from None
        except (SandboxError, OSError) as error:
            raise RuntimeError(f"Failed to copy file: {error}") from None
        _warn_left_out(moved)

    def _name(self, path: str) -> str:
        """The name of a file or directory of the sandbox. A path that ends in ".." must not lead
        out of the directory of this host that it is copied into."""
        name = posixpath.basename(posixpath.normpath(posixpath.join(self.config.work_dir, path)))
        if name in ("", ".", ".."):
            raise InvalidOption(
                f"{path!r} has no file name", hint="name the target itself, not its parent"
            )
        return name

    async def copy_to(self, src_path: str, dst_path: str) -> None:
        """Copy a file or directory of this host to `dst_path`; a file goes into it, if that is a
        directory."""
        live = self._running()
        source = os.fspath(src_path)
        if not os.path.exists(source):
            raise FileNotFoundError(f"Source file not found: {src_path}")
        try:
            moved = await live.do(self._upload, live, source, dst_path)
        except (SandboxError, OSError) as error:
            raise RuntimeError(f"Failed to copy file: {error}") from None
        _warn_left_out(moved)

    async def _upload(self, live: Container, source: str, target: str) -> Transfer:
        files = live.sandbox.files
        if os.path.isfile(source) and await files.exists(target):
            found = await files.stat(target)
            if found.type == "dir":
                target = f"{target}/"
        return await files.upload(source, target)

    # -- the end ----------------------------------------------------------------------------

    async def cleanup(self) -> None:
        """Close it and leave nothing behind. May be called twice."""
        container, self._container, self._terminal = self._container, None, None
        if container is not None and container.alive:
            await across(container.close)

    async def __aenter__(self) -> Self:
        return await self.create()

    async def __aexit__(self, *exception: object) -> None:
        await self.cleanup()


def _warn_left_out(moved: Transfer) -> None:
    for sentence in moved.left_out:
        _log.warning("not copied: %s", sentence)
