"""The audit log: who ran what, and what came of it. Append-only JSON lines.

    audit = Audit("audit.jsonl", code="hash", required=True)
    audit.subscribe()

Each line names the hash of the line before (`prev`), so `verify` finds a line that was changed or
removed. Several processes may write to one file; each line is one write, under a lock. At
`max_bytes` the file is renamed to `<path>.000001`, and the chain goes on in a new file.

The chain alone does not show that the *last* lines were cut off, nor that a user who may write the
file has written all of it again: keep `Audit.head` elsewhere, or use a `key` which that user does
not have.
"""

from __future__ import annotations

import fcntl
import getpass
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from belljar import events
from belljar.errors import InvalidOption, SandboxError, unknown_option
from belljar.observe.audit_chain import (
    FIRST,
    Code,
    describe_event,
    encode_line,
    find_rotated,
    hash_line,
    last_sequence,
    read_tail,
)
from belljar.observe.audit_chain import Damage as Damage
from belljar.observe.audit_chain import Verified as Verified
from belljar.observe.audit_chain import verify as verify

MAX_LINE = 64 * 1024
LOCK_TIMEOUT = 10.0  # seconds


class AuditFailed(SandboxError):
    """The audit log could not be written."""


@dataclass
class _File:
    descriptor: int
    pid: int  # that opened it: a fork shares the lock
    size: int = -1  # after our last line; another size: another process has written
    sequence: int = 0
    head: str = FIRST


class Audit:
    """Writes the log. Safe to use from any thread, and in a fork.

    `code`: "hash" keeps the hash of the code, "full" the text as well. `required`: code whose line
    cannot be written does not run. `fsync`: each line is on the disk before anything goes on.
    `max_bytes`: begin a new file when this one has reached the size.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        code: Code = "hash",
        required: bool = False,
        fsync: bool = False,
        max_bytes: int | None = None,
        max_line: int = MAX_LINE,
        key: bytes | None = None,
    ) -> None:
        if code not in ("hash", "full"):
            raise unknown_option("way to keep code", str(code), ("hash", "full"))
        if type(max_line) is not int or max_line < 2048:
            raise InvalidOption(f"max_line={max_line!r} is not a number of bytes from 2048 on")
        if max_bytes is not None and (type(max_bytes) is not int or max_bytes < max_line):
            raise InvalidOption(f"max_bytes={max_bytes!r} is not at least one line ({max_line})")
        self.path = Path(path).expanduser().absolute()
        self._code: Code = code
        self._required = required
        self._fsync = fsync
        self._max_bytes = max_bytes
        self._max_line = max_line
        self._key = key
        self._lock = threading.Lock()
        self._file: _File | None = None
        self._subscription: events.Subscription | None = None
        self._who: dict[str, object] = {"user": _user(), "uid": os.getuid()}
        self._who["host"] = socket.gethostname()
        self._head = FIRST
        with self._lock, self._lock_file() as file:  # raises now if it cannot be written
            self._head = file.head

    @property
    def head(self) -> str:
        """The hash of the last line that this process knows: keep it in a safe place."""
        return self._head

    def subscribe(self) -> Self:
        """Write the events of this process from now on. May be called twice."""
        if self._subscription is None:
            self._subscription = events.subscribe(self.observe, required=self._required)
        return self

    def observe(self, event: events.Event) -> None:
        """Write one event. Called for each, by subscribe()."""
        who = {**self._who, "pid": os.getpid()}
        self.write(describe_event(event, who, code=self._code, now=time.time()))

    def write(self, record: dict[str, object]) -> None:
        """Append one line. Raises AuditFailed if it could not be written in full."""
        while True:
            with self._lock, self._lock_file() as file:
                if self._max_bytes is not None and file.size >= self._max_bytes:
                    self._rename_full()
                    continue
                line = encode_line(
                    record, sequence=file.sequence + 1, previous=file.head, most=self._max_line
                )
                self._append(file, line)
                file.size += len(line)
                file.sequence += 1
                file.head = self._head = hash_line(line[:-1], self._key)
                return

    def _append(self, file: _File, line: bytes) -> None:
        written = 0
        try:
            written = os.write(file.descriptor, line)
            if written == len(line):
                if self._fsync:
                    os.fsync(file.descriptor)
                return
        except OSError as error:
            raise self._failed(error.strerror) from error
        # The disk is full. Half a line would damage the next one.
        os.ftruncate(file.descriptor, file.size)
        raise self._failed("the disk is full")

    def _failed(self, why: str | None) -> AuditFailed:
        return AuditFailed(
            f"the audit log {str(self.path)!r} cannot be written: {why}",
            hint="no code runs without its line in the log" if self._required else None,
        )

    # -- the file ---------------------------------------------------------------------------

    @contextmanager
    def _lock_file(self) -> Iterator[_File]:
        """The file, locked, with the head of its chain known."""
        try:
            file = self._open_and_lock()
        except OSError as error:
            # A thread may still wait for the lock of this open file; it will release it.
            self._close_file()
            raise self._failed(error.strerror) from error
        try:
            size = os.fstat(file.descriptor).st_size
            if size != file.size:
                file.size = size
                self._read_head(file)
            yield file
        finally:
            fcntl.flock(file.descriptor, fcntl.LOCK_UN)

    def _open_and_lock(self) -> _File:
        while True:
            if self._file is not None and self._file.pid != os.getpid():
                self._close_file()
            if self._file is None:
                self._file = _File(_open(self.path), os.getpid())
            file = self._file
            _lock(file.descriptor)
            # Another process may have renamed it while we waited.
            try:
                here = os.stat(self.path, follow_symlinks=False)
            except FileNotFoundError:
                here = None
            ours = os.fstat(file.descriptor)
            if here is not None and (here.st_dev, here.st_ino) == (ours.st_dev, ours.st_ino):
                return file
            # Closing is not enough: a fork may have the same open file, and with it the lock.
            fcntl.flock(file.descriptor, fcntl.LOCK_UN)
            self._close_file()

    def _read_head(self, file: _File) -> None:
        """Read the last line: another process has written, or the file was just opened."""
        lines, torn = read_tail(file.descriptor, file.size)
        if torn:  # by a crash: keep it, as a line
            os.write(file.descriptor, b"\n")
            file.size += 1
        older = find_rotated(self.path) if not lines else []
        if older:  # the chain goes on from the last renamed file
            descriptor = os.open(older[-1], os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                lines, _ = read_tail(descriptor, os.fstat(descriptor).st_size)
            finally:
                os.close(descriptor)
        file.sequence = last_sequence(lines)
        file.head = hash_line(lines[-1], self._key) if lines else FIRST

    def _rename_full(self) -> None:
        """Called with the lock, so no process writes to the file any more. The next one to write
        makes a new file, and continues the chain from the end of this one."""
        number = 1 + max((int(path.suffix[1:]) for path in find_rotated(self.path)), default=0)
        try:
            os.rename(self.path, self.path.with_name(f"{self.path.name}.{number:06d}"))
        except OSError as error:
            raise self._failed(error.strerror) from error

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file.descriptor)

    def close(self) -> None:
        """Stop writing. May be called twice."""
        if self._subscription is not None:
            self._subscription.cancel()
            self._subscription = None
        with self._lock:
            self._close_file()

    def __enter__(self) -> Self:
        return self.subscribe()

    def __exit__(self, *exception: object) -> None:
        self.close()


def _lock(descriptor: int) -> None:
    """Other processes hold the lock for microseconds, unless one was stopped meanwhile."""
    for _ in range(20):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(0.0005)
    # On a busy machine, trying now and then may never succeed. The kernel has a queue, but no time
    # limit: so a thread waits in the queue, and is abandoned if it takes too long.
    same = os.dup(descriptor)  # the same lock; this one stays open for the thread
    deciding, locked, abandoned = threading.Lock(), threading.Event(), threading.Event()

    def wait() -> None:
        fcntl.flock(same, fcntl.LOCK_EX)
        with deciding:
            if abandoned.is_set():
                fcntl.flock(same, fcntl.LOCK_UN)
            locked.set()
        os.close(same)

    threading.Thread(target=wait, name="belljar-audit", daemon=True).start()
    locked.wait(LOCK_TIMEOUT)
    with deciding:
        if not locked.is_set():
            abandoned.set()
            raise TimeoutError(0, "another process keeps it locked")


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    # O_NONBLOCK: opening a FIFO in its place would block.
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o600)
    status = os.fstat(descriptor)
    problem = None
    if not stat.S_ISREG(status.st_mode):
        problem = "it is not a regular file"
    elif status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        problem = "other users can write it"
    if problem is not None:
        os.close(descriptor)
        raise PermissionError(0, problem)
    return descriptor


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())  # a container's user often has no name
