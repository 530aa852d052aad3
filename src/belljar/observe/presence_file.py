"""Presence files: where they lie, what they say, and facts about the processes that they name.

    $BELLJAR_RUNTIME_DIR           if set, this alone
    $XDG_RUNTIME_DIR/belljar       of a user who is logged in
    /run/user/<uid>/belljar        the same, if the variable is missing (cron, services)
    /run/belljar                   of root
    <cache>/live                   if none of these can be used

A process writes to the first one that it can use; readers look at all of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from belljar.backends.docker import owner
from belljar.backends.docker.owner import Owner
from belljar.backends.linux import proc
from belljar.environment import store
from belljar.environment.store import cache_root
from belljar.errors import SandboxError

SCHEMA = 1
MAX_TEXT = 200
MAX_METADATA = 32
LIMITS = ("memory", "cpus", "processes", "timeout", "lifetime", "idle")

_CONTAINER = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Note:
    """What a presence file says. Every field was checked: until then it is foreign text."""

    id: str
    backend: str
    environment: str
    created: float  # seconds since the epoch
    owner: Owner
    stale: bool | None  # the owner is dead; None: unknown from here
    command: str  # of the owner
    pid: int | None  # of the guest's PID 1 on this host, and when it began
    pid_started: int | None
    container: str | None
    engine: str | None
    limits: Mapping[str, float | None]
    metadata: Mapping[str, str]
    uid: int  # of the file
    path: str


def parse_note(data: bytes, *, name: str, uid: int, path: str) -> Note | None:
    """The note, or None for a file that Belljar did not write."""
    try:
        said = json.loads(data)
        if said["schema"] != SCHEMA or said["id"] != name:
            return None
        labels = _labels(said)
        owned = Owner.parse(labels)
        if owned is None:
            return None
        return Note(
            id=name,
            backend=_text(said["backend"]),
            environment=_text(said["environment"]),
            created=_number(said["created"]),
            owner=owned,
            stale=owner.is_orphan(labels, running=False),
            command=_command(owned.pid),
            pid=_pid(said["pid"]),
            pid_started=_pid(said["pid_started"], most=2**63),
            container=_container(said["container"]),
            engine=None if said["engine"] is None else _text(said["engine"]),
            limits={name: _optional(said["limits"][name]) for name in LIMITS},
            metadata={
                _text(key): _text(value)
                for key, value in list(said["metadata"].items())[:MAX_METADATA]
            },
            uid=uid,
            path=path,
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _labels(said: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    """The labels of containers: one set of rules decides whether an owner is dead."""
    fields = said["owner"]
    return {
        owner.SANDBOX: str(said["id"]),
        owner.PID: str(fields["pid"]),
        owner.STARTED: str(fields["started"]),
        owner.PID_NAMESPACE: str(fields["pid_namespace"]),
        owner.HOST: str(fields["host"]),
        # Shows that a file is older than the last boot, and so has no owner.
        owner.CREATED: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(_number(said["created"]))),
    }


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(MAX_TEXT).replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise ValueError(value)
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e15:
        raise ValueError(value)
    return float(value)


def _optional(value: object) -> float | None:
    return None if value is None else _number(value)


def _pid(value: object, most: int = 2**22) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 1 < value <= most:
        raise ValueError(value)
    return value


def _container(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not _CONTAINER.fullmatch(value):
        raise ValueError(value)
    return value


def process_started(pid: int) -> int | None:
    """When it began, in clock ticks after boot: unlike a pid alone, both name one process."""
    return _stat(pid, proc.STARTED)


def is_descendant(pid: int, ancestor: int) -> bool:
    """True if the process is a child of the other one, or a child of its children."""
    for _ in range(64):
        above = _stat(pid, proc.PARENT) or 0
        if above <= 1:
            return False
        if above == ancestor:
            return True
        pid = above
    return False


def process_uid(pid: int) -> int | None:
    """The user it runs as. (/proc/<pid> belongs to root if the process is not dumpable.)"""
    numbers = _status(pid, "Uid")
    return int(numbers[1]) if len(numbers) > 1 else None


def is_namespace_init(pid: int) -> bool:
    """True if it is PID 1 of a pid namespace below ours."""
    numbers = _status(pid, "NSpid")
    return len(numbers) > 1 and numbers[-1] == "1"


def _status(pid: int, name: str) -> list[str]:
    try:
        return proc.read_status(pid).get(name, "").split()
    except OSError:
        return []


def _stat(pid: int, field: int) -> int | None:
    try:
        return int(proc.read_stat(pid)[field])
    except OSError:
        return None


DIRECTORY_VARIABLE = "BELLJAR_RUNTIME_DIR"
SYSTEM_DIRECTORY = "/run/belljar"
USER_DIRECTORIES = "/run/user"
MOST_USERS = 1000


@dataclass(frozen=True)
class OpenDirectory:
    path: str
    fd: int
    uid: int  # of its owner


def candidate_directories(*, everybody: bool = False) -> list[str]:
    """All directories that may exist; the preferred one to write to is the first."""
    if chosen := os.environ.get(DIRECTORY_VARIABLE):
        return [os.path.abspath(chosen)]
    uid = os.geteuid()
    found = []
    xdg = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(xdg):
        found.append(f"{xdg}/belljar")
    found.append(f"{USER_DIRECTORIES}/{uid}/belljar")
    if uid == 0:
        found.append(SYSTEM_DIRECTORY)
    found.append(str(cache_root() / "live"))
    if everybody:
        found += _directories_of_others()
    return list(dict.fromkeys(found))


def _directories_of_others() -> Iterator[str]:
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(USER_DIRECTORIES))[:MOST_USERS]:
            if name.isdigit():
                yield f"{USER_DIRECTORIES}/{name}/belljar"
    for user in pwd.getpwall()[:MOST_USERS]:
        yield f"{user.pw_dir}/.cache/belljar/live"


def prepare_directory() -> str:
    """The directory to write to, made if it is missing. Raises SandboxError if no one can be."""
    for path in candidate_directories():
        if _is_usable(path):
            return path
    raise SandboxError(
        f"no directory for presence files can be written: {', '.join(candidate_directories())}",
        hint=f"set {DIRECTORY_VARIABLE} to a directory that only you can write to",
    )


def _is_usable(path: str) -> bool:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return _make_directory(path)
    except OSError:
        return False
    return _is_private(status, os.geteuid()) and os.access(path, os.W_OK, effective_ids=True)


def _make_directory(path: str) -> bool:
    # Only the last part is made, except in the cache: the system makes those in /run.
    try:
        if path == str(cache_root() / "live"):
            store.make_directory(cache_root(), store.CACHE_MODE)
        os.mkdir(path, 0o700)
    except FileExistsError:
        return _is_usable(path)
    except OSError:
        return False
    return _is_private(os.lstat(path), os.geteuid())


def _is_private(status: os.stat_result, uid: int | None) -> bool:
    """True if it is a directory that only its owner can write to."""
    others = stat.S_IWGRP | stat.S_IWOTH
    owned = uid is None or status.st_uid == uid
    return stat.S_ISDIR(status.st_mode) and owned and not status.st_mode & others


@contextlib.contextmanager
def open_directory(path: str) -> Iterator[OpenDirectory | None]:
    """The directory, open for reading; None if it is missing, or other users can write to it.

    The last part must not be a link. A link above it can only lead to another directory, which is
    checked in the same way.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        status = os.fstat(descriptor)
        # An ordinary user sees its own directory; root sees every private one.
        private = _is_private(status, None if os.geteuid() == 0 else os.geteuid())
        yield OpenDirectory(path, descriptor, status.st_uid) if private else None
    finally:
        os.close(descriptor)
