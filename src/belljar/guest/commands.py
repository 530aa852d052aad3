"""Commands: programs that init starts at the caller's request, beside the worker."""

import os
import signal
import subprocess
import time
from typing import Any, Callable, Dict, List, Set, Union

from ..protocol import wire
from . import poller
from .poller import Pump

NOT_FOUND = 127
DEATH_LOOKS = 200  # a millisecond apart
STOP_LOOKS = 20  # the same; a parent in vfork() does not stop before its child goes on
CANNOT_RUN = 126
STOP_TIMEOUT = 0.5  # seconds for processes to stop

# init's own limits of open files and memory are higher than the code's; a shell can lower them
# before it becomes the command, without a copy of init being made for that. Out of memory, the
# kernel shall pick the command before init, and what it starts before the interpreter: set here,
# because a child that is born before a later write would not inherit it.
_LIMITED = (
    "/bin/sh",
    "-c",
    "{ echo 1000 >/proc/$$/oom_score_adj; } 2>/dev/null; "
    'ulimit -n "$0" && ulimit -d "$1" && shift && exec "$@"',
)


def start(init: Any, frame: wire.Frame) -> None:
    header = frame.header
    environment = {**os.environ, **(header.get("env") or {})}
    limit = init.setup.get("data")
    data = "unlimited" if limit is None else str(limit // 1024)
    try:
        process = subprocess.Popen(
            [*_LIMITED, str(init.setup["open_files"]), data, *header["argv"]],
            stdin=subprocess.PIPE if frame.payload else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=header["cwd"],
            env=environment,
            start_new_session=True,
            bufsize=0,
        )
    except (OSError, ValueError) as error:
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN
        init.send(wire.STREAM, frame.request, {"name": "stderr"}, f"{error}\n".encode())
        init.send(wire.DONE, frame.request, {"exit_code": code, "signal": None})
        return
    init.commands[frame.request] = Command(init, frame, process)


class Command:
    def __init__(self, init: Any, frame: wire.Frame, process: "subprocess.Popen[bytes]") -> None:
        self._init = init
        self._request = frame.request
        self._process = process
        self._room = int(frame.header["output"])
        self.pid = process.pid
        self._pumps: List[Pump] = []
        for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
            assert pipe is not None
            # The pump owns its own copy, so that the Popen object can be dropped with its own.
            self._pumps.append(Pump(init, os.dup(pipe.fileno()), name, self._on_output))
            pipe.close()
        self._input = memoryview(frame.payload)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            init.selector.register(process.stdin, poller.WRITE, self._on_input)

    def _on_input(self, pipe: Any, events: int) -> None:
        if pipe.closed:
            return  # the command ended in this very round
        try:
            self._input = self._input[os.write(pipe.fileno(), self._input[: wire.CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:
            self._input = memoryview(b"")  # the command does not want the rest
        if not self._input:
            self._close_input()

    def _close_input(self) -> None:
        pipe = self._process.stdin
        if pipe is not None and not pipe.closed:
            self._init.selector.unregister(pipe)
            pipe.close()

    def _on_output(self, pump: Pump, data: bytes) -> None:
        if self._room < 0:
            return
        kept = data[: self._room]
        if kept:
            self._init.send(wire.STREAM, self._request, {"name": pump.name}, kept)
        self._room -= len(data)
        if self._room < 0:
            self._init.send(wire.OVERFLOW, self._request)

    def signal(self, number: int) -> None:
        """To the whole process group; the leader is not reaped yet, so the number is its own."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass  # it has just ended; its status is on the way

    def kill(self) -> None:
        """With what it started, also in sessions of their own. What has been daemonised (its
        parent has ended) cannot be told from other orphans and lives on."""
        found = _descendants(self.pid)  # before they are orphans
        # The shell and what it waits for at once: one that sees its child die goes on with the next
        # command.
        self.signal(signal.SIGKILL)
        for pid in found:
            _send_signal(pid, signal.SIGKILL)

    def on_exit(self, status: int) -> None:
        """What a background child still writes after this is not waited for, nor shown."""
        self._process.returncode = status  # reaped by init: Popen must not wait again
        self._close_input()
        for pump in self._pumps:
            pump.drain()
            pump.close()
        del self._init.commands[self._request]
        died = os.WIFSIGNALED(status)
        header: Dict[str, Any] = {
            "signal": os.WTERMSIG(status) if died else None,
            "exit_code": None if died else os.WEXITSTATUS(status),
        }
        self._init.send(wire.DONE, self._request, header)


def kill_leftovers(init: Any) -> None:
    """End whatever the worker started: everything but init and what is not the worker's.

    Without others one kill(-1) reaches all at once.
    """
    if init.commands or init.protected():
        _kill_wanted(init, lambda pid: True)
    else:
        _signal_all(signal.SIGKILL)


def kill_since(init: Any, began: float, worker: int) -> None:
    """End what a cell has started, and nothing older: for a cell that passed a limit but whose
    interpreter lives on."""
    ticks = int(began * os.sysconf("SC_CLK_TCK"))
    _kill_wanted(init, lambda pid: pid != worker and started(pid) >= ticks)


def threads_since(worker: int, began: float) -> bool:
    """Whether the worker still runs threads that a cell has started. They cannot be ended but
    with it."""
    ticks = int(began * os.sysconf("SC_CLK_TCK"))
    try:
        tasks = [int(name) for name in os.listdir(f"/proc/{worker}/task")]
    except OSError:
        return False  # gone, threads and all
    return any(task != worker and started(task) >= ticks for task in tasks)


def _signal_all(number: int) -> None:
    try:
        os.kill(-1, number)
    except ProcessLookupError:
        pass  # nothing left


def _kill_wanted(init: Any, wanted: "Callable[[int], bool]") -> None:
    """All are stopped first, by one call that reaches every one of them, so that nothing can fork
    away from what follows."""
    _signal_all(signal.SIGSTOP)
    _wait_until_stopped()
    sessions = {command.pid for command in init.commands.values()}
    others, asleep = init.protected(), init.asleep()
    killed: Set[int] = set()
    while True:  # one that was being forked when the stop came appears a moment later
        found = [p for p in processes() if p not in others and p not in killed and wanted(p)]
        victims = [p for p in found if not _in_sessions(p, sessions)]
        if not victims:
            break
        for pid in victims:
            _send_signal(pid, signal.SIGKILL)
        killed.update(victims)
    for pid in processes():
        if pid not in killed and pid not in asleep:
            _send_signal(pid, signal.SIGCONT)
    # They are dying; who looks afterwards shall not find them. Not for long: init waits here.
    for _ in range(DEATH_LOOKS):
        if not any(_is_alive(pid) for pid in killed):
            return
        time.sleep(0.001)


def _wait_until_stopped() -> None:
    """A child whose fork is under way when the stop comes is born stopped. It would miss the signal
    to continue if that came before its birth, so every fork must have ended."""
    for _ in range(STOP_LOOKS):
        if all(_is_stopped(pid) for pid in processes()):
            return
        time.sleep(0.001)


def _is_stopped(pid: int) -> bool:
    """Whether all its threads have stopped or ended."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        return all(stat(f"{pid}/task/{task}")[0] in b"TtZX" for task in tasks)
    except OSError:
        return True  # gone meanwhile


def _is_alive(pid: int) -> bool:
    try:
        return not is_over(stat(pid))
    except OSError:
        return False


def _send_signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it has ended


def _descendants(pid: int) -> List[int]:
    children: Dict[int, List[int]] = {}
    for other in processes():
        try:
            children.setdefault(int(stat(other)[1]), []).append(other)
        except OSError:
            continue  # ended meanwhile
    found: List[int] = []
    todo = children.get(pid, [])
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


def started(pid: int) -> int:
    """When, in clock ticks since boot; never, if it is gone."""
    try:
        return int(stat(pid)[19])
    except OSError:
        return -1


def parent(pid: int) -> int:
    """0, if it is gone."""
    try:
        return int(stat(pid)[1])
    except OSError:
        return 0


def stat(pid: "Union[int, str]") -> List[bytes]:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def is_over(fields: List[bytes]) -> bool:
    """Whether all its threads have ended: of the first alone the kernel says the same."""
    return fields[0] in (b"Z", b"X") and int(fields[17]) <= 1


def processes() -> List[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def _in_sessions(pid: int, sessions: "set[int]") -> bool:
    try:
        if os.getsid(pid) in sessions:
            return True
        return is_over(stat(pid))
    except OSError:
        return True  # gone meanwhile


def signal_processes(start_times: Dict[int, int], number: int) -> None:
    """Send a signal to processes, each given with its start time."""
    for pid, start_time in start_times.items():
        if start_time < 0 or started(pid) != start_time:
            continue  # it has ended, and another process may have its number now
        _send_signal(pid, number)


def wait_until_stopped(others: "set[int]") -> List[int]:
    """Processes but for `others`, which have all been told to stop. One that was being forked at
    that time appears a little later, and until its parent stands still too."""
    deadline = time.monotonic() + STOP_TIMEOUT
    while True:
        found = [pid for pid in processes() if pid not in others]
        if all(_is_stopped(pid) for pid in found) or time.monotonic() > deadline:
            return found
        time.sleep(0.001)
