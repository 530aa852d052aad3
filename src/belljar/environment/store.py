"""Where built environments are kept, and how processes share them.

    ENVS/<name>-<key>/            complete: a directory gets this name by one rename
    ENVS/.building-<key>-<x>/     under construction, or left by a process that was killed
    ENVS/.trash-<name>-<key>-<x>/ removed, but perhaps still mounted somewhere
    ENVS/.locks/<key>.build       held exclusively while <key> is built
    ENVS/.locks/<name>-<key>.use  held shared by those who have it mounted; its mtime is "last used"

Lock files are never deleted: a deleted one may still be locked by somebody who opened it before.
They lie outside the environments, because guests can lock every file they can see.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from belljar.environment import directories
from belljar.errors import EnvironmentBuildError

_BUILDING = ".building-"
_TRASH = ".trash-"


def cache_root(environ: Mapping[str, str] = os.environ) -> Path:
    """$BELLJAR_CACHE, else $XDG_CACHE_HOME/belljar, else ~/.cache/belljar."""
    chosen = environ.get("BELLJAR_CACHE")
    if chosen:
        return Path(os.path.abspath(os.path.expanduser(chosen)))
    # A relative XDG_CACHE_HOME is to be ignored, says its specification.
    xdg = environ.get("XDG_CACHE_HOME", "")
    base = Path(xdg) if os.path.isabs(xdg) else Path(os.path.expanduser("~"), ".cache")
    return base / "belljar"


HOLD_TIMEOUT = 10.0  # seconds


@dataclass(frozen=True)
class Store:
    """The directory of environments. Every method is safe in several processes and threads."""

    envs: Path

    @classmethod
    def default(cls) -> Store:
        return cls(cache_root() / "envs")

    def find(self, name: str, key: str) -> Path | None:
        """The complete directory for `key`, preferably the one called `name`."""
        exact = self.envs / f"{name}-{key}"
        if exact.is_dir():
            self._refuse_foreign()
            return exact
        for path in self.complete():
            if path.name.endswith(f"-{key}"):
                self._refuse_foreign()
                return path
        return None

    def complete(self) -> list[Path]:
        if not self.envs.is_dir():
            return []
        return sorted(path for path in self.envs.iterdir() if not path.name.startswith("."))

    @contextmanager
    def building(self, key: str, on_wait: Callable[[], None]) -> Iterator[int]:
        """Hold the right to build `key`; `on_wait` is called if somebody else has it now.

        The descriptor is for the installer to inherit: should this process be killed, the lock
        lives until the installer is gone too, so nobody sweeps a directory it still writes to.
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
            # Unlock by word, not by closing: a copy may live on in a process forked meanwhile.
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)

    @contextmanager
    def scratch(self, key: str) -> Iterator[Path]:
        """An empty directory to build in; gone afterwards unless published. Needs the lock."""
        for leftover in self.envs.glob(f"{_BUILDING}{key}-*"):
            _delete(leftover)
        directory = Path(tempfile.mkdtemp(prefix=f"{_BUILDING}{key}-", dir=self.envs))
        try:
            yield directory
        finally:
            _delete(directory)

    def publish(self, directory: Path, name: str, key: str) -> Path:
        final = self.envs / f"{name}-{key}"
        # Made by its builder, so that users who may only read the cache find it to lock.
        os.close(os.open(self._lock(f"{final.name}.use"), os.O_RDWR | os.O_CREAT, 0o644))
        os.rename(directory, final)
        self.touch(final)
        return final

    def touch(self, path: Path) -> None:
        # Only a note: a cache of root's, or on a read-only file system, is used all the same.
        with suppress(OSError):
            os.utime(self._lock(f"{path.name}.use"))

    def last_used(self, path: Path) -> float:
        try:
            return os.stat(self._lock(f"{path.name}.use")).st_mtime
        except FileNotFoundError:
            return path.stat().st_mtime

    def hold(self, path: Path) -> int:
        """A descriptor; while it (or a copy in a child) is open, removal spares the files."""
        try:
            use = os.open(self._lock(f"{path.name}.use"), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise EnvironmentBuildError(f"environment {path.name} was removed") from error
        try:
            _share(use)
        except TimeoutError as error:
            os.close(use)
            raise EnvironmentBuildError(
                f"environment {path.name} has been locked for {HOLD_TIMEOUT:.0f} s by another",
                hint="`lsof` on its file in .locks tells by whom",
            ) from error
        except BaseException:
            os.close(use)
            raise
        if not path.is_dir():
            os.close(use)
            raise EnvironmentBuildError(f"environment {path.name} was removed")
        return use

    def remove(self, path: Path) -> bool:
        """Take it out of use at once; its files go when nobody holds it any more (see sweep)."""
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
        """Delete what killed builds left behind, and trash that nobody holds; what it was."""
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
                directories.make(directory, directories.CACHE)
                self._refuse_foreign()
            if not os.access(self.envs / ".locks", os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise EnvironmentBuildError(
                f"cannot use the cache directory {self.envs}: {error.strerror}",
                hint="set BELLJAR_CACHE to a directory you may write to",
            ) from error

    def _refuse_foreign(self) -> None:
        """What lies here is imported with our rights, so nobody else may have put it here."""
        status = self.envs.stat()
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise EnvironmentBuildError(
                f"the cache directory {self.envs} belongs to, or can be written by, somebody else",
                hint="set BELLJAR_CACHE to a directory of your own",
            )


def _delete(path: Path) -> None:
    """Delete a directory that another sweeper may be deleting too."""
    while path.exists():
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            continue  # somebody else was faster with one file; go on with the rest


def _share(lock: int) -> None:
    """Only removal locks it for itself, and briefly; but whoever can read it could, for ever."""
    deadline = time.monotonic() + HOLD_TIMEOUT
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError from None
            time.sleep(0.01)
