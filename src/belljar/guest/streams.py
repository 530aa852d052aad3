"""The worker's standard streams, and the source text of cells.

Output is written through at once. A thread or an asyncio task may outlive its cell. What it prints
later goes to the pipe of its own cell, and init reports it as background output, so it is never
taken for output of the cell that runs now. Threads that a cell starts belong to that cell.

Input comes from the host when the code reads.
"""

import builtins
import contextvars
import fcntl
import io
import linecache
import os
import sys
import threading
import types
from typing import Any, Callable, Dict, List, Tuple

# The cell that the running code belongs to. Tasks inherit it; new threads do not.
CELL: "contextvars.ContextVar[int]" = contextvars.ContextVar("belljar_cell")


class CellStream(io.TextIOWrapper):
    """`sys.stdout` or `sys.stderr` of the worker.

    It does not buffer, so that text, writes of C code to the descriptor and output of children
    arrive in the order in which they were made.
    """

    def __init__(self, fd: int) -> None:
        raw = io.FileIO(fd, "wb", closefd=False)
        super().__init__(_Unbuffered(raw), "utf-8", "backslashreplace", "\n", write_through=True)
        self._fd = fd
        self._cell = 0
        self._old: Dict[int, int] = {}  # cell -> descriptor of its pipe
        self._leftover: Dict[int, int] = {}  # thread -> its cell
        self._main = threading.get_ident()
        self._pipe = (0, 0)

    def write(self, text: str) -> int:
        thread = threading.get_ident()
        if thread != self._main:
            return self._write_in_thread(thread, text)
        if self._old and CELL.get(self._cell) != self._cell:
            return _write_text(_find_pipe(CELL.get(), self._old), text)
        return super().write(text)

    def _write_in_thread(self, thread: int, text: str) -> int:
        """Write from another thread, while the next cell may begin. First duplicate the pipe, then
        read `_cell`: begin() sets `_cell` before it replaces the pipe."""
        try:
            pipe = os.dup(self._fd)
        except OSError:
            pipe = self._fd  # the code has used up its descriptors
        try:
            now = self._cell
            cell, old = CELL.get(0) or self._leftover.get(thread, now), self._old
            return _write_text(_find_pipe(cell, old) if cell != now and old else pipe, text)
        finally:
            if pipe != self._fd:
                os.close(pipe)

    def begin(self, cell: int, pipe: int, leftover: List[int], keep: bool) -> None:
        """Use the pipe of a new cell, or with -1 that of the last one; threads and tasks of earlier
        cells keep their own pipes."""
        if pipe >= 0 and (leftover or keep or self._old):
            self._keep_old(leftover)
        self._cell = cell  # before its pipe: see _write_in_thread
        if pipe >= 0:
            os.dup2(pipe, self._fd)
            self._pipe = self._look()

    def unchanged(self) -> bool:
        """True if the code has neither replaced the pipe nor changed how it works."""
        try:
            return self._look() == self._pipe
        except OSError:
            return False

    def _look(self) -> Tuple[int, int]:
        return os.fstat(self._fd).st_ino, fcntl.fcntl(self._fd, fcntl.F_GETFL)

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
        # New dictionaries, because other threads read the old ones. The cells of asyncio tasks
        # cannot be listed: keep a few pipes.
        known = {**self._old, self._cell: os.dup(self._fd)}
        self._old = {cell: known.pop(cell) for cell in sorted(known)[-8:]}
        for fd in known.values():
            os.close(fd)


class _Unbuffered(io.BufferedIOBase):
    """The binary layer: every write writes all bytes, or fails."""

    def __init__(self, raw: io.FileIO) -> None:
        self.raw = raw
        self.name = raw.name

    def write(self, data: Any) -> int:
        return _write_all(self.raw.fileno(), data)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.raw.fileno()


def _find_pipe(cell: int, old: Dict[int, int]) -> int:
    """The pipe of a cell, or another old one: init reports all of them as background."""
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
    """`print` with one write for a line, instead of one for each value, separator and end."""
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


INPUT_SIZE = 64 * 1024  # bytes of standard input that one request usually asks for


class HostInput(io.RawIOBase):
    """The binary layer of `sys.stdin`. Each read asks the host, so that the host gives only what
    the code reads. It is not a descriptor: programs that the code starts, and `open(0)`, have an
    empty input."""

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
    """Threads that cells have started and that still run."""
    if threading.active_count() == 1:
        return []
    return [ident for ident in list_threads() if ident not in known]


def list_threads() -> List[int]:
    return [thread.ident for thread in threading.enumerate() if thread.ident is not None]


# -- source text ----------------------------------------------------------------------------------


def ends_silently(code: str, last: Any) -> bool:
    """True if a semicolon follows the last statement: a notebook does not show its value then."""
    if ";" not in code:
        return False
    lines = code.encode("utf-8", "replace").splitlines()[last.end_lineno - 1 :]
    lines[:1] = [line[last.end_col_offset :] for line in lines[:1]]
    rest = b"".join(line.partition(b"#")[0] for line in lines)
    return b";" in rest and not rest.strip(b" \t\f\\);")


MAX_LASTING = 1000  # cells that defined functions or classes, whose source is needed later
MAX_PASSING = 50  # other cells: only the traceback of a kept exception leads to them
MAX_SOURCE = 16 * 1024 * 1024  # characters, for each of both


class SourceCache:
    def __init__(self) -> None:
        self._lasting = _SourceList(MAX_LASTING)
        self._passing = _SourceList(MAX_PASSING)

    def add(self, name: str, text: str) -> None:
        """Call this before the cell is compiled."""
        # In the form of linecache: every line ends with a newline, and None keeps the entry.
        lines = [line.rstrip("\n") + "\n" for line in io.StringIO(text, None)]
        self._lasting.remove(name)  # the same file may run again
        self._passing.remove(name)
        linecache.cache[name] = (len(text), None, lines, name)
        self._passing.add(name, len(text))

    def keep_lasting(self, name: str, code: types.CodeType) -> None:
        """Keep the source longer if the cell defines functions or classes."""
        if any(type(const) is types.CodeType for const in code.co_consts):
            self._lasting.add(name, self._passing.remove(name))


class _SourceList:
    def __init__(self, most: int) -> None:
        self._most = most
        self._sizes: Dict[str, int] = {}  # by name, the oldest first
        self._size = 0

    def add(self, name: str, size: int) -> None:
        self._sizes[name] = size
        self._size += size
        while len(self._sizes) > self._most or (self._size > MAX_SOURCE and len(self._sizes) > 1):
            oldest = next(iter(self._sizes))
            self.remove(oldest)
            linecache.cache.pop(oldest, None)

    def remove(self, name: str) -> int:
        """Return its size."""
        size = self._sizes.pop(name, 0)
        self._size -= size
        return size
