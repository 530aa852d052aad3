"""Processes of this host, out of /proc."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
_PF_EXITING = 4


@dataclasses.dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    state: str
    started: int  # clock ticks since boot
    name: str

    @property
    def dead(self) -> bool:
        return self.state in "ZX"

    def __str__(self) -> str:
        return f"process {self.pid} ({self.name}, {self.state}): {command_line(self.pid)}"


def process(pid: int) -> Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    state = fields[0]
    if state == "Z" and int(fields[17]) > 1:
        state = "R"  # its first thread has ended; others have not
    return Process(int(pid), int(fields[1]), state, int(fields[19]), name)


def command_line(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return ""
    return text.decode(errors="replace")[:120].replace("\n", " ")


def processes() -> dict[int, Process]:
    """Every process that can be seen, by number."""
    found = (process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {p.pid: p for p in found if p is not None}


def descendants(pid: int) -> list[Process]:
    """Everything below a process (not itself), zombies left out."""
    children: dict[int, list[Process]] = {}
    for p in processes().values():
        children.setdefault(p.parent, []).append(p)
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += [p.pid for p in below]
    return [p for p in found if not p.dead]


def tree(pid: int) -> list[int]:
    """Every living process at and below `pid`."""
    return [p.pid for p in (process(pid), *descendants(pid)) if p and not p.dead]


def alive(pid: int, started: int | None = None) -> bool:
    p = process(pid)
    return p is not None and not p.dead and started in (None, p.started)


def is_ending(pid: int) -> bool:
    """It has begun to end, and has lost some of what it had; or it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return True
    return bool(int(text.rpartition(")")[2].split()[6]) & _PF_EXITING)


class TooLate(AssertionError):
    """Something did not happen in time."""


def wait_until(condition: Callable[[], T | None], timeout: float = 30.0, what: str = "it") -> T:
    """For what nobody tells us about, such as a death elsewhere."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TooLate(f"{what} did not happen within {timeout:g} s")
        time.sleep(0.01)
