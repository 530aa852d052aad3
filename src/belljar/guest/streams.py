"""The worker's standard streams: output is written through at once, and honest about who wrote;
input comes from the host when the code reads.

A thread or an asyncio task that outlives its cell goes on running. What it prints later goes to
the pipe of the cell it came from, which init reports as background output, so it is never taken
for output of the cell that happens to run now. Threads that a cell starts belong to that cell.
"""

import builtins
import contextvars
import io
import linecache
import os
import sys
import threading
import types
from collections import deque
from typing import Any, Callable, Deque, Dict, List

# Which cell the running code belongs to. Tasks inherit it; new threads start without.
CELL: "contextvars.ContextVar[int]" = contextvars.ContextVar("belljar_cell")


class CellStream(io.TextIOWrapper):
    """`sys.stdout` or `sys.stderr` of the worker.

    Written through without buffering, so that text, writes of C code to the descriptor, and
    output of children arrive in the order in which they were made.
    """

    def __init__(self, fd: int) -> None:
        raw = io.FileIO(fd, "wb", closefd=False)
        super().__init__(_Unbuffered(raw), "utf-8", "backslashreplace", "\n", write_through=True)
        self._fd = fd
        self._cell = 0
        self._old: Dict[int, int] = {}  # cell -> descriptor of its pipe
        self._leftover: Dict[int, int] = {}  # thread -> its cell
        self._main = threading.get_ident()

    def write(self, text: str) -> int:
        thread = threading.get_ident()
        if thread != self._main:
            return self._write_beside(thread, text)
        if self._old and CELL.get(self._cell) != self._cell:
            return _write_text(_pipe_of(CELL.get(), self._old), text)
        return super().write(text)

    def _write_beside(self, thread: int, text: str) -> int:
        """From another thread, while the next cell may begin: the pipe is taken hold of first, and
        then asked whose it is. A pipe that a cell has just put here finds its owner said already.
        """
        try:
            pipe = os.dup(self._fd)
        except OSError:
            pipe = self._fd  # the code has used up its descriptors: it is said all the same
        try:
            now = self._cell
            cell, old = CELL.get(0) or self._leftover.get(thread, now), self._old
            return _write_text(_pipe_of(cell, old) if cell != now and old else pipe, text)
        finally:
            if pipe != self._fd:
                os.close(pipe)

    def begin(self, cell: int, pipe: int, leftover: List[int], keep: bool) -> None:
        """Point the descriptor at the pipe of a new cell; what earlier cells left keeps theirs."""
        if leftover or keep or self._old:
            self._keep_old(leftover)
        self._cell = cell  # before its pipe is here: see _write_beside
        os.dup2(pipe, self._fd)

    def close_old(self) -> None:
        """In a fork: the pipes of earlier cells belong to the original."""
        for fd in self._old.values():
            os.close(fd)
        self._old.clear()
        self._leftover.clear()

    def _keep_old(self, threads: List[int]) -> None:
        for ident in threads:
            self._leftover.setdefault(ident, self._cell)
        self._leftover = {i: c for i, c in self._leftover.items() if i in threads}
        # Made anew, not changed: other threads are reading them. Tasks of asyncio carry their cell
        # in a context that cannot be listed: keep a few pipes.
        known = {**self._old, self._cell: os.dup(self._fd)}
        self._old = {cell: known.pop(cell) for cell in sorted(known)[-8:]}
        for fd in known.values():
            os.close(fd)


class _Unbuffered(io.BufferedIOBase):
    """The binary layer: every write goes to the descriptor whole, or fails."""

    def __init__(self, raw: io.FileIO) -> None:
        self.raw = raw
        self.name = raw.name

    def write(self, data: Any) -> int:
        return _write_all(self.raw.fileno(), data)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.raw.fileno()

    def isatty(self) -> bool:
        return False


def _pipe_of(cell: int, old: Dict[int, int]) -> int:
    """Any old pipe is the background's; that of its own cell may be gone."""
    return old[cell] if cell in old else old[max(old)]


def _write_text(fd: int, text: str) -> int:
    _write_all(fd, text.encode("utf-8", "backslashreplace"))
    return len(text)


def _write_all(fd: int, data: Any) -> int:
    done = os.write(fd, data)
    if type(data) is bytes and done == len(data):
        return done
    view = memoryview(data).cast("B")
    while done < len(view):
        done += os.write(fd, view[done:])
    return done


_print = builtins.print


def print_whole(*values: Any, **options: Any) -> None:
    """`print`, but the line reaches its stream in one piece: one write instead of one for each
    value, separator and end."""
    file = options.get("file") or sys.stdout
    if not options and type(file) is CellStream:
        file.write(" ".join(map(str, values)) + "\n")
        return
    words = [options.get("sep", " "), options.get("end", "\n")]
    known = options.keys() <= {"sep", "end", "file", "flush"}
    if not known or not isinstance(file, CellStream) or not all(type(w) is str for w in words):
        _print(*values, **options)
        return
    sep, end = words
    file.write(sep.join(map(str, values)) + end)


print_whole.__name__ = print_whole.__qualname__ = "print"
print_whole.__doc__ = _print.__doc__


INPUT_SIZE = 64 * 1024  # bytes of standard input that are asked for, as a rule


class HostInput(io.RawIOBase):
    """The binary layer of `sys.stdin` of a cell that has one: each read asks the host, so that
    nothing is taken from there that the code does not want. It is no descriptor: programs that
    the code starts, and `open(0)`, have an empty input."""

    def __init__(self, ask: "Callable[[int], bytes]") -> None:
        super().__init__()
        self._ask = ask

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._ask(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return b"".join(iter(lambda: self._ask(16 * INPUT_SIZE), b""))


def input_stream(ask: "Callable[[int], bytes]") -> io.TextIOWrapper:
    stream = io.TextIOWrapper(io.BufferedReader(HostInput(ask), INPUT_SIZE), "utf-8")
    stream._CHUNK_SIZE = INPUT_SIZE  # type: ignore[attr-defined]
    return stream


def install_streams() -> List[CellStream]:
    streams = [CellStream(1), CellStream(2)]
    sys.stdout, sys.stderr = streams
    sys.__stdout__, sys.__stderr__ = streams  # type: ignore[misc]
    return streams


def find_new_threads(known: List[int]) -> List[int]:
    """Those that cells have left."""
    if threading.active_count() == 1:
        return []
    return [ident for ident in list_threads() if ident not in known]


def list_threads() -> List[int]:
    return [thread.ident for thread in threading.enumerate() if thread.ident is not None]


MAX_LASTING = 1000  # cells that made functions or classes, whose text is asked for later too
MAX_PASSING = 50  # cells that made none: after them nothing leads there but a kept exception
MAX_SOURCE = 16 * 1024 * 1024  # characters of each kind


class SourceCache:
    def __init__(self) -> None:
        self._lasting = _SourceList(MAX_LASTING)
        self._passing = _SourceList(MAX_PASSING)

    def add(self, name: str, text: str) -> None:
        """Before the cell is compiled."""
        # As linecache itself would keep them: every line ends, and None keeps the entry for good.
        lines = [line.rstrip("\n") + "\n" for line in io.StringIO(text, None)]
        if name in linecache.cache:  # a file that is run once more
            self._lasting.remove(name)
            self._passing.remove(name)
        linecache.cache[name] = (len(text), None, lines, name)
        self._passing.add(name, len(text))

    def keep_lasting(self, name: str, code: types.CodeType) -> None:
        """Keep the source longer if the cell defines functions or classes."""
        if any(type(const) is types.CodeType for const in code.co_consts):
            self._lasting.add(*self._passing.take_last())


class _SourceList:
    def __init__(self, most: int) -> None:
        self._most = most
        self._names: Deque[Any] = deque()  # and sizes
        self._size = 0

    def add(self, name: str, size: int) -> None:
        self._names.append((name, size))
        self._size += size
        while len(self._names) > self._most or (self._size > MAX_SOURCE and len(self._names) > 1):
            old, freed = self._names.popleft()
            self._size -= freed
            linecache.cache.pop(old, None)

    def remove(self, name: str) -> None:
        self._size -= sum(size for each, size in self._names if each == name)
        self._names = deque(item for item in self._names if item[0] != name)

    def take_last(self) -> Any:
        name, size = self._names.pop()
        self._size -= size
        return name, size
