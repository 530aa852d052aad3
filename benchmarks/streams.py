"""Streams: how fast a program's output comes, what one that is not read costs others, a terminal.
Contexts: what a new one costs, measured against a new sandbox.

`scripts/bench streams` runs it, natively. One process, one machine. Two processors are the least:
program, init and reader work at the same time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import anyio
from rich import box
from rich.console import Console
from rich.table import Table

from belljar import AsyncSandbox, Sandbox
from belljar.sandbox.process import AsyncProcess

LIMITS = {"memory": "2g", "processes": 400, "timeout": 300}
WRITE = "dd if=/dev/zero bs=64k count={count} status=none"
STEADY = "cat /dev/zero"  # without an end
STREAMS = 100
CONTEXTS = 25
ECHOES = 200


def throughput(sandbox: Sandbox, megabytes: int, rounds: int) -> float:
    """Bytes a second that a reader gets of one program."""
    found, count = [], megabytes * 1_000_000 // 65536
    for _ in range(rounds):
        began, size = time.perf_counter(), 0
        for chunk in sandbox.commands.start(WRITE.format(count=count)):
            size += len(chunk.data)
        found.append(size / (time.perf_counter() - began))
        assert size == count * 65536
    return statistics.median(found)


def echo(sandbox: Sandbox) -> list[float]:
    """Seconds from a key to its echo."""
    found = []
    with sandbox.commands.start(["cat"], pty=(80, 24)) as process:
        for _ in range(ECHOES):
            began = time.perf_counter()
            process.send("a")
            process.read()
            found.append(time.perf_counter() - began)
    return sorted(found)


async def many(seconds: float, *, unread: int) -> dict[str, float]:
    """A hundred programs at once that never stop writing, some of them not read."""
    sizes = [0] * STREAMS
    async with AsyncSandbox(environment="python", limits=LIMITS, strict=False) as sandbox:
        programs = [await sandbox.commands.start(STEADY) for _ in range(STREAMS)]
        assert sandbox.whereabouts is not None
        init = sandbox.whereabouts.pid
        assert init is not None

        async def read(number: int, program: AsyncProcess) -> None:
            async for chunk in program:
                sizes[number] += len(chunk.data)

        async with anyio.create_task_group() as tasks:
            for number, program in enumerate(programs[unread:]):
                tasks.start_soon(read, number, program)
            await anyio.sleep(1.0)
            before, memory, began = sum(sizes), (_resident("self"), _resident(init)), time.time()
            await anyio.sleep(seconds)
            speed = (sum(sizes) - before) / (time.time() - began)
            grown = _resident("self") - memory[0], _resident(init) - memory[1]
            tasks.cancel_scope.cancel()
    return {
        "each": speed / (STREAMS - unread),
        "all": speed,
        "host grew": grown[0],
        "init grew": grown[1],
        "host": memory[0] + grown[0],
        "init": memory[1] + grown[1],
    }


def context(environment: str) -> tuple[float, float]:
    """Seconds to the first value of a new sandbox, and of a new context: alternately."""
    sandboxes, contexts = [], []
    with Sandbox(environment=environment) as sandbox:
        for _ in range(CONTEXTS):
            began = time.perf_counter()
            with Sandbox(environment=environment) as other:
                other.run_code("1")
                sandboxes.append(time.perf_counter() - began)
            began = time.perf_counter()
            made = sandbox.contexts.create()
            sandbox.run_code("1", context=made)
            contexts.append(time.perf_counter() - began)
            sandbox.contexts.remove(made)
    return statistics.median(sandboxes), statistics.median(contexts)


def _resident(pid: int | str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise LookupError(pid)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1000, metavar="MB", help="of output (1000)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a hundred streams (10)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with Sandbox(environment="python", limits=LIMITS, strict=False) as sandbox:
        one = throughput(sandbox, args.size, args.rounds)
        echoes = echo(sandbox)
    ratios, rounds = [], []
    for _ in range(max(args.rounds // 2, 1)):
        read = anyio.run(lambda: many(args.seconds, unread=0))
        with_one = anyio.run(lambda: many(args.seconds, unread=1))
        ratios.append(with_one["each"] / read["each"])
        rounds += [read, with_one]
    found = {
        "one stream, MB/s": one / 1e6,
        "a hundred streams, MB/s": statistics.median(each["all"] for each in rounds) / 1e6,
        "one not read, others keep": statistics.median(ratios),
        "host grew, MB": max(each["host grew"] for each in rounds) / 1e6,
        "init grew, MB": max(each["init grew"] for each in rounds) / 1e6,
        "init, MB": max(each["init"] for each in rounds) / 1e6,
        "echo of a terminal, ms": statistics.median(echoes) * 1000,
        "echo, 95 of 100, ms": echoes[int(len(echoes) * 0.95)] * 1000,
    }
    for environment in ("python", "data"):
        sandbox_time, context_time = context(environment)
        found[f"new context, {environment}, ms"] = context_time * 1000
        found[f"of a new sandbox, {environment}"] = context_time / sandbox_time
    if args.json:
        print(json.dumps(found, indent=2))
        return
    table = Table(box=box.SIMPLE, title="streams; medians")
    table.add_column("what")
    table.add_column("", justify="right")
    for name, value in found.items():
        table.add_row(name, f"{value:,.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
