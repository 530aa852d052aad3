"""OpenManus' sandbox before and after: a session as its document describes, and ours.

`scripts/bench compat_openmanus` runs it. Before: the docker command, in the image that ours uses
too: a container that waits, an interactive bash in it whose prompt ends each answer, `docker cp`
for files, `docker stop` with five seconds and `docker rm` at the end; and for PythonExecute a
process of the host's, with a manager process for its result. After: belljar.compat.openmanus, on
docker and natively. In turns; look at the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import multiprocessing
import os
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from belljar.compat.openmanus import DockerSandbox, PythonExecute

PROMPT = b"belljar-bench$ "
CALLS = 20
POLL = 0.05  # seconds that OpenManus' own code sleeps when there is no answer yet
CREATE, COMMAND, FILES = "create, to a first answer", "a command", "write and read a file"
POLLED = "a command, polled"
END, PYTHON = "cleanup", "PythonExecute"
ROWS = (CREATE, POLLED, COMMAND, FILES, END, PYTHON)
Times = dict[str, list[float]]


class Before:
    """What the document describes, with nothing but the docker command."""

    def __init__(self, image: str) -> None:
        self._image = image

    def create(self) -> None:
        limits = ("--memory=512m", "--cpus=1", "--network=none", "--workdir=/workspace")
        self._id = docker("run", "-d", *limits, self._image, "tail", "-f", "/dev/null")
        start = f"PS1='{PROMPT.decode()}' exec bash --norc --noprofile -i 2>&1"
        self._bash = subprocess.Popen(
            ["docker", "exec", "-i", self._id, "bash", "-c", start],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._answer()
        self.run("echo hello")

    def run(self, command: str, *, polled: bool = False) -> bytes:
        assert self._bash.stdin is not None
        self._bash.stdin.write(command.encode() + b"\n")
        self._bash.stdin.flush()
        return self._answer(polled=polled)

    def _answer(self, *, polled: bool = False) -> bytes:
        """`polled`: as OpenManus waits. It looks, and sleeps if there is nothing yet."""
        assert self._bash.stdout is not None
        answer, fd = b"", self._bash.stdout.fileno()
        os.set_blocking(fd, not polled)
        while not answer.endswith(PROMPT):
            try:
                answer += os.read(fd, 65536)
            except BlockingIOError:
                time.sleep(POLL)
        return answer

    def files(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "file")
            with open(path, "w") as file:
                file.write("content")
            docker("cp", path, f"{self._id}:/workspace/file")
            docker("cp", f"{self._id}:/workspace/file", os.path.join(directory, "back"))

    def cleanup(self) -> None:
        self._bash.kill()
        self._bash.communicate()
        docker("stop", "-t", "5", self._id)
        docker("rm", "-f", self._id)


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def on_the_host(code: str, result: Any) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    result["observation"] = printed.getvalue()


def python_before() -> None:
    with multiprocessing.Manager() as manager:
        result = manager.dict()
        process = multiprocessing.Process(target=on_the_host, args=("print(1 + 1)", result))
        process.start()
        process.join(5)
        assert result["observation"] == "2\n"


def timed(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


async def awaited(function: Callable[..., Awaitable[object]], *args: Any) -> float:
    began = time.perf_counter()
    await function(*args)
    return time.perf_counter() - began


def measure_before(image: str, into: Times) -> None:
    before = Before(image)
    into[CREATE].append(timed(before.create))
    try:
        into[COMMAND] += [timed(lambda: before.run("echo hello")) for _ in range(CALLS)]
        into[POLLED] += [timed(lambda: before.run("echo hello", polled=True)) for _ in range(CALLS)]
        into[FILES] += [timed(before.files) for _ in range(3)]
    finally:
        into[END].append(timed(before.cleanup))
    into[PYTHON] += [timed(python_before) for _ in range(3)]


async def measure_ours(backend: str, into: Times) -> None:
    sandbox = DockerSandbox(backend=backend)

    async def create() -> None:
        await sandbox.create()
        await sandbox.run_command("echo hello")

    async def files() -> None:
        await sandbox.write_file("file", "content")
        assert await sandbox.read_file("file") == "content"

    into[CREATE].append(await awaited(create))
    into[COMMAND] += [await awaited(sandbox.run_command, "echo hello") for _ in range(CALLS)]
    into[POLLED] = into[COMMAND]  # nothing is polled
    into[FILES] += [await awaited(files) for _ in range(CALLS)]
    into[END].append(await awaited(sandbox.cleanup))
    async with PythonExecute(backend=backend) as tool:
        await tool.execute("print(1 + 1)")
        into[PYTHON] += [await awaited(tool.execute, "print(1 + 1)") for _ in range(CALLS)]


async def image_of_ours() -> str:
    """Also builds it, and warms the caches."""
    async with DockerSandbox(backend="docker") as sandbox:
        assert sandbox.container is not None
        return docker("inspect", "--format={{.Image}}", sandbox.container.id)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    image = asyncio.run(image_of_ours())
    asyncio.run(measure_ours("native", defaultdict(list)))
    found: dict[str, Times] = {}
    for name in ("before", "docker", "native"):
        found[name] = defaultdict(list)
    for _ in range(args.rounds):
        measure_before(image, found["before"])
        for backend in ("docker", "native"):
            asyncio.run(measure_ours(backend, found[backend]))
    medians = {
        name: {row: statistics.median(times[row]) for row in ROWS} for name, times in found.items()
    }
    if args.json:
        print(json.dumps(medians, indent=2))
        return
    table = Table(box=box.SIMPLE, title="medians in ms, and how many times faster than before")
    for column in ("what", "before", "docker", "", "native", ""):
        table.add_column(column, justify="left" if column == "what" else "right")
    for row in ROWS:
        before = medians["before"][row]
        cells = [f"{before * 1000:,.1f}"]
        for name in ("docker", "native"):
            value = medians[name][row]
            cells += [f"{value * 1000:,.1f}", f"{before / value:,.1f} x"]
        table.add_row(row, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
