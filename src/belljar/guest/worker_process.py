"""The keeper: init's side of the worker. Forks it, talks to it, and knows it only by its socket.

What comes over the socket may be forged by the code in the worker; that it has died, and how, is
the kernel's word alone.
"""

import errno
import os
import resource
import signal
import site
import socket
import struct
from typing import Any, Callable, Dict, List, Optional, Tuple

from ..protocol import buffers, messages, wire
from ..protocol.buffers import Inbox, Outbox, close_all
from . import commands, fork_state, poller, worker

CONTROL = 3  # the worker's only descriptor beside the standard ones


class Keeper:
    def __init__(
        self,
        init: Any,
        setup: Dict[str, Any],
        on_frame: "Callable[[Keeper, wire.Frame, List[int]], None]",
    ) -> None:
        self._init = init
        self._setup = setup
        self._on_frame = on_frame
        self.pid = 0  # 0: there is none
        self._control: Optional[socket.socket] = None
        self._out = Outbox()
        self._inbox = Inbox()
        self._max_payload = max(int(setup["result"]), wire.INLINE)
        self._reader = wire.Reader(wire.FROM_WORKER, self._max_payload)
        self._events = 0
        self._paused = False
        self._on_sent: "List[Callable[[], None]]" = []

    def start(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            pid = self._setup.get("fork", os.fork)()
        except OSError:
            # Dying processes still count against the limit for a moment: init tries again when
            # the next one is gone, or with the next request.
            ours.close()
            theirs.close()
            return
        if pid == 0:
            self._become_worker(theirs)
        theirs.close()
        self.pid = pid
        self._connect(ours)

    def expect(self) -> int:
        """Prepare for a worker that another one will fork: the end of its socket. The first word
        of the child tells its pid, by the kernel's word."""
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

    def _become_worker(self, control: socket.socket) -> None:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            if control.fileno() != CONTROL:
                os.dup2(control.detach(), CONTROL)
                control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=CONTROL)
            # What init has open is not the worker's. init itself keeps a higher limit, so that
            # the code cannot use up what init needs.
            os.closerange(CONTROL + 1, messages.MAX_FILES)
            limit = self._setup["open_files"]
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
            data = self._setup.get("data")
            if data is not None:
                resource.setrlimit(resource.RLIMIT_DATA, (data, data))
            os.setsid()
            self._setup.get("worker_started", _nothing)()
            if not self._setup.get("site", True):  # only now may packages run code: `.pth` files
                site.main()
            fork_state.rank(fork_state.RUNNING)
            worker.main(control, self._setup)
        finally:
            os._exit(1)

    def signal(self, number: int) -> None:
        """The worker is not reaped by anybody else, so the number is its own while it is set."""
        if self.pid:
            os.kill(self.pid, number)

    def gone(self) -> None:
        """It has been reaped, or never came."""
        self.pid = 0
        self._hang_up()

    def _hang_up(self) -> None:
        control, self._control = self._control, None
        if control is not None:
            self._watch(control, 0)
            control.close()
            self._out.clear()
            self._inbox.clear()
            self._tell_sent()

    # -- the socket -------------------------------------------------------------------------

    def send(self, message: bytes, fds: "Tuple[int, ...]" = ()) -> None:
        """Without waiting for it: a worker that does not read its socket between cells is
        broken, and its end is reported like any other. The descriptors are given away."""
        self._out.put(message, fds)
        if self._control is not None:
            self._flush(self._control)
        else:
            self._out.clear()

    def when_sent(self, function: "Callable[[], None]") -> None:
        """Call it when what was sent so far has gone to the worker, or the worker has gone."""
        self._on_sent.append(function)
        if not self._out:
            self._tell_sent()

    def _tell_sent(self) -> None:
        waiting, self._on_sent = self._on_sent, []
        for function in waiting:
            function()

    def _flush(self, control: socket.socket) -> None:
        try:
            self._out.flush(control)
        except BlockingIOError:
            pass  # the selector says when there is room again
        except OSError as error:
            self._out.clear()
            if error.errno not in (errno.EPIPE, errno.ECONNRESET):  # no memory: it would wait on
                self.signal(signal.SIGKILL)
            # It died: SIGCHLD tells how.
        reading = 0 if self._paused else poller.READ
        self._watch(control, reading | (poller.WRITE if self._out else 0))
        if self._on_sent and not self._out:
            self._tell_sent()

    def _watch(self, control: socket.socket, events: int) -> None:
        if events == self._events:
            return
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
            return  # of a worker that has been replaced in this very round
        if events & poller.WRITE:
            self._flush(control)
        if not events & poller.READ:
            return
        if not self._receive(control):
            self._hang_up()
            self.signal(signal.SIGKILL)
            if not self.pid:
                self._init.on_lost(self)  # it never came
        elif self._init.congested and self._control is not None:
            self._paused = True
            self._flush(self._control)
            self._init.pause(self)

    def _receive(self, control: socket.socket) -> bool:
        """Whether all was as it should be: forged frames cost the worker its life."""
        try:
            if not self.pid:
                return self._meet(control)
            data = self._inbox.receive(control)
            return bool(data) and self._take(data)
        except BlockingIOError:
            return True
        except (ConnectionError, wire.WireError):
            return False

    def _meet(self, control: socket.socket) -> bool:
        data, ancillary, _, _ = control.recvmsg(wire.CHUNK, socket.CMSG_SPACE(12))
        for level, kind, body in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                pid = struct.unpack("iII", body[:12])[0]
                # Whoever this is, init must be the one to hear of its death.
                if commands.parent(pid) == os.getpid():
                    self.pid = pid
        control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        return bool(self.pid) and self._take(data)

    def _take(self, data: bytes) -> bool:
        self._reader.feed(data)
        for frame in self._reader.frames():
            self._on_frame(self, frame, self._memory_of(frame))
        return True

    def _memory_of(self, frame: wire.Frame) -> List[int]:
        """The descriptor of its value, if it has one. Nothing but sealed memory goes further:
        who closes another thing, such as a socket that lingers, may have to wait."""
        if "shared" not in frame.header:
            return []
        fd = self._inbox.take()
        try:
            buffers.check_shared(fd, frame.header["shared"])
        except wire.WireError:
            close_all([fd])
            raise
        return [fd]


def _nothing() -> None:
    """What a backend without further steps does when a worker has been forked."""
