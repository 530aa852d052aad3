"""A checkpoint: the state of a sandbox that one can go back to."""

from __future__ import annotations

from dataclasses import dataclass, field

from belljar.sandbox.guest_session import Place


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """A parked copy of the interpreter, and a copy of the files in /workspace.

    It lives in the sandbox and counts against its limits, until `release()` or the sandbox's end.
    """

    id: int
    lacks: tuple[str, ...] = ()  # what could not be kept: threads, sockets, processes
    fresh: bool = field(default=False, repr=False)  # variables had been lost before it was made
    place: Place = field(repr=False)
