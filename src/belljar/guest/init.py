"""The guest's init: PID 1 of the sandbox, between the host and the code.

It speaks the wire with the host, forks the worker and watches it die, pumps output through
capped pipes, runs commands and file operations with the sandbox's own eyes. Its
descriptors are non-blocking, and what it holds for a slow reader is bounded. It waits in two places
only: for a command until its program has started, and a few seconds at most to remove a tree.

The worker can neither signal it (PID 1 has no handler the worker could trigger), nor trace it,
nor open its descriptors (it is not dumpable).
"""

import gc
import os
import resource
import selectors
import signal
import socket
import sys
import time
from typing import Any, Callable, Dict, List, Optional

from . import claims, commands, files, wire
from .keeper import MAX_FILES, Keeper
from .pump import Pump

HIGH_WATER = 4 * 1024 * 1024  # bytes waiting for the host; above it, output is not read
MAX_STALE = 16  # pipes of earlier cells that are still held open by what they left behind
MAX_BACKGROUND = 64 * 1024


class Cell:
    """One run: its pipes, and what the worker has said about it so far."""

    def __init__(self, request: int, limit: int) -> None:
        self.request = request
        self.began = time.clock_gettime(time.CLOCK_BOOTTIME)
        self.ending = False  # a limit was passed: what it started goes with it
        self.done: Optional[Dict[str, Any]] = None
        self.payload = b""
        self.nonce = ""
        self.pumps: List[Pump] = []
        self.room = limit


class Init:
    def __init__(self, channel: socket.socket, setup: Dict[str, Any]) -> None:
        self.setup = setup
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        # Not epoll: its watches are counted by the user, whose guests could use them all up.
        self.selector = selectors.PollSelector()
        self._channel = channel
        self._reader = wire.Reader(wire.FROM_HOST)
        self._out = bytearray()
        self._events = selectors.EVENT_READ
        self._paused: List[Any] = []  # pumps, and the keeper
        self._cell: Optional[Cell] = None
        self._idle_pumps: List[Pump] = []
        self._background = bytearray()
        self._background_lost = 0
        self._fresh = False  # variables were lost since the last cell
        self._worker = Keeper(self, setup, self._on_worker_frame)
        self._restart: Optional[int] = None
        self.commands: Dict[int, commands.Command] = {}

    # -- the loop ---------------------------------------------------------------------------

    def run(self) -> None:
        channel = self._channel
        channel.setblocking(False)
        self.selector.register(channel, self._events, self._on_channel)
        self.selector.register(_child_signals(), selectors.EVENT_READ, self._on_child)
        gc.freeze()
        self._worker.start()
        while True:
            for key, events in self.selector.select():
                key.data(key.fileobj, events)
            self._flush()

    def _on_channel(self, channel: Any, events: int) -> None:
        if not events & selectors.EVENT_READ:
            return
        try:
            data = channel.recv(wire.CHUNK)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            os._exit(0)  # the host is gone: PID 1 ends, and the kernel ends the rest
        self._reader.feed(data)
        for frame in self._reader.frames():
            self._serve(frame)

    def send(self, kind: int, request: int, header: Any = None, payload: bytes = b"") -> None:
        self._out += wire.pack(kind, request, header, payload)
        if len(self._out) > wire.CHUNK:
            self._flush()

    def _flush(self) -> None:
        while self._out:
            try:
                sent = self._channel.send(memoryview(self._out)[: wire.CHUNK])
            except BlockingIOError:
                break
            except ConnectionError:
                os._exit(0)
            del self._out[:sent]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
        if events != self._events:
            self._events = events
            self.selector.modify(self._channel, events, self._on_channel)
        if self._paused and not self.congested:
            paused, self._paused = self._paused, []
            for source in paused:
                source.resume()

    @property
    def congested(self) -> bool:
        return len(self._out) > HIGH_WATER

    def pause(self, source: Any) -> None:
        """The host reads slower than this source writes: wait until it has caught up."""
        self._paused.append(source)

    # -- requests ---------------------------------------------------------------------------

    def _serve(self, frame: wire.Frame) -> None:
        serve: Dict[int, Callable[[wire.Frame], None]] = {
            wire.RUN: self._serve_run,
            wire.INTERRUPT: self._serve_interrupt,
            wire.KILL: self._serve_kill,
            wire.RESTART: self._serve_restart,
            wire.EXEC: lambda frame: commands.start(self, frame),
            wire.FILE: lambda frame: files.serve(self, frame),
            wire.PING: lambda frame: self.send(wire.REPLY, frame.request),
        }
        serve[frame.kind](frame)

    def _serve_run(self, frame: wire.Frame) -> None:
        if self._cell is not None:
            self.send(wire.REPLY, frame.request, {"error": "busy"})
            return
        self._reap()  # a worker that died since the last cell must not be blamed on this one
        self._retire_pumps()
        cell = Cell(frame.request, int(frame.header["output"]))
        self._cell = cell
        ends = self._open_pipes(cell)
        header = {"count": frame.header["count"], "env": frame.header.get("env")}
        message = wire.pack(wire.CELL, frame.request, header, frame.payload)
        if not self._worker.pid:
            self._worker.start()  # the last attempt met the process limit
        self._worker.send(message, ends)
        for end in ends:
            os.close(end)
        if not self._worker.pid:
            gone = {"status": "died", "signal": None, "exit_code": None, "lost": True}
            self._finish(cell, gone)

    def _open_pipes(self, cell: Cell) -> List[int]:
        """The ends to write to; none, if the host has no more descriptors to give."""
        ends: List[int] = []
        try:
            for name in ("stdout", "stderr"):
                reading, writing = os.pipe()
                cell.pumps.append(Pump(self, reading, name, self._on_output))
                ends.append(writing)
        except OSError:
            self._worker.signal(signal.SIGKILL)  # reported as the end of this cell
        return ends

    def _serve_interrupt(self, frame: wire.Frame) -> None:
        command = self.commands.get(frame.request)
        if command is not None:
            command.signal(signal.SIGINT)
        elif self._cell is not None and self._is_current(frame):
            self._cell.ending = self._cell.ending or bool(frame.header.get("end"))
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
        self._restart = frame.request
        self._worker.signal(signal.SIGKILL)

    # -- output -----------------------------------------------------------------------------

    def _on_output(self, pump: Pump, data: bytes) -> None:
        cell = self._cell
        if cell is None or pump not in cell.pumps:
            room = MAX_BACKGROUND - len(self._background)
            self._background += data[:room]
            self._background_lost += max(len(data) - room, 0)
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

    # -- the worker -------------------------------------------------------------------------

    def _on_worker_frame(self, frame: wire.Frame) -> None:
        cell = self._cell
        if cell is None:
            return  # said between cells: about nothing
        if frame.kind == wire.CELL_RESULT:
            self._drain(cell)
            self.send(wire.RESULT, cell.request, claims.result(frame.header), frame.payload)
        elif frame.kind == wire.CELL_DONE and frame.request == cell.request and not cell.done:
            # Believed only when the worker is back at its socket: it may claim to be done and
            # then exit, and the exit status is what counts. It cannot have guessed the nonce.
            cell.done = claims.done(frame.header, frame.payload, self.setup["output"])
            cell.payload = frame.payload
            cell.nonce = os.urandom(8).hex()
            self._drain(cell)
            self._worker.send(wire.pack(wire.SYNC, cell.request, {"nonce": cell.nonce}))
        elif frame.kind == wire.SYNCED and cell.done and frame.header.get("nonce") == cell.nonce:
            if cell.ending and commands.threads_since(self._worker.pid, cell.began):
                self._worker.signal(signal.SIGKILL)  # a limit ends all the cell has started
                return
            self._finish(cell, {**cell.done, "lost": False}, cell.payload)

    def _drain(self, cell: Cell) -> None:
        for pump in cell.pumps:
            pump.drain()

    def _finish(self, cell: Cell, header: Dict[str, Any], payload: bytes = b"") -> None:
        if cell.ending and self._worker.pid:
            commands.kill_since(self, cell.began, self._worker.pid)
        self._drain(cell)
        self._cell = None
        self._idle_pumps += cell.pumps
        if self._background:
            data = bytes(self._background)
            self.send(wire.STREAM, cell.request, {"name": "background"}, data)
            self._background.clear()
        header = {**header, "fresh": self._fresh, "background_lost": self._background_lost}
        self._fresh = bool(header["lost"])
        self._background_lost = 0
        self.send(wire.DONE, cell.request, header, payload)

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
            for command in list(self.commands.values()):
                if command.pid == pid:
                    command.on_exit(status)
        if not self._worker.pid:
            self._worker.start()

    def _on_worker_gone(self, status: int) -> None:
        """The verdict of the kernel. What the worker left running belongs to it and goes too."""
        self._worker.gone()
        commands.kill_leftovers(self)
        if self._cell is not None:
            cell = self._cell
            self._finish(cell, {"status": "died", **exit_status(status), "lost": True})
        else:
            self._fresh = True
        if self._restart is not None:
            self._fresh = False  # asked for
            self.send(wire.REPLY, self._restart, {})
            self._restart = None


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
    # which the worker and all programs would inherit.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return reading


def main(channel: socket.socket, setup: Dict[str, Any]) -> None:
    """Serve the host. Never returns: the end of init is the end of the sandbox."""
    try:
        Init(channel, setup).run()
    except BaseException as error:
        sys.stderr.write(f"belljar init: {type(error).__name__}: {error}\n")
    finally:
        os._exit(70)
