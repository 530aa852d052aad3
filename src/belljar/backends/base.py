"""The contract of a backend: a process behind a byte stream, and a kill switch.

Everything else (running code, output, files, commands) is spoken over the stream with the one
guest program, the same on every backend.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from belljar.backends.isolation import Isolation
from belljar.backends.mounts import Mount
from belljar.backends.workdir import WORKSPACE
from belljar.environment.environment import Environment
from belljar.limits import Limits


@dataclass(frozen=True, kw_only=True)
class GuestSpec:
    """What the caller asked for, validated."""

    id: str  # unique for each guest, also for the second of one sandbox
    environment: Environment
    limits: Limits
    env: Mapping[str, str] = field(default_factory=dict)
    strict: bool | None = None  # refuse limits that cannot be enforced; None: warn of those set
    mounts: tuple[Mount, ...] = ()
    scratch: tuple[str, ...] = ()  # where it has file systems of its own, as its workspace is
    noexec: bool = False  # nothing that lies in these, the workspace or /tmp can be executed
    workdir: str = WORKSPACE  # where its workspace is
    network: str = "none"
    settings: object = None  # of the one backend that takes some


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a guest has used so far, as the host sees it; None: this host cannot tell."""

    cpu: float | None  # seconds
    peak_memory: int | None  # bytes
    memory_kills: int  # processes ended for want of memory
    # At this very moment, if that was asked for:
    memory: int | None = None  # bytes
    processes: int | None = None  # threads are counted too where a cgroup counts


@dataclass(frozen=True, kw_only=True)
class Whereabouts:
    """Where on this host a guest can be seen, by those who look at it from another process."""

    pid: int | None = None  # of its PID 1; None: it is on another machine
    cgroups: tuple[str, ...] = ()  # directories of its control groups
    container: str | None = None  # its id
    engine: str | None = None  # the address of the engine that has it


class Stream(Protocol):
    """A byte stream to the guest, used by one reader at a time."""

    shares: bool  # whether descriptors can go with the bytes

    async def receive(self) -> bytes:
        """Some bytes; b"" when the guest is gone."""

    async def send(self, data: bytes, fd: int = -1) -> None:
        """All of it, with a descriptor if there is one, which is given away. Raises OSError when
        the guest is gone. What is not sent when this is cancelled goes before what is sent next:
        half a frame would garble all that follow. Any number at once."""

    def take_fd(self) -> int:
        """The next descriptor that came with what was received; the caller closes it. Raises
        WireError if there is none. Called for each frame that speaks of one."""

    def ended(self) -> bool:
        """Whether the guest is known to be gone, without waiting. Asked before each request."""


class Guest(Protocol):
    """A live guest. All methods may be called from any thread but for the awaited ones."""

    @property
    def stream(self) -> Stream: ...

    @property
    def isolation(self) -> Isolation: ...

    @property
    def whereabouts(self) -> Whereabouts: ...

    async def reading(self, *, from_now: bool = False, now: bool = False) -> Reading:
        """Called by the sandbox around each cell, and by who asks what it uses. `from_now` lets
        the peak count anew; `now` tells also what is used at this moment."""

    def kill(self) -> None:
        """End every process of the guest at once. Called at any time, also twice."""

    async def close(self) -> None:
        """kill(), and leave nothing behind. Called once for each guest, also after its death."""

    def discard(self) -> None:
        """kill(), and let go of it without waiting. Called for a sandbox nobody closed."""


class Minded(Protocol):
    """Something that wants to be looked at regularly, until it says it is `stopped`."""

    stopped: bool

    def look(self) -> None:
        """Called by the runtime's thread, ten times a second. Never blocks."""


class Host(Protocol):
    """What the process-wide runtime offers to a backend."""

    def submit(self, function: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run a task on the runtime's own thread, which lives as long as the process."""

    def mind(self, minded: Minded) -> None:
        """Look at it from now on."""


class Backend(Protocol):
    name: str

    async def start(self, spec: GuestSpec) -> Guest:
        """A guest that is confined and waits for its first frame.

        Called by a sandbox at its start, and again when its guest was lost. Leaves nothing
        behind when it raises or is cancelled.
        """

    def close(self) -> None:
        """End every guest. Called once, by the runtime at its end; blocks until they are gone."""

    def abandon(self) -> None:
        """Let go of everything without ending it. Called in a fork of the host process."""
