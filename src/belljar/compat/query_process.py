"""Queries of strangers, read and run in a process that is ended when it breaks its bounds.

Neither DuckDB's memory nor its time can be bounded from within, and sqlglot takes a time that is
exponential in the depth of some texts. So the host does nothing with a query but hand it over:

    host                                  server (imports, waits)        fork, one for each query
    ask() ── byte, size, request ───────▶ byte: fork ──────────────────▶ reads the request,
    reads the answer, as a stranger's ◀──────────────────────────────── size, answer, exit

A fork has its own address space limit and alarm, and leaves nothing to the next. If it does not end
well, the server ends with the status that tells why, and the next query starts another. Requests
and answers are parcels (guest/values.py): the host never unpickles, and takes what comes for that
of a hostile guest. No query gets into the server itself (query_server.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import duckdb
import pandas as pd

from belljar.compat import sql
from belljar.compat.duck import Bounds
from belljar.compat.query_server import MAX_REQUEST, MAX_TEXT, MAX_WORDS, SIGNALLED, SIZE
from belljar.errors import CannotTravel, StartError
from belljar.protocol import values

START_SECONDS = 60.0  # for the server's imports, on a machine that is busy
_GRACE = 2.0  # after the alarm of the fork, until the host ends all of it
_KEPT = ("LD_LIBRARY_PATH", "TZ")  # what the interpreter may need; nothing else of the host's
_SMALL = {"MALLOC_ARENA_MAX": "2", "OPENBLAS_NUM_THREADS": "1"}  # address space is bounded
_MAIN = "import sys; sys.path[:] = {path!r}; from belljar.compat.query_server import main; main()"


class QueryProcess:
    """Runs queries, one at a time. The process starts with the first unless `start` was called, and
    ends with `stop`, with the last reference to this, or with the host; after `stop` the next query
    starts another."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._turn = threading.RLock()
        self._server: _Server | None = None
        _all.add(self)

    def start(self) -> None:
        """Start the process, if there is none. Its imports take a second; nothing waits for them
        here. If it fails, the first query tries again, and says why."""
        with contextlib.suppress(StartError), self._turn:
            if self._server is None:
                self._server = _Server()

    def check(self, query: object, tables: Iterable[str] | None = None) -> None:
        """`sql.check`, for a query that the caller runs elsewhere."""
        known = None if tables is None else list(tables)
        request: dict[str, object] = {"query": _text(query), "tables": known}
        self._ask(request)

    def run(
        self,
        query: object,
        frames: Mapping[str, Any],
        *,
        views: Mapping[str, str] | None = None,
        readable: Iterable[str] = (),
    ) -> pd.DataFrame:
        """The frame that a query over `frames` gives; `views` and `readable` as in duck.py.

        Raises QueryRefused, what DuckDB raises, and TimeoutError or MemoryError at the bounds.
        """
        request: dict[str, object] = {
            "query": _text(query),
            "frames": {name: _plain(frame) for name, frame in frames.items()},
            "views": dict(views or {}),
            "readable": list(readable),
            "directory": os.getcwd() if views else "/",  # where their paths begin
        }
        frame = self._ask(request).get("frame")
        if not isinstance(frame, pd.DataFrame):
            raise CannotTravel("the process for queries gave no frame")
        return frame

    def _ask(self, request: dict[str, object]) -> dict[str, Any]:
        bounds = dataclasses.asdict(self.bounds)
        try:
            encoded = values.encode({**request, **bounds}, MAX_REQUEST, MAX_TEXT)
        except values.CannotTravel as error:
            raise CannotTravel(f"a frame cannot be queried: {error}") from None
        if not self._turn.acquire(timeout=self.bounds.seconds):
            raise TimeoutError(f"other queries took longer than {self.bounds.seconds:g} s")
        try:
            if self._server is None or not self._server.is_ready():
                self._drop()
                self._server = _Server()
            blob = self._server.ask(encoded, self.bounds)
        except BaseException:  # also Ctrl-C: half of an answer may be on its way
            self._drop()
            raise
        finally:
            self._turn.release()
        return _understood(blob, self.bounds)

    def stop(self) -> None:
        """End the process, also while another thread waits for its answer."""
        server = self._server
        if server is not None:
            server.kill()
        with self._turn:
            self._drop()

    def _drop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.end()

    def _forget(self) -> None:
        """In a fork of the host: the process is the parent's."""
        self._turn = threading.RLock()
        server, self._server = self._server, None
        if server is not None:
            server.abandon()


_all: weakref.WeakSet[QueryProcess] = weakref.WeakSet()


def _forget_all() -> None:
    for each in list(_all):
        each._forget()


os.register_at_fork(after_in_child=_forget_all)


class _Server:
    """The process, as the host has it: two pipes and the right to end it."""

    def __init__(self) -> None:
        path = [each for each in sys.path if os.path.isabs(each)]
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-c", _MAIN.format(path=path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                cwd="/",
                env={name: os.environ[name] for name in _KEPT if name in os.environ} | _SMALL,
                start_new_session=True,
            )
        except OSError as error:
            raise StartError(f"the process for queries cannot be started: {error}") from error
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self.end = weakref.finalize(self, _end, process)
        self._to, self._from = process.stdin.fileno(), process.stdout.fileno()
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)
        self._started = False

    def is_ready(self) -> bool:
        """Whether it waits for a request, or will; not if it has ended, or says something unasked.
        (What it says when its imports are done is waited for by the first request.)"""
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT  # and leave its number its own
        ended = os.waitid(os.P_PID, self._process.pid, look)
        says_something = self._started and _ready(self._from, select.POLLIN, 0)
        return ended is None and not says_something

    def _wait_for_start(self) -> None:
        try:
            self._read(1, time.monotonic() + START_SECONDS)
        except (EOFError, TimeoutError) as error:
            self.end()
            raise StartError(
                f"the process for queries did not start (status {self._process.returncode})",
                hint=f"{sys.executable} -c 'import duckdb, pandas, sqlglot' may tell why",
            ) from error
        self._started = True

    def ask(self, request: values.Encoded, bounds: Bounds) -> bytearray:
        if not self._started:
            self._wait_for_start()
        deadline = time.monotonic() + bounds.seconds + _GRACE
        try:
            self._write(b"?" + SIZE.pack(request.size), deadline)
            for piece in request.pieces():
                self._write(piece, deadline)
            (size,) = SIZE.unpack(self._read(SIZE.size, deadline))
            if size > bounds.result:
                raise MemoryError(f"the query gives more than {bounds.result} bytes")
            return self._read(size, deadline)
        except (EOFError, BrokenPipeError):
            self.end()
            raise _ended(self._process.returncode, bounds) from None
        except TimeoutError:
            raise _too_long(bounds) from None

    def _write(self, data: Any, deadline: float) -> None:
        left = memoryview(data).cast("B")
        while left:
            if not _ready(self._to, select.POLLOUT, deadline - time.monotonic()):
                raise TimeoutError
            left = left[os.write(self._to, left) :]

    def _read(self, size: int, deadline: float) -> bytearray:
        data = bytearray(size)
        left = memoryview(data)
        while left:
            if not _ready(self._from, select.POLLIN, deadline - time.monotonic()):
                raise TimeoutError
            count = os.readv(self._from, [left])
            if count == 0:
                raise EOFError
            left = left[count:]
        return data

    def kill(self) -> None:
        """Whoever waits for an answer sees the end of it, and tidies up."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def abandon(self) -> None:
        self.end.detach()
        self._process.returncode = 0  # as Popen knows that there is nothing to wait for
        _close_pipes(self._process)


def _end(process: subprocess.Popen[bytes]) -> None:
    # One that has ended by itself is not waited for yet, so that the number is still its own.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    _close_pipes(process)
    process.wait()


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _ready(fd: int, event: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fd, event)
    return bool(poll.poll(max(seconds, 0) * 1000))


def _plain(frame: Any) -> pd.DataFrame:
    """The same columns, without what a subclass adds, and the index, which SQL does not see."""
    plain = pd.DataFrame(frame.copy(deep=False))
    plain.index = pd.RangeIndex(len(plain))
    return plain


def _text(query: object) -> str:
    if not isinstance(query, str):
        raise sql.refused(f"a query is a str, not {type(query).__name__}")
    if len(query) > sql.MAX_LENGTH:
        raise sql.refused(f"the query has {len(query)} characters, more than {sql.MAX_LENGTH}")
    return query


def _too_long(bounds: Bounds) -> TimeoutError:
    return TimeoutError(f"the query took longer than {bounds.seconds:g} s")


def _ended(status: int, bounds: Bounds) -> Exception:
    """Why there is no answer."""
    if status == SIGNALLED + signal.SIGALRM:
        return _too_long(bounds)
    if status == SIGNALLED + signal.SIGVTALRM:
        return sql.refused("the query takes too long to read")
    if status == -signal.SIGKILL:
        return RuntimeError("the process for queries was ended")
    return MemoryError(f"the query ended its process, maybe for want of {bounds.memory} bytes")


def _understood(blob: bytearray, bounds: Bounds) -> dict[str, Any]:
    """The answer; raises the error that it tells."""
    try:
        answer = values.decode(blob, bounds.result)
    except values.CannotTravel as error:
        raise CannotTravel(f"the result of the query {error}") from None
    if not isinstance(answer, dict):
        raise CannotTravel("the process for queries gave no answer")
    if "error" not in answer:
        return answer
    kind, words = answer["error"], answer.get("words")
    if not isinstance(kind, str) or not isinstance(words, str):
        raise CannotTravel("the process for queries gave no answer")
    raise _error(kind, words[:MAX_WORDS])


def _error(kind: str, words: str) -> Exception:
    if kind == "QueryRefused":
        return sql.refused(words)
    if kind == "MemoryError":
        return MemoryError(words)
    if kind == "CannotTravel":
        return CannotTravel(words)
    known = getattr(duckdb, kind, None)
    if not isinstance(known, type) or not issubclass(known, duckdb.Error):
        return RuntimeError(f"{kind[:100]}: {words}")
    error: Exception = known(words)
    return error
