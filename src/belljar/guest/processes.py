"""Processes: programs that init starts for the host, and that go on beside its other requests."""

import contextlib
import fcntl
import json
import os
import signal
import struct
import subprocess
import tempfile
import termios
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ..protocol import messages, wire
from . import commands
from .sources import MAX_STREAMS, Port, Reader, Source

MAX_ENDED = 64  # processes that have ended and are remembered
LONG_SCRIPT = 100 * 1024  # bytes; Linux takes 128 KiB for one argument
NOT_FOUND = 127
CANNOT_RUN = 126
PIPE_READS = 17  # take all that a pipe can hold, one megabyte
HANG_UP = 0.1  # seconds that a terminal's last output may take

# Init's limits of open files and memory are higher than the code's. A shell lowers them before it
# becomes the command, so init need not fork a copy of itself for that. It also sets the score by
# which the kernel, when memory runs out, kills the command before init and before the interpreter:
# a child that is forked before a later write would not inherit it.
_LIMITED = (
    "/bin/sh",
    "-c",
    "{ echo 1000 >/proc/$$/oom_score_adj; } 2>/dev/null; "
    'ulimit -n "$1" && ulimit -d "$2" && shift 2 && exec "$@"',
    "sh",
)
# The first terminal that the leader of a session opens becomes its controlling terminal.
_ON_TERMINAL = ("/bin/sh", "-c", 'exec <>"$0" >&0 2>&1 && exec "$@"')
_TERMINAL = "xterm-256color"  # what programs find in TERM, unless the caller says otherwise


class Process(Source):
    def __init__(self, init: Any, child: "subprocess.Popen[bytes]", asked: Dict[str, Any]) -> None:
        super().__init__(init)
        self._child, self._asked = child, asked
        self.pid = child.pid
        self.branch = init.branches.active
        self.alive = True
        self._terminal = self._slave = -1
        self._status: Dict[str, Any] = {}
        self._timed_out = False
        self._timer = None
        if asked.get("timeout") is not None:
            self._timer = init.selector.call_later(asked["timeout"], self._time_out)
        init.processes[self.pid] = self
        self._began = time.time()

    def describe(self) -> Dict[str, Any]:
        asked = self._asked
        return {
            "pid": self.pid,
            "name": asked.get("name"),
            "cmd": asked.get("shown"),
            "cwd": asked["cwd"],
            "pty": bool(asked.get("pty")),
            "stdin": self._input >= 0,
            "began": self._began,
            "end": self.end,
        }

    def use_terminal(self, terminal: int, slave: int) -> None:
        """The slave stays open until the process has ended: else the terminal reports a hang-up
        before the process has opened it."""
        self._terminal, self._slave = terminal, slave
        self.use({terminal: "stdout"}, os.dup(terminal))
        self._output.patient = False  # a person waits for the echo

    def close_input(self) -> None:
        """Of a terminal: as a person ends it, by Ctrl-D."""
        if self._terminal >= 0 and self.alive:
            if self._input_ends:
                self._input_ends = False
                self._input_ends = not self._write(memoryview(b"\x04"))  # else when there is room
        else:
            super().close_input()

    def signal(self, number: int) -> None:
        """The process and its group. It is not reaped yet, so the number is not another's."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.killpg(self.pid, number)

    def kill(self) -> None:
        """With its descendants in other sessions. A daemon (a process whose parent has ended)
        cannot be told from other orphans, and lives on."""
        if self.alive:
            found = commands.descendants(self.pid)  # before they are orphans
            # The shell first, with the child that it waits for: a shell that sees its child die
            # runs its next command.
            self.signal(signal.SIGKILL)
            for pid in found:
                commands.send_signal(pid, signal.SIGKILL)

    def _time_out(self) -> None:
        self._timer, self._timed_out = None, True
        self.kill()

    def resize(self, columns: int, rows: int) -> None:
        if self._terminal >= 0 and self.alive:
            set_size(self._terminal, columns, rows)

    def on_exit(self, status: int) -> None:
        """Called when init has reaped it. What its background children write later is dropped."""
        self._child.returncode = status  # reaped by init: Popen must not wait again
        self.alive = False
        if self._timer is not None:
            self._init.selector.cancel(self._timer)
        self._status = {**commands.describe_exit(status), "timed_out": self._timed_out}
        if self._slave >= 0:
            # The kernel passes output of a terminal on a moment later. It ends with a hang-up, if
            # no other process has the terminal open.
            os.close(self._slave)
            self._slave = -1
            self._output.read()
            if self._output.pipes:
                self._output.hold(False)
                self._output.on_end = self._settle
                self._timer = self._init.selector.call_later(HANG_UP, self._settle)
                return
        else:
            self._output.read(PIPE_READS)
        self._settle()

    def _settle(self) -> None:
        if self._timer is not None:
            self._init.selector.cancel(self._timer)
            self._timer = None
        if self.end is None:
            self._output.on_end = None
            self._output.read(PIPE_READS)
            self.finish(self._status)
            forget(self._init, self if self._asked.get("once") else None)


def set_size(terminal: int, columns: int, rows: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def forget(init: Any, ended: "Optional[Process]") -> None:
    """A process that has ended, and the oldest of many."""
    if ended is not None:
        del init.processes[ended.pid]
    known = [pid for pid, process in init.processes.items() if process.end is not None]
    for pid in known[:-MAX_ENDED]:
        del init.processes[pid]


# -- requests -------------------------------------------------------------------------------------


def open_stream(init: Any, frame: wire.Frame) -> None:
    """Start a process, find one, or connect to a port; and give the host a stream to it."""
    asked = json.loads(frame.payload)

    source: Source

    def opened(error: Optional[str]) -> None:
        init.send(
            wire.REPLY, frame.request, source.describe() if error is None else {"error": error}
        )
        if error is None:
            source.attach(Reader(frame.request, int(frame.header["credit"])))

    try:
        if len(init.streams) >= MAX_STREAMS:
            raise OSError(f"{MAX_STREAMS} streams are open")
        if "port" in asked:
            source = port = Port(init, frame.request)
            port.connect(asked["port"], opened)
            return
        source = find(init, asked["pid"]) if "pid" in asked else start(init, asked)
    except KeyError:
        opened("there is no such process")
    except (OSError, ValueError) as error:
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN
        init.send(wire.REPLY, frame.request, {"error": str(error), "exit_code": code})
    else:
        opened(None)


def serve(init: Any, frame: wire.Frame) -> None:
    """A request about processes."""
    header = frame.header
    if header["op"] == "list":
        active = init.branches.active
        every = [each for each in init.processes.values() if each.branch is active]
        found = [each.describe() for each in every]
        data = json.dumps(found).encode("ascii")
        if len(data) > messages.MAX_TABLE:
            data = json.dumps([{**each, "cmd": ""} for each in found]).encode("ascii")
        init.send(wire.DATA, frame.request, None, data)
        init.send(wire.REPLY, frame.request)
        return
    process = init.processes.get(header["pid"])
    if process is None or not process.alive:
        init.send(wire.REPLY, frame.request, {"error": "ended"})
        return
    if header["op"] == "kill":
        process.kill()
    elif header["op"] == "signal":
        process.signal(header["signal"])
    else:
        process.resize(*header["size"])
    init.send(wire.REPLY, frame.request)


def find(init: Any, pid: int) -> Process:
    """One of the active branch: those of other forks stand still while it has its turn."""
    process: Process = init.processes[pid]
    if process.branch is not init.branches.active:
        raise KeyError(pid)
    return process


def start(init: Any, asked: Dict[str, Any]) -> Process:
    limit, size = init.setup.get("data"), asked.get("pty")
    data = "unlimited" if limit is None else str(limit // 1024)
    words = [*_LIMITED, str(init.setup["open_files"]), data]
    env = {**os.environ}
    if size and env.get("TERM", "dumb") == "dumb":
        env["TERM"] = _TERMINAL
    with contextlib.ExitStack() as undo:
        terminal: List[int] = []
        if size:
            terminal += os.openpty()
            for fd in terminal:
                undo.callback(os.close, fd)
            set_size(terminal[0], *size)
            words = [*_ON_TERMINAL, os.ttyname(terminal[1]), *words]
        with _script(asked["argv"]) as (argv, passed):
            output = subprocess.DEVNULL if size else subprocess.PIPE
            child = subprocess.Popen(
                [*words, *argv],
                stdin=subprocess.PIPE if asked.get("stdin") else subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if asked.get("merge") else output,
                cwd=asked["cwd"],
                env={**env, **(asked.get("env") or {})},
                start_new_session=True,
                pass_fds=passed,
                bufsize=0,
            )
        undo.pop_all()
    process = Process(init, child, asked)
    try:
        if terminal:
            process.use_terminal(*terminal)
        else:
            named = (("stdout", child.stdout), ("stderr", child.stderr))
            pipes = {_take(pipe): name for name, pipe in named if pipe is not None}
            process.use(pipes, _take(child.stdin) if child.stdin is not None else -1)
    except OSError:  # out of descriptors
        process.kill()
        raise
    return process


def _take(pipe: Any) -> int:
    """A copy of the descriptor: the Popen object closes its own."""
    fd = os.dup(pipe.fileno())
    pipe.close()
    return fd


@contextlib.contextmanager
def _script(argv: List[str]) -> "Iterator[Tuple[List[str], List[int]]]":
    """The words to run, and descriptors to pass on: the text for a shell may be longer than an
    argument can be."""
    if len(argv) != 3 or argv[:2] != ["/bin/sh", "-c"] or len(argv[2]) < LONG_SCRIPT:
        yield argv, []
        return
    with tempfile.TemporaryFile(dir="/tmp") as file:
        file.write(argv[2].encode("utf-8", "surrogateescape"))
        file.flush()
        yield ["/bin/sh", f"/proc/self/fd/{file.fileno()}"], [file.fileno()]
