"""The contract of a backend: a process behind a byte stream, and a kill switch.

Everything else (running code, output, files, commands) is spoken over the stream with the one
guest program, the same on every backend.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Protocol

from belljar.backends.isolation import Isolation, Layer
from belljar.backends.mounts import WORKSPACE, Mount
from belljar.environment.environment import Environment
from belljar.errors import LimitNotEnforceable
from belljar.limits import Limits
from belljar.protocol import wire
from belljar.protocol.messages import MAX_FILES


@dataclass(frozen=True, kw_only=True)
class GuestSpec:
    """What the caller asked for, validated."""

    id: str  # unique for each guest, also for the second of one sandbox
    environment: Environment
    limits: Limits
    env: Mapping[str, str] = field(default_factory=dict)
    # Refuse limits that cannot be enforced: all, these, or none; None: warn of those set.
    strict: bool | frozenset[str] | None = None
    mounts: tuple[Mount, ...] = ()
    scratch: tuple[str, ...] = ()  # where it has file systems of its own, as its workspace is
    noexec: bool = False  # nothing that lies in these, the workspace or /tmp can be executed
    workdir: str = WORKSPACE  # where its workspace is
    network: str = "none"
    settings: object = None  # of the one backend that takes some
    # When the Environment's preload is worth its time. A backend may share its cost among guests.
    once: bool = False  # it is for one piece of code, and this process may make no other guest
    ahead: bool = False  # it waits for code

    def requires(self, limit: str) -> bool:
        """Whether it must not start unless this limit is enforced."""
        return self.strict is True or (isinstance(self.strict, frozenset) and limit in self.strict)


@dataclass(frozen=True, kw_only=True)
class UsageSample:
    """What a guest has used so far, measured by the host; None: this host cannot tell."""

    cpu: float | None  # seconds
    peak_memory: int | None  # bytes
    memory_kills: int  # processes that were killed because memory was used up
    # At this very moment, if that was asked for:
    memory: int | None = None  # bytes
    processes: int | None = None  # threads are counted too where a cgroup counts

    def completed_by(self, other: UsageSample) -> UsageSample:
        """Take from another reading what this one could not tell."""
        known = {name: value for name, value in asdict(self).items() if value is not None}
        return replace(other, **known)


@dataclass(frozen=True, kw_only=True)
class Location:
    """Where other processes of this host can find a guest."""

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
        """Send all of it, with a descriptor if given, which is closed here. Raises OSError when the
        guest is gone. If this is cancelled, the rest goes out before the next send:
        half a frame would corrupt the stream. Several sends may run at once."""

    def take_fd(self) -> int:
        """The next descriptor that came with what was received; the caller closes it. Raises
        WireError if none came. Called for each frame that announces one."""

    def ended(self) -> bool:
        """True if the guest is known to be gone; does not wait. Called before each request."""


class Guest(Protocol):
    """A live guest. All methods may be called from any thread but for the awaited ones."""

    @property
    def stream(self) -> Stream: ...

    @property
    def isolation(self) -> Isolation: ...

    @property
    def location(self) -> Location: ...

    async def read_usage(self, *, from_now: bool = False, now: bool = False) -> UsageSample:
        """Called by the sandbox around each cell, and by its usage(). `from_now` resets the peak;
        `now` adds what is used at this moment."""

    def find_mapped(self) -> set[int] | None:
        """Inodes of files that its processes have mapped for writing; None: init can tell. Called
        in a worker thread, to keep a workspace."""

    async def freeze(self) -> Periodic | None:
        """Stop every process of the guest, which loses nothing by it. Gives what has to look after
        it until it is thawed. Called once before each thaw()."""

    async def thaw(self) -> None:
        """Let every process go on that freeze() has stopped."""

    def kill(self) -> None:
        """End every process of the guest at once. Called at any time, also twice."""

    async def close(self) -> None:
        """kill(), and leave nothing behind. Called once for each guest, also after its death."""

    def discard(self) -> None:
        """kill() without waiting for the end. Called for a sandbox that was never closed."""


class Periodic(Protocol):
    """An object whose look() is called regularly, until it is `stopped`."""

    stopped: bool

    def look(self) -> None:
        """Called by the runtime's thread, ten times a second. Never blocks."""


class Host(Protocol):
    """What the process-wide runtime offers to a backend."""

    def submit(self, function: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run a task on the runtime's own thread, which lives as long as the process."""

    def mind(self, minded: Periodic) -> None:
        """Call its look() from now on."""


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
        """Close our copies, end nothing. Called in a fork of the host process."""


ONE_RESULT = 8  # times the output limit that one result may take: pictures are large


def init_settings(limits: Limits, *, share: bool) -> dict[str, object]:
    """What init is told of the limits. `share`: values may be passed as shared memory, which a
    memory cgroup must count."""
    return {
        "output": limits.output,
        "open_files": limits.open_files,
        "result": min(ONE_RESULT * limits.output, limits.memory // 8, wire.MAX_PAYLOAD),
        "values": limits.memory,
        "share": share,
    }


def check_limits(spec: GuestSpec, kept: Iterable[Layer], where: str) -> None:
    """Refuse or warn about limits that `where` (this host, this engine) cannot enforce.

    With `strict=True` every one is refused, with names those. By default one that the caller set is
    refused if nothing at all keeps it; best effort is accepted with a warning, which Python shows
    once. A limit above its default is taken as one that was not set: it asks for room.
    """
    for layer in kept:
        if layer.state == "enforced" or spec.strict is False:
            continue
        asked = layer.name in spec.limits.explicit - spec.limits.raised
        why = f"{where} cannot enforce the limit {layer.name}: {layer.detail}"
        if spec.requires(layer.name) or (asked and layer.state == "absent"):
            hint = "strict=False starts without it"
            raise LimitNotEnforceable(why, hint=f"{layer.remedy}; {hint}" if layer.remedy else hint)
        if asked:
            message = f"{why}. It is best effort; strict=True refuses to start"
            warnings.warn(message, RuntimeWarning, stacklevel=2)


def limit_open_files(spec: GuestSpec, kept: Iterable[Layer], most: int | None) -> tuple[Layer, ...]:
    """How limits are kept, with the number of open files that init can give the code.

    `most`: the hard limit of init as seen from outside (None: unknown or unlimited), which it
    cannot raise. A larger limit is refused if the caller is strict; else it is lowered, with a
    warning.
    """
    asked, holds = spec.limits.open_files, min(MAX_FILES, most or MAX_FILES)
    if asked <= holds:
        return tuple(kept)
    why = f"open_files={asked} is more than a sandbox can have on this host, which is {holds}"
    remedy = (
        "raise the hard limit (ulimit -Hn, LimitNOFILE= of a service), or ask for less"
        if holds < MAX_FILES
        else f"ask for {MAX_FILES} at most"
    )
    if spec.requires("open_files"):
        raise LimitNotEnforceable(why, hint=remedy)
    warnings.warn(f"{why}; {remedy}", RuntimeWarning, stacklevel=2)
    detail = f"RLIMIT_NOFILE for each process, {holds}; {asked} were asked for"
    return tuple(
        replace(layer, detail=detail, remedy=remedy) if layer.name == "open_files" else layer
        for layer in kept
    )
