"""The owner of a container: labels that name the process which made it, and how they are read.

    belljar.sandbox               the sandbox's id
    belljar.owner.pid             the process that made it
    belljar.owner.started         when that process began: another one may get the same pid
    belljar.owner.host            <machine>.<boot>: an engine may serve many hosts
    belljar.owner.pid_namespace   a pid is valid only in its namespace
    belljar.created, .version, .project

Every user of the engine can read labels, and can write labels like these. So they hold no secret
(the machine's id is hashed), and a container counts as an orphan only if its labels have exactly
the form that Belljar writes.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from belljar import __version__
from belljar.backends.linux import proc
from belljar.errors import BackendUnavailable

SANDBOX = "belljar.sandbox"
BUILD = "belljar.build"  # not empty in a container that builds an image
PID = "belljar.owner.pid"
STARTED = "belljar.owner.started"
HOST = "belljar.owner.host"
PID_NAMESPACE = "belljar.owner.pid_namespace"
CREATED = "belljar.created"
PROJECT = "belljar.project"
VERSION = "belljar.version"

_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_HOST = re.compile(r"([0-9a-f]{16}|unknown)\.([0-9a-f]{16})")
_LARGEST_PID = 2**22
_MOMENT = "%Y-%m-%dT%H:%M:%SZ"


def labels(sandbox: str, project: str | None = None) -> dict[str, str]:
    """The labels of a container that this process creates."""
    us = Owner.current()
    return {
        SANDBOX: sandbox,
        PID: str(us.pid),
        STARTED: str(us.started),
        HOST: f"{us.machine}.{us.boot}",
        PID_NAMESPACE: str(us.pid_namespace),
        CREATED: current_moment(),
        VERSION: __version__,
        # Set although empty: a container inherits labels of its image that it does not have.
        BUILD: "",
        PROJECT: project or "",
    }


def current_moment() -> str:
    return time.strftime(_MOMENT, time.gmtime())


def parse_moment(text: str) -> float:
    return datetime.strptime(text, _MOMENT).replace(tzinfo=UTC).timestamp()


def container_name(labels: Mapping[str, str]) -> str:
    """The name of the container with these labels."""
    return f"belljar-{labels.get(SANDBOX, '')}"


def is_orphan(labels: Mapping[str, str], *, running: bool = True) -> bool | None:
    """True if the owner is dead; None if that cannot be seen from here.

    `running`: the container runs. If it does not, and this machine made it before its last boot,
    the owner is dead too; one that runs may belong to a copy of this machine.
    """
    owner = Owner.parse(labels)
    if owner is None:
        return None
    us = Owner.current()
    if (owner.machine, owner.boot) != (us.machine, us.boot):
        return True if not running and _was_made_before_boot(owner, us, labels) else None
    if owner.pid_namespace != us.pid_namespace:
        return None
    return _is_dead(owner)


def is_ours(labels: Mapping[str, str]) -> bool:
    """True if this process is the owner."""
    return Owner.parse(labels) == Owner.current()


@dataclass(frozen=True, kw_only=True)
class Owner:
    pid: int
    started: int  # clock ticks after boot
    machine: str
    boot: str
    pid_namespace: int

    @classmethod
    def current(cls) -> Self:
        try:
            started = int(proc.read_stat("self")[proc.STARTED])
        except FileNotFoundError as error:
            raise BackendUnavailable(
                "/proc does not show this process, so its containers cannot name their owner",
                hint="mount /proc",
            ) from error
        machine, boot = _read_host()
        return cls(
            pid=os.getpid(),
            started=started,
            machine=machine,
            boot=boot,
            pid_namespace=os.stat("/proc/self/ns/pid").st_ino,
        )

    @classmethod
    def parse(cls, labels: Mapping[str, str]) -> Self | None:
        """None for labels that Belljar would not have written."""
        numbers = [labels.get(name, "") for name in (PID, STARTED, PID_NAMESPACE)]
        host = _HOST.fullmatch(labels.get(HOST, ""))
        if host is None or not labels.get(SANDBOX) or not all(map(_NUMBER.fullmatch, numbers)):
            return None
        pid, started, namespace = map(int, numbers)
        if not 0 < pid <= _LARGEST_PID:  # kill(0) and kill(-1) signal many processes
            return None
        return cls(pid=pid, started=started, machine=host[1], boot=host[2], pid_namespace=namespace)


# -- processes ----------------------------------------------------------------------------------


def _is_dead(owner: Owner) -> bool | None:
    if os.readlink("/proc/self") != str(os.getpid()):
        return None  # a /proc of another pid namespace, with other pids
    try:
        stat = proc.read_stat(owner.pid)
        return proc.has_ended(stat) or int(stat[proc.STARTED]) != owner.started
    except PermissionError:
        return None  # the process exists, hidden by /proc's mount options
    except (FileNotFoundError, ProcessLookupError):
        pass
    # With hidepid=2, /proc does not list processes of other users. Signal 0 does nothing but ask
    # the kernel if the process exists.
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return None
    return None


# -- hosts --------------------------------------------------------------------------------------


@functools.cache
def _read_host() -> tuple[str, str]:
    """Hashes of this machine and of its boot: other users must not see the machine's id."""
    machine = _read_text("/etc/machine-id") or _read_text("/var/lib/dbus/machine-id")
    # Another time namespace counts start times differently.
    clock = os.readlink("/proc/self/ns/time") if os.path.lexists("/proc/self/ns/time") else ""
    boot = _read_text("/proc/sys/kernel/random/boot_id") + clock
    return _hash(machine) if machine else "unknown", _hash(machine + boot)


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""  # minimal containers have no machine id


def _hash(text: str) -> str:
    return hmac.new(b"belljar.owner.host", text.encode(), hashlib.sha256).hexdigest()[:16]


def _was_made_before_boot(owner: Owner, us: Owner, labels: Mapping[str, str]) -> bool:
    if owner.machine != us.machine or us.machine == "unknown":
        return False
    try:
        created = parse_moment(labels.get(CREATED, ""))
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except (ValueError, OSError):
        return False
    return created < time.time() - uptime
