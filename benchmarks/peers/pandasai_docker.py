"""pandasai-docker: the sandbox of PandasAI's agents."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from peers.contract import IMPORTS, NOTHING_WAITS, Peer, Place
from peers.engine import image, shim_and_below

NUMBER = "result = {'type': 'number', 'value': %s}"
FRAME = """
frame = execute_sql_query("SELECT * FROM frame")
result = {'type': 'dataframe', 'value': frame}
"""
LENGTH = """
frame = execute_sql_query("SELECT * FROM frame")
result = {'type': 'number', 'value': len(frame)}
"""


class Agent(Place):
    def __init__(self) -> None:
        from pandasai_docker import DockerSandbox

        self._sandbox: Any = DockerSandbox(image_name=image())
        self._sandbox.start()
        self._frame: object = None

    def run(self, code: str) -> str:
        return str(self._sandbox.execute(code, {})["value"])

    def trip(self) -> None:
        if self.run(NUMBER % "1+1") != "2":
            raise RuntimeError("1+1 was not 2")

    def put(self, frame: object) -> None:
        """As its agents do: the frame goes in when the code asks for it."""
        self._frame = frame
        self._sandbox.execute(LENGTH, {"execute_sql_query": lambda query: frame})

    def get(self) -> object:
        """The frame goes in once more: it cannot be asked for what it has."""
        wish = {"execute_sql_query": lambda query: self._frame}
        return self._sandbox.execute(FRAME, wish)["value"]

    def processes(self) -> Iterable[int]:
        return shim_and_below(self._sandbox._container.id)

    def close(self) -> None:
        # Its own stop waits ten seconds for a shell that does not heed SIGTERM.
        self._sandbox._container.kill()
        self._sandbox.stop()


class PandasaiDocker(Peer):
    title = "pandasai-docker"
    settings = (
        "`DockerSandbox(image_name=…)`: a new python in its container for each `execute`; a frame "
        "goes in as CSV and comes back as JSON; the container is killed before its `stop()`"
    )
    isolation = "container"
    works = ("cold", "trip", "frames", "throughput")
    first = (
        f"{IMPORTS}\nvalue = int(pandas.DataFrame({{'a': range(10)}}).a.sum())\n{NUMBER % 'value'}"
    )
    cannot = {  # noqa: RUF012
        "memory": NOTHING_WAITS,
        "streaming": "output is only its result",
        "outputs": "output is only its result",
        "*": "each run is a new interpreter in its container",
    }
    rounds = 0.5
    most_at_once = 8

    def prepare(self) -> None:
        os.environ["SCARF_NO_ANALYTICS"] = "true"
        image()

    def version(self) -> str:
        return f"pandasai-docker {version('pandasai-docker')}, pandasai {version('pandasai')}"

    def start(self, **wishes: object) -> Place:
        return Agent()


PEER = PandasaiDocker()
