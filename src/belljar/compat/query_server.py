"""The process in which queries of strangers are read and run: a server that forks for each of them.

The other side is query_process.py, which also says how the two talk.
"""

from __future__ import annotations

import importlib
import os
import resource
import signal
import struct
from typing import Any

from belljar.compat import duck, sql
from belljar.protocol import values

SIZE = struct.Struct("=Q")  # of the parcel that follows
SIGNALLED = 128  # how the server's exit status tells of the signal that ended a fork
MAX_REQUEST = 1 << 40  # frames of the caller's, which were in memory already
MAX_TEXT = 64 * 2**20  # of a request
MAX_WORDS = 4000  # characters of an error


def main() -> None:
    """The server: told by a byte, it forks. The end of its input is its own."""
    for name in ("pyarrow", "sqlglot.optimizer.qualify_columns"):
        importlib.import_module(name)  # what a fork is going to need, once for all of them
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # a query writes no file
    out = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a library prints is no answer
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
    (size,) = SIZE.unpack(_take(SIZE.size))
    request = values.decode(_take(size), MAX_REQUEST, MAX_TEXT)
    # The default action of an alarm ends the process, whatever it is doing.
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
        too_large = f"more than {request['result']} bytes"
        told = (
            ("MemoryError", f"the query gives {too_large}")
            if too_large in str(error)
            else ("CannotTravel", f"the result of the query: {error}")
        )
        answer = values.encode({"error": told[0], "words": told[1]})
    except Exception as error:
        words = error.message if isinstance(error, sql.QueryRefused) else str(error)
        answer = values.encode({"error": type(error).__name__, "words": words[:MAX_WORDS]})
    for piece in (SIZE.pack(answer.size), *answer.pieces()):
        left = memoryview(piece).cast("B")
        while left:
            left = left[os.write(out, left) :]


def _take(size: int) -> bytearray:
    data = bytearray(size)
    left = memoryview(data)
    while left:
        count = os.readv(0, [left])
        if count == 0:
            raise EOFError
        left = left[count:]
    return data


def _answer(request: dict[str, Any]) -> dict[str, object]:
    frames, views = request.get("frames"), request.get("views", {})
    _bound(request["memory"] + 2 * request["result"])  # a result is there twice: frame and parcel
    signal.setitimer(signal.ITIMER_VIRTUAL, request["reading"])
    if frames is None:
        sql.check(request["query"], tables=request["tables"])
        return {}
    sql.check(request["query"], tables=[*frames, *views])
    query = sql.for_duckdb(request["query"])
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    os.chdir(request["directory"])
    readable = request["readable"]
    return {"frame": duck.run(query, frames, request["memory"], views=views, readable=readable)}


def _bound(memory: int) -> None:
    """No more address space than is taken now, and `memory` bytes."""
    with open("/proc/self/statm", "rb") as file:
        bound = int(file.read().split()[0]) * resource.getpagesize() + memory
    _, highest = resource.getrlimit(resource.RLIMIT_AS)
    if highest != resource.RLIM_INFINITY:
        bound = min(bound, highest)
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
