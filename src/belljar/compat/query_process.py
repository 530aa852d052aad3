"""Parses and runs untrusted SQL in a process that is killed when it exceeds its bounds.

Neither DuckDB's memory nor its time can be bounded from within, and sqlglot's time is exponential
in the depth of some texts. So the host only hands a query over:

    host                                  server (imports, waits)        fork, one for each query
    ask() ── byte, size, request ───────▶ byte: fork ──────────────────▶ reads the request,
    reads the untrusted answer ◀─────────────────────────────────────── size, answer, exit

A fork has its own address space limit and alarm, and leaves nothing to the next. If it fails, the
server exits with a status that says why, and the next query starts another server. Requests and
answers are encoded by protocol/values.py: the host never unpickles, and treats an answer like that
of a hostile guest. The server itself never reads a query.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import resource
import select
import signal
import struct
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
from belljar.errors import CannotTravel, StartError
from belljar.protocol import values

SIZE = struct.Struct("=Q")  # of the request or answer that follows
SIGNALLED = 128  # plus the signal that killed a fork: the server's exit status
MAX_REQUEST = 1 << 40  # the caller's frames, which are in memory already
MAX_TEXT = 64 * 2**20  # of a request
MAX_WORDS = 4000  # characters of an error
START_SECONDS = 60.0  # for the server's imports, on a busy machine
_GRACE = 2.0  # after the alarm of the fork, until the host kills the server
_KEPT = ("LD_LIBRARY_PATH", "TZ")  # the variables that the interpreter may need
_SMALL = {"MALLOC_ARENA_MAX": "2", "OPENBLAS_NUM_THREADS": "1"}  # address space is bounded
_MAIN = "import sys; sys.path[:] = {path!r}; from belljar.compat.query_process import main; main()"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounds:
    seconds: float = 60.0  # of one query
    reading: float = 2.0  # CPU seconds to parse its text; milliseconds are usual
    memory: int = 2**30  # bytes that it may use, besides the frames
    result: int = 2**29  # bytes of the resulting frame


class QueryProcess:
    """Runs queries, one at a time. The process starts with `start` or the first query, and ends
    with `stop`, with the last reference to this, or with the host. After `stop` the next query
    starts another."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._turn = threading.RLock()
        self._server: _Server | None = None
        _all.add(self)

    def start(self) -> None:
        """Start the process, if it does not run, without waiting for its imports. If that fails,
        the first query tries again and raises the error."""
        with contextlib.suppress(StartError), self._turn:
            if self._server is None:
                self._server = _Server()

    def check(self, query: object, tables: Iterable[str] | None = None) -> None:
        """Apply `sql.check` to a query that the caller runs elsewhere."""
        known = None if tables is None else list(tables)
        self._ask({"query": sql.check_length(query), "tables": known})

    def run(
        self,
        query: object,
        frames: Mapping[str, Any],
        *,
        views: Mapping[str, str] | None = None,
        readable: Iterable[str] = (),
    ) -> pd.DataFrame:
        """`sql.run_query` in the process. Also raises TimeoutError or MemoryError at the bounds."""
        request: dict[str, object] = {
            "query": sql.check_length(query),
            "frames": {name: _plain(frame) for name, frame in frames.items()},
            "views": dict(views or {}),
            "readable": list(readable),
            "directory": os.getcwd() if views else "/",  # where their paths begin
        }
        frame = self._ask(request).get("frame")
        if not isinstance(frame, pd.DataFrame):
            raise CannotTravel("the query process returned no frame")
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
                self._remove_server()
                self._server = _Server()
            blob = self._server.ask(encoded, self.bounds)
        except BaseException:  # also Ctrl-C: half of an answer may be in the pipe
            self._remove_server()
            raise
        finally:
            self._turn.release()
        return _parse_answer(blob, self.bounds)

    def stop(self) -> None:
        """Kill the process, also while another thread waits for its answer."""
        server = self._server
        if server is not None:
            server.kill()
        with self._turn:
            self._remove_server()

    def _remove_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def _after_fork(self) -> None:
        """In a fork of the host: the process belongs to the parent."""
        self._turn = threading.RLock()
        server, self._server = self._server, None
        if server is not None:
            server.release()


_all: weakref.WeakSet[QueryProcess] = weakref.WeakSet()


def _after_fork() -> None:
    for each in list(_all):
        each._after_fork()


os.register_at_fork(after_in_child=_after_fork)


class _Server:
    """The host's end of the process: two pipes, and its pid."""

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
            raise StartError(f"the query process cannot be started: {error}") from error
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self.close = weakref.finalize(self, _kill, process)
        self._to, self._from = process.stdin.fileno(), process.stdout.fileno()
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)
        self._started = False

    def is_ready(self) -> bool:
        """False if it has ended, or has written something unasked. (The first request reads the
        byte that it writes when its imports are done.)"""
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT  # WNOWAIT: its pid is not reused
        ended = os.waitid(os.P_PID, self._process.pid, look)
        has_written = self._started and _poll(self._from, select.POLLIN, 0)
        return ended is None and not has_written

    def _wait_for_start(self) -> None:
        try:
            _read(self._from, 1, time.monotonic() + START_SECONDS)
        except (EOFError, TimeoutError) as error:
            self.close()
            raise StartError(
                f"the query process did not start (status {self._process.returncode})",
                hint=f"{sys.executable} -c 'import duckdb, pandas, sqlglot' may show why",
            ) from error
        self._started = True

    def ask(self, request: values.Encoded, bounds: Bounds) -> bytearray:
        if not self._started:
            self._wait_for_start()
        deadline = time.monotonic() + bounds.seconds + _GRACE
        try:
            for piece in (b"?", SIZE.pack(request.size), *request.pieces()):
                _write(self._to, piece, deadline)
            (size,) = SIZE.unpack(_read(self._from, SIZE.size, deadline))
            if size > bounds.result:
                raise MemoryError(f"the result of the query has more than {bounds.result} bytes")
            return _read(self._from, size, deadline)
        except (EOFError, BrokenPipeError):
            self.close()
            raise _exit_error(self._process.returncode, bounds) from None
        except TimeoutError:
            raise _timeout_error(bounds) from None

    def kill(self) -> None:
        """Kill the process. A thread that waits for its answer meets the end of the pipe, and
        cleans up."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def release(self) -> None:
        """Close the pipes of a process that this one did not start."""
        self.close.detach()
        self._process.returncode = 0  # so that Popen does not wait for it
        _close_pipes(self._process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    # The pid is not reused: nothing has waited for the process yet, even if it has ended.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    _close_pipes(process)
    process.wait()


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _poll(fd: int, event: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fd, event)
    return bool(poll.poll(max(seconds, 0) * 1000))


def _write(fd: int, data: Any, deadline: float | None = None) -> None:
    left = memoryview(data).cast("B")
    while left:
        if deadline and not _poll(fd, select.POLLOUT, deadline - time.monotonic()):
            raise TimeoutError
        left = left[os.write(fd, left) :]


def _read(fd: int, size: int, deadline: float | None = None) -> bytearray:
    data = bytearray(size)
    left = memoryview(data)
    while left:
        if deadline and not _poll(fd, select.POLLIN, deadline - time.monotonic()):
            raise TimeoutError
        count = os.readv(fd, [left])
        if count == 0:
            raise EOFError
        left = left[count:]
    return data


def _plain(frame: Any) -> pd.DataFrame:
    """The columns as a plain DataFrame, without the index, which SQL does not see."""
    plain = pd.DataFrame(frame.copy(deep=False))
    plain.index = pd.RangeIndex(len(plain))
    return plain


def _timeout_error(bounds: Bounds) -> TimeoutError:
    return TimeoutError(f"the query took longer than {bounds.seconds:g} s")


def _exit_error(status: int, bounds: Bounds) -> Exception:
    """Why there is no answer, by the server's exit status."""
    if status == SIGNALLED + signal.SIGALRM:
        return _timeout_error(bounds)
    if status == SIGNALLED + signal.SIGVTALRM:
        return sql.refused("the query takes too long to parse")
    if status == -signal.SIGKILL:
        return RuntimeError("the query process was killed")
    return MemoryError(f"the query crashed; it may need more than {bounds.memory} bytes")


def _parse_answer(blob: bytearray, bounds: Bounds) -> dict[str, Any]:
    """The answer; raises the error that it reports."""
    try:
        answer = values.decode(blob, bounds.result)
    except values.CannotTravel as error:
        raise CannotTravel(f"the result of the query {error}") from None
    if isinstance(answer, dict) and "error" not in answer:
        return answer
    kind, words = (answer.get("error"), answer.get("words")) if isinstance(answer, dict) else (0, 0)
    if not isinstance(kind, str) or not isinstance(words, str):
        raise CannotTravel("the query process returned an invalid answer")
    raise _make_error(kind, words[:MAX_WORDS])


def _make_error(kind: str, words: str) -> Exception:
    ours = {"QueryRefused": sql.refused, "MemoryError": MemoryError, "CannotTravel": CannotTravel}
    known: Any = ours.get(kind) or getattr(duckdb, kind, None)
    if kind in ours or (isinstance(known, type) and issubclass(known, duckdb.Error)):
        error: Exception = known(words)
        return error
    return RuntimeError(f"{kind[:100]}: {words}")


# -- the server: runs in the child process ---------------------------------------------------


def main() -> None:
    """Fork for each byte on stdin; exit at its end."""
    for name in ("pyarrow", "sqlglot.optimizer.qualify_columns"):
        importlib.import_module(name)  # once, for all forks
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # a query writes no file
    out = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # no print of a library gets into an answer
    os.write(out, b"!")
    while os.read(0, 1):
        pid = os.fork()
        if pid == 0:
            try:
                _serve(out)
            except BaseException:
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            os._exit(SIGNALLED + os.WTERMSIG(status))
        if status:
            os._exit(1)


def _serve(out: int) -> None:
    (size,) = SIZE.unpack(_read(0, SIZE.size))
    plain = values.Reception(lenient=True)  # cells of frames may be objects of the caller's classes
    request = values.decode(_read(0, size), MAX_REQUEST, MAX_TEXT, plain)
    # The default action of an alarm kills the process, whatever it is doing.
    for alarm in (signal.SIGALRM, signal.SIGVTALRM):
        signal.signal(alarm, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM, signal.SIGVTALRM])
    signal.setitimer(signal.ITIMER_REAL, request["seconds"])
    try:
        answer = values.encode(_answer(request), request["result"])
    except MemoryError:
        words = f"the query needs more than {request['memory']} bytes"
        answer = values.encode({"error": "MemoryError", "words": words})
    except values.CannotTravel as error:
        kind, words = "CannotTravel", f"the result of the query: {error}"
        if (too_large := f"more than {request['result']} bytes") in str(error):
            kind, words = "MemoryError", f"the result of the query has {too_large}"
        answer = values.encode({"error": kind, "words": words})
    except Exception as error:
        words = error.message if isinstance(error, sql.QueryRefused) else str(error)
        answer = values.encode({"error": type(error).__name__, "words": words[:MAX_WORDS]})
    for piece in (SIZE.pack(answer.size), *answer.pieces()):
        _write(out, piece)


def _answer(request: dict[str, Any]) -> dict[str, object]:
    frames, views = request.get("frames"), request.get("views", {})
    _limit_memory(request["memory"] + 2 * request["result"])  # two results: the frame, encoded too
    signal.setitimer(signal.ITIMER_VIRTUAL, request["reading"])
    if frames is None:
        sql.check(request["query"], tables=request["tables"])
        return {}
    sql.check(request["query"], tables=[*frames, *views])
    query = sql.for_duckdb(request["query"])
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    os.chdir(request["directory"])
    more = {"views": views, "readable": request["readable"]}
    return {"frame": sql.run_query(query, frames, request["memory"], **more)}


def _limit_memory(memory: int) -> None:
    """Limit the address space to what is used now plus `memory` bytes."""
    with open("/proc/self/statm", "rb") as file:
        bound = int(file.read().split()[0]) * resource.getpagesize() + memory
    _, highest = resource.getrlimit(resource.RLIMIT_AS)
    if highest != resource.RLIM_INFINITY:
        bound = min(bound, highest)
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
