"""Sources: what streams of the host read and write in the guest. A program, or a port.

A stream reads by credit: init reads the pipes of a source only while some stream may take more. A
program whose readers have all stopped is held up by its full pipe, and no limit ends it. Without
any reader it goes on, and the last of its output is kept for one that comes later.
"""

import contextlib
import errno
import os
import socket
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

from ..protocol import wire
from ..protocol.buffers import close_all
from . import poller
from .poller import OutputReader

KEPT = 64 * 1024  # bytes of the last output, for a reader that comes later
BEHIND = 1024 * 1024  # bytes that a reader may be behind another one, before it loses some
CHUNK_COST = 128  # bytes that a chunk takes beside its content
MAX_STREAMS = 1024


class Reader:
    """A stream of the host: it reads a source, and may write to it. Each frame takes STREAM_COST of
    credit beside its bytes, so that many small ones are bounded too."""

    def __init__(self, request: int, credit: int) -> None:
        self.request, self.credit = request, credit
        self.number = self.offset = 0  # the chunk that is next, and how much of it was sent
        self.skipped = 0  # bytes that were dropped: it was too slow, or came too late
        self.written = 0  # bytes of its input that the host does not know to be written


class Source:
    """What streams read and write."""

    def __init__(self, init: Any) -> None:
        self._init = init
        self.readers: Dict[int, Reader] = {}
        self._chunks: Deque[Tuple[str, bytes]] = deque()  # of the last output
        self._first = 0  # the number of the first one
        self._size = 0  # bytes that they take
        self._dropped = 0  # bytes of all earlier ones
        self._output = OutputReader(init, {}, self._on_output)  # of nothing yet
        self._input = -1
        self._writing = False  # waits for room
        self._unwritten: Deque[Tuple[Reader, memoryview]] = deque()
        self._input_ends = False
        self.end: Optional[Dict[str, Any]] = None  # how it ended, when all was read

    def use(self, outputs: Dict[int, str], writing: int = -1) -> None:
        """Descriptors that it closes: those to read, with their names, and the one to write to."""
        if writing >= 0:
            os.set_blocking(writing, False)
        self._input = writing
        self._output = OutputReader(self._init, outputs, self._on_output)

    def describe(self) -> Dict[str, Any]:
        """What the host is told when it has a stream to it."""
        return {}

    def signal(self, number: int) -> None:
        """Only processes take signals."""

    def kill(self) -> None:
        """Only processes can be killed."""

    # -- output -----------------------------------------------------------------------------

    def attach(self, reader: Reader) -> None:
        reader.number, reader.skipped = self._first, self._dropped
        self.readers[reader.request] = reader
        self._init.streams[reader.request] = self
        self._serve(reader)
        self._update()

    def detach(self, request: int) -> None:
        del self.readers[request], self._init.streams[request]
        self._trim()
        self._update()

    def grant(self, request: int, credit: int) -> None:
        reader = self.readers[request]
        reader.credit += credit
        self._serve(reader)
        self._update()

    def _update(self) -> None:
        """Read while some reader may take more: the fastest one decides."""
        credits = [each.credit for each in self.readers.values()]
        wanted = not credits or max(credits) > wire.STREAM_COST
        self._output.hold(not wanted)

    def _on_output(self, output: OutputReader, name: str, data: bytes) -> None:
        self._chunks.append((name, data))
        self._size += len(data) + CHUNK_COST
        for reader in list(self.readers.values()):
            self._serve(reader)
        self._trim()
        self._update()

    def _trim(self) -> None:
        last = self._first + len(self._chunks)
        behind = any(each.number < last for each in self.readers.values())
        most = BEHIND if behind else KEPT
        while self._size > most and len(self._chunks) > 1:
            size = len(self._chunks.popleft()[1])
            for reader in self.readers.values():
                if reader.number == self._first:
                    reader.skipped += size - reader.offset
                    reader.number, reader.offset = self._first + 1, 0
            self._first += 1
            self._dropped += size
            self._size -= size + CHUNK_COST

    def _serve(self, reader: Reader) -> None:
        """Send what there is for a reader, as far as its credit goes."""
        last = self._first + len(self._chunks)
        while reader.credit > wire.STREAM_COST and reader.number < last:
            name, chunk = self._chunks[reader.number - self._first]
            data, room = chunk, reader.credit - wire.STREAM_COST
            if reader.offset or len(chunk) > room:
                data = chunk[reader.offset : reader.offset + room]
            header: Dict[str, Any] = {"name": name}
            if reader.skipped:
                header["skipped"], reader.skipped = reader.skipped, 0
            self._init.send(wire.STREAM, reader.request, header, data)
            reader.credit -= len(data) + wire.STREAM_COST
            reader.offset += len(data)
            if reader.offset == len(chunk):
                reader.number, reader.offset = reader.number + 1, 0
        if self.end is not None and self.all_sent(reader):
            self._init.send(wire.DONE, reader.request, self.end)
            self.detach(reader.request)

    def all_sent(self, reader: Reader) -> bool:
        return reader.number >= self._first + len(self._chunks)

    def finish(self, end: Dict[str, Any]) -> None:
        """All that can be read was read."""
        self.end = end
        self._output.close()
        self._unwritten.clear()
        self.close_input()
        for reader in list(self.readers.values()):
            self._serve(reader)

    # -- input ------------------------------------------------------------------------------

    def write(self, request: int, data: bytes) -> None:
        self._unwritten.append((self.readers[request], memoryview(data)))
        self._on_input(self._input, poller.WRITE)

    def end_input(self) -> None:
        self._input_ends = True
        self._on_input(self._input, poller.WRITE)

    def _on_input(self, fd: int, events: int) -> None:
        while self._unwritten:
            reader, data = self._unwritten[0]
            count = self._write(data)
            if not count or self.end is not None:
                break
            reader.written += count
            if count < len(data):
                self._unwritten[0] = reader, data[count:]
            else:
                self._unwritten.popleft()
                reader.written += wire.STREAM_COST
            if reader.written >= wire.WINDOW // 4 or not self._unwritten:
                if reader.request in self.readers:
                    self._init.send(wire.CREDIT, reader.request, {"size": reader.written})
                reader.written = 0
        if self._input_ends and not self._unwritten:
            self.close_input()
        waits = bool(self._unwritten) or self._input_ends
        self._wait_for_room(waits and self._input >= 0)

    def _write(self, data: memoryview) -> int:
        """How many bytes went, or were dropped because there is no one to read them."""
        if self._input >= 0:
            try:
                return os.write(self._input, data)
            except BlockingIOError:
                return 0
            except OSError:
                self.close_input()  # it has closed its input
        return len(data)

    def _wait_for_room(self, waits: bool) -> None:
        if waits != self._writing:
            self._writing = waits
            if waits:
                self._init.selector.register(self._input, poller.WRITE, self._on_input)
            else:
                self._init.selector.unregister(self._input)

    def close_input(self) -> None:
        if self._input >= 0:
            self._wait_for_room(False)
            os.close(self._input)
            self._input = -1


class Port(Source):
    """A connection to a server on the guest's loopback, with one reader."""

    def __init__(self, init: Any, request: int) -> None:
        super().__init__(init)
        self._request = request
        self._connecting = False  # the server's queue is full
        self._number = 0
        self._over = self._told = False  # the server sends no more; the host knows
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)

    def connect(self, number: int, opened: "Callable[[Optional[str]], None]") -> None:
        """Calls `opened` with what went wrong, or with None."""
        self._opened: Optional[Callable[[Optional[str]], None]] = opened
        self._init.streams[self._request] = self
        self._number = number
        self._dial("127.0.0.1")

    def _dial(self, address: str) -> None:
        error = self._socket.connect_ex((address, self._number))
        if error == errno.EINPROGRESS:
            self._connecting = True
            self._init.selector.register(self._socket, poller.WRITE, self._on_connected)
        else:
            self._begin(error)

    def _on_connected(self, sock: Any, events: int) -> None:
        if not self._connecting:
            return  # detached since the poll
        self._connecting = False
        self._init.selector.unregister(sock)
        self._begin(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    def _begin(self, error: int) -> None:
        if error == errno.ECONNREFUSED and self._socket.family == socket.AF_INET:
            # A server may listen on the loopback of IPv6 alone.
            with contextlib.suppress(OSError):  # there is no IPv6, or no descriptor
                other = socket.socket(socket.AF_INET6, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                self._socket.close()
                self._socket = other
                return self._dial("::1")
        if error == errno.EADDRNOTAVAIL:  # there is no loopback of IPv6
            error = errno.ECONNREFUSED
        message = os.strerror(error) if error else None
        if not error:
            fds: List[int] = []
            try:
                for _ in range(2):
                    fds.append(os.dup(self._socket.fileno()))
            except OSError as failed:
                message = str(failed)
                close_all(fds)
            else:
                self.use({fds[0]: "stdout"}, fds[1])
                self._output.on_end = self._on_end
        if message is not None:
            del self._init.streams[self._request]
            self._socket.close()
        opened, self._opened = self._opened, None
        assert opened is not None
        opened(message)

    def _on_end(self) -> None:
        """The server sends no more. It may go on to read."""
        self._over = True
        if self._input < 0:
            self.finish({})
        else:
            for reader in self.readers.values():
                self._serve(reader)

    def _serve(self, reader: Reader) -> None:
        super()._serve(reader)
        if self._over and not self._told and self.end is None and self.all_sent(reader):
            self._told = True
            self._init.send(wire.END, reader.request)

    def detach(self, request: int) -> None:
        """Without its reader there is no connection."""
        if self._connecting:
            self._connecting = False
            self._init.selector.unregister(self._socket)
            del self._init.streams[request]
            self._socket.close()
            return
        super().detach(request)
        if self.end is None:
            self.finish({})

    def close_input(self) -> None:
        if self._input >= 0 and self.end is None:
            with contextlib.suppress(OSError):  # the server has gone
                self._socket.shutdown(socket.SHUT_WR)
        super().close_input()
        if self._over and self.end is None:
            self.finish({})

    def finish(self, end: Dict[str, Any]) -> None:
        super().finish(end)
        self._socket.close()
