"""The process table of the guest: what runs, and how init ends it."""

import contextlib
import os
import signal
import time
from typing import Any, Callable, Dict, Iterable, List, Set, Union

DEATH_CHECKS = 200  # a millisecond apart
KILL_ROUNDS = 4  # before all processes are stopped
STOP_TIMEOUT = 0.5  # seconds for processes to stop
KILL_TIMEOUT = 0.03  # before a kill: a parent in vfork() stops only when its child goes on


def describe_exit(status: int) -> Dict[str, Any]:
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status), "exit_code": None}
    return {"signal": None, "exit_code": os.WEXITSTATUS(status)}


def kill_leftovers(init: Any, others: "Set[int]") -> None:
    """Kill all processes that a worker started, and not `others`, with what they started. One
    kill(-1) is enough if there are no others."""
    if others or init.sessions() or init.branches.protected():
        _kill_wanted(init, others, lambda pid: True)
    else:
        _signal_all(signal.SIGKILL)


def kill_since(init: Any, began: float, worker: int, others: "Set[int]") -> None:
    """Kill the processes that a cell has started: it passed a limit, but its interpreter lives."""
    ticks = int(began * os.sysconf("SC_CLK_TCK"))
    _kill_wanted(init, others, lambda pid: pid != worker and read_start_time(pid) >= ticks)


def threads_since(worker: int, began: float) -> bool:
    """True if the worker runs threads that a cell has started. Only its death ends them."""
    ticks = int(began * os.sysconf("SC_CLK_TCK"))
    try:
        tasks = [int(name) for name in os.listdir(f"/proc/{worker}/task")]
    except OSError:
        return False  # gone, threads and all
    return any(task != worker and read_start_time(task) >= ticks for task in tasks)


def _signal_all(number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # nothing left
        os.kill(-1, number)


def _kill_wanted(init: Any, others: "Set[int]", wanted: "Callable[[int], bool]") -> None:
    """What belongs to `others`, or to a process that the host has started, survives."""
    owners = init.sessions() | others
    parked, asleep = init.branches.protected(), init.branches.asleep()
    killed: Set[int] = set()

    def kill_found() -> bool:
        found = [p for p in list_processes() if p not in parked and p not in killed and wanted(p)]
        victims = [p for p in found if not _belongs_to(p, owners)]
        for pid in victims:
            send_signal(pid, signal.SIGKILL)
        killed.update(victims)
        return bool(victims)

    # A process that was sent SIGKILL forks no more; what it forked before is found next.
    if all(kill_found() for _ in range(KILL_ROUNDS)):
        # They fork faster than they are killed. One call stops all processes, so that none can
        # escape. A shell that survives sees that its children were stopped.
        _signal_all(signal.SIGSTOP)
        wait_until_stopped(set(), KILL_TIMEOUT)
        while kill_found():  # one that was being forked at the stop appears a moment later
            continue
        for pid in list_processes():
            if pid not in killed and pid not in asleep:
                send_signal(pid, signal.SIGCONT)
    # They are dying. Wait until they are gone, but not for long: init serves nothing meanwhile.
    for _ in range(DEATH_CHECKS):
        if not any(is_alive(pid) for pid in killed):
            return
        time.sleep(0.001)


def _is_stopped(pid: int) -> bool:
    """True if all its threads have stopped or ended."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True  # gone meanwhile
    for task in tasks:
        with contextlib.suppress(OSError):  # this thread has ended meanwhile; others may run
            if read_stat(f"{pid}/task/{task}")[0] not in b"TtZX":
                return False
    return True


def is_alive(pid: int) -> bool:
    try:
        return not has_ended(read_stat(pid))
    except OSError:
        return False


def send_signal(pid: int, number: int) -> None:
    # It has ended, or is a worker that is being confined.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def descendants(pid: int) -> List[int]:
    children: Dict[int, List[int]] = {}
    for other in list_processes():
        children.setdefault(read_parent(other), []).append(other)
    found: List[int] = []
    todo = children.get(pid, [])
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


def read_start_time(pid: int) -> int:
    """In clock ticks since boot; -1 if the process is gone."""
    try:
        return int(read_stat(pid)[19])
    except OSError:
        return -1


def read_parent(pid: int) -> int:
    """0 if the process is gone."""
    try:
        return int(read_stat(pid)[1])
    except OSError:
        return 0


def read_stat(pid: "Union[int, str]") -> List[bytes]:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def has_ended(fields: List[bytes]) -> bool:
    """True if all threads have ended: the kernel says Z when the first thread alone has."""
    return fields[0] in (b"Z", b"X") and int(fields[17]) <= 1


def list_processes() -> List[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def _belongs_to(pid: int, owners: "Set[int]") -> bool:
    """True if it is in the session of one, or descends from one, or has ended."""
    try:
        if os.getsid(pid) in owners or has_ended(read_stat(pid)):
            return True
    except OSError:
        return True  # gone meanwhile
    while owners and pid > 1:
        if pid in owners:
            return True
        pid = read_parent(pid)
    return False


def signal_processes(start_times: Dict[int, int], number: int) -> None:
    """Send a signal to processes, each given with its start time."""
    for pid, start_time in start_times.items():
        if start_time < 0 or read_start_time(pid) != start_time:
            continue  # it has ended, and another process may have its number now
        send_signal(pid, number)


def read_start_times(pids: "Iterable[int]") -> Dict[int, int]:
    return {pid: read_start_time(pid) for pid in pids}


def wait_until_stopped(others: "set[int]", seconds: float = STOP_TIMEOUT) -> List[int]:
    """All processes except `others`, when they have stopped. One that was being forked at the stop
    appears a little later. It is born stopped, and would miss a SIGCONT from before its birth."""
    deadline = time.monotonic() + seconds
    while True:
        found = [pid for pid in list_processes() if pid not in others]
        if all(_is_stopped(pid) for pid in found) or time.monotonic() > deadline:
            return found
        time.sleep(0.001)
