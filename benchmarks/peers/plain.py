"""An interpreter as a process of the host: no isolation at all. What the others build upon."""

from __future__ import annotations

import json
import os
import pickle
import struct
import subprocess
from collections.abc import Callable, Iterable

from peers.contract import Environ, Peer, Place, read_all

# A child that keeps a namespace, takes frames as pickles, and runs code until its input ends.
LIVE = """
import contextlib, io, pickle, struct, sys
to, back, space = sys.stdin.buffer, sys.stdout.buffer, {}
def answer(data):
    back.write(struct.pack("<Q", len(data))); back.write(data); back.flush()
while head := to.read(9):
    kind, size = struct.unpack("<cQ", head)
    data = to.read(size)
    if kind == b"p":
        space["frame"] = pickle.loads(data); answer(b"")
    elif kind == b"g":
        answer(pickle.dumps(space["frame"], protocol=5))
    else:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(data, "<cell>", "exec"), space)
        answer(printed.getvalue().encode())
"""


def interpreter() -> tuple[str, dict[str, str]]:
    """The Environment's interpreter and the variables with which it finds the packages."""
    found = json.loads(os.environ["BELLJAR_BENCH"])
    return found["python"], {
        "PATH": os.defpath,
        "HOME": found["scratch"],
        "PYTHONPATH": found["packages"],
        "MPLBACKEND": "Agg",
        "MPLCONFIGDIR": found["scratch"],
    }


class Once(Place):
    """Every run is a new process."""

    def __init__(self) -> None:
        self._python, self._environ = interpreter()

    def run(self, code: str) -> str:
        return subprocess.run(
            [self._python, "-c", code],
            env=self._environ,
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def stream(self, code: str, callback: Callable[[int], None]) -> None:
        read_all([self._python, "-c", code], callback, env=self._environ)


class Live(Place):
    """A process that waits for code on a pipe."""

    def __init__(self) -> None:
        python, environ = interpreter()
        self.process = subprocess.Popen(
            [python, "-c", LIVE], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def _ask(self, kind: bytes, data: bytes) -> bytes:
        to, back = self.process.stdin, self.process.stdout
        assert to is not None
        assert back is not None
        to.write(struct.pack("<cQ", kind, len(data)))
        to.write(data)
        to.flush()
        (size,) = struct.unpack("<Q", back.read(8))
        return back.read(size)

    def run(self, code: str) -> str:
        return self._ask(b"r", code.encode()).decode()

    def put(self, frame: object) -> None:
        self._ask(b"p", pickle.dumps(frame, protocol=5))

    def get(self) -> object:
        return pickle.loads(self._ask(b"g", b""))  # noqa: S301  there is no boundary here

    def processes(self) -> Iterable[int]:
        return [self.process.pid]

    def close(self) -> None:
        self.process.communicate()
        self.process.wait()


class Bare(Peer):
    title = "bare python -c"
    settings = "`python -c 'print(45)'`: the interpreter's own start, **without** pandas: a floor"
    isolation = "none"
    works = ("cold", "throughput")
    cannot = {"*": "a floor for starts only"}  # noqa: RUF012
    first = "print(45)"

    def start(self, **wishes: object) -> Place:
        return Once()


class Subprocess(Peer):
    title = "subprocess, same imports"
    settings = (
        "`subprocess.run([python, '-c', …])` with numpy, pandas and matplotlib; where a session is "
        "asked for, a child that runs code from a pipe, and frames as pickles"
    )
    isolation = "none"
    works = ("cold", "command", "trip", "frames", "throughput", "memory", "streaming", "outputs")
    cannot = {"many": "500 interpreters do not fit", "cells": "the child is only a loop"}  # noqa: RUF012

    def command(self, environment: str, *words: str) -> tuple[list[str], Environ]:
        python, environ = interpreter()
        return [python, *words], environ

    def start(self, **wishes: object) -> Place:
        return Live() if wishes.get("session") and not wishes.get("streams") else Once()
