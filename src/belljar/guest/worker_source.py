"""Workers that another process forks for init. Natively that is the preloader, outside of the
sandbox, and it is their parent. It tells init how they end: what it says is from the kernel.
"""

import array
import contextlib
import os
import select
import socket
import struct
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple, Union

from ..protocol import wire
from . import poller

FORK = b"fork"
GO = b"\1"  # the first byte on the socket of a worker: init is confined
FORKED, FAILED, ENDED = range(3)
_REPORT = struct.Struct("<BIi")  # one of these; number of the worker; errno or exit status
SIGNAL = struct.Struct("<Ii")  # number of the worker; of the signal
_CREDENTIALS = struct.Struct("iII")
_SPACE = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(4)
# A cell for a worker that waits: the first one copies many pages. What it says is dropped.
_WARM_UP = wire.pack(wire.CELL, 0, {"count": 0, "fds": 0, "pipes": 0}, b"None")


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
