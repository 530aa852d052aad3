"""The worker's end of its socket, used by all its threads: cells come in, calls go out.

Nobody reads in the background. Whoever waits, the main loop for a cell or a thread for the answer
of a host function, reads for all.
"""

import contextlib
import errno
import os
import resource
import select
import socket
import threading
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Tuple

from ..protocol import buffers, values, wire
from ..protocol.buffers import Inbox, close_all
from . import functions

LOOK = 0.05  # seconds between looks for an interrupt, while another thread reads
MAX_VALUE = 1 << 40  # what comes from the host is not doubted; memory has its own limit
FIRST_CALL = 1 << 31  # so that parts of an answer are never taken for those of a cell


class Link:
    def __init__(self, sock: socket.socket, setup: Dict[str, Any]) -> None:
        self._limit = int(setup["values"])
        self._share = bool(setup["share"])
        self._handed = 0  # bytes of memory that the host was given, and that still count here
        self.open(sock)

    def open(self, sock: socket.socket) -> None:
        """Start afresh on this socket; also in a fork, where other threads held the locks."""
        self._socket = sock
        self._pid = os.getpid()
        self._critical = _Critical()
        self._waiting = b""  # frames that go with the next one
        self._reader = wire.Reader(wire.FROM_INIT)
        self._inbox = Inbox()
        self._sending = threading.Lock()
        self._state = threading.Condition(threading.Lock())
        self._reading = False
        self._requests: Deque[Tuple[wire.Frame, List[int]]] = deque()
        self._answers: Dict[int, Optional[Tuple[wire.Frame, List[int]]]] = {}
        self._parts = buffers.Parts(MAX_VALUE)
        self._calls = 0
        self._slots = threading.BoundedSemaphore(wire.MAX_CALLS)

    def detach(self) -> None:
        """In a fork: let go of a socket that is another's, without closing its number."""
        self._socket.detach()

    # -- interrupts -------------------------------------------------------------------------

    def on_interrupt(self) -> bool:
        """Whether KeyboardInterrupt may be raised now; if not, it is raised when it may."""
        self._critical.interrupted = self._critical.depth > 0
        return not self._critical.depth

    def _in_main_thread(self) -> bool:
        return threading.get_ident() == self._critical.main

    # -- sending ----------------------------------------------------------------------------

    @property
    def ours(self) -> bool:
        """Not a child that a cell forked: the socket is the worker's."""
        return os.getpid() == self._pid

    def send(self, kind: int, request: int, header: Any = None, payload: bytes = b"") -> None:
        frame = wire.pack(kind, request, header, payload)
        with self._critical:
            self._send(frame, -1)

    def send_later(self, kind: int, header: Any, payload: bytes) -> None:
        """With what is sent next, in one piece; what comes next must not take long."""
        frame = wire.pack(kind, 0, header, payload)
        with self._critical, self._sending:
            self._waiting += frame

    def send_value(self, kind: int, request: int, header: Any, value: "values.Encoded") -> None:
        if value.size <= wire.INLINE:
            self.send(kind, request, header, value.join())
            return
        fd = self._seal(value)
        if fd >= 0:
            try:
                frame = wire.pack(kind, request, {**header, "shared": value.size})
                with self._critical:
                    self._send(frame, fd)
            finally:
                os.close(fd)
            return
        key = request if kind == wire.CALL else wire.VALUE_KEY
        for part in buffers.cut_parts(value.pieces()):
            self.send(wire.PART, 0, {"key": key, "size": value.size}, part)
            self._critical.raise_late()
        self.send(kind, request, {**header, "parts": value.size})

    def _seal(self, value: "values.Encoded") -> int:
        """The value as memory to hand over; -1, if it has to go in parts."""
        # It is a copy, and the host may keep it: there must be room for it, and stay some.
        if not self._share or self._handed + value.size > self._limit // 4:
            return -1
        try:
            if _resident() + self._handed + value.size > self._limit * 3 // 4:
                return -1
            fd = buffers.share_memory(value.pieces())
        except OSError:  # no descriptors, no memory
            return -1
        self._handed += value.size
        return fd

    def _send(self, frame: bytes, fd: int) -> None:
        with self._sending:
            if self._waiting:
                waiting, self._waiting = self._waiting, b""
                if fd < 0:
                    frame = waiting + frame
                else:
                    self._socket.sendall(waiting)
            if fd < 0:
                self._socket.sendall(frame)
            else:
                sent = socket.send_fds(self._socket, [frame], [fd])
                self._socket.sendall(memoryview(frame)[sent:])

    # -- receiving --------------------------------------------------------------------------

    def next(self) -> "Tuple[wire.Frame, List[int]]":
        """The next frame that is for the main loop, with its descriptors. EOFError at the end.

        Called between cells, when no interrupt is raised: what is read is not lost half-way.
        """
        if not self._requests:
            with self._state:
                while not self._requests:
                    if self._reading:
                        self._state.wait()
                    else:
                        self._read(self._receive)
        return self._requests.popleft()

    def value_of(self, frame: wire.Frame, fds: List[int]) -> Any:
        """The value that came with a frame."""
        return values.decode(self._blob(frame, fds), MAX_VALUE, MAX_VALUE)

    def _blob(self, frame: wire.Frame, fds: List[int]) -> Any:
        if "shared" in frame.header:
            if not fds:
                raise OSError(errno.EMFILE, "a value could not come in: too many open files")
            return buffers.map_shared(fds.pop(), int(frame.header["shared"]))
        if "parts" in frame.header:
            return self._parts.take(frame.header["key"], frame.header["parts"])
        return frame.payload

    def _wait(self, ready: "Callable[[], bool]") -> None:
        with self._critical, self._state:
            while not ready():
                if not self._reading:
                    self._read(self._receive_patiently)
                else:
                    self._state.wait(LOOK if self._in_main_thread() else None)
                    self._critical.raise_late()

    def _read(self, receive: "Callable[[], None]") -> None:
        """For all who wait."""
        self._reading = True
        self._state.release()
        try:
            receive()
        finally:
            self._state.acquire()
            self._reading = False
            self._state.notify_all()

    def _receive_patiently(self) -> None:
        """Waiting may be interrupted, taking may not."""
        if self._in_main_thread():
            depth, self._critical.depth = self._critical.depth, 0
            try:
                self._critical.raise_late()
                select.select([self._socket], [], [])
            finally:
                self._critical.depth = depth
        else:
            select.select([self._socket], [], [])
        self._receive()

    def _receive(self) -> None:
        data = self._inbox.receive(self._socket)
        if not data:
            raise EOFError
        self._reader.feed(data)
        for frame in self._reader.frames():
            fds = self._inbox.take_some(int(frame.header.get("fds", 0)))
            if frame.kind == wire.PART:
                self._take_part(frame)
            elif frame.kind != wire.ANSWER:
                if frame.kind == wire.CELL:
                    self._begin_cell(frame.header)
                self._requests.append((frame, fds))
            elif frame.header["call"] in self._answers:
                self._note_held(frame.header)
                self._answers[frame.header["call"]] = (frame, fds)
            else:
                close_all(fds)  # nobody waits for it any more

    def _take_part(self, frame: wire.Frame) -> None:
        key = frame.header["key"]
        if key < FIRST_CALL:
            self._parts.keep_only({key, *self._answers})  # one for a cell is the only one
        elif key not in self._answers:
            return  # nobody waits for it any more
        self._parts.add(key, frame.header["size"], frame.payload)

    def _begin_cell(self, header: wire.Header) -> None:
        self._parts.keep_only({header.get("key", -1), *self._answers})
        self._note_held(header)

    def _note_held(self, header: wire.Header) -> None:
        self._handed = int(header.get("held", 0))

    # -- calls ------------------------------------------------------------------------------

    def call(self, name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """Call a function of the host, and wait for what it gives."""
        if not self.ours:
            raise RuntimeError(f"{name}() can be called by the sandbox's own interpreter only")
        try:
            given = values.encode({"args": list(args), "kwargs": kwargs}, self._limit)
        except values.CannotTravel as error:
            raise TypeError(f"{name}(): {error}") from None
        with self._critical, self._slot():
            with self._state:
                self._calls = (self._calls + 1) % FIRST_CALL
                call = FIRST_CALL + self._calls
                self._answers[call] = None
            try:
                self.send_value(wire.CALL, call, {"function": name}, given)
                self._wait(lambda: self._answers[call] is not None)
                answer = self._answers[call]
                assert answer is not None
                header, blob = answer[0].header, self._blob(*answer)
            finally:
                self._forget(call)
        if not header["ok"]:
            raise functions.exception(header["name"], header["message"])
        return values.decode(blob, MAX_VALUE, MAX_VALUE)

    @contextlib.contextmanager
    def _slot(self) -> "Iterator[None]":
        """One of the calls that may be under way at once."""
        while not self._slots.acquire(timeout=LOOK):
            self._critical.raise_late()
        try:
            yield
        finally:
            self._slots.release()

    def _forget(self, call: int) -> None:
        """Nobody waits for it any more, nor for what has come of its answer."""
        _, fds = self._answers.pop(call) or (None, [])
        close_all(fds)
        self._parts.drop(call)


class _Critical:
    """While this lasts, no KeyboardInterrupt is raised in the main thread: half a frame, sent or
    received, would garble all that follow, and a lock that is just being taken would stay locked
    for ever. It is raised at the end."""

    def __init__(self) -> None:
        self.main = threading.main_thread().ident
        self.depth = 0
        self.interrupted = False

    def __enter__(self) -> None:
        if threading.get_ident() == self.main:
            self.depth += 1

    def __exit__(self, *raised: object) -> None:
        if threading.get_ident() == self.main:
            self.depth -= 1
            if not self.depth:
                self.raise_late()

    def raise_late(self) -> None:
        """Raise one that came meanwhile, where nothing is half done."""
        if self.interrupted and threading.get_ident() == self.main:
            self.interrupted = False
            raise KeyboardInterrupt


def _resident() -> int:
    fd = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(fd, 200).split()[1]) * resource.getpagesize()
    finally:
        os.close(fd)
