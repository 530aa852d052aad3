"""What a soak does, the well-behaved half: each kind with its exact answer.

Every snippet carries a number of its own (the nonce), and every answer must have it: an answer that
belongs to another execution is wrong.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import anyio

from belljar import AsyncPool, AsyncSandbox, Execution, Limits, Outcome

# What a service that runs strangers' snippets may set; the time is generous because a machine with
# many at once is slow, and nothing well-behaved may fail for that.
LIMITS = Limits(
    cpus=0.5,
    memory="128m",
    processes=24,
    workspace="16m",
    tmp="4m",
    output="64k",
    timeout=120,
)


class Wrong(Exception):
    """An outcome, a value or an output that it should not be."""


@dataclass(frozen=True)
class Setting:
    pool: AsyncPool
    options: dict[str, Any]  # of sandboxes that are not out of the pool

    def acquire(self, **options: Any) -> AbstractAsyncContextManager[AsyncSandbox]:
        return self.pool.acquire(**options)


Act = Callable[[Setting, int, random.Random], Awaitable[str]]


@dataclass(frozen=True)
class Kind:
    name: str
    act: Act  # gives the outcome in a word, or raises Wrong
    hostile: bool = False
    weight: int = 3


def same(what: str, got: object, wanted: object) -> None:
    if type(got) is not type(wanted) or got != wanted:
        raise Wrong(f"{what} is {str(got)[:150]!r}, not {str(wanted)[:150]!r}")


def ended(execution: Any, *outcomes: Outcome) -> str:
    """Give its outcome in a word if it is one of these."""
    if execution.outcome not in outcomes:
        error = getattr(execution, "error", None)
        how = (execution.exit_code, execution.signal, error and f"{error.name}: {error.value}")
        raise Wrong(
            f"the outcome is {execution.outcome}, not {'/'.join(outcomes)}: {how}, "
            f"{execution.usage.wall:.2f} s, stderr {execution.stderr[-100:]!r}"
        )
    return str(execution.outcome)


def gives(execution: Execution, wanted: object) -> str:
    ended(execution, Outcome.ok)
    same("the value", execution.value, wanted)
    return "ok"


# -- one-shots ------------------------------------------------------------------------------------


async def value(setting: Setting, nonce: int, rng: random.Random) -> str:
    a, b = rng.randrange(10**6), rng.randrange(10**6)
    execution = await setting.pool.run_code(f"[{a} * {b}, {nonce}]")
    same("the text", execution.text, f"[{a * b}, {nonce}]")
    return gives(execution, [a * b, nonce])


async def output(setting: Setting, nonce: int, rng: random.Random) -> str:
    lines = rng.randrange(1, 200)
    heard: list[str] = []
    execution = await setting.pool.run_code(
        f"import sys\nfor n in range({lines}): print({nonce}, n)\nprint({nonce}, file=sys.stderr)",
        on_stdout=heard.append,
    )
    wanted = "".join(f"{nonce} {n}\n" for n in range(lines))
    same("stdout", execution.stdout, wanted)
    same("what was streamed", "".join(heard), wanted)
    same("stderr", execution.stderr, f"{nonce}\n")
    return gives(execution, None)


async def error(setting: Setting, nonce: int, rng: random.Random) -> str:
    execution = await setting.pool.run_code(f"def f(): raise KeyError({nonce})\nf()")
    ended(execution, Outcome.error)
    assert execution.error is not None
    same("the error", (execution.error.name, execution.error.value), ("KeyError", str(nonce)))
    return "error"


async def leave(setting: Setting, nonce: int, rng: random.Random) -> str:
    code = rng.randrange(1, 200)
    execution = await setting.pool.run_code(f"import sys; print({nonce}); sys.exit({code})")
    same("the exit code", execution.exit_code, code)
    same("stdout", execution.stdout, f"{nonce}\n")
    return ended(execution, Outcome.exit)


async def variables(setting: Setting, nonce: int, rng: random.Random) -> str:
    numbers = [rng.random() for _ in range(rng.randrange(500))]
    execution = await setting.pool.run_code(
        "given['numbers'].reverse(); given",
        variables={"given": {"nonce": nonce, "numbers": numbers}},
    )
    return gives(execution, {"nonce": nonce, "numbers": numbers[::-1]})


async def mapped(setting: Setting, nonce: int, rng: random.Random) -> str:
    numbers = range(rng.randrange(2, 6))
    found = setting.pool.map([f"({nonce}, {n})" for n in numbers], concurrency=2)
    same("what map gave", [each.value async for each in found], [(nonce, n) for n in numbers])
    return "ok"


async def cold(setting: Setting, nonce: int, rng: random.Random) -> str:
    async with AsyncSandbox(limits=LIMITS, **setting.options) as sandbox:
        return gives(await sandbox.run_code(f"{nonce}"), nonce)


# -- sessions -------------------------------------------------------------------------------------


async def session(setting: Setting, nonce: int, rng: random.Random) -> str:
    async with setting.acquire() as sandbox:
        total = nonce
        await sandbox.put(total=total, nonce=nonce)
        for count in range(1, rng.randrange(3, 7)):
            step = rng.randrange(1000)
            total += step
            execution = await sandbox.run_code(f"total += {step}; (nonce, total)")
            gives(execution, (nonce, total))
            same("state_preserved", execution.state_preserved, True)
            same("execution_count", execution.execution_count, count)
        same("what get() gave", await sandbox.get("total"), total)
    return "ok"


async def files(setting: Setting, nonce: int, rng: random.Random) -> str:
    content = rng.randbytes(rng.randrange(1, 500_000))
    async with setting.acquire() as sandbox:
        await sandbox.files.write(f"in/{nonce}.bin", content)
        execution = await sandbox.run_code(
            f"data = open('in/{nonce}.bin', 'rb').read()\n"
            f"open('out.bin', 'wb').write(data[::-1]); ({nonce}, len(data))"
        )
        gives(execution, (nonce, len(content)))
        if await sandbox.files.read("out.bin", format="bytes") != content[::-1]:
            raise Wrong("the file that came out is not the one that went in, reversed")
        names = sorted(entry.name for entry in await sandbox.files.list())
        same("the workspace", names, ["in", "out.bin"])
    return "ok"


async def host_function(setting: Setting, nonce: int, rng: random.Random) -> str:
    async def ask(number: int) -> int:
        return number + nonce

    def look(number: int) -> int:
        return number - nonce

    async with setting.acquire(functions={"ask": ask, "look": look}) as sandbox:
        execution = await sandbox.run_code(f"[ask({nonce}), look(0), [ask(n) for n in range(5)]]")
        same("calls", len(execution.calls), 7)
        return gives(execution, [2 * nonce, -nonce, [n + nonce for n in range(5)]])


async def command(setting: Setting, nonce: int, rng: random.Random) -> str:
    async with setting.acquire() as sandbox:
        found = await sandbox.commands.run(f"echo {nonce}; cat; exit 3", stdin="said")
        same("stdout", found.stdout, f"{nonce}\nsaid")
        same("the exit code", found.exit_code, 3)
        return ended(found, Outcome.exit)


async def checkpoint(setting: Setting, nonce: int, rng: random.Random) -> str:
    async with setting.acquire() as sandbox:
        gives(await sandbox.run_code(f"x = {nonce}; x"), nonce)
        before = await sandbox.checkpoint()
        gives(await sandbox.run_code("x += 1; open('made', 'w').close(); x"), nonce + 1)
        await sandbox.rollback(before)
        code = "import os; (x, os.path.exists('made'))"
        gives(await sandbox.run_code(code), (nonce, False))
        twin = await sandbox.fork()
        try:
            gives(await twin.run_code("x += 2; x"), nonce + 2)
            gives(await sandbox.run_code("x"), nonce)
        finally:
            await twin.close()
    return "ok"


# -- ends in the middle ---------------------------------------------------------------------------


async def timeout(setting: Setting, nonce: int, rng: random.Random) -> str:
    async with setting.acquire() as sandbox:
        gives(await sandbox.run_code(f"x = {nonce}; x"), nonce)
        execution = await sandbox.run_code("while True: pass", timeout=rng.uniform(0.2, 0.8))
        ended(execution, Outcome.timeout)
        await _then(sandbox, execution, nonce)
    return "timeout"


async def interrupt(setting: Setting, nonce: int, rng: random.Random) -> str:
    async with setting.acquire() as sandbox:
        gives(await sandbox.run_code(f"x = {nonce}; x"), nonce)
        async with anyio.create_task_group() as group:
            running = Endless(sandbox, nonce)
            group.start_soon(running.run)
            await running.begun.wait()
            await sandbox.interrupt()
        assert running.execution is not None
        same("stdout", running.execution.stdout, f"{nonce}\n")
        ended(running.execution, Outcome.cancelled)
        await _then(sandbox, running.execution, nonce)
    return "cancelled"


async def cancel(setting: Setting, nonce: int, rng: random.Random) -> str:
    async with setting.acquire() as sandbox:
        async with anyio.create_task_group() as group:
            running = Endless(sandbox, nonce)
            group.start_soon(running.run)
            await running.begun.wait()
            group.cancel_scope.cancel()
        if running.execution is not None:
            raise Wrong("a call that was cancelled has given an Execution")
        return gives(await sandbox.run_code(f"{nonce}"), nonce)


async def close(setting: Setting, nonce: int, rng: random.Random) -> str:
    async with setting.acquire() as sandbox:
        async with anyio.create_task_group() as group:
            running = Endless(sandbox, nonce)
            group.start_soon(running.run)
            await running.begun.wait()
            await (sandbox.kill() if rng.random() < 0.5 else sandbox.close())
        assert running.execution is not None
        same("stdout", running.execution.stdout, f"{nonce}\n")
        return ended(running.execution, Outcome.killed)


async def restart(setting: Setting, nonce: int, rng: random.Random) -> str:
    async with setting.acquire() as sandbox:
        gives(await sandbox.run_code(f"x = {nonce}; open('kept', 'w').write(str(x)); x"), nonce)
        await sandbox.restart()
        execution = await sandbox.run_code("('x' in globals(), int(open('kept').read()))")
        return gives(execution, (False, nonce))


class Endless:
    """A cell that says its nonce and then goes on for ever."""

    def __init__(self, sandbox: AsyncSandbox, nonce: int) -> None:
        self._sandbox = sandbox
        self._nonce = nonce
        self.begun = anyio.Event()
        self.execution: Execution | None = None

    async def run(self) -> None:
        code = f"import time\nprint({self._nonce}, flush=True)\nwhile True: time.sleep(0.01)"
        try:
            self.execution = await self._sandbox.run_code(code, on_stdout=lambda _: self.note())
        finally:
            self.begun.set()  # no other call waits for one that failed

    def note(self) -> None:
        self.begun.set()


async def _then(sandbox: AsyncSandbox, before: Execution, nonce: int) -> None:
    """After an end that may have cost the variables: what was said of them is so."""
    execution = await sandbox.run_code("globals().get('x')")
    gives(execution, nonce if before.state_preserved else None)


# -- a kind that must be found wrong, for the test of the soak itself ----------------------------


async def falsified(setting: Setting, nonce: int, rng: random.Random) -> str:
    return gives(await setting.pool.run_code(f"{nonce}"), nonce + 1)


FALSIFIED = Kind("falsified", falsified, weight=30)

GOOD = [
    Kind("value", value, weight=6),
    Kind("output", output, weight=6),
    Kind("error", error),
    Kind("exit", leave),
    Kind("variables", variables),
    Kind("map", mapped),
    Kind("cold start", cold),
    Kind("session", session, weight=6),
    Kind("files", files),
    Kind("host function", host_function),
    Kind("command", command),
    Kind("checkpoint, fork", checkpoint),
    Kind("time-out", timeout),
    Kind("interrupt", interrupt),
    Kind("cancelled call", cancel),
    Kind("close while running", close),
    Kind("restart", restart),
]
