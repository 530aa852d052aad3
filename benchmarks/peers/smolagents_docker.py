"""smolagents' DockerExecutor: a kernel gateway in a container, reached over a port."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from peers.contract import Missing, Peer, Place, command
from peers.engine import shim_and_below

# Its own image is made from one of a registry's; ours has the same packages as all the others.
GATEWAY = "/opt/env/bin/jupyter kernelgateway --KernelGatewayApp.ip=0.0.0.0"


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


class Gateway(Place):
    def __init__(self, image: str) -> None:
        from smolagents.monitoring import AgentLogger, LogLevel
        from smolagents.remote_executors import DockerExecutor

        self._executor: Any = DockerExecutor(
            additional_imports=[],
            logger=AgentLogger(level=LogLevel.OFF),
            port=free_port(),
            image_name=image,
            build_new_image=False,
            container_run_kwargs={
                "command": f"{GATEWAY} --KernelGatewayApp.port=8888",
                "environment": {"HOME": "/tmp", "MPLCONFIGDIR": "/tmp"},
            },
        )

    def run(self, code: str) -> str:
        return str(self._executor.run_code_raise_errors(code).logs)

    def trip(self) -> None:
        self.run("1+1")

    def processes(self) -> Iterable[int]:
        return shim_and_below(self._executor.container.id)

    def close(self) -> None:
        # Its own clean-up waits ten seconds for a process that does not heed SIGTERM.
        self._executor.container.kill()
        self._executor.cleanup()


class SmolagentsDocker(Peer):
    title = "smolagents, docker"
    settings = (
        "`DockerExecutor`: a Jupyter kernel gateway in a container with a network, reached over a "
        "port of the host, a websocket for each run; killed before its `cleanup()`"
    )
    isolation = "container, with a network"
    works = ("cold", "trip", "memory", "throughput")
    cannot = {  # noqa: RUF012
        "frames": "values go as JSON or pickles inside of code",
        "streaming": "output comes when all is done",
        "outputs": "output comes when all is done",
        "*": "too slow to be of interest",
    }
    rounds = 0.3
    most_at_once = 2

    def prepare(self) -> None:
        found = json.loads(os.environ["BELLJAR_BENCH"])
        if not found.get("gateway_image"):
            raise Missing(found.get("no_gateway_image", "its image could not be made"))
        self._image = str(found["gateway_image"])
        networks = command("docker", "network", "ls", "--format={{.Name}}").split()
        if "bridge" not in networks:
            raise Missing("the engine has no bridge, and its executor needs a port")

    def version(self) -> str:
        return f"smolagents {version('smolagents')}"

    def start(self, **wishes: object) -> Place:
        return Gateway(self._image)


PEER = SmolagentsDocker()
