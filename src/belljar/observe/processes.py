"""Facts about processes of this host, out of /proc; None of one that is gone."""

from __future__ import annotations

import os

_PARENT, _STARTED = 1, 19  # counted from the field after the command's name


def started(pid: int) -> int | None:
    """When it began, in clock ticks after boot: with the pid, this names one process for good."""
    fields = _stat(pid)
    return None if fields is None else int(fields[_STARTED])


def parent(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None else int(fields[_PARENT])


def descends(pid: int, ancestor: int) -> bool:
    """Whether a process is a child of the other one, or a child of its children."""
    for _ in range(64):
        above = parent(pid)
        if above is None or above <= 1:
            return False
        if above == ancestor:
            return True
        pid = above
    return False


def uid(pid: int) -> int | None:
    """The user it runs as. (The directory in /proc is root's, if the process is not dumpable.)"""
    numbers = _status(pid, "Uid:")
    return int(numbers[1]) if len(numbers) > 1 else None


def is_first_of_its_namespace(pid: int) -> bool:
    """Whether it is PID 1 of a pid namespace below ours."""
    numbers = _status(pid, "NSpid:")
    return len(numbers) > 1 and numbers[-1] == "1"


def _status(pid: int, name: str) -> list[str]:
    try:
        with open(f"/proc/{pid}/status", errors="replace") as file:
            return next((line.split()[1:] for line in file if line.startswith(name)), [])
    except OSError:
        return []


def _stat(pid: int) -> list[bytes] | None:
    # Without the layers of open(): it is read for each sandbox that starts.
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(descriptor, 4096)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return text.rpartition(b")")[2].split()
