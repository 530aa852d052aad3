"""What Branches holds: branches, checkpoints, copies in the making; and how processes are told."""

import os
import time
from typing import Any, Callable, Dict, List

from . import commands
from .worker_process import Keeper
from .workspace_store import CURRENT

STOP_SECONDS = 0.5  # for processes that are being stopped


class Branch:
    """One line of life: an interpreter and a workspace."""

    def __init__(self, number: int, keeper: Keeper) -> None:
        self.number = number
        self.keeper = keeper
        self.files = CURRENT  # where they lie when it is not active
        self.functions: List[Any] = []  # of the host
        self.fresh = False  # variables were lost since the last cell
        self.asleep = False  # it has not run since it was parked
        self.stopped: Dict[int, int] = {}  # process -> when it was started: numbers are used again
        self.released = False


class Kept:
    """A checkpoint."""

    def __init__(self, keeper: Keeper, files: str) -> None:
        self.keeper = keeper
        self.files = files


class Copy:
    """A copy of interpreter and workspace in the making: done when all three parts are."""

    def __init__(self, keeper: Keeper, parent: Keeper, then: "Callable[[Copy], None]") -> None:
        self.keeper = keeper
        self.parent = parent
        self.files = ""
        self.lacks: List[str] = []
        self.error = ""
        self.waits = {"forked", "ready", "files"}
        self._then = then

    def done(self, *parts: str, error: str = "") -> None:
        self.error = self.error or error
        self.waits.difference_update(parts)
        if not self.waits:
            then, self._then = self._then, _nothing
            then(self)


def _nothing(copy: Copy) -> None:
    """Nobody waits for it any more."""


def tell(processes: Dict[int, int], number: int) -> None:
    for pid, started in processes.items():
        if started < 0 or commands.started(pid) != started:
            continue  # it has ended; another may have its number now
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass  # it was faster


def standing(others: "set[int]") -> List[int]:
    """Processes but for `others`, which have all been told to stop. One that was being forked at
    that time appears a little later, and until its parent stands still too."""
    deadline = time.monotonic() + STOP_SECONDS
    while True:
        found = [pid for pid in commands.processes() if pid not in others]
        if all(_stands(pid) for pid in found) or time.monotonic() > deadline:
            return found
        time.sleep(0.001)


def _stands(pid: int) -> bool:
    try:
        fields = commands.stat(pid)
        if fields[0] in (b"T", b"t") or commands.is_over(fields):
            return True
        if fields[0] != b"Z":
            return False
        tasks = os.listdir(f"/proc/{pid}/task")  # the first has ended, others have not
        states = [commands.stat(f"{pid}/task/{task}")[0] for task in tasks]
        return all(state in (b"T", b"t", b"Z", b"X") for state in states)
    except OSError:
        return True  # it was faster
