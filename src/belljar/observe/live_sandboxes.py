"""Live sandboxes of other processes, as seen from here: for `belljar ps` and `belljar top`.

A presence file says where to look; the kernel or the container engine is asked what is there. The
file alone is never trusted: before a process is read or killed, it must be the first process of a
pid namespace below the owner that the file names, or be in the container that the file names; and
that owner must run as the user that owns the file.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from dataclasses import dataclass
from typing import Literal, Self

import anyio

from belljar.backends.base import UsageSample
from belljar.backends.docker import guest
from belljar.backends.docker import owner as labels
from belljar.backends.docker.client import endpoint
from belljar.backends.docker.client.engine import Engine, EngineError
from belljar.backends.linux import posture
from belljar.backends.native.watchdog import Watchdog
from belljar.errors import SandboxError
from belljar.observe import presence, presence_file
from belljar.observe.presence_file import Note
from belljar.observe.sampling import compute_percent

State = Literal["busy", "idle", "ended", "orphan", "unknown"]
TIMEOUT = 5.0  # seconds, for an engine
AT_ONCE = 16  # sandboxes; each may take a connection to an engine
LOOK_TIMEOUT = 10.0  # seconds for all of them; another user's files may be thousands
BUSY = 1.0  # percent of one processor; below, it is idle


@dataclass(frozen=True, kw_only=True)
class LiveSandbox:
    """A sandbox, its state, and what it uses; None: unknown from here."""

    note: Note
    state: State
    age: float  # seconds
    cpu_percent: float | None = None  # of one processor
    cpu: float | None = None  # seconds
    memory: int | None = None  # bytes
    processes: int | None = None

    @property
    def live(self) -> bool:
        return self.state in ("busy", "idle", "unknown")

    def to_dict(self) -> dict[str, object]:
        note = self.note
        return {
            "id": note.id,
            "backend": note.backend,
            "environment": note.environment,
            "state": self.state,
            "created": note.created,
            "age": self.age,
            "owner": {"pid": note.owner.pid, "uid": note.uid, "command": note.command},
            "pid": note.pid,
            "container": note.container,
            "cpu_percent": self.cpu_percent,
            "cpu": self.cpu,
            "memory": self.memory,
            "limits": dict(note.limits),
            "processes": self.processes,
            "metadata": dict(note.metadata),
        }


class LiveSandboxes:
    """Looks at all sandboxes. The share of CPU is known from the second look on.

    with LiveSandboxes() as sandboxes:
        for each in sandboxes.look(): ...
    """

    def __init__(self) -> None:
        self._local: dict[str, tuple[Note, guest.LocalUsage]] = {}
        self._moments: dict[str, tuple[float, float | None]] = {}

    def look(self) -> list[LiveSandbox]:
        """All sandboxes, also orphans. Blocks; not for a thread that runs an event loop."""
        notes = presence.read_notes()
        found = anyio.run(self._look_at_all, notes)
        known = {note.id for note in notes}
        for id in [id for id in self._local if id not in known]:
            self._close_meters(id)
        self._moments = {id: moment for id, moment in self._moments.items() if id in known}
        return found

    async def _look_at_all(self, notes: list[Note]) -> list[LiveSandbox]:
        found: dict[str, LiveSandbox] = {}
        few = anyio.CapacityLimiter(AT_ONCE)

        async def one(note: Note) -> None:
            async with few:
                found[note.id] = await self._look_at(note)

        with anyio.move_on_after(LOOK_TIMEOUT):
            async with anyio.create_task_group() as group:
                for note in sorted(notes, key=lambda note: note.uid != os.geteuid()):
                    group.start_soon(one, note)
        return [found.get(note.id) or _make_unseen(note) for note in notes]

    async def _look_at(self, note: Note) -> LiveSandbox:
        if note.stale:
            return _make_unseen(note)
        try:
            reading = await self._read(note)
        except OSError:
            return _make_unseen(note)
        age = max(time.time() - note.created, 0.0)
        if reading is None:
            # It may be in another pid namespace, or on a machine whose engine does not answer.
            hidden = note.pid is None or note.stale is None
            return LiveSandbox(note=note, state="unknown" if hidden else "ended", age=age)
        now = time.monotonic(), reading.cpu
        share = compute_percent(self._moments.get(note.id), now)
        self._moments[note.id] = now
        return LiveSandbox(
            note=note,
            state="busy" if (share or 0.0) > BUSY else "idle",
            age=age,
            cpu_percent=share,
            cpu=reading.cpu,
            memory=reading.memory,
            processes=reading.processes,
        )

    async def _read(self, note: Note) -> UsageSample | None:
        if note.pid is None:
            return await _read_by_engine(note)
        if not is_there(note):
            return None
        kept = self._local.get(note.id)
        if kept is not None and kept[0].pid == note.pid:
            return kept[1].read(from_now=False, now=True)
        self._close_meters(note.id)
        meters = guest.open_meters(note.pid)
        if meters is None or not any(_is_own(note, path) for path in meters.paths):
            if meters is not None:
                meters.close()
            # It has no control group: add up what its processes use.
            find_others = functools.partial(posture.find_same_guest, note.pid)
            return Watchdog(note.pid, 0, find_others).read_usage(now=True)
        self._local[note.id] = note, guest.LocalUsage(meters)
        return self._local[note.id][1].read(from_now=False, now=True)

    def _close_meters(self, id: str) -> None:
        kept = self._local.pop(id, None)
        if kept is not None:
            kept[1].close()

    def close(self) -> None:
        for id in list(self._local):
            self._close_meters(id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _make_unseen(note: Note) -> LiveSandbox:
    """A sandbox that could not be looked at."""
    state: State = "orphan" if note.stale else "unknown"
    return LiveSandbox(note=note, state=state, age=max(time.time() - note.created, 0.0))


def is_there(note: Note) -> bool:
    """True if the process that the note names still is the first one of the sandbox."""
    if note.pid is None or note.pid_started is None:
        return False
    if presence_file.process_started(note.pid) != note.pid_started:
        return False
    if presence_file.process_uid(note.owner.pid) != note.uid:
        return False
    if note.container is not None:
        return guest.is_container_process(note.container, note.pid)
    return presence_file.is_namespace_init(note.pid) and presence_file.is_descendant(
        note.pid, note.owner.pid
    )


def _is_own(note: Note, path: str) -> bool:
    parts = path.split("/")
    return any(part.startswith(note.id) for part in parts) or any(
        note.container is not None and note.container in part for part in parts
    )


# -- the engine ---------------------------------------------------------------------------------


def _engine(note: Note) -> Engine | None:
    """The engine that has the container, if we would use it anyway, or the file is our own: another
    user's file must not choose where we connect to."""
    if note.engine is None or note.container is None:
        return None
    try:
        ours = endpoint.find_endpoint()
        if str(ours) == note.engine:
            return Engine(ours)
        if note.uid == os.geteuid():
            return Engine(endpoint.parse_endpoint(note.engine, "a presence file", os.environ))
    except SandboxError:
        return None
    return None


async def _read_by_engine(note: Note) -> UsageSample | None:
    engine = _engine(note)
    if engine is None or note.container is None:
        return None
    asked = guest.RemoteUsage(engine, note.container)
    with anyio.move_on_after(TIMEOUT):
        reading = await asked.read()
        return None if asked.gone else reading
    return None


def kill(note: Note) -> None:
    """Kill the sandbox; its owner sees it as lost. Raises SandboxError if that is impossible."""
    if note.container is not None and (note.pid is None or note.uid != os.geteuid()):
        # The engine knows the owner of a container; another user's file may name any container.
        anyio.run(_kill_container, note)
    else:
        _kill_process(note)


def _kill_process(note: Note) -> None:
    if note.pid is None:
        raise SandboxError(f"the process of {note.id} is unknown")
    try:
        pidfd = os.pidfd_open(note.pid)
    except ProcessLookupError:
        return
    try:
        # Checked after pidfd_open: before, the pid could have been reused.
        if not is_there(note):
            return
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise SandboxError(f"{note.id} belongs to another user", hint="try it as root") from error
    finally:
        os.close(pidfd)


async def _kill_container(note: Note) -> None:
    engine = _engine(note)
    if engine is None:
        raise SandboxError(f"{note.id} is on an engine that cannot be reached from here")
    path = f"/containers/{note.container}"
    try:
        seen = await engine.request("GET", f"{path}/json", timeout=TIMEOUT)
        marks = (seen.get("Config") or {}).get("Labels") or {}
        same = labels.Owner.parse(marks) == note.owner and note.id in marks[labels.SANDBOX]
        if not same or presence_file.process_uid(note.owner.pid) != note.uid:
            raise SandboxError(f"the container that {note.id} names is not its own")
        await engine.request("POST", f"{path}/kill", timeout=TIMEOUT)
    except EngineError as error:
        if error.status not in (404, 409):  # gone, or not running
            raise
