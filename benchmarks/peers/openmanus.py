"""OpenManus-style exec: PythonExecute as its document describes it, written for this benchmark.

A process of the host for each call, whose result comes back through a manager process; `exec` in
a namespace of its own, stdout caught, a time-out in seconds.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import sys
from typing import Any

from peers.contract import NO_FRAMES, NO_SESSION, Peer, Place

TIMEOUT = 60


def on_the_host(code: str, result: Any) -> None:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(code, {"__name__": "__main__"})
    except Exception as error:
        result.update(observation=str(error), success=False)
    else:
        result.update(observation=printed.getvalue(), success=True)


class PythonExecute(Place):
    def run(self, code: str) -> str:
        with multiprocessing.Manager() as manager:
            result = manager.dict({"observation": "", "success": False})
            process = multiprocessing.Process(target=on_the_host, args=(code, result))
            process.start()
            process.join(TIMEOUT)
            if process.is_alive():
                process.terminate()
                process.join(1)
                raise TimeoutError(f"more than {TIMEOUT} seconds")
            if not result["success"]:
                raise RuntimeError(str(result["observation"]))
            return str(result["observation"])


class OpenManus(Peer):
    title = "OpenManus-style exec"
    settings = (
        "`multiprocessing.Manager()` and a `Process` that calls `exec`, for each call, as the "
        "document of `PythonExecute` says; both are forks of this process, which has no pandas"
    )
    isolation = "none"
    works = ("cold", "trip", "throughput")
    cannot = {  # noqa: RUF012
        "frames": NO_FRAMES,
        "streaming": "output comes when all is done",
        "outputs": "output comes when all is done",
        "*": NO_SESSION,
    }
    most_at_once = 8

    def prepare(self) -> None:
        found = json.loads(os.environ["BELLJAR_BENCH"])
        sys.path.append(found["packages"])
        os.environ |= {"MPLBACKEND": "Agg", "MPLCONFIGDIR": found["scratch"]}

    def start(self, **wishes: object) -> Place:
        return PythonExecute()


PEER = OpenManus()
