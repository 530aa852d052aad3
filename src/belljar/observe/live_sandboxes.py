"""Live sandboxes of other processes, as they can be seen from here: for `belljar ps` and `top`.

A presence file says where to look; what is seen there is asked of the kernel, or of the engine.
Its word alone is never acted on: before a process is read or killed, it must be the first process
of a pid namespace, below the owner that the file names, or be in the container that it names; and
that owner must be of the user whose file it is.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

import anyio

from belljar.backends.base import UsageSample
from belljar.backends.docker import owner as labels
from belljar.backends.docker import usage
from belljar.backends.docker.client import endpoint
from belljar.backends.docker.client.engine import Engine, EngineError
from belljar.backends.native.watchdog import Watchdog
from belljar.errors import SandboxError
from belljar.observe import presence, processes
from belljar.observe.presence_note import Note
from belljar.observe.sampling import percent

State = Literal["busy", "idle", "ended", "orphan", "unknown"]
TIMEOUT = 5.0  # seconds, for an engine
AT_ONCE = 16  # sandboxes that are looked at; each may take a connection to an engine
LOOK_TIMEOUT = 10.0  # seconds for all of them; the files may be another user's, and thousands
BUSY = 1.0  # percent of one processor; below, it waits


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """A sandbox, what it is doing, and what it uses; None is what cannot be told from here."""

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


class Sightings:
    """Looks again and again; what CPU is used shows from the second time on.

    with Sightings() as sightings:
        for each in sightings.look(): ...
    """

    def __init__(self) -> None:
        self._local: dict[str, tuple[Note, usage.Local]] = {}
        self._moments: dict[str, tuple[float, float | None]] = {}

    def look(self) -> list[Sighting]:
        """Everything there is now, also what has lost its owner. Blocks; no event loop here."""
        notes = presence.notes()
        found = anyio.run(self._see_all, notes)
        known = {note.id for note in notes}
        for id in [id for id in self._local if id not in known]:
            self._forget(id)
        self._moments = {id: moment for id, moment in self._moments.items() if id in known}
        return found

    async def _see_all(self, notes: list[Note]) -> list[Sighting]:
        found: dict[str, Sighting] = {}
        few = anyio.CapacityLimiter(AT_ONCE)

        async def one(note: Note) -> None:
            async with few:
                found[note.id] = await self._see(note)

        with anyio.move_on_after(LOOK_TIMEOUT):
            async with anyio.create_task_group() as group:
                for note in sorted(notes, key=lambda note: note.uid != os.geteuid()):
                    group.start_soon(one, note)
        return [found.get(note.id) or _unseen(note) for note in notes]

    async def _see(self, note: Note) -> Sighting:
        if note.stale:
            return _unseen(note)
        try:
            reading = await self._read(note)
        except OSError:
            return _unseen(note)
        age = max(time.time() - note.created, 0.0)
        if reading is None:
            # Of another pid namespace, or on another machine whose engine does not answer: else
            # it would be seen.
            hidden = note.pid is None or note.stale is None
            return Sighting(note=note, state="unknown" if hidden else "ended", age=age)
        now = time.monotonic(), reading.cpu
        share = percent(self._moments.get(note.id), now)
        self._moments[note.id] = now
        return Sighting(
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
            return await _by_engine(note)
        if not is_there(note):
            return None
        kept = self._local.get(note.id)
        if kept is not None and kept[0].pid == note.pid:
            return kept[1].read(from_now=False, now=True)
        self._forget(note.id)
        meters = usage.meters_of(note.pid)
        if meters is None or not any(_is_own(note, path) for path in meters.paths):
            if meters is not None:
                meters.close()
            # Not in a control group of its own: what its processes use, added up.
            return Watchdog(note.pid, 0).reading(now=True)
        self._local[note.id] = note, usage.Local(meters)
        return self._local[note.id][1].read(from_now=False, now=True)

    def _forget(self, id: str) -> None:
        kept = self._local.pop(id, None)
        if kept is not None:
            kept[1].close()

    def close(self) -> None:
        for id in list(self._local):
            self._forget(id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _unseen(note: Note) -> Sighting:
    """There was no time to look at it, or no way."""
    state: State = "orphan" if note.stale else "unknown"
    return Sighting(note=note, state=state, age=max(time.time() - note.created, 0.0))


def is_there(note: Note) -> bool:
    """Whether the process that the note names is the sandbox's first one, still."""
    if note.pid is None or note.pid_started is None:
        return False
    if processes.started(note.pid) != note.pid_started:
        return False
    if processes.uid(note.owner.pid) != note.uid:
        return False
    if note.container is not None:
        return usage.process_of(note.container, note.pid)
    return processes.is_first_of_its_namespace(note.pid) and processes.descends(
        note.pid, note.owner.pid
    )


def _is_own(note: Note, path: str) -> bool:
    parts = path.split("/")
    return any(part.startswith(note.id) for part in parts) or any(
        note.container is not None and note.container in part for part in parts
    )


# -- the engine ---------------------------------------------------------------------------------


def _engine(note: Note) -> Engine | None:
    """The engine that has it, if it is one that we would use anyway, or the file is our own:
    nobody else tells us whom to connect to."""
    if note.engine is None or note.container is None:
        return None
    try:
        ours = endpoint.find()
        if str(ours) == note.engine:
            return Engine(ours)
        if note.uid == os.geteuid():
            return Engine(endpoint.parse(note.engine, "a presence file", os.environ))
    except SandboxError:
        return None
    return None


async def _by_engine(note: Note) -> UsageSample | None:
    engine = _engine(note)
    if engine is None or note.container is None:
        return None
    asked = usage.Remote(engine, note.container)
    with anyio.move_on_after(TIMEOUT):
        reading = await asked.read()
        return None if asked.gone else reading
    return None


def kill(note: Note) -> None:
    """End the sandbox at once; its owner sees it as lost. Raises SandboxError if that cannot be."""
    if note.container is not None and (note.pid is None or note.uid != os.geteuid()):
        # The engine knows whose a container is; another user's file may name anybody's.
        anyio.run(_kill_container, note)
    else:
        _kill_process(note)


def _kill_process(note: Note) -> None:
    if note.pid is None:
        raise SandboxError(f"it is not known where {note.id} is")
    try:
        pidfd = os.pidfd_open(note.pid)
    except ProcessLookupError:
        return
    try:
        # Looked at when it is pinned: the number may be another's by now.
        if not is_there(note):
            return
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise SandboxError(f"{note.id} belongs to somebody else", hint="as root?") from error
    finally:
        os.close(pidfd)


async def _kill_container(note: Note) -> None:
    engine = _engine(note)
    if engine is None:
        raise SandboxError(f"{note.id} is on an engine that cannot be asked from here")
    path = f"/containers/{note.container}"
    try:
        seen = await engine.request("GET", f"{path}/json", timeout=TIMEOUT)
        marks = (seen.get("Config") or {}).get("Labels") or {}
        same = labels.Owner.parse(marks) == note.owner and note.id in marks[labels.SANDBOX]
        if not same or processes.uid(note.owner.pid) != note.uid:
            raise SandboxError(f"the container that {note.id} names is none of its own")
        await engine.request("POST", f"{path}/kill", timeout=TIMEOUT)
    except EngineError as error:
        if error.status not in (404, 409):  # gone, or not running
            raise
