"""The worker's end of its socket, used by all its threads: cells come in, calls go out.

No thread reads in the background. A thread that waits (the main loop for a cell, any thread for the
answer of a host function) reads for all of them; so does an event loop in which calls are awaited.

Longer than other files: calls that wait and calls that are awaited share all that it keeps.
"""

import contextlib
import errno
import importlib
import os
import re
import resource
import select
import socket
import sys
import threading
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, Optional, Set, Tuple

from ..protocol import buffers, messages, values, wire
from ..protocol.buffers import Inbox, close_all
from . import functions

INTERRUPT_INTERVAL = 0.05  # seconds between checks for an interrupt while another thread reads
MAX_VALUE = 1 << 40  # values from the host are trusted; memory has its own limit
FIRST_CALL = 1 << 31  # so that parts of an answer are never taken for those of a cell


class WorkerChannel:
    def begin(self, sock: socket.socket, setup: Dict[str, Any]) -> None:
        self._limit = int(setup["values"])
        self._share = bool(setup["share"])
        self._handed = 0  # bytes of memory that the host was given, and that still count here
        self.open(sock)

    def open(self, sock: socket.socket) -> None:
        """Start afresh on this socket; also in a fork, where other threads held the locks."""
        self._socket = sock
        self.pid = os.getpid()  # a child that a cell forked has another, and must not use this
        self._critical = _CriticalSection()
        self._waiting: Deque[bytes] = deque()  # frames that go with the next one
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
        self.notes: List[str] = []  # about values that came in, for the end of a cell
        self._abandoned: Set[int] = set()  # calls that occupy a slot until their answers come
        self._waiters: Deque[Callable[[], None]] = deque()  # wake tasks that wait for a slot
        self._wakers: Dict[int, Callable[[], None]] = {}  # call -> wakes the task that awaits it
        self._loops: Dict[Any, int] = {}  # event loop -> calls that are awaited in it

    def detach(self) -> None:
        """In a fork: release the socket of the original without closing its descriptor."""
        self._socket.detach()

    def on_interrupt(self) -> bool:
        """True if KeyboardInterrupt may be raised now; otherwise it is raised later."""
        self._critical.interrupted = self._critical.depth > 0
        return not self._critical.depth

    # -- sending ----------------------------------------------------------------------------

    def send(self, kind: int, request: int, header: Any = None, payload: bytes = b"") -> None:
        """From any thread, also while a cell runs."""
        with self._critical:
            self._send(wire.pack(kind, request, header, payload), -1)

    def send_idle(self, kind: int, request: int, header: Any = None, payload: bytes = b"") -> None:
        """From the main loop between cells, when the worker raises no KeyboardInterrupt."""
        self._send(wire.pack(kind, request, header, payload), -1)

    def send_later(self, kind: int, header: Any, payload: bytes) -> None:
        """Send together with the next frame, which must follow soon."""
        self._waiting.append(wire.pack(kind, 0, header, payload))

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
        """The value as memory to hand over; -1 if it has to go in parts."""
        # It is a copy, and the host may keep it: there must be room for it and some more.
        if not self._share or self._handed + value.size > self._limit // 4:
            return -1
        try:
            if _read_resident_size() + self._handed + value.size > self._limit * 3 // 4:
                return -1
            fd = buffers.share_memory(value.pieces())
        except OSError:  # no descriptors, no memory
            return -1
        self._handed += value.size
        return fd

    def _send(self, frame: bytes, fd: int) -> None:
        with self._sending:
            # The main thread may add one meanwhile: take them one by one.
            waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
            if fd < 0:
                self._socket.sendall(b"".join((*waiting, frame)) if waiting else frame)
            else:
                self._socket.sendall(b"".join(waiting))
                sent = socket.send_fds(self._socket, [frame], [fd])
                self._socket.sendall(memoryview(frame)[sent:])

    # -- receiving --------------------------------------------------------------------------

    def next(self) -> "Tuple[wire.Frame, List[int]]":
        """The next frame that is for the main loop, with its descriptors. EOFError at the end.

        Called between cells, when no interrupt is raised: a frame is not lost half-way.
        """
        if not self._requests:
            with self._state:
                while not self._requests:
                    if self._reading:
                        self._state.wait()
                    else:
                        self._read()
        return self._requests.popleft()

    def decode_value(self, frame: wire.Frame, fds: List[int]) -> Any:
        """The values that came with a frame, by their names."""
        reception = values.Reception(_find_class, not frame.header.get("strict"))
        found = values.decode(self._take_blob(frame, fds), MAX_VALUE, MAX_VALUE, reception)
        self._keep_notes(re.sub(r"^value\['(\w+)'\]", r"\1", note) for note in reception.notes)
        return found

    def _keep_notes(self, notes: "Iterable[str]") -> None:
        self.notes = [*self.notes, *notes][: messages.MAX_NOTES]

    def take_notes(self) -> List[str]:
        notes, self.notes = self.notes, []
        return [note[: messages.MAX_REASON] for note in notes]

    def _take_blob(self, frame: wire.Frame, fds: List[int]) -> Any:
        if "shared" in frame.header:
            if not fds:
                raise OSError(errno.EMFILE, "a value could not come in: too many open files")
            return buffers.map_shared(fds.pop(), int(frame.header["shared"]))
        if "parts" in frame.header:
            return self._parts.take(frame.header["key"], frame.header["parts"])
        return frame.payload

    def _wait(self, ready: "Callable[[], bool]") -> None:
        in_main = threading.get_ident() == self._critical.main
        with self._critical, self._state:
            while not ready():
                if not self._reading:
                    self._read(patient=True)
                else:
                    self._state.wait(INTERRUPT_INTERVAL if in_main else None)
                    self._critical.raise_late()

    def _read(self, patient: bool = False) -> None:
        """Receive frames for all threads. Called with the lock, which is released meanwhile."""
        self._reading = True
        self._state.release()
        try:
            if patient:
                self._wait_for_data()
            data = self._inbox.receive(self._socket)
            if not data:
                raise EOFError
            self._reader.feed(data)
            for frame in self._reader.frames():
                count = frame.header.get("fds", 0)
                self._sort(frame, self._inbox.take_some(int(count)) if count else [])
        finally:
            self._state.acquire()
            self._reading = False
            self._state.notify_all()

    def _wait_for_data(self) -> None:
        """An interrupt may end the waiting, but not the receiving."""
        if threading.get_ident() == self._critical.main:
            depth, self._critical.depth = self._critical.depth, 0
            try:
                self._critical.raise_late()
                select.select([self._socket], [], [])
            finally:
                self._critical.depth = depth
        else:
            select.select([self._socket], [], [])

    def _sort(self, frame: wire.Frame, fds: List[int]) -> None:
        """Keep a frame for the thread that waits for it."""
        if frame.kind == wire.PART:
            self._add_part(frame)
        elif frame.kind != wire.ANSWER:
            if frame.kind == wire.CELL:
                self._parts.keep_only({frame.header.get("key", -1), *self._answers})
                self._handed = int(frame.header.get("held", 0))
            self._requests.append((frame, fds))
        else:
            self._handed = int(frame.header.get("held", 0))
            self._keep_answer(frame.header["call"], frame, fds)

    def _keep_answer(self, call: int, frame: wire.Frame, fds: List[int]) -> None:
        with self._state:
            if call in self._answers:
                self._answers[call] = (frame, fds)
                wake = self._wakers.get(call)
            else:
                close_all(fds)  # no thread waits for it any more
                wake = self._free_slot if call in self._abandoned else None
                self._abandoned.discard(call)
        if wake is not None:
            wake()

    def _add_part(self, frame: wire.Frame) -> None:
        key = frame.header["key"]
        if key < FIRST_CALL:
            self._parts.keep_only({key, *self._answers})  # a cell has one value only
        elif key not in self._answers:
            return  # no thread waits for it any more
        self._parts.add(key, frame.header["size"], frame.payload)

    # -- calls ------------------------------------------------------------------------------

    def call(self, name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """Call a function of the host, and wait for its result."""
        given = self._encode_arguments(name, args, kwargs)
        with self._critical:
            while not self._slots.acquire(timeout=INTERRUPT_INTERVAL):
                self._critical.raise_late()
                self._read_waiting()  # answers that no thread waits for free slots, too
            call, sent = self._begin_call(), False
            try:
                self.send_value(wire.CALL, call, {"function": name}, given)
                sent = True
                self._wait(lambda: self._answers[call] is not None)
                header, blob = self._take_answer(call)
            finally:
                self._end_call(call, sent)
        return self._read_answer(name, header, blob)

    async def call_async(self, name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """The same for code under asyncio, whose other tasks go on meanwhile."""
        loop = functions.find_loop()
        if loop is None:  # the code awaits it under something else
            return self.call(name, args, kwargs)
        given = self._encode_arguments(name, args, kwargs)
        with self._read_in_loop(loop):
            while not self._slots.acquire(blocking=False):
                await self._wait_for_slot(loop)
            with self._critical:
                call, sent = self._begin_call(), False
            try:
                answered = loop.create_future()
                self._wakers[call] = _make_waker(loop, answered)
                self.send_value(wire.CALL, call, {"function": name}, given)
                sent = True
                await answered
                header, blob = self._take_answer(call)
            finally:
                self._wakers.pop(call, None)
                with self._critical:
                    self._end_call(call, sent)
        return self._read_answer(name, header, blob)

    def _read_answer(self, name: str, header: wire.Header, blob: Any) -> Any:
        if not header["ok"]:
            raise functions.make_exception(header["name"], header["message"])
        if header.get("end"):
            raise functions.CellEnded
        reception = values.Reception(_find_class, lenient=True)
        made = values.decode(blob, MAX_VALUE, MAX_VALUE, reception)
        self._keep_notes(f"the result of {name}(): {note}" for note in reception.notes)
        return made

    def _encode_arguments(
        self, name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]
    ) -> "values.Encoded":
        if os.getpid() != self.pid:
            raise RuntimeError(f"{name}() can be called by the sandbox's own interpreter only")
        try:
            return values.encode({"args": list(args), "kwargs": kwargs}, self._limit)
        except values.CannotTravel as error:
            raise TypeError(f"{name}(): {error}") from None

    def _begin_call(self) -> int:
        with self._state:
            self._calls = (self._calls + 1) % FIRST_CALL
            call = FIRST_CALL + self._calls
            self._answers[call] = None
        return call

    def _take_answer(self, call: int) -> "Tuple[wire.Header, Any]":
        answer = self._answers[call]
        assert answer is not None
        return answer[0].header, self._take_blob(*answer)

    def _end_call(self, call: int, sent: bool) -> None:
        """Free its slot; that of an abandoned call, for which init still expects an answer, is
        freed when the answer comes."""
        with self._state:
            answer, fds = self._answers.pop(call) or (None, [])
            abandoned = sent and answer is None
            if abandoned:
                self._abandoned.add(call)
        close_all(fds)
        self._parts.remove(call)
        if not abandoned:
            self._free_slot()

    def _free_slot(self) -> None:
        self._slots.release()
        if self._waiters:
            self._waiters.popleft()()

    async def _wait_for_slot(self, loop: Any) -> None:
        """Wait until a slot was freed, which another call may take first."""
        turn = loop.create_future()
        wake = _make_waker(loop, turn)
        self._waiters.append(wake)
        if self._slots.acquire(blocking=False):  # freed before this task was in the queue
            self._free_slot()
        try:
            await turn
        except BaseException:
            if wake in self._waiters:
                self._waiters.remove(wake)
            elif self._waiters:
                self._waiters.popleft()()  # it was woken just as it was cancelled
            raise

    @contextlib.contextmanager
    def _read_in_loop(self, loop: Any) -> "Iterator[None]":
        """Let an event loop read the socket while calls are awaited in it."""
        self._loops[loop] = self._loops.get(loop, 0) + 1
        if self._loops[loop] == 1:
            loop.add_reader(self._socket.fileno(), self._read_waiting)
        try:
            yield
        finally:
            self._loops[loop] -= 1
            if not self._loops[loop]:
                del self._loops[loop]
                loop.remove_reader(self._socket.fileno())

    def _read_waiting(self) -> None:
        """Read what has come, unless another thread does."""
        with self._critical, self._state:
            if not self._reading and select.select([self._socket], [], [], 0)[0]:
                self._read()


def _make_waker(loop: Any, future: Any) -> "Callable[[], None]":
    """A function that ends the waiting for a future of an event loop, from any thread."""

    def set_result() -> None:
        if not future.done():
            future.set_result(None)

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits any more
            loop.call_soon_threadsafe(set_result)

    return wake


class _CriticalSection:
    """Inside it, no KeyboardInterrupt is raised in the main thread: half a frame, sent or received,
    would garble all that follow, and a lock that is being taken would stay locked for ever. The
    interrupt is raised at the end."""

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
            if not self.depth and self.interrupted:
                self.raise_late()

    def raise_late(self) -> None:
        """Raise an interrupt that came meanwhile; nothing is half done here."""
        if self.interrupted and threading.get_ident() == self.main:
            self.interrupted = False
            raise KeyboardInterrupt


def _find_class(name: str) -> Any:
    """The class that the host named: one that can be imported here, or of the code itself, which
    has it in `__main__` wherever the host has it."""
    module, _, path = name.partition(":")
    for place in (module, "__main__"):
        try:
            found: Any = sys.modules.get(place) or importlib.import_module(place)
            for part in path.split("."):
                found = getattr(found, part)
        except (Exception, SystemExit):  # whatever a module does when it is imported
            continue
        return found
    return None


def _read_resident_size() -> int:
    fd = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(fd, 200).split()[1]) * resource.getpagesize()
    finally:
        os.close(fd)
