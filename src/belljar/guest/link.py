"""The worker's end of its socket, used by all its threads: cells come in, calls go out.

Nobody reads in the background. Whoever waits, the main loop for a cell or a thread for the answer
of a host function, reads for all.
"""

import contextlib
import errno
import os
import select
import socket
import threading
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Tuple

from . import blobs, functions, values, wire
from .outbox import Inbox, close_all

LOOK = 0.05  # seconds between looks for an interrupt, while another thread reads
MAX_VALUE = 1 << 40  # what comes from the host is not doubted; memory has its own limit


class Link:
    def __init__(self, sock: socket.socket, setup: Dict[str, Any]) -> None:
        self._limit = int(setup["values"])
        self._share = bool(setup["share"])
        self._critical = False
        self._interrupted = False
        self.open(sock)

    def open(self, sock: socket.socket) -> None:
        """Start afresh on this socket; also in a fork, where other threads held the locks."""
        self._socket = sock
        self._pid = os.getpid()
        self._reader = wire.Reader(wire.FROM_INIT)
        self._inbox = Inbox()
        self._sending = threading.Lock()
        self._state = threading.Condition(threading.Lock())
        self._reading = False
        self._requests: Deque[Tuple[wire.Frame, List[int]]] = deque()
        self._answers: Dict[int, Optional[Tuple[wire.Frame, List[int]]]] = {}
        self._parts = blobs.Parts(MAX_VALUE)
        self._calls = 0
        self._slots = threading.BoundedSemaphore(wire.MAX_CALLS)

    def detach(self) -> None:
        """In a fork: let go of a socket that is another's, without closing its number."""
        self._socket.detach()

    # -- interrupts -------------------------------------------------------------------------

    def on_interrupt(self) -> bool:
        """Whether KeyboardInterrupt may be raised now; if not, it is raised when it may."""
        self._interrupted = self._critical
        return not self._critical

    @contextlib.contextmanager
    def _uninterrupted(self) -> "Iterator[None]":
        """Half a frame, sent or received, would garble all that follow."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._critical = True
        try:
            yield
        finally:
            self._critical = False
        self._raise_interrupt()

    def _raise_interrupt(self) -> None:
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt

    # -- sending ----------------------------------------------------------------------------

    @property
    def ours(self) -> bool:
        """Not a child that a cell forked: the socket is the worker's."""
        return os.getpid() == self._pid

    def send(self, kind: int, request: int, header: Any = None, payload: bytes = b"") -> None:
        with self._uninterrupted():
            self._send(wire.pack(kind, request, header, payload), -1)

    def send_value(self, kind: int, request: int, header: Any, value: "values.Encoded") -> None:
        if value.size <= wire.INLINE:
            self.send(kind, request, header, value.join())
            return
        if self._share:
            fd = blobs.seal(value.pieces())
            try:
                frame = wire.pack(kind, request, {**header, "shared": value.size})
                with self._uninterrupted():
                    self._send(frame, fd)
            finally:
                os.close(fd)
            return
        for part in blobs.cut(value.pieces()):
            self.send(wire.PART, 0, {"key": request, "size": value.size}, part)
        self.send(kind, request, {**header, "parts": value.size})

    def _send(self, frame: bytes, fd: int) -> None:
        with self._sending:
            sent = socket.send_fds(self._socket, [frame], [fd]) if fd >= 0 else 0
            self._socket.sendall(memoryview(frame)[sent:])

    # -- receiving --------------------------------------------------------------------------

    def next(self) -> "Tuple[wire.Frame, List[int]]":
        """The next frame that is for the main loop, with its descriptors. EOFError at the end."""
        self._wait(lambda: bool(self._requests))
        return self._requests.popleft()

    def value_of(self, frame: wire.Frame, fds: List[int]) -> Any:
        """The value that came with a frame."""
        return values.decode(self._blob(frame, fds), MAX_VALUE, MAX_VALUE)

    def _blob(self, frame: wire.Frame, fds: List[int]) -> Any:
        if "shared" in frame.header:
            if not fds:
                raise OSError(errno.EMFILE, "a value could not come in: too many open files")
            return blobs.unseal(fds.pop(), int(frame.header["shared"]))
        if "parts" in frame.header:
            return self._parts.take(frame.header["key"], frame.header["parts"])
        return frame.payload

    def _wait(self, ready: "Callable[[], bool]") -> None:
        with self._uninterrupted(), self._state:
            while not ready():
                if self._reading:
                    self._state.wait(LOOK if self._critical else None)
                    self._raise_interrupt()
                else:
                    self._read()

    def _read(self) -> None:
        critical, self._reading = self._critical, True
        self._state.release()
        try:
            # Waiting may be interrupted, taking may not.
            self._critical = False
            self._raise_interrupt()
            select.select([self._socket], [], [])
            self._critical = critical
            self._receive()
        finally:
            self._critical = critical
            self._state.acquire()
            self._reading = False
            self._state.notify_all()

    def _receive(self) -> None:
        data = self._inbox.receive(self._socket)
        if not data:
            raise EOFError
        self._reader.feed(data)
        for frame in self._reader.frames():
            fds = self._inbox.take_some(int(frame.header.get("fds", 0)))
            if frame.kind == wire.PART:
                self._parts.add(frame.header["key"], frame.header["size"], frame.payload)
            elif frame.kind != wire.ANSWER:
                self._requests.append((frame, fds))
            elif frame.header["call"] in self._answers:
                self._answers[frame.header["call"]] = (frame, fds)
            else:
                close_all(fds)  # nobody waits for it any more

    # -- calls ------------------------------------------------------------------------------

    def call(self, name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """Call a function of the host, and wait for what it gives."""
        if not self.ours:
            raise RuntimeError(f"{name}() can be called by the sandbox's own interpreter only")
        try:
            given = values.encode({"args": list(args), "kwargs": kwargs}, self._limit)
        except values.CannotTravel as error:
            raise TypeError(f"{name}(): {error}") from None
        with self._slots:
            with self._state:
                self._calls += 1
                call = self._calls
                self._answers[call] = None
            try:
                self.send_value(wire.CALL, call, {"function": name}, given)
                self._wait(lambda: self._answers[call] is not None)
            finally:
                answer = self._answers.pop(call)
                if answer is None:
                    self._parts.drop(call)
        assert answer is not None
        frame, fds = answer
        if not frame.header["ok"]:
            raise functions.exception(frame.header["name"], frame.header["message"])
        return self.value_of(frame, fds)
