"""The guest's init: PID 1 of the sandbox, between the host and the code.

It exchanges frames with the host, forks the worker and sees it die, reads output through capped
pipes, and runs commands and file operations inside the sandbox. Its descriptors do not block, and
what it holds for a slow reader is bounded. It waits in three places only: until the program of a
command has started, and a few seconds at most to remove a tree or to get room for a new worker.

The worker cannot signal it (PID 1 has no handler that the worker could trigger), trace it or open
its descriptors (it is not dumpable).

Longer than other files: the state of a cell is read best beside all that changes it.
"""

import contextlib
import gc
import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from ..protocol import messages, wire
from ..protocol.buffers import Inbox, Outbox, close_all
from . import commands, file_requests, poller
from .branches import Branches
from .poller import OutputReader
from .worker_process import WorkerProcess

HIGH_WATER = 4 * 1024 * 1024  # bytes waiting for the host; above it, output is not read
LARGE = 16 * 1024  # bytes of a payload that is sent without a copy
MAX_STALE = 8  # earlier cells whose pipes are still held open by what they left behind
MAX_BACKGROUND = 64 * 1024
FOR_INIT = ("watch", "output", "worker", "functions")  # fields of RUN that are not for the worker
GONE = {"status": "died", "signal": None, "exit_code": None, "lost": True}
MAX_CHANGES = 1024 * 1024  # bytes that describe changed files
# While a cell starts or ends, some events need no action yet. Init leaves them until the next
# event, if that comes soon:
QUIET_TIME = 0.002  # seconds
QUIET_ROUNDS = 4  # rounds of the loop
START_ATTEMPTS = 200  # to start a worker, ten milliseconds apart


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


class Init:
    def __init__(self, channel: Any, setup: Dict[str, Any]) -> None:
        self._seal: Optional[wire.Seal] = setup.get("seal")
        if self._seal is not None:
            fork = setup["fork"]
            setup = {**setup, "fork": lambda: self._fork_sealed(fork)}
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = messages.MAX_FILES
        limit = most if hard == resource.RLIM_INFINITY else min(hard, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        # The worker's limit cannot be higher than init's.
        setup = {**setup, "open_files": min(setup["open_files"], limit)}
        self.setup = setup
        self.selector = poller.Poller()
        self._channel = channel
        # Two descriptors if the host is at the other end of pipes, else one socket.
        self._incoming = getattr(channel, "reading", channel)
        self._outgoing = getattr(channel, "writing", channel)
        self._reader = wire.Reader(wire.FROM_HOST)
        self._inbox = Inbox()
        self._out = Outbox()
        self._waiting = False  # for room to write
        self._paused: List[Any] = []  # output readers and worker processes
        self._cell: Optional[Cell] = None
        self._stale: List[OutputReader] = []  # output of earlier cells
        self._last: Optional[Cell] = None  # whose pipes may be used again
        self._unwatched: List[OutputReader] = []  # to be watched again when the quiet rounds end
        self._quiet = 0  # rounds that are left
        self._holding = False  # keep frames for the host until the cell is over
        self._workspace: Optional[file_requests.WatchedDirectory] = None
        self._background = bytearray()
        self.branches = Branches(self, setup)
        self._restarts: List[int] = []  # requests that wait for a new interpreter
        self.commands: Dict[int, commands.Command] = {}
        self._handlers: Dict[int, Callable[[wire.Frame], None]] = {
            wire.INTERRUPT: self._serve_interrupt,
            wire.KILL: self._serve_kill,
            wire.RESTART: self._serve_restart,
            wire.EXEC: lambda frame: commands.start_command(self, frame),
            wire.FILE: lambda frame: file_requests.serve(self, frame),
            wire.PING: lambda frame: self.send(wire.REPLY, frame.request),
            wire.PART: self._serve_part,
            wire.KEEP: self.branches.keep,
            wire.RETURN: self.branches.go_back,
            wire.RELEASE: self.branches.release,
            wire.SWITCH: self.branches.switch,
        }

    @property
    def _worker(self) -> WorkerProcess:
        return self.branches.active.worker

    # -- the loop ---------------------------------------------------------------------------

    def run(self) -> None:
        self._channel.setblocking(False)
        self.selector.register(self._incoming, poller.READ, self._on_channel)
        self.selector.register(child_signals(), poller.READ, self._on_child)
        gc.freeze()
        self._worker.start()
        while True:
            found = self.selector.wait(QUIET_TIME if self._quiet else None)
            if self._quiet:
                self._quiet = self._quiet - 1 if found else 0
                if not self._quiet:
                    self._end_quiet()
            if not self._holding and (self._out.pending or self._waiting or self._paused):
                self._flush()

    def _end_quiet(self) -> None:
        self._quiet, self._holding = 0, False
        readers, self._unwatched = self._unwatched, []
        for reader in readers:
            if reader.pipes:
                reader.watch()

    def watch_later(self, reader: OutputReader) -> None:
        """It would wake init for little: in a moment there may be more."""
        self._unwatched.append(reader)
        self._quiet = self._quiet or QUIET_ROUNDS

    def _on_channel(self, channel: Any, events: int) -> None:
        if not events & poller.READ:
            return
        try:
            data = self._inbox.receive(self._channel)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            os._exit(0)  # the host is gone: PID 1 exits, and the kernel kills the rest
        self._reader.feed(data)
        for frame in self._reader.frames():
            fds = (self._inbox.take(),) if "shared" in frame.header else ()
            if frame.kind == wire.RUN:
                self._serve_run(frame, fds)
            elif frame.kind == wire.ANSWER:
                self._serve_answer(frame, fds)
            else:
                close_all(fds)
                self._handlers[frame.kind](frame)

    def send(
        self,
        kind: int,
        request: int,
        header: Any = None,
        payload: bytes = b"",
        fds: "Tuple[int, ...]" = (),
    ) -> None:
        if len(payload) > LARGE and not self._out.pending and self._seal is None and not fds:
            self._send_directly(wire.pack(kind, request, header, follows=len(payload)), payload)
            return
        data = wire.pack(kind, request, header, payload)
        self._out.put(data if self._seal is None else self._seal(data), fds)
        if len(self._out.pending) > wire.CHUNK:
            self._flush()

    def _send_directly(self, head: bytes, payload: bytes) -> None:
        """Send a large frame; only what the socket does not take at once is copied."""
        try:
            sent = self._channel.sendmsg((head, payload))
        except BlockingIOError:
            sent = 0
        except ConnectionError:
            os._exit(0)
        if sent < len(head) + len(payload):
            self._out.put(head[sent:])
            self._out.put(memoryview(payload)[max(sent - len(head), 0) :])
            self._flush()

    def _flush(self) -> None:
        try:
            self._out.flush(self._channel)
        except BlockingIOError:
            pass  # the poller says when there is room again
        except ConnectionError:
            os._exit(0)
        if bool(self._out.pending) != self._waiting:
            self._wait_for_room(not self._waiting)
        if self._paused and not self.congested:
            paused, self._paused = self._paused, []
            for source in paused:
                source.resume()

    def _fork_sealed(self, fork: "Callable[[], int]") -> int:
        """The child has a copy of the key, and runs code only when init tells it to. Before that,
        the host must have received the new key."""
        assert self._seal is not None
        pid = fork()
        if not pid:
            self._seal.erase_key()
            return 0
        self._out.put(self._seal.renew())
        while self._out.pending:
            try:
                self._out.flush(self._channel)
            except BlockingIOError:
                select.select([], [self._outgoing], [])
            except ConnectionError:
                os._exit(0)
        return pid

    def _wait_for_room(self, waiting: bool) -> None:
        self._waiting = waiting
        if self._outgoing is self._incoming:
            events = poller.READ | (poller.WRITE if waiting else 0)
            self.selector.modify(self._incoming, events, self._on_channel)
        elif waiting:
            self.selector.register(self._outgoing, poller.WRITE, self._on_room)
        else:
            self.selector.unregister(self._outgoing)

    def _on_room(self, pipe: Any, events: int) -> None:
        """The loop sends what waits after each round."""

    @property
    def congested(self) -> bool:
        return len(self._out.pending) > HIGH_WATER

    def pause(self, source: Any) -> None:
        """The host reads slower than this source writes: resume it when the host has caught up."""
        self._paused.append(source)

    # -- requests ---------------------------------------------------------------------------

    def _serve_run(self, frame: wire.Frame, fds: "Tuple[int, ...]") -> None:
        if self._cell is not None:
            close_all(fds)
            self.send(wire.REPLY, frame.request, {"error": "busy"})
            return
        self._reap()  # this cell is not to blame for a worker that died since the last one
        if not self.branches.active.worker.pid:
            self._ensure_worker()
        branch = self.branches.active
        worker = branch.worker
        cell = self._cell = Cell(frame.request, int(frame.header["output"]))
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
            if self._workspace is None:
                self._workspace = file_requests.WatchedDirectory(self.setup["workspace"])
            cell.files = self._workspace.take_census()
        header = {k: v for k, v in frame.header.items() if k not in FOR_INIT}
        pipes = self._open_pipes() if cell.output is None else []
        fds = (*(writing for _, writing in pipes), *fds)
        header["fds"], header["pipes"] = len(fds), len(pipes)
        worker.send(wire.pack(wire.CELL, frame.request, header, frame.payload), fds)
        # The code runs from here on: what follows does not delay it.
        if cell.output is None:
            names = {reading: name for (reading, _), name in zip(pipes, ("stdout", "stderr"))}
            cell.output = OutputReader(self, names, self._on_output)
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
        if "source" not in self.setup:
            return 0, 0
        try:
            fd = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
            try:
                return worker.pid, int(os.read(fd, 128).split()[-1])
            finally:
                os.close(fd)
        except OSError:
            return 0, 0  # out of descriptors or memory

    def _ensure_worker(self) -> None:
        """Try for a while: the last attempt may have met the process limit, against which killed
        processes (a whole fork bomb) count until they are gone."""
        for _ in range(START_ATTEMPTS):
            if self._worker.pid:
                return
            self.start_worker()
            if not self._worker.pid:
                time.sleep(0.01)
                self._reap()

    def start_worker(self) -> None:
        self._worker.start()
        self.send_functions()

    def send_functions(self) -> None:
        functions = self.branches.active.functions
        if functions:
            self._worker.send(wire.pack(wire.FUNCTIONS, 0, {"functions": functions}))

    def _serve_part(self, frame: wire.Frame) -> None:
        """The host sends the next part when this one has gone to the worker."""
        request, header = frame.request, frame.header
        self._worker.send(wire.pack(wire.PART, request, header, frame.payload))
        # Name the worker: one that replaces a dead worker does not have the earlier parts.
        taken = {"key": header["key"], "worker": self._worker.pid}
        self._worker.when_sent(lambda: self.send(wire.TAKEN, request, taken))

    def _serve_answer(self, frame: wire.Frame, fds: "Tuple[int, ...]") -> None:
        cell, call = self._cell, frame.header["call"]
        if cell is None or cell.request != frame.request or call not in cell.calls:
            close_all(fds)
            return
        cell.calls.discard(call)
        header = {**frame.header, "fds": len(fds)}
        self._worker.send(wire.pack(wire.ANSWER, call, header, frame.payload), fds)

    def _refuse_call(self, call: int, why: str) -> None:
        header = {"call": call, "ok": False, "name": "RuntimeError", "message": why}
        self._worker.send(wire.pack(wire.ANSWER, call, header))

    def _open_pipes(self) -> "List[Tuple[int, int]]":
        """For output and errors; fewer if init has no descriptors left."""
        pipes: List[Tuple[int, int]] = []
        try:
            for _ in range(2):
                pipes.append(os.pipe())
        except OSError:
            self._worker.signal(signal.SIGKILL)  # reported as the end of this cell
        return pipes

    def _serve_interrupt(self, frame: wire.Frame) -> None:
        command = self.commands.get(frame.request)
        if command is not None:
            command.signal(signal.SIGINT)
        elif self._cell is not None and self._cell.request == frame.request:
            self._cell.ending = self._cell.ending or bool(frame.header.get("end"))
            if not self._cell.done:  # else it would reach the next cell
                self._worker.signal(signal.SIGINT)

    def _serve_kill(self, frame: wire.Frame) -> None:
        command = self.commands.get(frame.request)
        if command is not None:
            command.kill()
        elif self._cell is not None and self._cell.request == frame.request:
            self._worker.signal(signal.SIGKILL)

    def _serve_restart(self, frame: wire.Frame) -> None:
        self._restarts.append(frame.request)
        if self._worker.pid:
            self._worker.signal(signal.SIGKILL)
        else:
            self._reply_to_restarts()  # it has died, and there was no room for another one yet

    def _reply_to_restarts(self) -> None:
        if self._restarts:
            self.branches.active.state_lost = False  # the host asked for it
        for request in self._restarts:
            self.send(wire.REPLY, request, {})
        self._restarts.clear()

    # -- output -----------------------------------------------------------------------------

    def _on_output(self, reader: OutputReader, name: str, data: bytes) -> None:
        cell = self._cell
        if cell is None or reader is not cell.output:
            room = MAX_BACKGROUND - len(self._background)
            self._background += data[:room]
            return
        if cell.room >= 0:
            kept = data[: cell.room]
            if kept:
                self.send(wire.STREAM, cell.request, {"name": name}, kept)
            cell.room -= len(data)
            if cell.room < 0:
                self.send(wire.OVERFLOW, cell.request)

    def _close_stale(self) -> None:
        """Pipes of earlier cells stay open while a process holds them, up to a limit."""
        self._stale = [reader for reader in self._stale if reader.pipes]
        while len(self._stale) > MAX_STALE:
            self._stale.pop(0).close()
        # The worker usually closes those of the last cell now: no need to wake up for that.
        self._quiet = QUIET_ROUNDS
        for reader in self._stale:
            reader.unwatch()
        self._unwatched += self._stale

    # -- the worker -------------------------------------------------------------------------

    def on_worker_frame(self, worker: WorkerProcess, frame: wire.Frame, fds: List[int]) -> None:
        cell, kind, active = self._cell, frame.kind, worker is self.branches.active.worker
        if active and cell is not None and kind == wire.CALL:
            self._on_call(cell, frame, fds)
            return
        if active and cell is not None and kind == wire.CELL_DONE:
            self._on_done(worker, cell, frame, fds)
            return
        if fds:
            close_all(fds)  # no other frame brings a value
        if not active or kind in (wire.FORKED, wire.READY):
            self.branches.on_frame(worker, frame)
        elif cell is None:
            if kind == wire.CALL:  # other frames between cells are about nothing
                self._refuse_call(frame.request, "host functions answer only while a cell runs")
        elif kind == wire.CELL_RESULT:
            if cell.output is not None:
                cell.output.read()
            self.send(wire.RESULT, cell.request, messages.check_result(frame.header), frame.payload)
        elif kind == wire.PART:
            self.send(wire.PART, cell.request, messages.check_part(frame.header), frame.payload)
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
        cell.done = messages.check_done(frame.header, frame.payload, self.setup["result"])
        cell.payload = frame.payload
        cell.nonce = os.urandom(16)
        worker.send(wire.pack(wire.SYNC, cell.request, None, cell.nonce))
        self._quiet, self._holding = QUIET_ROUNDS, True

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
        self.send(wire.CALL, cell.request, header, frame.payload, tuple(fds))

    def _finish(self, cell: Cell, header: Dict[str, Any], payload: bytes = b"") -> None:
        branch = self.branches.active
        if cell.ending and branch.worker.pid:
            commands.kill_since(self, cell.began, branch.worker.pid)
        if cell.output is not None:
            cell.output.read()
        self._cell = None
        for reader in self._stale:
            reader.read(1)  # usually its end
        self._end_quiet()
        if self._last is not None and self._last.output is not None:
            self._stale.append(self._last.output)
        self._last = cell
        for call in cell.calls:
            self._refuse_call(call, "the cell that called it has ended")
        if cell.watched:
            self._send_changes(cell)
        if self._background:
            data = bytes(self._background)
            self.send(wire.STREAM, cell.request, {"name": "background"}, data)
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
        self.send(wire.DONE, cell.request, header, payload, fds)

    def _send_changes(self, cell: Cell) -> None:
        assert self._workspace is not None
        now = self._workspace.take_census() if cell.files is not None else None
        if now is None or cell.files is None:
            self.send(wire.CHANGES, cell.request, {"unknown": True})
        elif now != cell.files:
            found = json.dumps(file_requests.compare_census(cell.files, now)).encode("ascii")
            known = len(found) <= MAX_CHANGES
            header = None if known else {"unknown": True}
            self.send(wire.CHANGES, cell.request, header, found if known else b"")

    # -- deaths -----------------------------------------------------------------------------

    def _on_child(self, pipe: Any, events: int) -> None:
        drain(pipe)
        self._reap()

    def watch_worker(self, pidfd: int) -> None:
        """One that is not init's child."""
        self.selector.register(pidfd, poller.READ, lambda pidfd, events: self._reap())

    def _reap(self) -> None:
        source = self.setup.get("source")
        if source is not None:
            for pidfd, pid, status in source.take_ended():
                self.selector.unregister(pidfd)
                os.close(pidfd)
                self._on_exit(pid, status)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self._on_exit(pid, status)
        branch = self.branches.active
        if not branch.worker.pid and not branch.released and not self.branches.replacing:
            self.start_worker()

    def _on_exit(self, pid: int, status: int) -> None:
        branches = self.branches
        if pid == branches.active.worker.pid:
            self._on_worker_gone(status)
            return
        store, parked = branches.store, branches.find_worker(pid)
        if store is not None and store.on_exit(pid, status):
            return
        if parked is not None:
            parked.close()
            branches.on_lost(parked)
        for command in list(self.commands.values()):
            if command.pid == pid:
                command.on_exit(status)

    def _on_worker_gone(self, status: int) -> None:
        """`status` is from the kernel. Kill the processes that the worker left."""
        self._worker.close()
        self.branches.on_lost(self._worker)
        commands.kill_leftovers(self)
        if self._cell is not None:
            cell = self._cell
            self._finish(cell, {"status": "died", **commands.describe_exit(status), "lost": True})
        else:
            self.branches.active.state_lost = True
        self._reply_to_restarts()
        self.branches.on_active_gone()


def close_descriptors(keep: "set[int]") -> None:
    """Close all others; the process that forks workers may have thousands."""
    first = 0
    for fd in (*sorted(keep), resource.getrlimit(resource.RLIMIT_NOFILE)[0]):
        if first < fd:  # Python 3.11 closes everything for (0, 0)
            os.closerange(first, fd)
        first = fd + 1


def drain(pipe: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(pipe, 4096)


def child_signals() -> int:
    """A descriptor that becomes readable when a child has ended."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.signal(signal.SIGCHLD, lambda signum, frame: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    reset_signals()
    return reading


def reset_signals() -> None:
    # Only signals with a handler reach PID 1, so SIGCHLD alone has one. The others get SIG_DFL:
    # the worker and all programs would inherit SIG_IGN, which under nohup comes from the host.
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        if number == signal.SIGINT or signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def main(channel: Any, setup: Dict[str, Any]) -> None:
    """Serve the host at the other end of a socket or of Pipes. Never returns: when init exits, the
    sandbox ends."""
    try:
        Init(channel, setup).run()
    except BaseException as error:
        sys.stderr.write(f"belljar init: {type(error).__name__}: {error}\n")
    finally:
        os._exit(70)
