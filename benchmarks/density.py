"""How many idle sandboxes fit on this machine, and what one more of them takes.

    python benchmarks/density.py --sandboxes 500
    python benchmarks/density.py --sandboxes 100 --environment python --json density.json

All are alive at once; each has run a cell before, and answers another one at the end. The memory of
one is the private memory of all its processes (smaps_rollup). As a check: what the whole machine
has less than before, with what the kernel keeps for it and what the host process has grown by. It
is compared with an interpreter of the same Environment that has made the same imports by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import anyio
from work.memory import below, private

from belljar import AsyncSandbox
from belljar.environment.environment import resolve

AT_ONCE = 8  # that are started or asked
SPARE_FILES = 64  # descriptors for all that is not a sandbox

# Run by a plain interpreter, without preloaded modules, as a child of the one in a sandbox.
_IMPORTS = """
import importlib
for name in {preload!r}:
    importlib.import_module(name)
exec(compile({warmup!r}, "<warmup>", "exec"), {{}})
print(open("/proc/self/smaps_rollup").read())
"""
_ALONE = """
import subprocess, sys
subprocess.check_output([sys.executable, "-c", {code!r}], text=True)
"""


def available() -> int:
    """Bytes that programs could still have, as the kernel guesses."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("MemAvailable"))) * 1024


def host() -> dict[str, int]:
    """What this process holds for its sandboxes."""
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "memory": private(os.getpid()),
    }


async def alone(environment: str) -> int:
    """Private bytes of an interpreter that has made the same imports by itself."""
    chosen = resolve(environment)
    code = _IMPORTS.format(preload=list(chosen.preload), warmup=chosen.warmup)
    async with await AsyncSandbox.create(environment=environment) as sandbox:
        execution = await sandbox.run_code(_ALONE.format(code=code), timeout=120)
    text = execution.value
    if not isinstance(text, str):
        sys.exit(f"density: the interpreter to compare with did not come up: {execution.error}")
    rows = (line.split() for line in text.splitlines())
    return sum(int(row[1]) * 1024 for row in rows if row and row[0].startswith("Private_"))


async def each(number: int, do: object) -> None:
    """Some at once, all of them."""
    left = iter(range(number))

    async def work() -> None:
        for index in left:
            await do(index)  # type: ignore[operator]

    async with anyio.create_task_group() as group:
        for _ in range(AT_ONCE):
            group.start_soon(work)


async def measure(number: int, environment: str) -> dict[str, float]:
    fresh = await alone(environment)
    sandboxes: list[AsyncSandbox] = []
    first = await AsyncSandbox.create(environment=environment)  # the zygote is there from here on
    await first.run_code("1")
    before, free = host(), available()

    async def start(index: int) -> None:
        sandbox = await AsyncSandbox.create(environment=environment)
        sandboxes.append(sandbox)
        await sandbox.run_code(f"number = {index}")

    try:
        began = time.perf_counter()
        await each(number, start)
        started = time.perf_counter() - began
        taken, after = free - available(), host()
        places = [s._session.guest.location.pid for s in sandboxes if s._session is not None]
        memory = [sum(map(private, (pid, *below([pid])))) for pid in places[:100] if pid]
        answers: list[bool] = []

        async def ask(index: int) -> None:
            answers.append((await sandboxes[index].run_code("number >= 0")).value is True)

        began = time.perf_counter()
        await each(number, ask)
        asked = time.perf_counter() - began
    finally:
        with anyio.CancelScope(shield=True):
            for sandbox in (first, *sandboxes):
                await sandbox.close()
    return {
        "sandboxes": number,
        "answering": sum(answers),
        "started_per_second": number / started,
        "answers_per_second": number / asked,
        "private_bytes": median(memory),
        "machine_bytes": taken / number,
        "fresh_interpreter_bytes": fresh,
        "ratio": fresh / median(memory),
        "host_descriptors": (after["descriptors"] - before["descriptors"]) / number,
        "host_threads": after["threads"] - before["threads"],
        "host_bytes": (after["memory"] - before["memory"]) / number,
    }


def show(found: Mapping[str, float]) -> None:
    def size(name: str) -> str:
        return f"{found[name] / 2**20:.1f} MB"

    for what, value in (
        ("idle sandboxes", f"{found['sandboxes']:.0f}, of which {found['answering']:.0f} answer"),
        ("started", f"{found['started_per_second']:.1f} a second, {AT_ONCE} at once"),
        ("one more: private pages", size("private_bytes")),
        ("one more: of the machine", size("machine_bytes")),
        (
            "a fresh interpreter",
            f"{size('fresh_interpreter_bytes')}, {found['ratio']:.1f} times that",
        ),
        (
            "one more: of the host",
            f"{size('host_bytes')}, {found['host_descriptors']:.1f} descriptors",
        ),
        ("more threads of the host", f"{found['host_threads']:.0f}"),
    ):
        print(f"{what:<26} {value}")


def make_room(number: int) -> None:
    """Take as many descriptors as may be had; say so if that is what will stop us."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    needed = number * DESCRIPTORS + SPARE_FILES
    if hard != resource.RLIM_INFINITY and needed > hard:
        sys.exit(
            f"density: {number} sandboxes need about {needed} descriptors, and this process may "
            f"have {hard} (ulimit -Hn): ask for fewer sandboxes, or raise the limit"
        )


DESCRIPTORS = 8  # of the host for each sandbox: its channel, its process, what its cgroup counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sandboxes", type=int, default=500)
    parser.add_argument("--environment", default="data")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    asked = parser.parse_args()
    make_room(asked.sandboxes)
    found = anyio.run(measure, asked.sandboxes, asked.environment)
    show(found)
    if asked.json:
        Path(asked.json).write_text(json.dumps(found, indent=1) + "\n")
    return 0 if found["answering"] == asked.sandboxes else 1


if __name__ == "__main__":
    sys.exit(main())
