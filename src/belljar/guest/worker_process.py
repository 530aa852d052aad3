"""Init's side of a worker: starts the process, and exchanges frames with it over a socket. At the
end, the roles that a worker can have: branch, checkpoint, copy.

The code in the worker can forge what comes over the socket. Whether the process has died, and how,
init learns from the kernel alone.
"""

import errno
import os
import resource
import signal
import site
import socket
import struct
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, NoReturn, Optional, Tuple

from ..protocol import messages, wire
from ..protocol.buffers import Inbox, Outbox, check_shared, close_all
from . import commands, fork_state, poller, worker
from .workspace_store import CURRENT

OnFrame = Callable[["WorkerProcess", wire.Frame, List[int]], None]


class WorkerProcess:
    def __init__(self, init: Any, setup: Dict[str, Any], on_frame: OnFrame) -> None:
        self._init = init
        self._setup = setup
        self._on_frame = on_frame
        self.pid = 0  # 0: no process
        self._control: Optional[socket.socket] = None
        self._out = Outbox()
        self._inbox = Inbox()
        self._max_payload = max(int(setup["result"]), wire.INLINE)
        self._reader = wire.Reader(wire.FROM_WORKER, self._max_payload)
        self._events = 0
        self._paused = False
        self._on_sent: "List[Callable[[], None]]" = []

    def start(self) -> None:
        source = self._setup.get("source")
        try:
            ours, self.pid, pidfd = self._fork() if source is None else source.start()
        except OSError:
            # Dying processes still count against the limit for a moment. Init tries again when
            # the next one is gone, or with the next request.
            return
        self._connect(ours)
        if pidfd >= 0:
            self._init.watch_worker(pidfd)

    def _fork(self) -> "Tuple[socket.socket, int, int]":
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                pid = self._setup.get("fork", os.fork)()
            except OSError:
                ours.close()
                raise
            if pid == 0:
                become_worker(theirs, self._setup)
        return ours, pid, -1  # SIGCHLD tells of its end

    def expect_fork(self) -> int:
        """Prepare for a process that another worker will fork; returns its end of the socket.

        The kernel attaches the pid of the child to its first message.
        """
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._connect(ours)
        return theirs.detach()

    def _connect(self, ours: socket.socket) -> None:
        ours.setblocking(False)
        self._control = ours
        self._reader = wire.Reader(wire.FROM_WORKER, self._max_payload)
        self._out.clear()
        self._inbox.clear()
        self._on_sent.clear()
        self._events, self._paused = poller.READ, False
        self._init.selector.register(ours, self._events, self._on_ready)

    def signal(self, number: int) -> None:
        """Init forgets `pid` when the worker is reaped, or at once after."""
        if self.pid:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return  # it was reaped, and init learns of it next
            except PermissionError:
                self._setup["source"].signal(self.pid, number)

    def close(self) -> None:
        """The process has been reaped, or never came."""
        self.pid = 0
        self._close_socket()

    def _close_socket(self) -> None:
        control, self._control = self._control, None
        if control is not None:
            if self._events:
                self._watch(control, 0)
            control.close()
            self._out.clear()
            self._inbox.clear()
            self._call_sent()

    # -- the socket -------------------------------------------------------------------------

    def send(self, message: bytes, fds: "Tuple[int, ...]" = ()) -> None:
        """Send without waiting, and close the descriptors afterwards. A worker that does not read
        its socket between cells is broken; its end is reported like any other."""
        self._out.put(message, fds)
        if self._control is not None:
            self._flush(self._control)
        else:
            self._out.clear()

    def when_sent(self, function: "Callable[[], None]") -> None:
        """Call it when the worker has received all that was sent so far, or is gone."""
        self._on_sent.append(function)
        if not self._out.pending:
            self._call_sent()

    def _call_sent(self) -> None:
        waiting, self._on_sent = self._on_sent, []
        for function in waiting:
            function()

    def _flush(self, control: socket.socket) -> None:
        try:
            self._out.flush(control)
        except BlockingIOError:
            pass  # the poller says when there is room again
        except OSError as error:
            self._out.clear()
            # EPIPE, ECONNRESET: it died, and SIGCHLD says how. Otherwise memory has run out, and
            # the worker would wait for ever.
            if error.errno not in (errno.EPIPE, errno.ECONNRESET):
                self.signal(signal.SIGKILL)
        events = 0 if self._paused else poller.READ
        if self._out.pending:
            events |= poller.WRITE
        if events != self._events:
            self._watch(control, events)
        if self._on_sent and not self._out.pending:
            self._call_sent()

    def _watch(self, control: socket.socket, events: int) -> None:
        if not self._events:
            self._init.selector.register(control, events, self._on_ready)
        elif not events:
            self._init.selector.unregister(control)
        else:
            self._init.selector.modify(control, events, self._on_ready)
        self._events = events

    def resume(self) -> None:
        """The host has caught up with what the worker sent."""
        self._paused = False
        if self._control is not None:
            self._flush(self._control)

    def _on_ready(self, ready: Any, events: int) -> None:
        control = self._control
        if control is None or ready is not control:
            return  # the worker was replaced since the poll
        if events & poller.WRITE:
            self._flush(control)
        if not events & poller.READ:
            return
        try:
            data = self._inbox.receive(control) if self.pid else self._receive_first(control)
            honest = bool(data)
            self._reader.feed(data)
            for frame in self._reader.frames():
                shared = "shared" in frame.header
                self._on_frame(self, frame, self._take_shared(frame) if shared else [])
        except BlockingIOError:
            return
        except (ConnectionError, wire.WireError):
            honest = False
        if not honest:  # init kills a worker that forges frames
            self._close_socket()
            self.signal(signal.SIGKILL)
            if not self.pid:
                self._init.branches.on_lost(self)  # it never came
        elif self._init.congested and self._control is not None:
            self._paused = True
            self._flush(self._control)
            self._init.pause(self)

    def _receive_first(self, control: socket.socket) -> bytes:
        """The first message of a forked worker, with its pid; b"" if it is not init's child."""
        data, ancillary, _, _ = control.recvmsg(wire.CHUNK, socket.CMSG_SPACE(12))
        for level, kind, body in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                pid = struct.unpack("iII", body[:12])[0]
                # Init must be the process that learns of its death.
                if commands.read_parent(pid) == os.getpid():
                    self.pid = pid
        control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        return data if self.pid else b""

    def _take_shared(self, frame: wire.Frame) -> List[int]:
        """The descriptor of a value. Init passes on only sealed memory: closing another object,
        such as a socket that lingers, may block."""
        fd = self._inbox.take()
        try:
            check_shared(fd, frame.header["shared"])
        except wire.WireError:
            close_all([fd])
            raise
        return [fd]


def become_worker(
    control: socket.socket, setup: Dict[str, Any], prepared: "Optional[worker.Worker]" = None
) -> NoReturn:
    """In a process that was just forked."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        if control.fileno() != fork_state.CONTROL:
            os.dup2(control.fileno(), fork_state.CONTROL, inheritable=False)
            control.close()
            control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=fork_state.CONTROL)
        # The worker gets none of init's descriptors. Init keeps a higher limit than the code,
        # so that the code cannot use up what init needs.
        os.closerange(fork_state.CONTROL + 1, messages.MAX_FILES)
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = (
            messages.MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, messages.MAX_FILES)
        )
        limit = min(setup["open_files"], most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        data = setup.get("data")
        if data is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (data, data))
        os.setsid()
        if "worker_started" in setup:
            setup["worker_started"]()
        if not setup.get("site", True):  # `.pth` files of packages run code only now
            site.main()
        fork_state.set_oom_score(fork_state.RUNNING)
        (prepared or worker.Worker()).serve(control, setup)
    finally:
        os._exit(1)


# -- roles of a worker ------------------------------------------------------------------------


@dataclass(eq=False)
class Branch:
    worker: WorkerProcess
    files: str = CURRENT  # the name of its workspace in the store while it is not active
    functions: List[Any] = field(default_factory=list)  # host functions
    state_lost: bool = False  # variables were lost since the last cell
    asleep: bool = False  # its worker has run no cell since it was parked
    # Stopped processes with their start times, because pids are used again.
    stopped: Dict[int, int] = field(default_factory=dict)
    released: bool = False


@dataclass(eq=False)
class Checkpoint:
    worker: WorkerProcess
    files: str


@dataclass(eq=False)
class Copy:
    """An interpreter and a workspace that are being copied: done when all three parts are."""

    worker: WorkerProcess
    parent: WorkerProcess
    then: "Optional[Callable[[Copy], None]]"
    files: str = ""
    missing: List[str] = field(default_factory=list)
    error: str = ""
    waits: "set[str]" = field(default_factory=lambda: {"forked", "ready", "files"})

    def done(self, *parts: str, error: str = "") -> None:
        self.error = self.error or error
        self.waits.difference_update(parts)
        if not self.waits and self.then is not None:
            then, self.then = self.then, None
            then(self)
