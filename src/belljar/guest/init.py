"""The guest's init: PID 1 of the sandbox, between the host and the code.

It speaks the wire with the host, forks the worker and watches it die, pumps output through
capped pipes, runs commands and file operations with the sandbox's own eyes. Its
descriptors are non-blocking, and what it holds for a slow reader is bounded. It waits in three
places only: for a command until its program has started, and a few seconds at most to remove a
tree, or for room for a new worker.

The worker can neither signal it (PID 1 has no handler the worker could trigger), nor trace it,
nor open its descriptors (it is not dumpable).
"""

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
from ..protocol.messages import MAX_FILES
from . import commands, files, poller
from .branches import Branches
from .poller import Pump
from .worker_process import Keeper

HIGH_WATER = 4 * 1024 * 1024  # bytes waiting for the host; above it, output is not read
LARGE = 16 * 1024  # bytes of a frame that is worth some trouble
MAX_STALE = 16  # pipes of earlier cells that are still held open by what they left behind
MAX_BACKGROUND = 64 * 1024
FOR_INIT = ("watch", "output", "worker", "functions")  # what the worker need not know of a cell
GONE = {"status": "died", "signal": None, "exit_code": None, "lost": True}
MAX_CHANGES = 1024 * 1024  # bytes to tell of changed files
# While a cell begins, and while it ends, news is at hand that needs nobody's attention by itself.
# It is left for what comes next, if that comes soon:
LULL = 0.002  # seconds,
ROUNDS = 4  # in so many rounds of the loop
ROOM_LOOKS = 200  # times, ten milliseconds apart, for room for a worker


class Cell:
    """One run: its pipes, and what the worker has said about it so far."""

    def __init__(self, request: int, limit: int) -> None:
        self.request = request
        self.began = time.clock_gettime(time.CLOCK_BOOTTIME)
        self.ending = False  # a limit was passed: what it started goes with it
        self.done: Optional[Dict[str, Any]] = None
        self.payload = b""
        self.nonce = b""
        self.shared: List[int] = []  # the descriptor of its value
        self.pumps: List[Pump] = []
        self.room = limit
        self.calls: Set[int] = set()  # of host functions, under way
        self.watched = False  # whether to tell what became of the files
        self.files: Optional[files.Census] = None  # as they were before it


class Init:
    def __init__(self, channel: Any, setup: Dict[str, Any]) -> None:
        self._seal: Any = setup.get("seal")  # see seal.py
        if self._seal is not None:
            fork = setup["fork"]
            setup = {**setup, "fork": lambda: self._fork_sealed(fork)}
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        # The code's cannot be raised above ours: what the host says of it is looked at by itself.
        setup = {**setup, "open_files": min(setup["open_files"], limit)}
        self.setup = setup
        self.selector = poller.Poller()
        self._channel = channel
        # Two descriptors where the host is at the other end of pipes, else the one of a socket.
        self._incoming = getattr(channel, "reading", channel)
        self._outgoing = getattr(channel, "writing", channel)
        self._reader = wire.Reader(wire.FROM_HOST)
        self._inbox = Inbox()
        self._out = Outbox()
        self._waiting = False  # for room to write
        self._paused: List[Any] = []  # pumps, and the keeper
        self._cell: Optional[Cell] = None
        self._idle_pumps: List[Pump] = []
        self._resting: List[Pump] = []  # to be watched again when it ends
        self._lull = 0  # rounds that are left of it
        self._holding = False  # what is for the host, until the cell is over
        self._workspace = files.WatchedDirectory(setup["workspace"])
        self._background = bytearray()
        self._branches = Branches(self, setup)
        self._restarts: List[int] = []  # those who wait for a fresh interpreter
        self.commands: Dict[int, commands.Command] = {}

    @property
    def _worker(self) -> Keeper:
        return self._branches.active.keeper

    def protected(self) -> "Set[int]":
        """Processes of others than the branch that is active."""
        return self._branches.protected()

    def asleep(self) -> "Set[int]":
        """Those of them that are to stay stopped."""
        return self._branches.asleep()

    # -- the loop ---------------------------------------------------------------------------

    def run(self) -> None:
        self._channel.setblocking(False)
        self.selector.register(self._incoming, poller.READ, self._on_channel)
        self.selector.register(_child_signals(), poller.READ, self._on_child)
        gc.freeze()
        self._worker.start()
        while True:
            news = self.selector.wait(LULL if self._lull else None)
            if self._lull:
                self._lull = self._lull - 1 if news else 0
                if not self._lull:
                    self._end_lull()
            if not self._holding:
                self._flush()

    def _end_lull(self) -> None:
        self._lull, self._holding = 0, False
        resting, self._resting = self._resting, []
        for pump in resting:
            pump.watch()

    def watch_later(self, pump: Pump) -> None:
        """A pump that would be woken for little: in a moment there may be more."""
        self._resting.append(pump)
        self._lull = self._lull or ROUNDS

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
            os._exit(0)  # the host is gone: PID 1 ends, and the kernel ends the rest
        self._reader.feed(data)
        for frame in self._reader.frames():
            fds = (self._inbox.take(),) if "shared" in frame.header else ()
            self._serve(frame, fds)

    def send(
        self,
        kind: int,
        request: int,
        header: Any = None,
        payload: bytes = b"",
        fds: "Tuple[int, ...]" = (),
    ) -> None:
        if len(payload) > LARGE and not self._out and self._seal is None and not fds:
            self._send_directly(wire.head(kind, request, header, len(payload)), payload)
            return
        data = wire.pack(kind, request, header, payload)
        self._out.put(data if self._seal is None else self._seal(data), fds)
        if len(self._out) > wire.CHUNK:
            self._flush()

    def _send_directly(self, head: bytes, payload: bytes) -> None:
        """A large frame, of which as much as goes is not copied once more."""
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
            pass  # the selector says when there is room again
        except ConnectionError:
            os._exit(0)
        if bool(self._out) != self._waiting:
            self._wait_for_room(not self._waiting)
        if self._paused and not self.congested:
            paused, self._paused = self._paused, []
            for source in paused:
                source.resume()

    def _fork_sealed(self, fork: "Callable[[], int]") -> int:
        """The child has a copy of the key, and runs code only when init has told it to: by then
        the host must have heard of another key."""
        pid = fork()
        if not pid:
            self._seal.forget()
            return 0
        self._out.put(self._seal.renew())
        while self._out:
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
        """It is the loop that sends what waits, after each round."""

    @property
    def congested(self) -> bool:
        return len(self._out) > HIGH_WATER

    def pause(self, source: Any) -> None:
        """The host reads slower than this source writes: wait until it has caught up."""
        self._paused.append(source)

    # -- requests ---------------------------------------------------------------------------

    def _serve(self, frame: wire.Frame, fds: "Tuple[int, ...]") -> None:
        if frame.kind == wire.RUN:
            self._serve_run(frame, fds)
        elif frame.kind == wire.ANSWER:
            self._serve_answer(frame, fds)
        else:
            close_all(fds)
            serve: Dict[int, Callable[[wire.Frame], None]] = {
                wire.INTERRUPT: self._serve_interrupt,
                wire.KILL: self._serve_kill,
                wire.RESTART: self._serve_restart,
                wire.EXEC: lambda frame: commands.start(self, frame),
                wire.FILE: lambda frame: files.serve(self, frame),
                wire.PING: lambda frame: self.send(wire.REPLY, frame.request),
                wire.PART: self._serve_part,
                wire.KEEP: self._branches.keep,
                wire.RETURN: self._branches.go_back,
                wire.RELEASE: self._branches.release,
                wire.SWITCH: self._branches.switch,
            }
            serve[frame.kind](frame)

    def _serve_run(self, frame: wire.Frame, fds: "Tuple[int, ...]") -> None:
        if self._cell is not None:
            close_all(fds)
            self.send(wire.REPLY, frame.request, {"error": "busy"})
            return
        self._reap()  # a worker that died since the last cell must not be blamed on this one
        self._ensure_worker()
        self._retire_pumps()
        cell = Cell(frame.request, int(frame.header["output"]))
        self._cell = cell
        if frame.header.get("worker") not in (None, self._worker.pid):
            close_all(fds)
            self._finish(cell, dict(GONE))  # the one that has got its value is dead
            return
        if "functions" in frame.header:
            self._branches.active.functions = frame.header["functions"]
            self.tell_functions()
        cell.watched = bool(frame.header.get("watch"))
        if cell.watched:
            cell.files = self._workspace.census()
        pipes = self._open_pipes()
        fds = (*(writing for _, writing in pipes), *fds)
        header = {k: v for k, v in frame.header.items() if k not in FOR_INIT}
        header["fds"] = len(fds)
        self._worker.send(wire.pack(wire.CELL, frame.request, header, frame.payload), fds)
        # From here on the code runs: what follows does not keep it waiting.
        for name, (reading, _) in zip(("stdout", "stderr"), pipes):
            cell.pumps.append(Pump(self, reading, name, self._on_output))
        if not self._worker.pid:
            self._finish(cell, dict(GONE))

    def _ensure_worker(self) -> None:
        """The last attempt may have met the process limit: those that were killed, a whole fork
        bomb, count until they are gone."""
        for _ in range(ROOM_LOOKS):
            if self._worker.pid:
                return
            self.start_worker()
            if not self._worker.pid:
                time.sleep(0.01)
                self._reap()

    def start_worker(self) -> None:
        self._worker.start()
        self.tell_functions()

    def tell_functions(self) -> None:
        told = self._branches.active.functions
        if told:
            self._worker.send(wire.pack(wire.FUNCTIONS, 0, {"functions": told}))

    def _serve_part(self, frame: wire.Frame) -> None:
        """The next part is asked for when this one has gone to the worker."""
        request, header = frame.request, frame.header
        self._worker.send(wire.pack(wire.PART, request, header, frame.payload))
        # Which worker it is: one that takes the place of a dead one has not got the parts before.
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
        """For output and errors; fewer, if the host has no more descriptors to give."""
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
        elif self._cell is not None and self._is_current(frame):
            self._cell.ending = self._cell.ending or bool(frame.header.get("end"))
            if not self._cell.done:  # else it would reach the next cell
                self._worker.signal(signal.SIGINT)

    def _serve_kill(self, frame: wire.Frame) -> None:
        command = self.commands.get(frame.request)
        if command is not None:
            command.kill()
        elif self._is_current(frame):
            self._worker.signal(signal.SIGKILL)

    def _is_current(self, frame: wire.Frame) -> bool:
        return self._cell is not None and self._cell.request == frame.request

    def _serve_restart(self, frame: wire.Frame) -> None:
        self._restarts.append(frame.request)
        if self._worker.pid:
            self._worker.signal(signal.SIGKILL)
        else:
            self._tell_restarted()  # it has died, and there was no room for another one yet

    def _tell_restarted(self) -> None:
        if self._restarts:
            self._branches.active.fresh = False  # asked for
        for request in self._restarts:
            self.send(wire.REPLY, request, {})
        self._restarts.clear()

    # -- output -----------------------------------------------------------------------------

    def _on_output(self, pump: Pump, data: bytes) -> None:
        cell = self._cell
        if cell is None or pump not in cell.pumps:
            room = MAX_BACKGROUND - len(self._background)
            self._background += data[:room]
            return
        if cell.room >= 0:
            kept = data[: cell.room]
            if kept:
                self.send(wire.STREAM, cell.request, {"name": pump.name}, kept)
            cell.room -= len(data)
            if cell.room < 0:
                self.send(wire.OVERFLOW, cell.request)

    def _retire_pumps(self) -> None:
        """Pipes of earlier cells stay open while something still holds them, up to a number."""
        self._idle_pumps = [pump for pump in self._idle_pumps if not pump.closed]
        while len(self._idle_pumps) > MAX_STALE:
            self._idle_pumps.pop(0).close()
        # Those of the last cell will be let go by the worker, as a rule: nothing to wake up for.
        self._lull = ROUNDS
        for pump in self._idle_pumps:
            pump.rest()
        self._resting += self._idle_pumps

    # -- the worker -------------------------------------------------------------------------

    def on_worker_frame(self, keeper: Keeper, frame: wire.Frame, fds: List[int]) -> None:
        cell = self._cell
        if keeper is not self._worker or frame.kind in (wire.FORKED, wire.READY):
            close_all(fds)
            self._branches.on_frame(keeper, frame)
        elif frame.kind == wire.CALL and cell is None:
            close_all(fds)
            self._refuse_call(frame.request, "host functions answer only while a cell runs")
        elif cell is None:
            close_all(fds)  # said between cells: about nothing
        elif frame.kind == wire.CELL_RESULT:
            close_all(fds)
            self._drain(cell)
            self.send(wire.RESULT, cell.request, messages.check_result(frame.header), frame.payload)
        elif frame.kind == wire.CALL:
            self._on_call(cell, frame, fds)
        elif frame.kind == wire.PART:
            close_all(fds)
            self.send(wire.PART, cell.request, messages.check_part(frame.header), frame.payload)
        elif frame.kind == wire.CELL_DONE and frame.request == cell.request and not cell.done:
            # Believed only when the worker is back at its socket: it may claim to be done and
            # then exit, and the exit status is what counts. It cannot have guessed the nonce.
            cell.shared = fds
            cell.done = messages.check_done(frame.header, frame.payload, self.setup["result"])
            cell.payload = frame.payload
            cell.nonce = os.urandom(16)
            self._worker.send(wire.pack(wire.SYNC, cell.request, None, cell.nonce))
            self._lull, self._holding = ROUNDS, True
        else:
            close_all(fds)
            if frame.kind == wire.SYNCED and cell.done and frame.payload == cell.nonce:
                self._on_synced(cell)

    def _on_call(self, cell: Cell, frame: wire.Frame, fds: List[int]) -> None:
        call = frame.request
        try:
            header = messages.check_call(frame.header)
            if call in cell.calls or len(cell.calls) >= wire.MAX_CALLS:
                raise wire.WireError("more calls than there may be")
        except wire.WireError:
            close_all(fds)
            raise
        cell.calls.add(call)
        self._drain(cell)
        header["call"] = call
        self.send(wire.CALL, cell.request, header, frame.payload, tuple(fds))

    def _on_synced(self, cell: Cell) -> None:
        if cell.ending and commands.threads_since(self._worker.pid, cell.began):
            self._worker.signal(signal.SIGKILL)  # a limit ends all the cell has started
            return
        assert cell.done is not None
        self._finish(cell, cell.done, cell.payload)

    def _drain(self, cell: Cell) -> None:
        for pump in cell.pumps:
            pump.drain()

    def _finish(self, cell: Cell, header: Dict[str, Any], payload: bytes = b"") -> None:
        if cell.ending and self._worker.pid:
            commands.kill_since(self, cell.began, self._worker.pid)
        self._drain(cell)
        self._cell = None
        for pump in self._idle_pumps:
            pump.read()  # as a rule, its end
        self._end_lull()
        self._idle_pumps += cell.pumps
        for call in cell.calls:
            self._refuse_call(call, "the cell that called it has ended")
        if cell.watched:
            self._tell_changes(cell)
        if self._background:
            data = bytes(self._background)
            self.send(wire.STREAM, cell.request, {"name": "background"}, data)
            self._background.clear()
        branch = self._branches.active
        header = dict(header)
        if branch.fresh:
            header["fresh"] = True
        branch.fresh = bool(header.get("lost"))
        fds, cell.shared = tuple(cell.shared), []
        if header.get("status") != "ok":
            close_all(fds)
            fds = ()
            header.pop("shared", None)
        self.send(wire.DONE, cell.request, header, payload, fds)

    def _tell_changes(self, cell: Cell) -> None:
        now = self._workspace.census() if cell.files is not None else None
        if now is None or cell.files is None:
            self.send(wire.CHANGES, cell.request, {"unknown": True})
        elif now != cell.files:
            found = json.dumps(files.compare_census(cell.files, now)).encode("ascii")
            known = len(found) <= MAX_CHANGES
            header = None if known else {"unknown": True}
            self.send(wire.CHANGES, cell.request, header, found if known else b"")

    # -- deaths -----------------------------------------------------------------------------

    def _on_child(self, pipe: Any, events: int) -> None:
        try:
            os.read(pipe, 4096)
        except BlockingIOError:
            pass
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid == self._worker.pid:
                self._on_worker_gone(status)
                continue
            store, parked = self._branches.store, self._branches.keeper_of(pid)
            if store is not None and store.on_exit(pid, status):
                continue
            if parked is not None:
                parked.gone()
                self._branches.on_lost(parked)
            for command in list(self.commands.values()):
                if command.pid == pid:
                    command.on_exit(status)
        branches = self._branches
        if not self._worker.pid and not branches.active.released and not branches.replacing:
            self.start_worker()

    def on_lost(self, keeper: Keeper) -> None:
        """A worker that another one was to fork never came."""
        self._branches.on_lost(keeper)

    def _on_worker_gone(self, status: int) -> None:
        """The verdict of the kernel. What the worker left running belongs to it and goes too."""
        self._worker.gone()
        self._branches.on_lost(self._worker)
        commands.kill_leftovers(self)
        if self._cell is not None:
            cell = self._cell
            self._finish(cell, {"status": "died", **exit_status(status), "lost": True})
        else:
            self._branches.active.fresh = True
        self._tell_restarted()
        self._branches.on_active_gone()


def exit_status(status: int) -> Dict[str, Any]:
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status), "exit_code": None}
    return {"signal": None, "exit_code": os.WEXITSTATUS(status)}


def close_descriptors(keep: "set[int]") -> None:
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd not in keep:
            try:
                os.close(fd)
            except OSError:
                pass  # the descriptor of the listing itself


def _child_signals() -> int:
    """A descriptor that becomes readable when a child has ended."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.signal(signal.SIGCHLD, lambda signum, frame: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    # PID 1 is only reached by signals it has handlers for: have none but SIGCHLD's. Not SIG_IGN,
    # which the worker and all programs would inherit; nor what the host ignores, as under nohup.
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        if number == signal.SIGINT or signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    return reading


def main(channel: Any, setup: Dict[str, Any]) -> None:
    """Serve the host, at the other end of a socket or of Pipes. Never returns: the end of init is
    the end of the sandbox."""
    try:
        Init(channel, setup).run()
    except BaseException as error:
        sys.stderr.write(f"belljar init: {type(error).__name__}: {error}\n")
    finally:
        os._exit(70)
