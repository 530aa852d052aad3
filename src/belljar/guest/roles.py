"""The roles that a worker can have: of a branch, a checkpoint, or of a copy that is being made."""

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional

from .worker_process import WorkerProcess
from .workspace_store import CURRENT


@dataclass(eq=False)
class Branch:
    worker: WorkerProcess
    files: str = CURRENT  # the name of its workspace in the store while it is not active
    functions: List[Any] = field(default_factory=list)  # host functions
    state_lost: bool = False  # variables were lost since the last cell
    asleep: bool = False  # its worker has run no cell since it was parked
    # Stopped processes with their start times, because pids are used again.
    stopped: Dict[int, int] = field(default_factory=dict)
    released: bool = False


@dataclass(eq=False)
class Checkpoint:
    worker: WorkerProcess
    files: str


@dataclass(eq=False)
class Copy:
    """An interpreter and a workspace that are being copied: done when all three parts are."""

    worker: WorkerProcess
    parent: WorkerProcess
    then: "Optional[Callable[[Copy], None]]"
    files: str = ""
    missing: List[str] = field(default_factory=list)
    error: str = ""
    waits: "set[str]" = field(default_factory=lambda: {"forked", "ready", "files"})

    def done(self, *parts: str, error: str = "") -> None:
        self.error = self.error or error
        self.waits.difference_update(parts)
        if not self.waits and self.then is not None:
            then, self.then = self.then, None
            then(self)
