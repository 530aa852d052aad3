"""Building the root that all guests of a zygote see: a list of steps, applied in order.

The list is made by `plan.py` on the host; this file only carries it out, in a mount namespace
of its own, before anything of the Environment runs.
"""

import errno
import os
from collections.abc import Callable
from typing import Any

from ..linux import syscalls as sys_

BASE = "/tmp"  # only a place to hang the new root on; nothing is written to the host's
NEW = "/newroot"
OLD = "/oldroot"

_WRITABLE = sys_.MOUNT_ATTR_NOSUID | sys_.MOUNT_ATTR_NODEV
_READ_ONLY = sys_.MOUNT_ATTR_RDONLY | _WRITABLE

Step = list[Any]


def build(steps: list[Step]) -> None:
    """Leave the process in a tmpfs that has the host's root at OLD and the guests' at NEW."""
    sys_.mount(None, "/", None, sys_.MS_REC | sys_.MS_PRIVATE)
    flags = sys_.MS_NOSUID | sys_.MS_NODEV
    sys_.mount("tmpfs", BASE, "tmpfs", flags, "mode=0755,size=16m,nr_inodes=20000")
    os.mkdir(BASE + NEW)
    os.mkdir(BASE + OLD)
    # The host's root moves below the new one, so that sources under BASE stay reachable.
    sys_.pivot_root(BASE, BASE + OLD)
    os.chdir("/")
    apply: dict[str, Callable[..., None]] = {
        "dir": _dir,
        "file": _file,
        "symlink": _symlink,
        "bind": _bind,
        "mount": _mount,
        "device": _device,
        "mask": _mask,
        "scratch": _scratch,
    }
    for verb, *arguments in steps:
        apply[verb](*arguments)


def enter() -> None:
    """Make NEW the root, with a /proc of this pid namespace, and unmount the host's root.

    The bind onto itself makes a mount that belongs to this user namespace: those it inherited
    are locked and could not become the root.
    """
    sys_.mount(NEW, NEW, None, sys_.MS_BIND | sys_.MS_REC)
    sys_.mount("proc", NEW + "/proc", "proc", sys_.MS_NOSUID | sys_.MS_NODEV | sys_.MS_NOEXEC)
    _scratch("/tmp")
    os.chdir(NEW)
    sys_.pivot_root(".", ".")
    sys_.umount2(".", sys_.MNT_DETACH)
    os.chdir("/")
    # The root tmpfs itself is only now complete; files in it are never written again.
    flags = sys_.MS_RDONLY | sys_.MS_NOSUID | sys_.MS_NODEV
    sys_.mount(None, "/", None, sys_.MS_REMOUNT | sys_.MS_BIND | flags)


def _dir(path: str, mode: int = 0o755) -> None:
    os.makedirs(NEW + path, exist_ok=True)
    os.chmod(NEW + path, mode)


def _file(path: str, content: str) -> None:
    with open(NEW + path, "w", encoding="utf-8") as file:
        file.write(content)
    os.chmod(NEW + path, 0o644)


def _symlink(target: str, path: str) -> None:
    os.symlink(target, NEW + path)


def _bind(source: str, target: str, kind: str) -> None:
    """Read-only, with everything below. The target is ours and fresh, so it is no symlink."""
    if kind == "dir":
        os.makedirs(NEW + target, exist_ok=True)
    else:
        _file(target, "")
    sys_.mount(OLD + source, NEW + target, None, sys_.MS_BIND | sys_.MS_REC)
    sys_.mount_setattr(NEW + target, _READ_ONLY)


def _mount(source: str, target: str, kind: str, read_only: bool, same: list[int]) -> None:
    """A mount of the caller's. A link may have been put there since it was checked,
    so each component is opened by itself, and what is bound is what was opened."""
    fd = _open_beneath(OLD, source)
    try:
        status = os.fstat(fd)
        if [status.st_dev, status.st_ino] != same:
            raise OSError(errno.ESTALE, "it is not what it was when it was checked", source)
        if kind == "dir":
            os.makedirs(NEW + target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(NEW + target), exist_ok=True)
            _file(target, "")
        sys_.mount(f"{OLD}/proc/self/fd/{fd}", NEW + target, None, sys_.MS_BIND | sys_.MS_REC)
    finally:
        os.close(fd)
    sys_.mount_setattr(NEW + target, _READ_ONLY if read_only else _WRITABLE)


def _open_beneath(root: str, path: str) -> int:
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in path.strip("/").split("/"):
        try:
            inner = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner
    return fd


def _device(name: str) -> None:
    target = "/dev/" + name
    _file(target, "")
    sys_.mount(OLD + target, NEW + target, None, sys_.MS_BIND)
    # A device can be written to on a read-only mount; its times and mode, the host's, cannot.
    sys_.mount_setattr(NEW + target, sys_.MOUNT_ATTR_RDONLY | sys_.MOUNT_ATTR_NOSUID)


def _mask(path: str) -> None:
    """An empty directory over something that a bind brought along."""
    sys_.mount("tmpfs", NEW + path, "tmpfs", sys_.MS_RDONLY | sys_.MS_NOSUID, "size=4k,mode=0755")


def _scratch(path: str) -> None:
    sys_.mount("tmpfs", NEW + path, "tmpfs", sys_.MS_NOSUID | sys_.MS_NODEV, "size=64m,mode=1777")


def replace_files(texts: dict[str, str]) -> None:
    """Mount other files over some of the root's, in a guest."""
    source = "/dev/shm/.belljar"
    flags = sys_.MS_NOSUID | sys_.MS_NODEV | sys_.MS_NOEXEC | sys_.MS_RDONLY
    for path, text in texts.items():
        with open(source, "w") as file:
            file.write(text)
        os.chmod(source, 0o644)
        sys_.mount(source, path, None, sys_.MS_BIND)
        sys_.mount(None, path, None, flags | sys_.MS_BIND | sys_.MS_REMOUNT)
        os.unlink(source)
