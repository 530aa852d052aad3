"""Init's side of a worker: starts the process, and exchanges frames with it over a socket.

The code in the worker can forge what comes over the socket. Whether the process has died, and how,
init learns from the kernel alone.
"""

import array
import contextlib
import errno
import os
import resource
import select
import signal
import site
import socket
import struct
from typing import Any, Callable, Dict, Iterator, List, NoReturn, Optional, Set, Tuple, Union

from ..protocol import messages, wire
from ..protocol.buffers import Inbox, Outbox
from . import commands, fork_state, poller, worker

FORK = b"fork"
GO = b"\1"  # the first byte on the socket of a worker: init is confined
FORKED, FAILED, ENDED = range(3)
_REPORT = struct.Struct("<BIi")  # one of these; number of the worker; errno or exit status
SIGNAL = struct.Struct("<Ii")  # number of the worker; of the signal
_CREDENTIALS = struct.Struct("iII")
_SPACE = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(4)
# A cell for a worker that waits: the first one copies many pages. What it says is dropped.
_WARM_UP = wire.pack(wire.CELL, 0, {"count": 0, "fds": 0, "pipes": 0}, b"None")

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
                fds = [self._inbox.take_shared(frame.header["shared"])] if shared else []
                self._on_frame(self, frame, fds)
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
        data, ancillary, _, _ = control.recvmsg(wire.CHUNK, socket.CMSG_SPACE(_CREDENTIALS.size))
        for level, kind, body in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                pid = _CREDENTIALS.unpack(body[: _CREDENTIALS.size])[0]
                # Init must be the process that learns of its death.
                if commands.read_parent(pid) == os.getpid():
                    self.pid = pid
        control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        return data if self.pid else b""


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
        most = [setup["open_files"], messages.MAX_FILES, hard]
        limit = min(each for each in most if each != resource.RLIM_INFINITY)
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


# -- forked by another process ----------------------------------------------------------------
#
# Natively, a process outside of the sandbox forks the workers, and is their parent. It tells init
# how they end: what it says is from the kernel.


def report(
    sock: socket.socket, kind: int, number: int, value: int, pid: int = 0, pidfd: int = -1
) -> None:
    """Tell init; the kernel translates the pid. One that is gone or does not read is not told."""
    ancillary: List[Tuple[int, int, Any]] = []
    if pid:
        ancillary = [
            (socket.SOL_SOCKET, socket.SCM_CREDENTIALS, _CREDENTIALS.pack(pid, 0, 0)),
            (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [pidfd])),
        ]
    with contextlib.suppress(OSError):
        sock.sendmsg([_REPORT.pack(kind, number, value)], ancillary, socket.MSG_DONTWAIT)


class WorkerSource:
    def __init__(self, link: socket.socket, request: bytes, fds: List[int]) -> None:
        """Ask for the first worker. `link` leads to the process that forks; `fds` is what workers
        of this guest need."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._workers: Dict[int, Tuple[int, int]] = {}  # pidfd -> pid and number
        self._ended: Dict[int, int] = {}  # number -> exit status
        self._poll = select.poll()
        # Our end of the socket of a worker that was asked for ahead of its use.
        self._ahead: Optional[socket.socket]
        self._forked: "Union[Tuple[int, int, int], OSError, None]" = None  # what was said of it
        self._ahead, control = socket.socketpair()
        self._confined = False  # init; before that no worker is
        socket.send_fds(link, [request], [control.fileno(), theirs.fileno(), *fds])
        for each in (control, theirs):
            each.close()

    def start(self) -> "Tuple[socket.socket, int, int]":
        """Our end of the socket of a new worker, its pid, and a descriptor that becomes readable
        when it has ended. Waits until the worker is forked."""
        while True:
            asked = self._ahead is not None
            if not asked:
                self._ahead = self._ask()
            ours = self._ahead
            assert ours is not None
            try:
                pidfd, pid, number = self._wait_for_fork()
                if not self._confined:
                    self._confined = True
                    with contextlib.suppress(OSError):  # it has ended already
                        ours.sendall(GO)
            except BaseException:
                ours.close()
                raise
            finally:
                self._ahead = self._forked = None
            self._workers[pidfd] = pid, number
            self._poll.register(pidfd, select.POLLIN)
            if not asked or not poller.is_readable(pidfd):
                return ours, pid, pidfd
            # It ended while it waited: the caller gets another one.
            ours.close()
            self._forget(pidfd)
            os.close(pidfd)

    def prepare(self) -> None:
        """Ask for the next worker ahead of its use, without waiting for it."""
        if self._ahead is None:
            with contextlib.suppress(OSError):  # `start` will say what is missing
                self._ahead = self._ask()
                self._ahead.sendall(_WARM_UP)

    def find_waiting(self) -> "Set[int]":
        """The pid of the worker that waits for its use, if there is one that lives."""
        if self._ahead is None:
            return set()
        try:
            pidfd, pid, _ = self._wait_for_fork()
        except OSError:
            self._ahead.close()
            self._ahead = None
            return set()
        return set() if poller.is_readable(pidfd) else {pid}

    def _ask(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                ours.sendall(GO)
                socket.send_fds(self._socket, [FORK], [theirs.fileno()])
            except BaseException:
                ours.close()
                raise
        return ours

    def _wait_for_fork(self) -> "Tuple[int, int, int]":
        """Of the worker that was asked for: pidfd, pid and number."""
        while self._forked is None:
            self._receive()
        if not isinstance(self._forked, tuple):
            error, self._forked = self._forked, None
            raise error
        return self._forked

    def signal(self, pid: int, number: int) -> None:
        """Have a worker signalled that is not confined yet: init may not do so itself."""
        for found, which in self._workers.values():
            if found == pid:
                self._socket.send(SIGNAL.pack(which, number))

    def take_ended(self) -> "Iterator[Tuple[int, int, int]]":
        """Descriptor, pid and exit status of workers that have ended since the last call. The
        caller closes the descriptor."""
        for pidfd, _ in self._poll.poll(0) if self._workers else ():
            yield pidfd, *self._forget(pidfd)

    def _forget(self, pidfd: int) -> "Tuple[int, int]":
        """A worker that has ended: its pid and exit status."""
        self._poll.unregister(pidfd)
        pid, number = self._workers.pop(pidfd)
        while number not in self._ended:
            self._receive()
        return pid, self._ended.pop(number)

    def _receive(self) -> None:
        data, ancillary, _, _ = self._socket.recvmsg(64, _SPACE, socket.MSG_CMSG_CLOEXEC)
        if not data:
            os._exit(0)  # the parent of the workers is gone, and all guests go with it
        kind, number, value = _REPORT.unpack(data)
        pid, pidfd = 0, -1
        for _, found, body in ancillary:
            if found == socket.SCM_CREDENTIALS:
                pid = _CREDENTIALS.unpack(body[: _CREDENTIALS.size])[0]
            else:
                pidfd = struct.unpack("i", body[:4])[0]
        if kind == ENDED:
            self._ended[number] = value
        elif kind == FAILED or pidfd < 0:  # without a number for its descriptor
            self._forked = OSError(value, os.strerror(value))
        else:
            self._forked = pidfd, pid, number
