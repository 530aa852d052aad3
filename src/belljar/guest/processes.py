"""Processes: programs that init starts for the host and that go on beside its other requests.

The host reads a process by one stream or several. Init reads its pipes only while some stream has
credit, so a process whose reader stops is stopped by its full pipe, and no limit ends it. A process
without any reader goes on, and the last of its output is kept for one that comes later.
"""

import errno
import fcntl
import json
import os
import signal
import struct
import subprocess
import tempfile
import termios
import time
from collections import deque
from typing import Any, Deque, Dict, List, Optional

from ..protocol import wire
from . import commands, poller

KEPT = 1024 * 1024  # bytes of output, for readers that come later or are slow
KEPT_ENDED = 64 * 1024  # of a process that has ended
MAX_ENDED = 64  # processes that have ended, and are remembered
MAX_STREAMS = 1024
READ_SIZE = 256 * 1024
SMALL = 4096  # bytes; a chunk that is shorter grows
LONG_ARGUMENT = 100 * 1024  # bytes; Linux takes 128 KiB
# Before the words of commands.LIMITED: the terminal that is opened first becomes the controlling one.
ON_TERMINAL = ("/bin/sh", "-c", 'exec <>"$0" >&0 2>&1 && exec "$@"')


class Log:
    """The last output of a process, in chunks, and where each reader is."""

    def __init__(self) -> None:
        self.chunks: Deque[Any] = deque()  # [name, bytes or bytearray]
        self.first = 0  # the number of the first one
        self.size = 0

    @property
    def end(self) -> int:
        return self.first + len(self.chunks)

    def add(self, name: str, data: bytes) -> None:
        self.size += len(data)
        if self.chunks:
            last = self.chunks[-1]
            if last[0] == name and len(last[1]) < SMALL:
                last[1] += data
                return
        self.chunks.append([name, bytearray(data) if len(data) < SMALL else data])

    def trim(self, most: int) -> None:
        while self.size > most and len(self.chunks) > 1:
            self.size -= len(self.chunks.popleft()[1])
            self.first += 1


class Reader:
    """A stream of the host that reads a process, and may write to it."""

    def __init__(self, request: int, number: int, credit: int) -> None:
        self.request = request
        self.number, self.offset = number, 0  # the chunk that is next, and what was sent of it
        self.credit = credit
        self.skipped = 0  # bytes that it was too slow for
        self.taken = 0  # bytes of its input that were written, and not yet reported


class Process:
    def __init__(self, init: Any, child: "subprocess.Popen[bytes]", asked: Dict[str, Any]) -> None:
        self._init, self._child, self._asked = init, child, asked
        self.pid = child.pid
        self.started = time.time()
        self.exit: Optional[Dict[str, Any]] = None  # how it ended
        self.timed_out = False
        self.log = Log()
        self.readers: Dict[int, Reader] = {}
        self.outputs: Dict[int, str] = {}  # descriptor -> name; those that are open
        self.left: Dict[int, int] = {}  # bytes that were in them when the process ended
        self.input = -1
        self.terminal = -1  # our end of a terminal, which is its input and output
        self.slave = -1  # held open while it runs: otherwise ours would report a hang-up
        self._watched = False
        self._paused = False
        self._unwritten: Deque[Any] = deque()  # (reader, what it has sent)
        self._input_ends = False

    # -- output -----------------------------------------------------------------------------

    def attach(self, reader: Reader) -> None:
        self.readers[reader.request] = reader
        self.serve(reader)
        self.update()

    def detach(self, reader: Reader) -> None:
        self.readers.pop(reader.request, None)
        self._init.streams.pop(reader.request, None)
        self.update()

    def _wanted(self) -> bool:
        """Whether there is anybody to read for. The fastest reader decides."""
        return not self.readers or any(each.credit > 0 for each in self.readers.values())

    def update(self) -> None:
        """Poll the pipes, or do not."""
        wanted = bool(self.outputs) and not self._paused and self._wanted()
        if wanted != self._watched:
            self._watched = wanted
            for fd in self.outputs:
                if wanted:
                    self._init.selector.register(fd, poller.READ, self._on_output)
                else:
                    self._init.selector.unregister(fd)

    def resume(self) -> None:
        self._paused = False
        self.update()

    def _on_output(self, fd: int, events: int) -> None:
        if not self._watched or fd not in self.outputs:
            return
        self.read(fd)
        if self._init.congested and not self._paused:
            self._paused = True
            self._init.pause(self)
        self.update()

    def read(self, fd: int) -> bool:
        """Take one piece. False: there is nothing more, for now or for ever."""
        try:
            data = os.read(fd, min(READ_SIZE, self.left.get(fd, READ_SIZE)))
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EIO:  # of a terminal: nobody has it open any more
                raise
            data = b""
        if not data:
            self._close_output(fd)
            return False
        self.log.add(self.outputs[fd], data)
        if fd in self.left:
            self.left[fd] -= len(data)
            if self.left[fd] <= 0:
                self._close_output(fd)
        for reader in list(self.readers.values()):
            self.serve(reader)
        self._trim()
        return fd in self.outputs

    def _trim(self) -> None:
        self.log.trim(KEPT if self.exit is None or self.readers else KEPT_ENDED)
        for reader in self.readers.values():
            if reader.number < self.log.first:
                pass

    def _close_output(self, fd: int) -> None:
        if self._watched:
            self._init.selector.unregister(fd)
        del self.outputs[fd]
        self.left.pop(fd, None)
        if fd != self.terminal:
            os.close(fd)
        if not self.outputs:
            self._watched = False
            self._end_streams()
