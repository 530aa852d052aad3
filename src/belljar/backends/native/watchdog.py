"""Memory and CPU of a guest without cgroups: looked at from outside, ten times a second.

Best effort, and said to be so: between two looks a guest may pass its limit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable

from belljar.backends.base import UsageSample
from belljar.backends.linux import proc

_TICK = os.sysconf("SC_CLK_TCK")


class Watchdog:
    def __init__(self, init: int, memory: int, find_workers: Callable[[], list[int]]) -> None:
        self._init = init
        self._memory = memory
        self._find_workers = find_workers
        self._peak = 0
        self._kills = 0
        # Who sees that a process was killed finds it counted, however late this thread goes on.
        self._killing = threading.Lock()
        self.stopped = False

    @property
    def kills(self) -> int:
        with self._killing:
            return self._kills

    def look(self) -> None:
        """Measure; over the limit, kill what holds most. Called by the runtime's thread."""
        pids = self._processes()
        if sum(map(_resident, pids)) <= self._memory:
            return  # shared pages counted in full, and still below: no need to look closer
        shares = {pid: _share(pid) for pid in pids if pid != self._init}
        total = sum(shares.values())
        self._peak = max(self._peak, total)
        if total > self._memory:
            worst = max(shares, key=lambda p: self._badness(p, shares))
            with self._killing:
                self._kills += self._kill(worst)

    def _badness(self, pid: int, shares: dict[int, int]) -> float:
        """As the kernel would weigh it: what runs goes before what is parked."""
        adjusted = _first_number(f"/proc/{pid}/oom_score_adj") / 1000
        return shares[pid] + self._memory * adjusted

    def read_usage(self, *, from_now: bool = False, now: bool = False) -> UsageSample:
        pids = self._processes()
        workers = [pid for pid in pids if pid != self._init]
        if from_now:
            self._peak = 0
            for pid in workers:
                _reset_peak(pid)
        else:
            self._peak = max(self._peak, sum(map(_peak, workers)))
        return UsageSample(
            cpu=sum(map(_cpu, pids)),
            peak_memory=self._peak,
            memory_kills=self.kills,
            memory=sum(map(_share, workers)) if now else None,
            processes=len(pids) if now else None,
        )

    def kill_all(self) -> None:
        for pid in self._processes():
            self._kill(pid)

    def _kill(self, pid: int) -> bool:
        """By descriptor, and only if it is still the guest's: numbers are used again."""
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid)
            try:
                if pid in self._processes():
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    return True
            finally:
                os.close(pidfd)
        return False

    def _processes(self) -> list[int]:
        """PID 1 of the guest, its workers and all below them: orphans become children of PID 1, so
        none is missed."""
        found: set[int] = set()
        todo = [self._init, *self._find_workers()]
        while todo:
            pid = todo.pop()
            found.add(pid)
            try:
                for task in os.listdir(f"/proc/{pid}/task"):
                    todo += map(int, proc.read(f"/proc/{pid}/task/{task}/children").split())
            except OSError:
                continue  # ended meanwhile
        return list(found)


def _resident(pid: int) -> int:
    """Without pages of programs and libraries, which are the host's: a guest could map those so
    often that to look closer takes a second, while all others wait to be looked at."""
    return _sum_rows(f"/proc/{pid}/status", "RssAnon", "RssShmem")


def _share(pid: int) -> int:
    """Its proportional share of memory, so that pages shared by forks count once."""
    return _sum_rows(f"/proc/{pid}/smaps_rollup", "Pss")


def _peak(pid: int) -> int:
    """The most it had in memory, with what it shares: cheap enough for every cell."""
    return _sum_rows(f"/proc/{pid}/status", "VmHWM")


def _reset_peak(pid: int) -> None:
    try:
        with open(f"/proc/{pid}/clear_refs", "w") as file:
            file.write("5")  # VmHWM counts from now
    except OSError:
        return  # then it is the peak of its whole life


def _cpu(pid: int) -> float:
    try:
        fields = proc.read_stat(pid)
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return 0.0
    # utime and stime, and those of its children that ended: complete, but in coarse ticks. Of
    # the threads that live, the scheduler knows the nanoseconds.
    own, ended = (sum(map(int, fields[i : i + 2])) / _TICK for i in (11, 13))
    exact = sum(_first_number(f"/proc/{pid}/task/{task}/schedstat") for task in tasks)
    return max(own, exact / 1e9) + ended


def _sum_rows(path: str, *names: str) -> int:
    """The bytes in rows of the form `Name:   123 kB`; 0 if the process has ended."""
    try:
        rows = (line.partition(":") for line in proc.read(path).split("\n"))
    except OSError:
        return 0
    return 1024 * sum(int(value.split()[0]) for name, _, value in rows if name in names)


def _first_number(path: str) -> int:
    try:
        return int(proc.read(path).split()[0])
    except OSError:
        return 0
