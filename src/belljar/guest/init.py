"""The guest's init: PID 1 of the sandbox, between the host and the code.

It exchanges frames with the host, forks the worker and sees it die, reads output through capped
pipes, and runs commands and file operations inside the sandbox. Its descriptors do not block, and
what it holds for a slow reader is bounded. It waits in three places only: until the program of a
command has started, and a few seconds at most to remove a tree or to get room for a new worker.

The worker cannot signal it (PID 1 has no handler that the worker could trigger), trace it or open
its descriptors (it is not dumpable).
"""

import contextlib
import functools
import gc
import os
import resource
import select
import signal
import sys
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from ..protocol import messages, wire
from ..protocol.buffers import Inbox, Outbox, close_all
from . import file_requests, poller, processes
from .branches import Branches
from .cells import GONE, Interpreter, WatchedDirectory
from .poller import OutputReader
from .sources import Source

HIGH_WATER = 4 * 1024 * 1024  # bytes waiting for the host; above it, output is not read
LARGE = 16 * 1024  # bytes of a payload that is sent without a copy
# While a cell starts or ends, some events need no action yet. Init leaves them until the next
# event, if that comes soon:
QUIET_TIME = 0.002  # seconds
QUIET_ROUNDS = 4  # rounds of the loop


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
        self.watch_again: List[OutputReader] = []  # to be watched again when the quiet rounds end
        self._quiet = 0  # rounds that are left
        self._holding = False  # keep frames for the host until the cell is over
        self.workspace: Optional[WatchedDirectory] = None
        self.default = Interpreter(self)
        self.interpreters = {0: self.default}  # and those of contexts
        if "archive_size" in setup:  # a container's workspace is opened before any code runs
            self.branches  # noqa: B018
        self.processes: Dict[int, processes.Process] = {}  # by pid; also some that have ended
        self.streams: Dict[int, Source] = {}  # by request
        self._handlers: Dict[int, Callable[[wire.Frame], None]] = {
            wire.INTERRUPT: self._serve_interrupt,
            wire.KILL: self._serve_kill,
            wire.RESTART: self._serve_restart,
            wire.CONTEXT: self._serve_context,
            wire.OPEN: lambda frame: processes.open_stream(self, frame),
            wire.PROCESS: lambda frame: processes.serve(self, frame),
            wire.STREAM: self._serve_input,
            wire.CREDIT: self._serve_credit,
            wire.END: self._serve_end,
            wire.FILE: lambda frame: file_requests.serve(self, frame),
            wire.PING: self._serve_ping,
            wire.PART: lambda frame: (self._find(frame) or self.default).part(frame),
            wire.KEEP: lambda frame: self.branches.keep(frame),
            wire.RETURN: lambda frame: self.branches.go_back(frame),
            wire.RELEASE: lambda frame: self.branches.release(frame),
            wire.SWITCH: lambda frame: self.branches.switch(frame),
        }

    @functools.cached_property
    def branches(self) -> Branches:
        return Branches(self, self.setup)

    # -- the loop ---------------------------------------------------------------------------

    def run(self) -> None:
        self._channel.setblocking(False)
        self.selector.register(self._incoming, poller.READ, self._on_channel)
        self.selector.register(child_signals(), poller.READ, self._on_child)
        gc.freeze()
        self.default.worker.start()
        while True:
            found = self.selector.wait(QUIET_TIME if self._quiet else None)
            if self._quiet:
                self._quiet = self._quiet - 1 if found else 0
                if not self._quiet:
                    self.end_quiet()
            if not self._holding and (self._out.pending or self._waiting or self._paused):
                self._flush()

    def end_quiet(self) -> None:
        self._quiet, self._holding = 0, False
        readers, self.watch_again = self.watch_again, []
        for reader in readers:
            if reader.pipes:
                reader.watch()

    def begin_quiet(self, hold: bool = False) -> None:
        """With `hold`, frames for the host wait, too."""
        self._quiet, self._holding = QUIET_ROUNDS, self._holding or hold

    def watch_later(self, reader: OutputReader) -> None:
        """It would wake init for little: in a moment there may be more."""
        self.watch_again.append(reader)
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
                (self._find(frame) or self.default).answer(frame, fds)
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

    def _interpreter(self, frame: wire.Frame) -> Optional[Interpreter]:
        """None: the context was removed meanwhile."""
        found = self.interpreters.get(frame.header.get("context", 0))
        return None if found is None or found.removed else found

    def _serve_run(self, frame: wire.Frame, fds: "Tuple[int, ...]") -> None:
        if interpreter := self._interpreter(frame):
            interpreter.run(frame, fds)
        else:
            close_all(fds)
            self.send(wire.DONE, frame.request, dict(GONE))

    def _serve_restart(self, frame: wire.Frame) -> None:
        if interpreter := self._interpreter(frame):
            interpreter.restart(frame)
        else:
            self.send(wire.REPLY, frame.request)

    def _find(self, frame: wire.Frame) -> Optional[Interpreter]:
        """The interpreter that runs the cell of this request."""
        for each in self.interpreters.values():
            if each.cell is not None and each.cell.request == frame.request:
                return each
        return None

    def _serve_context(self, frame: wire.Frame) -> None:
        number = frame.header["context"]
        if frame.header["op"] == "remove":
            if known := self._interpreter(frame):
                known.remove(frame.request)
            else:
                self.send(wire.REPLY, frame.request)
            return
        if not os.path.isdir(cwd := frame.header["cwd"]):
            self.send(wire.REPLY, frame.request, {"error": f"{cwd} is not a directory"})
            return
        made = self.interpreters[number] = Interpreter(self, frame.header)
        made.ensure_worker()
        if made.worker.pid:
            self.send(wire.REPLY, frame.request)
            if source := self.setup.get("source"):
                source.prepare()  # who makes one context often makes another
            return
        del self.interpreters[number]
        self.send(wire.REPLY, frame.request, {"error": "out of processes or memory"})

    def _serve_ping(self, frame: wire.Frame) -> None:
        """The host pauses the guest next, or has let it go on; or only wants an answer."""
        if "paused" in frame.header:
            self.selector.stop_clock() if frame.header["paused"] else self.selector.start_clock()
        self.send(wire.REPLY, frame.request)

    def _serve_interrupt(self, frame: wire.Frame) -> None:
        source, interpreter = self.streams.get(frame.request), self._find(frame)
        if source is not None:
            source.signal(signal.SIGINT)
        elif interpreter is not None:
            interpreter.interrupt(frame)

    def _serve_kill(self, frame: wire.Frame) -> None:
        source, interpreter = self.streams.get(frame.request), self._find(frame)
        if source is not None:
            source.kill()
        elif interpreter is not None:
            interpreter.worker.signal(signal.SIGKILL)

    # A stream may have ended before init has the host's last frames of it.

    def _serve_input(self, frame: wire.Frame) -> None:
        if frame.request in self.streams:
            self.streams[frame.request].write(frame.request, frame.payload)

    def _serve_credit(self, frame: wire.Frame) -> None:
        if frame.request in self.streams:
            self.streams[frame.request].grant(frame.request, int(frame.header["size"]))

    def _serve_end(self, frame: wire.Frame) -> None:
        if source := self.streams.get(frame.request):
            source.end_input() if frame.header.get("input") else source.detach(frame.request)

    def sessions(self) -> "Set[int]":
        """Of processes: they survive the worker. Each is the leader of its session."""
        return {pid for pid, process in self.processes.items() if process.alive}

    # -- deaths -----------------------------------------------------------------------------

    def _on_child(self, pipe: Any, events: int) -> None:
        drain(pipe)
        self.reap()

    def watch_worker(self, pidfd: int) -> None:
        """One that is not init's child."""
        self.selector.register(pidfd, poller.READ, lambda pidfd, events: self.reap())

    def reap(self) -> None:
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
        for interpreter in self.interpreters.values():
            branch = interpreter.branch
            ending = branch.released or interpreter.removed
            replacing = interpreter is self.default and self.branches.replacing
            if not branch.worker.pid and not ending and not replacing:
                interpreter.start_worker()

    def _on_exit(self, pid: int, status: int) -> None:
        branches = self.branches
        for interpreter in self.interpreters.values():
            if pid == interpreter.worker.pid:
                interpreter.on_worker_gone(status)
                return
        store, parked = branches.store, branches.find_worker(pid)
        if store is not None and store.on_exit(pid, status):
            return
        if parked is not None:
            parked.close()
            branches.on_lost(parked)
        process = self.processes.get(pid)
        if process is not None and process.alive:
            process.on_exit(status)


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
