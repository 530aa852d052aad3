"""Memory and CPU of a guest without cgroups: looked at from outside, ten times a second.

Best effort, and said to be so: between two looks a guest may pass its limit.
"""

from __future__ import annotations

import os
import signal

from belljar.backends.base import Reading

INTERVAL = 0.1
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")


class Watchdog:
    def __init__(self, init: int, memory: int) -> None:
        self._init = init
        self._memory = memory
        self._peak = 0
        self.kills = 0
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True

    def look(self) -> None:
        """Measure; over the limit, kill what holds most. Called by the runtime's thread."""
        pids = processes(self._init)
        self._note_peak(pids)
        if sum(map(_resident, pids)) <= self._memory:
            return  # shared pages counted in full, and still below: no need to look closer
        shares = {pid: _share(pid) for pid in pids}
        total = sum(shares.values())
        if total <= self._memory:
            return
        shares.pop(self._init, None)
        if shares and self._kill(max(shares, key=lambda pid: shares[pid])):
            self.kills += 1

    def _note_peak(self, pids: list[int]) -> None:
        """What the guest has beyond its birth: init shows how much of it all of them share."""
        born = _resident(self._init)
        beyond = (_resident(pid) - born for pid in pids)
        self._peak = max(self._peak, sum(size for size in beyond if size > 0))

    def _kill(self, pid: int) -> bool:
        """By descriptor, and only if it is still the guest's: numbers are used again."""
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        try:
            if pid not in processes(self._init):
                return False
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            return True
        except ProcessLookupError:
            return False
        finally:
            os.close(pidfd)

    def reading(self, *, from_now: bool = False) -> Reading:
        pids = processes(self._init)
        if from_now:
            self._peak = 0
        self._note_peak(pids)
        cpu = sum(map(_cpu, pids))
        return Reading(cpu=cpu, peak_memory=self._peak, memory_kills=self.kills)


def processes(init: int) -> list[int]:
    """PID 1 of the guest and all below it: orphans become its children, so none is missed."""
    found, todo = [], [init]
    while todo:
        pid = todo.pop()
        found.append(pid)
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as file:
                    todo += map(int, file.read().split())
        except OSError:
            continue  # ended meanwhile
    return found


def _resident(pid: int) -> int:
    return int(_words(f"/proc/{pid}/statm", 1)) * _PAGE


def _share(pid: int) -> int:
    """Its proportional share of memory, so that pages shared by forks count once."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0


def _cpu(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    # utime, stime, and those of its children that ended
    return sum(int(value) for value in fields[11:15]) / _TICK


def _words(path: str, index: int) -> str:
    try:
        with open(path) as file:
            return file.read().split()[index]
    except OSError:
        return "0"
