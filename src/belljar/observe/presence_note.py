"""What a presence file says, after every field was checked: foreign text until then."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from belljar.backends.docker import owner
from belljar.backends.docker.owner import Owner

SCHEMA = 1
MAX_TEXT = 200
MAX_METADATA = 32
LIMITS = ("memory", "cpus", "processes", "timeout", "lifetime", "idle")

_CONTAINER = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Note:
    """What a presence file says, after it was checked."""

    id: str
    backend: str
    environment: str
    created: float  # seconds since the epoch
    owner: Owner
    stale: bool | None  # the owner is dead; None: that cannot be told from here
    command: str  # of the owner
    pid: int | None  # of the guest's PID 1 on this host, and when that began
    pid_started: int | None
    container: str | None
    engine: str | None
    limits: Mapping[str, float | None]
    metadata: Mapping[str, str]
    uid: int  # whose file it is
    path: str


def parse(data: bytes, *, name: str, uid: int, path: str) -> Note | None:
    """A note, or None for what we would not have written."""
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
    """As on containers, so that who is dead is told by the same rules."""
    fields = said["owner"]
    return {
        owner.SANDBOX: str(said["id"]),
        owner.PID: str(fields["pid"]),
        owner.STARTED: str(fields["started"]),
        owner.PID_NAMESPACE: str(fields["pid_namespace"]),
        owner.HOST: str(fields["host"]),
        # Files from before a reboot have lost their owner too: told by this.
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
