"""Memory and CPU of a guest without cgroups: looked at from outside, ten times a second.

Best effort, and said to be so: between two looks a guest may pass its limit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable

from belljar.backends.base import UsageSample
from belljar.backends.linux import proc
from belljar.errors import SandboxError

_TICK = os.sysconf("SC_CLK_TCK")
STOP_TIMEOUT = 5.0  # seconds
MOST_AWAKE = 5  # looks that find a guest which went on
AWAKE_TIME = 0.002  # seconds of processor time between two looks


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

    def stop_all(self) -> Stopped:
        """Stop every process by a signal; it stays so while the result is looked at."""
        return Stopped(self._processes, self._signal)

    def _kill(self, pid: int) -> bool:
        return self._signal([pid], signal.SIGKILL) > 0

    def _signal(self, pids: list[int], number: int) -> int:
        """By descriptor, and only those that are still the guest's: numbers are used again."""
        sent = 0
        with contextlib.ExitStack() as opened:
            found = {}
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    found[pid] = os.pidfd_open(pid)
                    opened.callback(os.close, found[pid])
            living = set(self._processes())
            for pid in (pid for pid in found if pid in living):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(found[pid], number)
                    sent += 1
        return sent

    def _processes(self) -> list[int]:
        """PID 1 of the guest, its workers and all below them, parents first: orphans become
        children of PID 1, so none is missed."""
        found: dict[int, None] = {}
        todo = [*self._find_workers(), self._init]
        while todo:
            pid = todo.pop()
            found[pid] = None
            try:
                for task in os.listdir(f"/proc/{pid}/task"):
                    todo += map(int, proc.read(f"/proc/{pid}/task/{task}/children").split())
            except OSError:
                continue  # ended meanwhile
        return list(found)


class Stopped:
    """The processes of a guest, stopped by SIGSTOP where no cgroup can freeze them.

    No process can refuse it, but one can let the kernel send it SIGCONT later (a timer). So they
    are looked at; a guest that goes on again and again is killed.
    """

    def __init__(
        self, find: Callable[[], list[int]], send: Callable[[list[int], int], int]
    ) -> None:
        self._find, self._send = find, send
        self._by_us: list[int] = []  # parents first: none sees that its child was stopped
        self._awake = 0  # looks that found that it had gone on
        self.stopped = False  # no more looks
        seen: set[int] = set()
        # One that was sent the signal makes no more processes; those it made before are found.
        while new := [pid for pid in find() if pid not in seen]:
            seen.update(new)
            new = [pid for pid in new if not _is_stopped(pid)]  # by the guest itself
            self._by_us += new
            send(new, signal.SIGSTOP)
        until = time.monotonic() + STOP_TIMEOUT
        while awake := [pid for pid in find() if not _is_stopped(pid)]:
            if time.monotonic() > until:
                self.go_on()
                raise SandboxError("the processes of the guest do not stop")
            send(awake, signal.SIGSTOP)  # again: a timer of the code may have sent SIGCONT
            time.sleep(0.002)
        self._cpu = sum(map(_cpu, find()))

    def look(self) -> None:
        """Called by the runtime's thread."""
        found = self._find()
        awake = [pid for pid in found if not _is_stopped(pid)]
        # Code that knows when it is looked at may be stopped just then: its time tells.
        cpu = sum(map(_cpu, found))
        ran, self._cpu = cpu - self._cpu > AWAKE_TIME, cpu
        if self.stopped or not (awake or ran):
            return
        self._awake += 1
        number = signal.SIGSTOP
        if self._awake > MOST_AWAKE:
            self.stopped, number = True, signal.SIGKILL
        self._send(found if self.stopped else awake, number)

    def go_on(self) -> None:
        self.stopped = True
        self._send(self._by_us[::-1], signal.SIGCONT)


def _is_stopped(pid: int) -> bool:
    """Whether none of its threads can run code of its own: those that wait in the kernel (D) have
    the signal before them."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        return all(proc.read_stat(f"{pid}/task/{task}")[0] in "TtDZX" for task in tasks)
    except OSError:
        return True  # it has ended


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
