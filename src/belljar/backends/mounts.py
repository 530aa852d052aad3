"""Mounts: files of this host that a sandbox sees in place, without a copy.

Everything about a mount is checked when it is made, and the path is resolved once, then: what
is mounted later must still be the same file or directory.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field

from belljar.backends.linux import identity, proc
from belljar.backends.linux.cgroup.plan import parse_mounts
from belljar.backends.linux.guest_view import PLACES
from belljar.errors import InvalidOption, check_encodable

MAX_MOUNTS = 32

# What the sandbox's own root has there.
_TAKEN = (
    *("/proc", "/sys", "/dev", "/run", "/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin"),
    *("/etc", "/opt/env", "/opt/python", "/workspace", "/tmp"),
)
# Where a host keeps its devices, its processes, and the sockets of its services.
_FORBIDDEN = ("/proc", "/sys", "/dev", "/run", "/var/run")
# File systems that are the kernel itself; below a directory they would come along with it.
_KERNEL = frozenset(
    [
        "proc",
        "sysfs",
        "devtmpfs",
        "devpts",
        "cgroup",
        "cgroup2",
        "debugfs",
        "tracefs",
        "securityfs",
        "configfs",
        "bpf",
        "mqueue",
        "efivarfs",
        "fusectl",
        "pstore",
        "binfmt_misc",
        "rpc_pipefs",
        "nsfs",
        "selinuxfs",
    ]
)


@dataclass(frozen=True)
class Mount:
    """A directory or file of this host at `guest` in the sandbox.

    Read-only unless told otherwise. What is written to a writable one is on the host at once, and
    no limit of the sandbox's bounds how much that is. A mount shares what is in it, also sockets
    on which programs of the host listen.

    A sandbox with mounts starts as slowly as the first one of its Environment: the packages are
    imported again for it.
    """

    host: str  # resolved: absolute, without links
    guest: str
    read_only: bool = field(default=True, kw_only=True)
    kind: str = field(init=False, compare=False, repr=False)  # "dir" or "file"
    device: int = field(init=False, compare=False, repr=False)
    inode: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.read_only, bool):
            raise InvalidOption(f"read_only is True or False, not {self.read_only!r}")
        host = _host_path(self.host)
        status = os.stat(host)
        kind = "dir" if stat.S_ISDIR(status.st_mode) else "file"
        if kind == "file" and not stat.S_ISREG(status.st_mode):
            raise InvalidOption(f"{host!r} is neither a directory nor a regular file")
        if inside := _kernel_mount(host):
            raise InvalidOption(
                f"{inside!r} is a file system of the kernel's, and would be mounted too",
                hint="mount a directory that has nothing of the kind in it",
            )
        self._fill(host=host, kind=kind, device=status.st_dev, inode=status.st_ino)

    def _fill(self, **fields: object) -> None:
        fields["guest"] = guest_path(self.guest)
        for name, value in fields.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Scratch(Mount):
    """A file system of the sandbox's own at `guest`, empty at first, as large as its workspace.

    Nothing of this host is in it; it is for adapters that bring files there and back.
    """

    host: str = field(default="", init=False)
    guest: str
    read_only: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._fill(kind="dir", device=0, inode=0)


def check_mounts(mounts: Iterable[Mount]) -> tuple[Mount, ...]:
    """As the option of a sandbox: no two in one place, and the guest may read them."""
    if isinstance(mounts, (str, bytes, Mount)) or not isinstance(mounts, Iterable):
        raise InvalidOption(f"mounts is a list of Mount, not {mounts!r}")
    checked = tuple(mounts)
    if len(checked) > MAX_MOUNTS:
        raise InvalidOption(f"{len(checked)} mounts are more than {MAX_MOUNTS}")
    for mount in checked:
        if not isinstance(mount, Mount):
            raise InvalidOption(
                f"mounts holds Mount only, not {mount!r}",
                hint='mounts=[Mount("/home/me/data", "/data")]',
            )
        if not isinstance(mount, Scratch):
            _check_readable(mount)
    for first in checked:
        for second in checked:
            if first is not second and below(first.guest, second.guest):
                raise InvalidOption(
                    f"two mounts are in one place: {first.guest!r} and {second.guest!r}"
                )
    return checked


def _host_path(given: object) -> str:
    text = os.fspath(given) if isinstance(given, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidOption(f"the host's side of a mount is a path, not {given!r}")
    path = os.path.expanduser(text)
    if not os.path.isabs(path):
        raise InvalidOption(
            f"the host's side of a mount is an absolute path, not {text!r}",
            hint=f"did you mean {os.path.abspath(path)!r}?",
        )
    try:
        path = os.path.realpath(path, strict=True)
    except OSError as error:
        raise InvalidOption(f"cannot mount {text!r}: {error.strerror}") from error
    except UnicodeEncodeError as error:
        raise InvalidOption(f"cannot mount {text!r}: {error.reason}") from None
    if path == "/" or any(below(path, taken) for taken in _FORBIDDEN):
        raise InvalidOption(
            f"{path!r} is not to be mounted into a sandbox",
            hint="mount the directory that has the data, and nothing more",
        )
    return path


def guest_path(given: object) -> str:
    if not isinstance(given, str) or "\0" in given or not given.startswith("/"):
        raise InvalidOption(
            f"the guest's side of a mount is an absolute path, not {given!r}",
            hint="such as /data or /mnt/data",
        )
    check_encodable("the guest's side of a mount", given)
    parts = [part for part in given.split("/") if part]
    path = "/" + "/".join(parts)
    if path == "/" or {".", ".."} & set(parts) or any(below(path, t) for t in _TAKEN):
        raise InvalidOption(
            f"nothing can be mounted at {given!r} in the sandbox", hint="use /data or /mnt/..."
        )
    if any(below(taken, path) for taken in (*_TAKEN, *PLACES) if taken != path):
        raise InvalidOption(
            f"{given!r} would hide what the sandbox needs", hint="use /data or /mnt/..."
        )
    if len(os.fsencode(path)) > 1000 or any(len(os.fsencode(part)) > 255 for part in parts):
        raise InvalidOption("the guest's side of a mount is too long")
    return path


def below(path: str, directory: str) -> bool:
    """Whether it is the directory, or in it."""
    return path == directory or posixpath.commonpath((path, directory)) == directory


def _kernel_mount(path: str) -> str | None:
    """Something below the path that is not files."""
    try:
        mounted = parse_mounts(proc.read("/proc/self/mountinfo"))
    except FileNotFoundError:
        return None  # no Linux: the mount is another machine's to make
    points = (each.point for each in mounted if each.kind in _KERNEL)
    return next((point for point in points if below(point, path)), None)


def _check_readable(mount: Mount) -> None:
    """As root, a guest has an unused uid: it may read what every user may."""
    bits = (0o5 if mount.kind == "dir" else 0o4) | (0 if mount.read_only else 0o2)
    if identity.has_uid_for_each():
        allowed = stat.S_IMODE(os.stat(mount.host).st_mode) & bits == bits
        hint = f"chmod o+{'rx' if mount.kind == 'dir' else 'r'}{'' if mount.read_only else 'w'} it"
        hint += ", or start the sandbox as the user whose files they are"
    else:
        allowed = os.access(mount.host, bits)
        hint = "you may not do so yourself"
    if not allowed:
        verb = "read" if mount.read_only else "read and write"
        raise InvalidOption(f"the sandbox could not {verb} {mount.host!r}", hint=hint)


WORKSPACE = "/workspace"


def check_workdir(given: object, mounts: Iterable[Mount] = ()) -> str:
    """As the option of a sandbox: an absolute path where nothing else is."""
    if given == WORKSPACE:
        return WORKSPACE
    try:
        path = guest_path(given)
    except InvalidOption:
        raise InvalidOption(
            f"the workspace cannot be at {given!r}",
            hint="workdir is an absolute path such as /sandbox, where the sandbox has nothing else",
        ) from None
    for mount in mounts:
        if below(mount.guest, path) or below(path, mount.guest):
            raise InvalidOption(
                f"a mount and the workspace are in one place: {mount.guest!r} and {path!r}"
            )
    return path
