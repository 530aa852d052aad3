"""Processes: programs that init starts for the host and that go on beside its other requests.

The host reads a process by one stream or several. Init reads its pipes only while some stream has
credit: a process whose readers have all stopped is held up by its full pipe, and no limit ends it.
Without any reader it goes on, and the last of its output is kept for one that comes later.
"""

import errno
import fcntl
import json
import os
import signal
import struct
import subprocess
import tempfile
import termios
import time
from collections import deque
from typing import Any, Deque, Dict, List, Optional, Tuple

from ..protocol import wire
from . import commands, poller

KEPT = 1024 * 1024  # bytes of output, for readers that are slow or come later
KEPT_ENDED = 64 * 1024  # of a process that has ended
MAX_ENDED = 64  # processes that have ended and are remembered
MAX_STREAMS = 1024
READ_SIZE = 256 * 1024
SMALL = 4096  # bytes; a chunk that is shorter grows
LONG_COMMAND = 100 * 1024  # bytes; Linux takes 128 KiB for one argument
# The first terminal that the leader of a session opens becomes its controlling terminal.
_ON_TERMINAL = ("/bin/sh", "-c", 'exec <>"$0" >&0 2>&1 && exec "$@"')


class Reader:
    """A stream of the host that reads a process, and may write to it."""

    def __init__(self, process: "Process", request: int, credit: int) -> None:
        self._process = process
        self.request, self.credit = request, credit
        self.number = self.offset = 0  # the chunk that is next, and how much of it was sent
        self.skipped = 0  # bytes that were dropped because it was too slow
        self.taken = 0  # bytes of its input that were written and not reported yet

    def on_bytes(self, data: bytes) -> None:
        self._process.write(self, data)

    def on_credit(self, size: int) -> None:
        self._process.grant(self, size)

    def on_end(self, header: Dict[str, Any]) -> None:
        if header.get("input"):
            self._process.end_input()
        else:
            self._process.detach(self)


class Process:
    def __init__(
        self, init: Any, child: "subprocess.Popen[bytes]", asked: Dict[str, Any]
    ) -> None:
        self._init, self._child, self._asked = init, child, asked
        self.pid = child.pid
        self._started = time.time()
        self._status: Optional[Dict[str, Any]] = None  # how it ended
        self._timed_out = False
        self._chunks: Deque[List[Any]] = deque()  # the last output: [name, bytes or bytearray]
        self._first = 0  # the number of the first chunk
        self._size = 0  # bytes in all chunks
        self.readers: Dict[int, Reader] = {}
        self._outputs: Dict[int, str] = {}  # descriptor -> name, of those that are open
        self._left: Dict[int, int] = {}  # bytes that were in them when the process ended
        self._input = -1
        self._terminal = -1  # our end of it: input and output
        self._slave = -1  # held open while the process runs: else ours reports a hang-up
        self._watched = self._paused = self._writing = False
        self._unwritten: Deque[Tuple[Reader, memoryview]] = deque()
        self._input_ends = False

    def describe(self) -> Dict[str, Any]:
        asked = self._asked
        return {
            "pid": self.pid,
            "name": asked.get("name"),
            "cmd": asked["cmd"],
            "cwd": asked["cwd"],
            "pty": bool(asked.get("pty")),
            "started": self._started,
            "status": self._status,
        }

    # -- output -----------------------------------------------------------------------------

    def watch(self, outputs: Dict[int, str]) -> None:
        self._outputs = outputs
        for fd in outputs:
            os.set_blocking(fd, False)
        self._update()

    def attach(self, reader: Reader) -> None:
        reader.number = self._first
        self.readers[reader.request] = reader
        self._serve(reader)
        self._update()

    def detach(self, reader: Reader) -> None:
        del self.readers[reader.request], self._init.streams[reader.request]
        self._trim()
        self._update()

    def grant(self, reader: Reader, credit: int) -> None:
        reader.credit += credit
        self._serve(reader)
        self._update()

    def _update(self) -> None:
        """Poll the outputs while there is somebody to read for: the fastest reader decides."""
        wanted = not self.readers or any(each.credit > 0 for each in self.readers.values())
        wanted = wanted and bool(self._outputs) and not self._paused
        if wanted != self._watched:
            self._watched = wanted
            for fd in self._outputs:
                if wanted:
                    self._init.selector.register(fd, poller.READ, self._on_output)
                else:
                    self._init.selector.unregister(fd)

    def resume(self) -> None:
        self._paused = False
        self._update()

    def _on_output(self, fd: int, events: int) -> None:
        if not self._watched or fd not in self._outputs:
            return  # the handler of the other pipe has just stopped the polling
        self._read(fd)
        if self._init.congested and not self._paused:
            self._paused = True
            self._init.pause(self)
        self._update()

    def _read(self, fd: int) -> bool:
        """Take one piece. False: there is no more, for now or for ever."""
        try:
            data = os.read(fd, min(READ_SIZE, self._left.get(fd, READ_SIZE)))
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EIO:  # of a terminal that no process has open
                raise
            data = b""
        if data:
            self._keep(self._outputs[fd], data)
            for reader in list(self.readers.values()):
                self._serve(reader)
            self._trim()
            if fd in self._left:
                self._left[fd] -= len(data)
        if not data or self._left.get(fd, 1) <= 0:
            self._close_output(fd)
            return False
        return True

    def _keep(self, name: str, data: bytes) -> None:
        self._size += len(data)
        last = self._chunks[-1] if self._chunks else None
        if last is not None and last[0] == name and len(last[1]) < SMALL:
            last[1] = bytearray(last[1]) + data
        else:
            self._chunks.append([name, data])

    def _trim(self) -> None:
        most = KEPT if self._status is None or self.readers else KEPT_ENDED
        while self._size > most and len(self._chunks) > 1:
            size = len(self._chunks.popleft()[1])
            for reader in self.readers.values():
                if reader.number == self._first:
                    reader.skipped += size - reader.offset
                    reader.number, reader.offset = self._first + 1, 0
            self._first += 1
            self._size -= size

    def _serve(self, reader: Reader) -> None:
        """Send what there is for a reader, as far as its credit goes."""
        while reader.credit > 0 and reader.number < self._first + len(self._chunks):
            at = reader.number - self._first
            name, chunk = self._chunks[at] if at else self._chunks[0]
            data = chunk
            if reader.offset or len(chunk) > reader.credit:
                data = memoryview(chunk)[reader.offset : reader.offset + reader.credit]
            if not data:
                break  # all of a chunk that may still grow
            header: Dict[str, Any] = {} if name == "stdout" else {"name": name}
            if reader.skipped:
                header["skipped"], reader.skipped = reader.skipped, 0
            self._init.send(wire.BYTES, reader.request, header, bytes(data))
            reader.credit -= len(data)
            reader.offset += len(data)
            if reader.offset == len(chunk) and (
                len(chunk) >= SMALL or at + 1 < len(self._chunks)
            ):
                reader.number, reader.offset = reader.number + 1, 0
        if self._status is not None and not self._outputs and self._is_at_end(reader):
            self._init.send(wire.END, reader.request, self._status)
            self.detach(reader)

    def _is_at_end(self, reader: Reader) -> bool:
        ahead = self._first + len(self._chunks) - reader.number
        return ahead <= 0 or (ahead == 1 and reader.offset == len(self._chunks[-1][1]))

    def _close_output(self, fd: int) -> None:
        if self._watched:
            self._init.selector.unregister(fd)
        del self._outputs[fd]
        if fd != self._terminal:
            os.close(fd)
        if not self._outputs:
            self._watched = False
            if self._status is not None:
                self._end()

    # -- input ------------------------------------------------------------------------------

    def write(self, reader: Reader, data: bytes) -> None:
        self._unwritten.append((reader, memoryview(data)))
        self._on_input(self._input, poller.WRITE)

    def end_input(self) -> None:
        """Of a terminal: as a person ends it, by Ctrl-D."""
        self._input_ends = True
        self._on_input(self._input, poller.WRITE)

    def _on_input(self, fd: int, events: int) -> None:
        while self._unwritten:
            reader, data = self._unwritten[0]
            if self._input >= 0:
                try:
                    count = os.write(self._input, data)
                except BlockingIOError:
                    break
                except OSError:
                    count = len(data)  # it has closed its input
            else:
                count = len(data)
            reader.taken += count
            if count < len(data):
                self._unwritten[0] = reader, data[count:]
            else:
                self._unwritten.popleft()
            if reader.taken >= wire.WINDOW // 4 or not self._unwritten:
                self._init.send(wire.CREDIT, reader.request, {"size": reader.taken})
                reader.taken = 0
        if self._input_ends and not self._unwritten:
            self._close_input()
        waits = bool(self._unwritten) and self._input >= 0
        if waits != self._writing:
            self._writing = waits
            if waits:
                self._init.selector.register(self._input, poller.WRITE, self._on_input)
            else:
                self._init.selector.unregister(self._input)

    def _close_input(self) -> None:
        if self._input < 0:
            return
        if self._terminal >= 0 and self._status is None:
            self._input_ends = False
            try:
                os.write(self._input, b"\x04")
            except OSError:
                return  # full: the program does not read
            return
        if self._writing:
            self._init.selector.unregister(self._input)
            self._writing = False
        os.close(self._input)
        self._input = -1

    def use_input(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._input = fd

    def use_terminal(self, ours: int, slave: int) -> None:
        self._terminal, self._slave = ours, slave
        self.use_input(os.dup(ours))
        self.watch({ours: "stdout"})

    # -- its life ---------------------------------------------------------------------------

    def signal(self, number: int) -> None:
        """The process and its group. It is not reaped yet, so the number is not another's."""
        if self._status is None:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                return  # it has just ended

    def kill(self) -> None:
        if self._status is None:
            commands.kill_tree(self.pid)

    def time_out(self) -> None:
        if self._status is None:
            self._timed_out = True
            self.kill()

    def resize(self, columns: int, rows: int) -> None:
        if self._terminal >= 0:
            set_size(self._terminal, columns, rows)

    def on_exit(self, status: int) -> None:
        """Called when init has reaped it. What it has written is read; what its background children
        write from now on is dropped."""
        self._child.returncode = status  # reaped by init: Popen must not wait again
        self._status = {**commands.describe_exit(status), "timed_out": self._timed_out}
        self._close_input()
        if self._slave >= 0:
            os.close(self._slave)
            self._slave = -1
        for fd in list(self._outputs):
            self._left[fd] = unread(fd)
            if not self._left[fd]:
                self._close_output(fd)
        if not self._outputs:
            self._end()
        elif not self.readers:
            for fd in list(self._outputs):
                while self._read(fd):
                    continue

    def _end(self) -> None:
        for reader in list(self.readers.values()):
            self._serve(reader)
        self._trim()
        if self._terminal >= 0:
            os.close(self._terminal)  # hangs up on what still has it
            self._terminal = -1


def unread(fd: int) -> int:
    """Bytes that a pipe or a terminal holds."""
    found = fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0")
    return int(struct.unpack("i", found)[0])


def set_size(terminal: int, columns: int, rows: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


# -- requests -------------------------------------------------------------------------------------


def open_stream(init: Any, frame: wire.Frame) -> None:
    """Start a process or find one, and give the host a stream to it."""
    asked = json.loads(frame.payload)
    try:
        if len(init.streams) >= MAX_STREAMS:
            raise OSError(errno.EMFILE, f"{MAX_STREAMS} streams are open")
        if "pid" in asked:
            process = init.processes.get(asked["pid"])
            if process is None:
                raise ProcessLookupError(errno.ESRCH, f"no process {asked['pid']}")
        else:
            process = start(init, asked)
    except (OSError, ValueError) as error:
        init.send(wire.REPLY, frame.request, {"error": str(error), "errno": error.errno})
        return
    init.send(wire.REPLY, frame.request, process.describe())
    reader = Reader(process, frame.request, int(frame.header["credit"]))
    init.streams[frame.request] = reader
    process.attach(reader)


def serve(init: Any, frame: wire.Frame) -> None:
    """A request about processes."""
    header = frame.header
    if header["op"] == "list":
        found = [each.describe() for each in init.processes.values()]
        init.send(wire.REPLY, frame.request, {}, json.dumps(found).encode())  # as DATA
        return
    process = init.processes.get(header["pid"])
    if process is None or process.ended:
        init.send(wire.REPLY, frame.request, {"error": "gone"})
        return
    if header["op"] == "signal":
        process.signal(header["signal"])
    elif header["op"] == "kill":
        process.kill()
    else:
        process.resize(*header["size"])
    init.send(wire.REPLY, frame.request, {})


def start(init: Any, asked: Dict[str, Any]) -> Process:
    words = list(asked["argv"])
    size, stdin = asked.get("pty"), asked.get("stdin")
    environment = {**os.environ, **(asked.get("env") or {})}
    ours: List[int] = []  # descriptors that are closed if it cannot be started
    with commands.long_script(words) as passed:
        ...
