"""Container: a live sandbox, with the attributes of a docker-py container that OpenManus uses;
and its volumes, directories of the host that the sandbox sees and may write to."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import anyio

from belljar.backends.base import Guest
from belljar.backends.mounts import Mount, Scratch, below, check_mounts
from belljar.compat.openmanus.core.exceptions import SandboxError
from belljar.compat.openmanus.sdk_container import SdkContainer, is_sdk_container
from belljar.compat.placement import across
from belljar.errors import InvalidOption
from belljar.files.api import AsyncFiles, Caller
from belljar.files.workspace import HostWorkspace
from belljar.limits import Limits
from belljar.sandbox.sandbox import AsyncSandbox
from belljar.sandbox.shell import AsyncShell

P = ParamSpec("P")
T = TypeVar("T")
SHORT = 12  # characters of an id that are enough to name it

_log = logging.getLogger("belljar")
_live: weakref.WeakSet[Container] = weakref.WeakSet()


class Container:
    """One sandbox with its volumes. Only `do` and `id` may be used outside the runtime's loop."""

    def __init__(self, sandbox: AsyncSandbox, volumes: Volumes) -> None:
        self.sandbox = sandbox
        self._volumes = volumes
        self._guest: object = None  # the guest that has the volumes
        self._id = sandbox.id
        self._loading = anyio.Lock()
        self.alive = True
        # Of a manager's operations. Not a lock: another task of the runtime may release it.
        self.turn = anyio.Semaphore(1)
        self.busy = 0  # operations under way; the manager does not sweep a busy container
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
        """Do one operation on the sandbox, from any event loop."""
        return await across(self._do, lambda: function(*args, **kwargs))

    async def _do(self, function: Callable[[], Awaitable[T]]) -> T:
        if not self.alive:
            raise SandboxError("Sandbox not initialized", hint="it has been cleaned up")
        self.busy += 1
        try:
            await self._ensure_guest()
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
        """Start the sandbox. If that fails, the caller closes it."""
        await self._ensure_guest()
        _live.add(self)

    async def _ensure_guest(self) -> None:
        """Make sure that a guest runs and has the volumes. A lost one (by its memory limit, for
        example) is replaced."""
        async with self._loading:
            await self.sandbox.start()
            if self.sandbox.whereabouts == self._guest:
                return
            if self._guest is not None:
                _log.warning("sandbox %s was lost and has been restarted", self.sandbox.id)
            await self._volumes.load(self.sandbox)
            self._guest = self.sandbox.whereabouts

    async def close(self) -> None:
        """Close the sandbox and leave nothing behind. May be called twice."""
        self.alive = False
        try:
            await self.sandbox.close()
        finally:
            self._volumes.close()

    async def kill(self) -> None:
        """Kill the sandbox at once, without saving its files."""
        self.alive = False
        try:
            await self.sandbox.kill()
        finally:
            self._volumes.close()


def resolve(given: object) -> Container | SdkContainer:
    """The live container of an id, a prefix of an id, or an object with an `id`; or a container
    that the caller has made with the Docker SDK."""
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
        hint="give a sandbox of this process, DockerSandbox(...).container, or a container of the "
        "Docker SDK, docker.from_env().containers.get(...)",
    )


# -- volumes --------------------------------------------------------------------------------
# A binding is made in one of three ways, by what the host and the path allow:
#
#     the workspace itself        Belljar's `workspace=`: kept on the host, mirrored
#     below a writable place      mirrored: copied in, and changes copied both ways
#     anywhere else               mounted; if the sandbox's user may not write to the directory,
#                                 the sandbox gets its own file system there, which is mirrored
#
# A mirror is at most as large as the workspace; the kernel refuses more. It is compared before and
# after each command and file operation. No way follows a path of the guest on the host, and none
# leaves a copy on the host.


class Volumes:
    """The bindings of one sandbox: what to start it with, and what to mirror while it runs."""

    def __init__(self, bindings: Mapping[str, str], *, work_dir: str) -> None:
        """Decides how each binding is made."""
        self.workspace: str | None = None
        self.mounts: list[Mount] = []
        self._mirrored: list[tuple[str, str]] = []  # paths of the host and of the guest
        self._mirrors: list[tuple[HostWorkspace, str]] = []
        for host, guest in bindings.items():
            self._place(*_check_binding(host, guest), work_dir)

    def _place(self, host: str, guest: str, work_dir: str) -> None:
        if guest == work_dir:
            self.workspace = host
        elif any(guest != top and below(guest, top) for top in (work_dir, "/tmp")):
            if not os.path.isdir(host):
                raise InvalidOption(
                    f"only a directory can be bound below {work_dir}, not {host!r}",
                    hint="use copy_to() for a file, or bind it elsewhere, such as below /data",
                )
            self._mirrored.append((host, guest))
        else:
            self._mount(host, guest)

    def _mount(self, host: str, guest: str) -> None:
        wanted = Mount(host, guest, read_only=False)
        try:
            check_mounts([wanted])
        except InvalidOption:
            if wanted.kind != "dir":
                raise
            wanted = Scratch(guest)
            self._mirrored.append((host, guest))
        self.mounts.append(wanted)

    # -- while it lives ---------------------------------------------------------------------

    async def load(self, sandbox: AsyncSandbox) -> None:
        """Copy everything in, when a guest has started."""
        self.close()
        for host, guest in self._mirrored:
            mirror = HostWorkspace(host, limit=sandbox.limits.workspace)
            self._mirrors.append((mirror, guest))
            if not any(mount.guest == guest for mount in self.mounts):
                await sandbox.files.make_dir(guest)
            await mirror.load(_at(sandbox, guest))

    async def refresh(self, sandbox: AsyncSandbox) -> None:
        for mirror, guest in self._mirrors:
            await mirror.refresh(_at(sandbox, guest))

    async def save(self, sandbox: AsyncSandbox) -> None:
        for mirror, guest in self._mirrors:
            for note in await mirror.save(_at(sandbox, guest)):
                _log.warning("volume %s: %s", guest, note)

    def close(self) -> None:
        """May be called twice. The host's own directories stay."""
        while self._mirrors:
            self._mirrors.pop()[0].close()


def _check_binding(host: object, guest: object) -> tuple[str, str]:
    if not isinstance(host, (str, os.PathLike)) or not isinstance(guest, str):
        raise InvalidOption(
            f"a volume is a host path and a sandbox path, not {host!r}: {guest!r}",
            hint='volume_bindings={"/home/me/data": "/data"}',
        )
    path = os.path.expanduser(os.fspath(host))
    if not os.path.isabs(path):
        raise InvalidOption(
            f"the host path of a volume must be absolute, not {path!r}",
            hint=f"did you mean {os.path.abspath(path)!r}?",
        )
    if not os.path.exists(path):
        raise InvalidOption(f"there is no {path!r} on this host", hint="make the directory first")
    parts = [part for part in guest.split("/") if part]
    if not guest.startswith("/") or not parts or {".", ".."} & set(parts):
        raise InvalidOption(
            f"the sandbox path of a volume must be absolute and without '..', not {guest!r}"
        )
    return path, "/" + "/".join(parts)


def _at(sandbox: AsyncSandbox, guest: str) -> AsyncFiles:
    return AsyncFiles(_OtherDirectory(guest, sandbox.limits, sandbox._lifecycle.using))


@dataclass
class _OtherDirectory:
    """The sandbox as AsyncFiles needs it, with another directory than its workspace."""

    workdir: str
    limits: Limits
    using: Callable[..., AbstractAsyncContextManager[tuple[Caller, Guest]]]
