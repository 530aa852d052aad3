"""smolagents' LocalPythonExecutor: an interpreter of the syntax tree, in this process."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from peers.contract import Peer, Place


class Local(Place):
    def __init__(self) -> None:
        from smolagents.local_python_executor import LocalPythonExecutor

        allowed = ["numpy", "numpy.*", "pandas", "pandas.*", "matplotlib", "matplotlib.*"]
        self._executor: Any = LocalPythonExecutor(allowed, timeout_seconds=60)
        self._executor.send_tools({})

    def run(self, code: str) -> str:
        return str(self._executor(code).logs)

    def trip(self) -> None:
        if self._executor("1+1").output != 2:
            raise RuntimeError("1+1 was not 2")

    def put(self, frame: object) -> None:
        self._executor.send_variables({"frame": frame})

    def get(self) -> object:
        return self._executor("frame").output


class SmolagentsLocal(Peer):
    title = "smolagents, local"
    settings = (
        "`LocalPythonExecutor`, in the caller's own process: **not a sandbox** by its own words. "
        "pandas is imported once by the process, and a frame is a reference"
    )
    isolation = "none: in the caller's process"
    works = ("cold", "trip", "frames", "throughput", "cells")
    cannot = {  # noqa: RUF012
        "memory": "has no process of its own",
        "streaming": "output comes when all is done, cut at 50,000 characters",
        "outputs": "output comes when all is done, cut at 50,000 characters",
        "many": "has no process of its own",
    }

    def version(self) -> str:
        return f"smolagents {version('smolagents')}"

    def start(self, **wishes: object) -> Place:
        return Local()


PEER = SmolagentsLocal()
