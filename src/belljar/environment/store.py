"""The cache of environments on disk, shared by processes, and the environments saved by name.

    envs/<name>-<key>/            complete: a directory gets this name by one rename
    envs/.building-<key>-<x>/     under construction, or left by a process that was killed
    envs/.trash-<name>-<key>-<x>/ removed, but perhaps still mounted by a guest
    envs/.locks/<key>.build       held exclusively while <key> is built
    envs/.locks/<name>-<key>.use  held shared while a guest mounts it; its mtime is "last used"; its
                                  content, if any, the interpreter that was chosen for it
    bundles/<name>                the guest's program, compiled by another Python
    named/<name>.json             the description that `belljar env build` saved

Lock files are never deleted, because a process that opened one before may hold a lock on it. They
are outside the environments, because guests can lock every file that they can see.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from belljar.errors import EnvironmentBuildError

log = logging.getLogger("belljar")

DESCRIPTION = "belljar.json"  # in each directory
CACHE_MODE = 0o755  # packages: users of a shared cache may read them, and only its owner may write
STATE_MODE = 0o700  # files of sandboxes and people
HOLD_TIMEOUT = 10.0  # seconds to wait for a lock
_BUILDING = ".building-"
_TRASH = ".trash-"


def cache_root(environ: Mapping[str, str] = os.environ) -> Path:
    """$BELLJAR_CACHE, else $XDG_CACHE_HOME/belljar, else ~/.cache/belljar."""
    return user_directory(environ, "BELLJAR_CACHE", "XDG_CACHE_HOME", ".cache")


def user_directory(environ: Mapping[str, str], own: str, xdg: str, fallback: str) -> Path:
    """Where Belljar keeps files of a user: two variables may name it, else it is below ~."""
    if chosen := environ.get(own):
        return Path(os.path.abspath(os.path.expanduser(chosen)))
    base = environ.get(xdg, "")
    # The specification says to ignore a relative XDG variable.
    return Path(base if os.path.isabs(base) else os.path.expanduser(f"~/{fallback}"), "belljar")


@dataclass(frozen=True)
class Store:
    """The directory of environments. Every method is safe in several processes and threads."""

    envs: Path

    @classmethod
    def default(cls) -> Store:
        return cls(cache_root() / "envs")

    def find(self, name: str, key: str) -> Path | None:
        """The complete directory for `key`, preferably the one named `name`."""
        exact = self.envs / f"{name}-{key}"
        if exact.is_dir():
            self._refuse_foreign()
            return exact
        for path in self.list_complete():
            if path.name.endswith(f"-{key}"):
                self._refuse_foreign()
                return path
        return None

    def list_complete(self) -> list[Path]:
        if not self.envs.is_dir():
            return []
        return sorted(path for path in self.envs.iterdir() if not path.name.startswith("."))

    @contextmanager
    def building(self, key: str, on_wait: Callable[[], None]) -> Iterator[int]:
        """Hold the lock for building `key`; `on_wait` is called if another process has it.

        The installer inherits the descriptor: if this process is killed, the lock remains until
        the installer ends, so that no process deletes a directory it still writes to.
        """
        self._prepare()
        lock = os.open(self._lock(f"{key}.build"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield lock
        finally:
            # Unlock explicitly: a process forked meanwhile may have a copy of the descriptor.
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)

    @contextmanager
    def scratch(self, key: str) -> Iterator[Path]:
        """An empty directory to build in, deleted afterwards unless published. Needs the lock."""
        for leftover in self.envs.glob(f"{_BUILDING}{key}-*"):
            _delete(leftover)
        directory = Path(tempfile.mkdtemp(prefix=f"{_BUILDING}{key}-", dir=self.envs))
        try:
            yield directory
        finally:
            _delete(directory)

    def publish(self, directory: Path, name: str, key: str) -> Path:
        final = self.envs / f"{name}-{key}"
        # Made by the builder, because users who may only read the cache lock it too.
        os.close(os.open(self._lock(f"{final.name}.use"), os.O_RDWR | os.O_CREAT, 0o644))
        os.rename(directory, final)
        self.touch(final)
        return final

    def note_interpreter(self, path: Path, interpreter: Mapping[str, object]) -> None:
        """Let `list_interpreters` name it. Not in the directory: guests may not see host paths."""
        use = self._lock(f"{path.name}.use")
        with suppress(OSError):  # as for touch
            if use.stat().st_size == 0:
                use.write_text(json.dumps(interpreter))

    def list_interpreters(self) -> list[dict[str, Any]]:
        if self.envs.is_dir():
            self._refuse_foreign()
        found = []
        for path in self.list_complete():
            try:
                text = self._lock(f"{path.name}.use").read_text()
            except FileNotFoundError:
                continue  # removed meanwhile
            with suppress(json.JSONDecodeError):  # another process writes it at this moment
                found.append(json.loads(text))
        return found

    def touch(self, path: Path) -> None:
        with suppress(OSError):  # the cache may belong to root, or be on a read-only file system
            os.utime(self._lock(f"{path.name}.use"))

    def last_used(self, path: Path) -> float:
        try:
            return os.stat(self._lock(f"{path.name}.use")).st_mtime
        except FileNotFoundError:
            return path.stat().st_mtime

    def hold(self, path: Path) -> int:
        """A descriptor; while it (or a copy in a child) is open, no process deletes the files."""
        try:
            use = os.open(self._lock(f"{path.name}.use"), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise EnvironmentBuildError(f"environment {path.name} was removed") from error
        try:
            _lock_shared(use, path.name)
            if not path.is_dir():
                raise EnvironmentBuildError(f"environment {path.name} was removed")
        except BaseException:
            os.close(use)
            raise
        return use

    def remove(self, path: Path) -> bool:
        """Take it out of use at once; `sweep` deletes the files when no process holds them."""
        trash = self.envs / f"{_TRASH}{path.name}-{os.urandom(4).hex()}"
        try:
            os.rename(path, trash)
        except FileNotFoundError:
            return False
        except PermissionError as error:
            raise EnvironmentBuildError(f"cannot remove {path}: {error.strerror}") from error
        self.sweep()
        return True

    def sweep(self, *, dry_run: bool = False) -> list[Path]:
        """Delete what killed builds left and trash that no process holds; return the paths."""
        found = []
        for path in self.envs.iterdir() if self.envs.is_dir() else ():
            if path.name.startswith(_BUILDING):
                lock = f"{path.name.removeprefix(_BUILDING).rpartition('-')[0]}.build"
            elif path.name.startswith(_TRASH):
                lock = f"{path.name.removeprefix(_TRASH).rpartition('-')[0]}.use"
            else:
                continue
            with self._if_free(lock) as free:
                if free:
                    found.append(path)
                    if not dry_run:
                        _delete(path)
        return found

    @contextmanager
    def _if_free(self, lock: str) -> Iterator[bool]:
        descriptor = os.open(self._lock(lock), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                free = True
            except BlockingIOError:
                free = False
            yield free
        finally:
            os.close(descriptor)

    def _lock(self, name: str) -> Path:
        return self.envs / ".locks" / name

    def _prepare(self) -> None:
        try:
            for directory in (self.envs, self.envs / ".locks"):
                make_directory(directory, CACHE_MODE)
                self._refuse_foreign()
            if not os.access(self.envs / ".locks", os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise EnvironmentBuildError(
                f"cannot use the cache directory {self.envs}: {error.strerror}",
                hint="set BELLJAR_CACHE to a directory you may write to",
            ) from error

    def _refuse_foreign(self) -> None:
        """Guests and builds import what lies here, so no other user may have put it here."""
        if is_foreign(self.envs.stat()):
            raise EnvironmentBuildError(
                f"the cache directory {self.envs} belongs to another user, or another user can "
                "write to it",
                hint="set BELLJAR_CACHE to a directory of your own",
            )


def is_foreign(status: os.stat_result) -> bool:
    """True if a user other than root and this one may change the file."""
    others = stat.S_IWGRP | stat.S_IWOTH
    return status.st_uid not in (0, os.geteuid()) or bool(status.st_mode & others)


def _delete(path: Path) -> None:
    """Delete a directory that another process may be deleting too."""
    while path.exists():
        with suppress(FileNotFoundError):  # the other one deleted a file first; go on with the rest
            shutil.rmtree(path)


def _lock_shared(lock: int, name: str) -> None:
    """Only `sweep` locks it exclusively, and briefly; but any process that can read the file could
    lock it for ever, so there is a deadline."""
    deadline = time.monotonic() + HOLD_TIMEOUT
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise EnvironmentBuildError(
                    f"environment {name}: another process held its lock for {HOLD_TIMEOUT:.0f} s",
                    hint="`lsof` on its file in .locks shows which process",
                ) from error
            time.sleep(0.01)


def make_directory(path: Path, mode: int) -> None:
    """Make a directory and those missing above it, each with this mode whatever the umask.

    Under a umask of 000 a plain mkdir would let every user replace files of the cache or of
    sessions; under 077 it would lock other users out of a cache that root built for them. A
    directory that exists keeps its mode.
    """
    if path.is_dir():
        return
    make_directory(path.parent, mode)
    try:
        path.mkdir(mode)
    except FileExistsError:
        if not path.is_dir():  # otherwise another process made it at the same moment
            raise
    else:
        path.chmod(mode)  # the umask has taken bits from mkdir's mode


# -- descriptions in the directories ----------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Listing:
    """One environment in the cache."""

    name: str
    key: str
    path: Path
    packages: tuple[str, ...]  # as asked for
    distributions: dict[str, str]  # as installed: name -> version
    python: str  # its version
    created: float  # seconds since the epoch, as time.time()
    last_used: float
    size: int  # bytes on disk


def write_description(directory: Path, description: Mapping[str, object]) -> int:
    """Guests may read it, so it must name no place of this host. Returns the size on disk."""
    found = (
        os.lstat(os.path.join(parent, name))
        for parent, _, files in os.walk(directory)
        for name in files
    )
    # Files with more links belong to the environment that this one was built from.
    size = sum(each.st_blocks * 512 for each in found if each.st_nlink == 1)
    path = directory / DESCRIPTION
    path.write_text(
        json.dumps({**description, "created": time.time(), "size": size}, indent=1) + "\n"
    )
    path.chmod(0o644)
    return size


def list_built() -> list[Listing]:
    """The environments in the cache, the last used first."""
    store = Store.default()
    found = []
    for path in store.list_complete():
        try:
            described = json.loads((path / DESCRIPTION).read_text())
        except FileNotFoundError:
            continue  # removed meanwhile, or not a directory that Belljar made
        last_used, packages = store.last_used(path), tuple(described["packages"])
        fields = {name: described[name] for name in _LISTED}
        found.append(Listing(path=path, packages=packages, last_used=last_used, **fields))
    return sorted(found, key=lambda each: each.last_used, reverse=True)


_LISTED = ("name", "key", "distributions", "python", "created", "size")


# -- descriptions that `belljar env build` saved by name --------------------------------------


def saved_environments() -> dict[str, Path]:
    """The file of each, by name."""
    return {path.stem: path for path in sorted((cache_root() / "named").glob("*.json"))}


def save_environment(name: str, fields: Mapping[str, object]) -> None:
    directory = cache_root() / "named"
    try:
        make_directory(directory, CACHE_MODE)
        # Written to a scratch file and renamed, so that no process reads half of it. mkstemp makes
        # it readable only for its owner: a package may be an address with a password.
        descriptor, scratch = tempfile.mkstemp(dir=directory, suffix=".new")
        with os.fdopen(descriptor, "w") as file:
            json.dump(fields, file, indent=1)
        os.replace(scratch, directory / f"{name}.json")
    except OSError as error:
        raise EnvironmentBuildError(
            f"cannot save the environment in {directory}: {error.strerror}",
            hint="set BELLJAR_CACHE to a directory you may write to",
        ) from error


def remove_saved(name: str) -> bool:
    path = saved_environments().get(name)
    if path is not None:
        path.unlink(missing_ok=True)
    return path is not None


def load_environment(path: Path) -> dict[str, Any]:
    """The fields of a saved environment; raises OSError or ValueError if it cannot be read."""
    # Its packages are imported with the rights of this process before a guest is confined, so no
    # other user may have chosen them.
    with path.open() as file:
        if is_foreign(os.fstat(file.fileno())):
            raise EnvironmentBuildError(
                f"{path} belongs to another user, or another user can write to it",
                hint="remove it and build the environment again",
            )
        fields = json.load(file)
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")
    return fields
