"""Belljar under the same interface: blocking, awaited, from a pool; native, docker, gVisor."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from peers.contract import ANSWER, FIRST, Environ, Missing, Peer, Place, Storm, Watch, expect

LIFTED = {"output": "1g", "timeout": 600.0, "memory": "2g", "workspace": "768m"}


def options_of(backend: str, wishes: dict[str, object]) -> dict[str, Any]:
    options: dict[str, Any] = {"environment": "data", "backend": backend.partition("-")[0]}
    if backend == "docker-gvisor":
        options["runtime"] = "runsc"
    if wishes.get("lifted"):
        options |= {"limits": LIFTED, "strict": False}
    return options


def told(name: str) -> str:
    """What the benchmark has found out about this machine (venvs.py)."""
    return str(json.loads(os.environ["BELLJAR_BENCH"]).get(name, ""))


class Blocking(Place):
    """A Sandbox, made by the caller."""

    def __init__(self, sandbox: Any) -> None:
        self._sandbox = sandbox

    def run(self, code: str) -> str:
        return str(self._sandbox.run_code(code).raise_for_outcome().stdout)

    def trip(self) -> None:
        if self._sandbox.run_code("1+1").text != "2":
            raise RuntimeError("1+1 was not 2")

    def stream(self, code: str, callback: Callable[[int], None]) -> None:
        def heard(text: str) -> None:
            callback(len(text))

        self._sandbox.run_code(code, on_stdout=heard).raise_for_outcome()

    def put(self, frame: object) -> None:
        self._sandbox.put(frame=frame)

    def get(self) -> object:
        return self._sandbox.get("frame")

    def processes(self) -> Iterable[int]:
        where = self._sandbox.whereabouts
        if where.container:
            from peers.engine import shim_and_below

            return shim_and_below(where.container)
        from work.memory import in_namespace_of

        return in_namespace_of(where.pid)

    def close(self) -> None:
        self._sandbox.close()


class Belljar(Peer):
    """`Sandbox`, and `AsyncSandbox` for what is done at once."""

    title = "Belljar"

    def __init__(self, backend: str = "native") -> None:
        self.backend = backend
        self.versions = "versions" if backend == "native" else "image_versions"
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        names = {"native": "native", "docker": "docker", "docker-gvisor": "gVisor"}
        self.title = f"Belljar, {names[backend]}"
        self.settings = 'defaults: environment "data", all limits on, no pool'
        self.isolation = {
            "native": "namespaces, seccomp, Landlock, cgroup, uid",
            "docker": "container, hardened",
            "docker-gvisor": "gVisor, hardened",
        }[backend]
        if backend != "native":
            left_out = ("command", "cells", "many")
            self.works = tuple(work for work in Peer.works if work not in left_out)
            self.cannot = {"*": "measured natively: nothing in it is the backend's"}
        if backend == "docker-gvisor":
            self.rounds, self.most_at_once = 0.3, 2
        elif backend == "docker":
            self.most_at_once = 8

    def prepare(self) -> None:
        if self.backend != "native":
            from peers.engine import DockerRun

            DockerRun("runsc" if self.backend == "docker-gvisor" else "runc").prepare()

    def version(self) -> str:
        from belljar import __version__

        return f"belljar {__version__}, {told(self.versions)}"

    def options(self, wishes: dict[str, object]) -> dict[str, Any]:
        return options_of(self.backend, wishes)

    def start(self, **wishes: object) -> Place:
        from belljar import Sandbox

        return Blocking(Sandbox.create(**self.options(wishes)))

    async def shot(self) -> None:
        from belljar import AsyncSandbox

        async with AsyncSandbox(**self.options({})) as sandbox:
            expect((await sandbox.run_code(FIRST)).stdout, ANSWER)

    def storm(self, at_once: int, seconds: float, least: int, watch: Watch = None) -> Storm:
        """With tasks instead of threads, as a server would."""
        storm = Storm()
        times = storm.times

        async def worker(end: float) -> None:
            while time.perf_counter() < end or len(times) < least:
                start = time.perf_counter()
                await self.shot()
                times.append(time.perf_counter() - start)
                if watch is not None:
                    watch(len(times))

        async def main() -> None:
            async with self.ready():
                end = storm.begin() + seconds
                async with anyio.create_task_group() as tasks:
                    for _ in range(at_once):
                        tasks.start_soon(worker, end)
                storm.end()

        self.loop().call(main)
        return storm

    def command(self, environment: str, *words: str) -> tuple[list[str], Environ]:
        belljar = os.path.join(os.path.dirname(sys.executable), "belljar")
        return [belljar, "run", "--environment", environment, *words], None

    def loop(self) -> BlockingPortal:
        """One event loop for all storms, in a thread of its own, as a server has one."""
        if self._portal is None:
            self._portal = self._stack.enter_context(start_blocking_portal())
        return self._portal

    def close(self) -> None:
        self._stack.close()

    def ready(self) -> Any:
        """Around a storm, not measured: one shot, so that all is warm."""
        return _Warmed(self)


class _Warmed:
    def __init__(self, peer: Belljar) -> None:
        self._peer = peer

    async def __aenter__(self) -> None:
        await self._peer.shot()

    async def __aexit__(self, *of: object) -> None:
        return None


class Awaited(Belljar):
    """AsyncSandbox: the round trip without the thread of the blocking API."""

    works = ("trip",)
    cannot = {"*": "as the blocking one"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.title = "Belljar, native, awaited"
        self.settings = "`AsyncSandbox` on asyncio, otherwise as above"

    def trips(self, place: Place, count: int) -> list[float]:
        from belljar import AsyncSandbox

        times: list[float] = []

        async def main() -> None:
            async with AsyncSandbox(**self.options({})) as sandbox:
                for _ in range(5):
                    await sandbox.run_code("1+1")
                for _ in range(count):
                    began = time.perf_counter()
                    execution = await sandbox.run_code("1+1")
                    times.append(time.perf_counter() - began)
                    expect(execution.text, "2")

        anyio.run(main)
        return times

    def start(self, **wishes: object) -> Place:
        return Place()  # trips makes its own


class OtherPython(Belljar):
    """The packages of "data" on 3.12 or later if it is on an earlier one, and the other way round.

    Objects of the zygote cost less there, because their reference counts need not be written.
    """

    works = ("cold", "throughput", "memory")
    cannot = {"*": 'measured with the Python of "data"'}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.works, self.cannot = OtherPython.works, OtherPython.cannot
        self.versions = "other_versions"
        self._python = told("other_python")  # its path
        version = ".".join(told("other_versions").split(",")[0].split(".")[:2])  # "Python 3.13"
        self.title = f"Belljar, native, {version}"
        self.settings = '`Environment(extends="data", python=…)`, else as above'

    def prepare(self) -> None:
        if not self._python:
            raise Missing(told("no_other_python"))

    def options(self, wishes: dict[str, object]) -> dict[str, Any]:
        from belljar import Environment

        environment = Environment(extends="data", python=self._python)
        return super().options(wishes) | {"environment": environment}
