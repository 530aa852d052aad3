"""Interpreters: a worker, and the cell that it runs. A guest has one, and one for each context.

The worker may say anything, at any time: init believes the kernel about its end, and passes on only
what may be said of the cell that runs.
"""

import json
import os
import signal
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from ..protocol import messages, wire
from ..protocol.buffers import close_all
from . import commands, file_requests
from .poller import OutputReader
from .roles import Branch
from .worker_process import WorkerProcess

MAX_STALE = 8  # earlier cells whose pipes are still held open by what they left behind
MAX_BACKGROUND = 64 * 1024
FOR_INIT = ("watch", "output", "worker", "functions", "context")  # fields of RUN, not the worker's
GONE = {"status": "died", "signal": None, "exit_code": None, "lost": True}
MAX_CHANGES = 1024 * 1024  # bytes that describe changed files
START_SECONDS = 2.0  # for attempts to start a worker, ten milliseconds apart


class Cell:
    """One run: its output, and what the worker has said about it so far."""

    def __init__(self, request: int, limit: int) -> None:
        self.request = request
        self.began = time.clock_gettime(time.CLOCK_BOOTTIME)
        self.ending = False  # it passed a limit: what it started is killed with it
        self.done: Optional[Dict[str, Any]] = None
        self.payload = b""
        self.nonce = b""
        self.shared: List[int] = []  # the descriptor of its value
        self.output: Optional[OutputReader] = None
        self.holders = (0, 0)  # who had its pipes when it began: see Init._holders
        self.unchanged = False  # the worker's standard streams still are these pipes
        self.room = limit
        self.calls: Set[int] = set()  # of host functions, under way
        self.watched = False  # the host wants to know which files change
        self.files: Optional[file_requests.Census] = None  # before the cell


class WatchedDirectory:
    """A directory that is examined before and after each cell. While it is empty, one stat() is
    enough."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._empty: Optional[Tuple[int, int, int]] = None  # device, inode, ctime

    def take_census(self) -> Optional[file_requests.Census]:
        try:
            status = os.stat(self._root)
        except OSError:
            return None
        # A new or removed entry changes the ctime, which no process can set.
        state = status.st_dev, status.st_ino, status.st_ctime_ns
        if state == self._empty:
            return {}
        # If it changed just now, the next change might get the same time.
        settled = time.time_ns() - status.st_ctime_ns > messages.FRESH
        found = file_requests.take_census(self._root)
        self._empty = state if found == {} and settled else None
        return found


class Interpreter:
    def __init__(self, init: Any, context: Optional[Dict[str, Any]] = None) -> None:
        """Without a context, it is the sandbox's own, and runs the cells of the active branch."""
        self._init = init
        self.context = context
        self.branch = Branch(WorkerProcess(init, init.setup, self.on_frame))
        self.cell: Optional[Cell] = None
        self._stale: List[OutputReader] = []  # output of earlier cells
        self._last: Optional[Cell] = None  # whose pipes may be used again
        self._background = bytearray()
        self._restarts: List[int] = []  # requests that wait for a new interpreter
        self._started = 0  # the worker that knows the directory of the context
        self.removed = 0  # the request that asked for it

    @property
    def worker(self) -> WorkerProcess:
        return self.branch.worker

    def run(self, frame: wire.Frame, fds: "Tuple[int, ...]") -> None:
        if self.cell is not None:
            close_all(fds)
            self._init.send(wire.REPLY, frame.request, {"error": "busy"})
            return
        self._init.reap()  # this cell is not to blame for a worker that died since the last one
        if self.removed:
            close_all(fds)
            self._init.send(wire.DONE, frame.request, dict(GONE))
            return
        if not self.branch.worker.pid:
            self.ensure_worker()
        branch = self.branch
        worker = branch.worker
        cell = self.cell = Cell(frame.request, int(frame.header["output"]))
        self._reuse_pipes(cell, worker)
        self._close_stale()
        if frame.header.get("worker") not in (None, worker.pid):
            close_all(fds)
            self._finish(cell, dict(GONE))  # the worker that received the value is dead
            return
        if "functions" in frame.header:
            branch.functions = frame.header["functions"]
            worker.send(wire.pack(wire.FUNCTIONS, 0, {"functions": branch.functions}))
        cell.watched = bool(frame.header.get("watch"))
        if cell.watched:
            if self._init.workspace is None:
                self._init.workspace = WatchedDirectory(self._init.setup["workspace"])
            cell.files = self._init.workspace.take_census()
        header = {k: v for k, v in frame.header.items() if k not in FOR_INIT}
        pipes = self._open_pipes() if cell.output is None else []
        fds = (*(writing for _, writing in pipes), *fds)
        header["fds"], header["pipes"] = len(fds), len(pipes)
        if self.context is not None and self._started != worker.pid:
            header["cwd"], self._started = self.context["cwd"], worker.pid
        worker.send(wire.pack(wire.CELL, frame.request, header, frame.payload), fds)
        # The code runs from here on: what follows does not delay it.
        if cell.output is None:
            names = {reading: name for (reading, _), name in zip(pipes, ("stdout", "stderr"))}
            cell.output = OutputReader(self._init, names, self._on_output)
        if not worker.pid:
            self._finish(cell, dict(GONE))

    def _reuse_pipes(self, cell: Cell, worker: WorkerProcess) -> None:
        """Take the pipes of the last cell if it wrote nothing, and only the worker has them."""
        last, self._last = self._last, None
        cell.holders = self._holders(worker)
        if last is None or last.output is None:
            return
        quiet = not last.output.size and len(last.output.pipes) == 2
        if quiet and last.unchanged and cell.holders == last.holders != (0, 0):
            cell.output = last.output
        else:
            self._stale.append(last.output)

    def _holders(self, worker: WorkerProcess) -> Tuple[int, int]:
        """The worker, and the last pid that the kernel has given to a process or a thread here: if
        neither has changed, no other process has a pipe of the worker. (0, 0): unknown."""
        if "source" not in self._init.setup:
            return 0, 0
        try:
            fd = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
            try:
                return worker.pid, int(os.read(fd, 128).split()[-1])
            finally:
                os.close(fd)
        except OSError:
            return 0, 0  # out of descriptors or memory

    def ensure_worker(self) -> None:
        """Try for a while: the last attempt may have met the process limit, against which killed
        processes (a whole fork bomb) count until they are gone."""
        until = time.monotonic() + START_SECONDS
        while not self.worker.pid:
            self.start_worker()
            if time.monotonic() > until:
                return
            if not self.worker.pid:
                time.sleep(0.01)
                self._init.reap()

    def start_worker(self) -> None:
        self.worker.start()
        self.send_functions()

    def send_functions(self) -> None:
        functions = self.branch.functions
        if functions:
            self.worker.send(wire.pack(wire.FUNCTIONS, 0, {"functions": functions}))

    def part(self, frame: wire.Frame) -> None:
        """The host sends the next part when this one has gone to the worker."""
        request, header = frame.request, frame.header
        self.worker.send(wire.pack(wire.PART, request, header, frame.payload))
        # Name the worker: one that replaces a dead worker does not have the earlier parts.
        taken = {"key": header["key"], "worker": self.worker.pid}
        self.worker.when_sent(lambda: self._init.send(wire.TAKEN, request, taken))

    def answer(self, frame: wire.Frame, fds: "Tuple[int, ...]") -> None:
        cell, call = self.cell, frame.header["call"]
        if cell is None or cell.request != frame.request or call not in cell.calls:
            close_all(fds)
            return
        cell.calls.discard(call)
        header = {**frame.header, "fds": len(fds)}
        self.worker.send(wire.pack(wire.ANSWER, call, header, frame.payload), fds)

    def _refuse_call(self, call: int, why: str) -> None:
        header = {"call": call, "ok": False, "name": "RuntimeError", "message": why}
        self.worker.send(wire.pack(wire.ANSWER, call, header))

    def _open_pipes(self) -> "List[Tuple[int, int]]":
        """For output and errors; fewer if init has no descriptors left."""
        pipes: List[Tuple[int, int]] = []
        try:
            for _ in range(2):
                pipes.append(os.pipe())
        except OSError:
            self.worker.signal(signal.SIGKILL)  # reported as the end of this cell
        return pipes

    def interrupt(self, frame: wire.Frame) -> None:
        assert self.cell is not None
        self.cell.ending = self.cell.ending or bool(frame.header.get("end"))
        if not self.cell.done:  # else it would reach the next cell
            self.worker.signal(signal.SIGINT)

    def restart(self, frame: wire.Frame) -> None:
        self._restarts.append(frame.request)
        if self.worker.pid:
            self.worker.signal(signal.SIGKILL)
        else:
            self._reply_to_restarts()  # it has died, and there was no room for another one yet

    def _reply_to_restarts(self) -> None:
        if self._restarts:
            self.branch.state_lost = False  # the host asked for it
        for request in self._restarts:
            self._init.send(wire.REPLY, request, {})
        self._restarts.clear()

    # -- output -----------------------------------------------------------------------------

    def _on_output(self, reader: OutputReader, name: str, data: bytes) -> None:
        cell = self.cell
        if cell is None or reader is not cell.output:
            room = MAX_BACKGROUND - len(self._background)
            self._background += data[:room]
            return
        if cell.room >= 0:
            kept = data[: cell.room]
            if kept:
                self._init.send(wire.STREAM, cell.request, {"name": name}, kept)
            cell.room -= len(data)
            if cell.room < 0:
                self._init.send(wire.OVERFLOW, cell.request)

    def _close_stale(self) -> None:
        """Pipes of earlier cells stay open while a process holds them, up to a limit."""
        self._stale = [reader for reader in self._stale if reader.pipes]
        while len(self._stale) > MAX_STALE:
            self._stale.pop(0).close()
        # The worker usually closes those of the last cell now: no need to wake up for that.
        self._init.begin_quiet()
        for reader in self._stale:
            reader.unwatch()
        self._init.watch_again += self._stale

    # -- the worker -------------------------------------------------------------------------

    def on_frame(self, worker: WorkerProcess, frame: wire.Frame, fds: List[int]) -> None:
        cell, kind, active = self.cell, frame.kind, worker is self.branch.worker
        if active and cell is not None and kind == wire.CALL:
            self._on_call(cell, frame, fds)
            return
        if active and cell is not None and kind == wire.CELL_DONE:
            self._on_done(worker, cell, frame, fds)
            return
        if fds:
            close_all(fds)  # no other frame brings a value
        if not active or kind in (wire.FORKED, wire.READY):
            self._init.branches.on_frame(worker, frame)
        elif cell is None:
            if kind == wire.CALL:  # other frames between cells are about nothing
                self._refuse_call(frame.request, "host functions answer only while a cell runs")
        elif kind == wire.CELL_RESULT:
            if cell.output is not None:
                cell.output.read()
            header = messages.check_result(frame.header)
            self._init.send(wire.RESULT, cell.request, header, frame.payload)
        elif kind == wire.PART:
            header = messages.check_part(frame.header)
            self._init.send(wire.PART, cell.request, header, frame.payload)
        elif kind == wire.SYNCED and cell.done and frame.payload == cell.nonce:
            if cell.ending and commands.threads_since(worker.pid, cell.began):
                worker.signal(signal.SIGKILL)  # a limit ends all that the cell has started
            else:
                self._finish(cell, cell.done, cell.payload)

    def _on_done(
        self, worker: WorkerProcess, cell: Cell, frame: wire.Frame, fds: List[int]
    ) -> None:
        """Init believes this only when the worker reads its socket again: the worker may claim to
        be done and then exit, and the exit status is what counts. It cannot guess the nonce."""
        if frame.request != cell.request or cell.done:
            close_all(fds)
            return
        cell.shared = fds
        cell.unchanged = frame.header.get("unchanged") is True
        cell.done = messages.check_done(frame.header, frame.payload, self._init.setup["result"])
        cell.payload = frame.payload
        cell.nonce = os.urandom(16)
        worker.send(wire.pack(wire.SYNC, cell.request, None, cell.nonce))
        self._init.begin_quiet(hold=True)

    def _on_call(self, cell: Cell, frame: wire.Frame, fds: List[int]) -> None:
        call = frame.request
        try:
            header = messages.check_call(frame.header)
            if call in cell.calls or len(cell.calls) >= wire.MAX_CALLS:
                raise wire.WireError("a cell has too many calls of host functions under way")
        except wire.WireError:
            close_all(fds)
            raise
        cell.calls.add(call)
        if cell.output is not None:
            cell.output.read()
        header["call"] = call
        self._init.send(wire.CALL, cell.request, header, frame.payload, tuple(fds))

    def _finish(self, cell: Cell, header: Dict[str, Any], payload: bytes = b"") -> None:
        branch = self.branch
        if cell.ending and branch.worker.pid:
            commands.kill_since(self._init, cell.began, branch.worker.pid, self._others())
        if cell.output is not None:
            cell.output.read()
        self.cell = None
        for reader in self._stale:
            reader.read(1)  # usually its end
        self._init.end_quiet()
        if self._last is not None and self._last.output is not None:
            self._stale.append(self._last.output)
        self._last = cell
        for call in cell.calls:
            self._refuse_call(call, "the cell that called it has ended")
        if cell.watched:
            self._send_changes(cell)
        if self._background:
            data = bytes(self._background)
            self._init.send(wire.STREAM, cell.request, {"name": "background"}, data)
            self._background.clear()
        header = dict(header)
        if branch.state_lost:
            header["state_lost"] = True
        branch.state_lost = bool(header.get("lost"))
        fds, cell.shared = tuple(cell.shared), []
        if header.get("status") != "ok":
            close_all(fds)
            fds = ()
            header.pop("shared", None)
        self._init.send(wire.DONE, cell.request, header, payload, fds)

    def _send_changes(self, cell: Cell) -> None:
        assert self._init.workspace is not None
        now = self._init.workspace.take_census() if cell.files is not None else None
        if now is None or cell.files is None:
            self._init.send(wire.CHANGES, cell.request, {"unknown": True})
        elif now != cell.files:
            found = json.dumps(file_requests.compare_census(cell.files, now)).encode("ascii")
            known = len(found) <= MAX_CHANGES
            header = None if known else {"unknown": True}
            self._init.send(wire.CHANGES, cell.request, header, found if known else b"")

    def on_worker_gone(self, status: int) -> None:
        """`status` is from the kernel. Kill the processes that the worker left."""
        self.worker.close()
        self._init.branches.on_lost(self.worker)
        commands.kill_leftovers(self._init, self._others())
        if self.cell is not None:
            cell = self.cell
            self._finish(cell, {"status": "died", **commands.describe_exit(status), "lost": True})
        elif self._last is not None:  # else it had no variables yet
            self.branch.state_lost = True
        self._reply_to_restarts()
        if self.removed:
            self._leave()
        elif self.context is None:
            self._init.branches.on_active_gone()

    def _others(self) -> Set[int]:
        """Workers of other interpreters: they, and what they started, survive the end of this."""
        every = self._init.interpreters.values()
        return {each.worker.pid for each in every if each is not self and each.worker.pid}

    def remove(self, request: int) -> None:
        """The interpreter of a context, with what it has started."""
        self.removed = request
        if self.worker.pid:
            self.worker.signal(signal.SIGKILL)
        else:
            self._leave()

    def _leave(self) -> None:
        last = self._last.output if self._last is not None else None
        for reader in [*self._stale, *([last] if last is not None else ())]:
            reader.close()
        self._init.interpreters = {
            number: each for number, each in self._init.interpreters.items() if each is not self
        }
        self._init.send(wire.REPLY, self.removed)
