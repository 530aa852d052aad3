"""Volume bindings: directories of the host that a sandbox of OpenManus sees, and may write to.

Three ways lead to that, by what the host and the path allow:

    the workspace itself        Belljar's `workspace=`: kept on the host, mirrored
    below a writable place      mirrored: brought in, and changes brought back and forth
    anywhere else               mounted; if the sandbox's user may not write to the directory,
                                the sandbox has a file system of its own there, and it is mirrored

What is mirrored is as large as the workspace at most: the kernel refuses more. It is compared
before and after each command and file operation. No path of the guest's is followed on the host
in any of them, and there is no copy on the host that could stay.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from belljar.backends.base import Guest
from belljar.backends.mounts import Mount, Scratch, below, check_mounts
from belljar.errors import InvalidOption
from belljar.files.api import AsyncFiles
from belljar.files.workspace import HostWorkspace
from belljar.limits import Limits
from belljar.sandbox.channel import Channel
from belljar.sandbox.sandbox import AsyncSandbox

_log = logging.getLogger("belljar")


@dataclass(frozen=True, kw_only=True)
class Binding:
    host: str
    guest: str


class Volumes:
    """The bindings of one sandbox: what to start it with, and then what to keep alike."""

    def __init__(self, bindings: Mapping[str, str], *, work_dir: str) -> None:
        """Decides which way each of them goes."""
        self.workspace: str | None = None
        self.mounts: list[Mount] = []
        self._mirrored: list[Binding] = []
        self._mirrors: list[tuple[HostWorkspace, str]] = []
        for host, guest in bindings.items():
            self._place(_checked(host, guest), work_dir)

    def _place(self, binding: Binding, work_dir: str) -> None:
        if binding.guest == work_dir:
            self.workspace = binding.host
        elif any(binding.guest != top and below(binding.guest, top) for top in (work_dir, "/tmp")):
            if not os.path.isdir(binding.host):
                raise InvalidOption(
                    f"only a directory can be bound below {work_dir}, not {binding.host!r}",
                    hint="use copy_to() for a file, or bind it elsewhere, such as below /data",
                )
            self._mirrored.append(binding)
        else:
            self._mount(binding)

    def _mount(self, binding: Binding) -> None:
        wanted = Mount(binding.host, binding.guest, read_only=False)
        try:
            check_mounts([wanted])
        except InvalidOption:
            if wanted.kind != "dir":
                raise
            wanted = Scratch(binding.guest)
            self._mirrored.append(binding)
        self.mounts.append(wanted)

    # -- while it lives ---------------------------------------------------------------------

    async def load(self, sandbox: AsyncSandbox) -> None:
        """Bring everything in, when a guest has started."""
        self.close()
        for binding in self._mirrored:
            mirror = HostWorkspace(binding.host, limit=sandbox.limits.workspace)
            self._mirrors.append((mirror, binding.guest))
            if not any(mount.guest == binding.guest for mount in self.mounts):
                await sandbox.files.make_dir(binding.guest)
            await mirror.load(_at(sandbox, binding.guest))

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


def _checked(host: object, guest: object) -> Binding:
    if not isinstance(host, (str, os.PathLike)) or not isinstance(guest, str):
        raise InvalidOption(
            f"a volume is a path of the host and one of the sandbox, not {host!r}: {guest!r}",
            hint='volume_bindings={"/home/me/data": "/data"}',
        )
    path = os.path.expanduser(os.fspath(host))
    if not os.path.isabs(path):
        raise InvalidOption(
            f"the host's side of a volume is an absolute path, not {path!r}",
            hint=f"did you mean {os.path.abspath(path)!r}?",
        )
    if not os.path.exists(path):
        raise InvalidOption(f"there is no {path!r} on this host", hint="make the directory first")
    parts = [part for part in guest.split("/") if part]
    if not guest.startswith("/") or not parts or {".", ".."} & set(parts):
        raise InvalidOption(
            f"the sandbox's side of a volume is an absolute path without '..', not {guest!r}"
        )
    return Binding(host=path, guest="/" + "/".join(parts))


def _at(sandbox: AsyncSandbox, guest: str) -> AsyncFiles:
    return AsyncFiles(_Elsewhere(sandbox, guest))


class _Elsewhere:
    """The sandbox, for those who carry the files of another directory than its workspace."""

    def __init__(self, sandbox: AsyncSandbox, directory: str) -> None:
        self._sandbox = sandbox
        self.workdir = directory

    @property
    def limits(self) -> Limits:
        return self._sandbox.limits

    def using(self) -> AbstractAsyncContextManager[tuple[Channel, Guest]]:
        return self._sandbox._lifecycle.using()
