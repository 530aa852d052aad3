"""Files below one directory of this host, reached by descriptors alone.

What comes out of a sandbox was named by the guest, so no path of it is ever resolved as a whole:
each component is opened by itself, below the one before, and must not be a link. A file is
written under a temporary name and then renamed, so that no reader sees half of one.

This is what openat2 with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS does, on every kernel.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeGuard

PARTIAL = ".belljar-part-"  # how files begin that are still being written
MAX_DEPTH = 200
MAX_PATH = 3800  # bytes; the kernel takes 4095 in one piece
MAX_TIME = 2**33 * 10**9  # ns; no file system of today keeps more

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TYPES: dict[int, Kind] = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "symlink"}

Kind = Literal["file", "dir", "symlink", "other"]


@dataclass(frozen=True, slots=True)
class Found:
    """One file, as it is now."""

    kind: Kind
    size: int = 0
    executable: bool = False
    mtime: int = 0  # ns
    ctime: int = 0
    inode: int = 0
    target: str = ""  # of a link

    @property
    def signature(self) -> tuple[object, ...]:
        """Equal as long as nothing happened to it. Directories are their content."""
        if self.kind == "file":
            return (self.kind, self.size, self.executable, self.mtime, self.ctime, self.inode)
        return (self.kind, self.target)


class Beneath:
    """A directory of this host. Paths are relative, with "/" between the names."""

    def __init__(self, path: str | os.PathLike[str], *, make: bool = False) -> None:
        """The path is the caller's own, and resolved as usual; what is below it is not."""
        if make:
            os.makedirs(path, exist_ok=True)
        self.fd = os.open(path, _DIRECTORY & ~os.O_NOFOLLOW)
        # The way to the directory that was used last: what comes next is mostly near to it, and to
        # open hundreds of components for each of thousands of files would take minutes.
        self._way: list[tuple[str, int]] = []

    def close(self) -> None:
        self._forget()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Beneath:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @contextlib.contextmanager
    def directory(self, path: str, *, make: bool = False) -> Iterator[int]:
        """A descriptor of it, with every component opened by itself, below the one before."""
        names = path.split("/") if path else []
        if any(name in ("", ".", "..") for name in names):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        known = 0
        while known < min(len(names), len(self._way)) and self._way[known][0] == names[known]:
            known += 1
        self._forget(known)
        for name in names[known:]:
            above = self._way[-1][1] if self._way else self.fd
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=above)
            self._way.append((name, os.open(name, _DIRECTORY, dir_fd=above)))
        fd = os.dup(self._way[-1][1] if self._way else self.fd)
        try:
            yield fd
        finally:
            os.close(fd)

    def _forget(self, most: int = 0) -> None:
        while len(self._way) > most:
            os.close(self._way.pop()[1])

    def look(self, path: str) -> Found | None:
        parent, name = split(path)
        try:
            with self.directory(parent) as fd:
                return look(fd, name)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def open(self, path: str) -> int:
        """A regular file, to read it."""
        parent, name = split(path)
        with self.directory(parent) as fd:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            file = os.open(name, flags, dir_fd=fd)
        if stat.S_ISREG(os.fstat(file).st_mode):
            return file
        os.close(file)
        raise OSError(errno.EINVAL, "it is not a regular file")

    def make_dir(self, path: str) -> None:
        with self.directory(path, make=True):
            return

    def make_symlink(self, path: str, target: str) -> None:
        parent, name = split(path)
        with self.directory(parent, make=True) as fd:
            partial = partial_name()
            os.symlink(target, partial, dir_fd=fd)
            try:
                os.rename(partial, name, src_dir_fd=fd, dst_dir_fd=fd)
            except OSError:
                os.unlink(partial, dir_fd=fd)
                raise

    def remove(self, path: str) -> None:
        """A file, a link, or a directory that is empty. What has gone already is fine."""
        parent, name = split(path)
        with contextlib.suppress(FileNotFoundError), self.directory(parent) as fd:
            found = look(fd, name)
            if found is not None and found.kind == "dir":
                self._forget()
                os.rmdir(name, dir_fd=fd)
            else:
                os.unlink(name, dir_fd=fd)

    def scan(self, most: int) -> tuple[dict[str, Found], list[tuple[str, str]]]:
        """What is below, parents first, and what could not be looked at, with the reason.

        Raises OverflowError if there are more than `most`.
        """
        self._forget()  # the caller may have moved things about
        found: dict[str, Found] = {}
        left_out: list[tuple[str, str]] = []
        pending = [""]
        while pending:
            directory = pending.pop()
            try:
                with self.directory(directory) as fd:
                    entries = [(name, look(fd, name)) for name in sorted(os.listdir(fd))]
            except OSError as error:
                left_out.append((directory, f"cannot be read ({os.strerror(error.errno or 0)})"))
                continue
            for name, entry in entries:
                if entry is None or name.startswith(PARTIAL):
                    continue  # removed meanwhile, or not yet written
                path = f"{directory}/{name}" if directory else name
                if not fits(path):
                    left_out.append((path, "is nested too deep"))
                    continue
                found[path] = entry
                if entry.kind == "dir":
                    pending.append(path)
            if len(found) > most:
                raise OverflowError
        return found, left_out

    def sweep(self, most: int) -> None:
        """Remove what a process that was killed has left half written."""
        with contextlib.suppress(OverflowError):
            found, _ = self.scan(most)
            for path in ("", *(path for path, each in found.items() if each.kind == "dir")):
                with contextlib.suppress(OSError), self.directory(path) as fd:
                    for name in os.listdir(fd):
                        if name.startswith(PARTIAL):
                            os.unlink(name, dir_fd=fd)


class Incoming:
    """A file that is written under a temporary name: commit() keeps it, else it is removed."""

    def __init__(self, beneath: Beneath, path: str) -> None:
        parent, self._name = split(path)
        self._partial = partial_name()
        with beneath.directory(parent, make=True) as fd:
            self._directory = os.dup(fd)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(self._partial, flags, 0o600, dir_fd=self._directory)
        except BaseException:
            os.close(self._directory)
            raise

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def restart(self) -> None:
        os.lseek(self._fd, 0, os.SEEK_SET)
        os.ftruncate(self._fd, 0)

    def commit(self, *, executable: bool, mtime: int) -> Found:
        """Nothing of the guest's modes but whether it can be run: no setuid, no sticky bit."""
        os.fchmod(self._fd, 0o755 if executable else 0o644)
        mtime = min(max(mtime, 0), MAX_TIME)
        os.utime(self._fd, ns=(mtime, mtime))
        os.rename(self._partial, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        self._partial = ""
        found = look(self._directory, self._name)
        self.close()
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._name)
        return found

    def close(self) -> None:
        """Twice is fine."""
        if self._fd < 0:
            return
        try:
            if self._partial:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._partial, dir_fd=self._directory)
        finally:
            os.close(self._fd)
            os.close(self._directory)
            self._fd = -1


def write_file(path: Path, data: bytes) -> None:
    """A file of the caller's choice, whole or not at all, in a directory where a guest may have
    put anything under its name: a link is replaced, never followed."""
    with Beneath(path.parent, make=True) as directory:
        found = directory.look(path.name)
        if found is not None and found.kind not in ("file", "symlink"):
            raise FileExistsError(errno.EEXIST, "there is something that is not a file", str(path))
        with contextlib.closing(Incoming(directory, path.name)) as incoming:
            incoming.write(data)
            incoming.commit(executable=False, mtime=time.time_ns())


def look(directory: int, name: str) -> Found | None:
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        kind = _TYPES.get(stat.S_IFMT(status.st_mode), "other")
        target = os.readlink(name, dir_fd=directory) if kind == "symlink" else ""
    except FileNotFoundError:
        return None
    return Found(
        kind=kind,
        size=status.st_size,
        executable=bool(status.st_mode & 0o100),
        mtime=status.st_mtime_ns,
        ctime=status.st_ctime_ns,
        inode=status.st_ino,
        target=target,
    )


def split(path: str) -> tuple[str, str]:
    parent, _, name = path.rpartition("/")
    if name in ("", ".", ".."):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    return parent, name


def partial_name() -> str:
    return PARTIAL + os.urandom(8).hex()


def is_file_name(name: object) -> TypeGuard[str]:
    """Whether it names something in a directory, and nothing elsewhere."""
    return isinstance(name, str) and name not in ("", ".", "..") and not {"/", "\0"} & set(name)


def fits(path: str) -> bool:
    """True if the path is copied: not nested deeper than the limit."""
    return path.count("/") < MAX_DEPTH and len(os.fsencode(path)) <= MAX_PATH


def stays_inside(path: str, target: str) -> bool:
    """Whether a link at `path` leads to something in the same tree, whatever is linked there.

    ".." is allowed at the beginning only, and no more often than the link is deep: behind another
    name it would lead to the parent of wherever that name points.

    >>> stays_inside("a/b/link", "../../data/x"), stays_inside("a/link", "../../x")
    (True, False)
    >>> stays_inside("link", "/etc/passwd"), stays_inside("link", "a/../b")
    (False, False)
    """
    if not target or target.startswith("/"):
        return False
    parts = [part for part in target.split("/") if part not in ("", ".")]
    climbs = 0
    while climbs < len(parts) and parts[climbs] == "..":
        climbs += 1
    return climbs <= path.count("/") and ".." not in parts[climbs:]
