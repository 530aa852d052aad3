"""Commands: programs that init starts for the host, beside the worker. Also the process table."""

import contextlib
import os
import signal
import subprocess
import time
from typing import Any, Callable, Dict, Iterable, List, Set, Union

from ..protocol import wire
from . import poller
from .poller import OutputReader

NOT_FOUND = 127
DEATH_CHECKS = 200  # a millisecond apart
CANNOT_RUN = 126
STOP_TIMEOUT = 0.5  # seconds for processes to stop
KILL_TIMEOUT = 0.03  # before a kill: a parent in vfork() stops only when its child goes on

# Init's limits of open files and memory are higher than the code's. A shell lowers them before it
# becomes the command, so init need not fork a copy of itself for that. It also sets the score by
# which the kernel, when memory runs out, kills the command before init and before the interpreter:
# a child that is forked before a later write would not inherit it.
_LIMITED = (
    "/bin/sh",
    "-c",
    "{ echo 1000 >/proc/$$/oom_score_adj; } 2>/dev/null; "
    'ulimit -n "$0" && ulimit -d "$1" && shift && exec "$@"',
)


def start_command(init: Any, frame: wire.Frame) -> None:
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
        pipes = {}
        for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
            assert pipe is not None
            # A copy for the reader, which closes it: the Popen object closes its descriptor, too.
            pipes[os.dup(pipe.fileno())] = name
            pipe.close()
        self._output = OutputReader(init, pipes, self._on_output)
        self._input = memoryview(frame.payload)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            init.selector.register(process.stdin, poller.WRITE, self._on_input)

    def _on_input(self, pipe: Any, events: int) -> None:
        if pipe.closed:
            return  # the command ended since the poll
        try:
            self._input = self._input[os.write(pipe.fileno(), self._input[: wire.CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:
            self._input = memoryview(b"")  # the command has closed its input
        if not self._input:
            self._close_input()

    def _close_input(self) -> None:
        pipe = self._process.stdin
        if pipe is not None and not pipe.closed:
            self._init.selector.unregister(pipe)
            pipe.close()

    def _on_output(self, reader: OutputReader, name: str, data: bytes) -> None:
        if self._room < 0:
            return
        kept = data[: self._room]
        if kept:
            self._init.send(wire.STREAM, self._request, {"name": name}, kept)
        self._room -= len(data)
        if self._room < 0:
            self._init.send(wire.OVERFLOW, self._request)

    def signal(self, number: int) -> None:
        """Signal the process group; the leader is not reaped yet, so its pid is not used again."""
        with contextlib.suppress(ProcessLookupError):  # it has just ended; its status is on the way
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """Kill it with its descendants in other sessions. A daemon (a process whose parent has
        ended) cannot be told from other orphans, and lives on."""
        found = _descendants(self.pid)  # before they are orphans
        # The shell first, with the child that it waits for: a shell that sees its child die runs
        # its next command.
        self.signal(signal.SIGKILL)
        for pid in found:
            _send_signal(pid, signal.SIGKILL)

    def on_exit(self, status: int) -> None:
        """Called when init has reaped it. Later output of background children is dropped."""
        self._process.returncode = status  # reaped by init: Popen must not wait again
        self._close_input()
        self._output.read()
        self._output.close()
        del self._init.commands[self._request]
        self._init.send(wire.DONE, self._request, describe_exit(status))


def describe_exit(status: int) -> Dict[str, Any]:
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status), "exit_code": None}
    return {"signal": None, "exit_code": os.WEXITSTATUS(status)}


def kill_leftovers(init: Any) -> None:
    """Kill all processes that the worker started. One kill(-1) is enough if there are no others."""
    if init.commands or init.branches.protected():
        _kill_wanted(init, lambda pid: True)
    else:
        _signal_all(signal.SIGKILL)


def kill_since(init: Any, began: float, worker: int) -> None:
    """Kill the processes that a cell has started: it passed a limit, but its interpreter lives."""
    ticks = int(began * os.sysconf("SC_CLK_TCK"))
    _kill_wanted(init, lambda pid: pid != worker and read_start_time(pid) >= ticks)


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


def _kill_wanted(init: Any, wanted: "Callable[[int], bool]") -> None:
    """First one call stops all processes, so that none can escape by forking."""
    _signal_all(signal.SIGSTOP)
    wait_until_stopped(set(), KILL_TIMEOUT)
    sessions = {command.pid for command in init.commands.values()}
    others, asleep = init.branches.protected(), init.branches.asleep()
    killed: Set[int] = set()
    while True:  # a process that was being forked at the stop appears a moment later
        found = [p for p in list_processes() if p not in others and p not in killed and wanted(p)]
        victims = [p for p in found if not _in_sessions(p, sessions)]
        if not victims:
            break
        for pid in victims:
            _send_signal(pid, signal.SIGKILL)
        killed.update(victims)
    for pid in list_processes():
        if pid not in killed and pid not in asleep:
            _send_signal(pid, signal.SIGCONT)
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


def _send_signal(pid: int, number: int) -> None:
    # It has ended, or is a worker that is being confined.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _descendants(pid: int) -> List[int]:
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


def _in_sessions(pid: int, sessions: "set[int]") -> bool:
    try:
        return os.getsid(pid) in sessions or has_ended(read_stat(pid))
    except OSError:
        return True  # gone meanwhile


def signal_processes(start_times: Dict[int, int], number: int) -> None:
    """Send a signal to processes, each given with its start time."""
    for pid, start_time in start_times.items():
        if start_time < 0 or read_start_time(pid) != start_time:
            continue  # it has ended, and another process may have its number now
        _send_signal(pid, number)


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
