"""Init's end of the socket to the process that forks its workers, where init does not do so itself.

That process is outside of the sandbox, and the parent of the workers. It tells init how they end:
what it says is from the kernel.
"""

import array
import os
import select
import socket
import struct
from typing import Any, Dict, Iterator, List, Optional, Tuple

GO = b"\1"  # the first byte on the socket of a worker: init is confined
FORKED, FAILED, ENDED = range(3)
_REPORT = struct.Struct("<BIi")  # one of these; number of the worker; errno or exit status
SIGNAL = struct.Struct("<Ii")  # number of the worker; of the signal
_CREDENTIALS = struct.Struct("iII")
_SPACE = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(4)


def report(
    sock: socket.socket, kind: int, number: int, value: int, pid: int = 0, pidfd: int = -1
) -> None:
    """Tell init; the kernel translates the pid. An init that does not read learns nothing."""
    ancillary: List[Tuple[int, int, Any]] = []
    if pid:
        ancillary = [
            (socket.SOL_SOCKET, socket.SCM_CREDENTIALS, _CREDENTIALS.pack(pid, 0, 0)),
            (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [pidfd])),
        ]
    try:
        sock.sendmsg([_REPORT.pack(kind, number, value)], ancillary, socket.MSG_DONTWAIT)
    except OSError:
        sock.close()  # init is gone, or of no use


class WorkerSource:
    def __init__(self, link: socket.socket, request: bytes, fds: List[int]) -> None:
        """Ask for the first worker. `link` leads to the process that forks; `fds` is what workers
        of this guest need."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._workers: Dict[int, Tuple[int, int]] = {}  # pidfd -> pid and number
        self._ended: Dict[int, int] = {}  # number -> exit status
        self._poll = select.poll()
        self._first: Optional[socket.socket]
        self._first, control = socket.socketpair()
        own = os.pidfd_open(os.getpid())
        socket.send_fds(link, [request], [control.fileno(), theirs.fileno(), own, *fds])
        for each in (control, theirs):
            each.close()
        os.close(own)

    def start(self) -> "Tuple[socket.socket, int, int]":
        """Our end of the socket of a new worker, its pid, and a descriptor that becomes readable
        when it has ended. Waits until the worker is forked."""
        ours, self._first = self._first, None
        if ours is None:
            ours, theirs = socket.socketpair()
            with theirs:
                socket.send_fds(self._socket, [b"fork"], [theirs.fileno()])
        try:
            ours.sendall(GO)
            kind, number, value, pid, pidfd = self._receive()
            while kind == ENDED:
                kind, number, value, pid, pidfd = self._receive()
            if kind == FAILED:
                raise OSError(value, os.strerror(value))
        except BaseException:
            ours.close()
            raise
        self._workers[pidfd] = pid, number
        self._poll.register(pidfd, select.POLLIN)
        return ours, pid, pidfd

    def signal(self, pid: int, number: int) -> None:
        """Have a worker signalled that is not confined yet: init may not do so itself."""
        for found, worker in self._workers.values():
            if found == pid:
                self._socket.send(SIGNAL.pack(worker, number))

    def take_ended(self) -> "Iterator[Tuple[int, int, int]]":
        """Descriptor, pid and exit status of workers that have ended since the last call. The
        caller closes the descriptor."""
        for pidfd, _ in self._poll.poll(0) if self._workers else ():
            self._poll.unregister(pidfd)
            pid, number = self._workers.pop(pidfd)
            while number not in self._ended:
                self._receive()
            yield pidfd, pid, self._ended.pop(number)

    def _receive(self) -> "Tuple[int, int, int, int, int]":
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
        return kind, number, value, pid, pidfd
