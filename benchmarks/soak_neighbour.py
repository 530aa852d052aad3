"""What a well-behaved neighbour feels: a live sandbox with a fixed cell, alone and beside abuse.

Quiet phases and loud ones take turns, and are measured in the same way. Of each call: the time that
the caller sees, the time that the work takes inside, and how late the event loop of the host is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
from soak_kinds import Wrong, gives
from soak_tally import Histogram, Tally

from belljar import AsyncSandbox, Execution, Limits, Outcome

QUIET, ALL = "quiet", "all five"
PAUSE = 0.01  # seconds between two calls
LOOK = 0.005  # seconds between two looks at the event loop
SETTLE = 0.5  # seconds in which abuse gets going, at most; not measured
NEIGHBOUR = Limits(cpus=1, memory="256m", processes=32, timeout=120)
ABUSER = Limits(cpus=1, memory="256m", processes=64, workspace="64m", output="1m", timeout=2)
CELL = """
import time
began = time.perf_counter()
total = sum(n * n for n in range(20_000))
(NONCE, total, time.perf_counter() - began)
"""
TOTAL = sum(n * n for n in range(20_000))

ABUSES = {
    "CPU spinner": "while True: pass",
    "fork bomb": """
import os
while True:
    try:
        os.fork()
    except OSError:
        continue
""",
    "memory bomb": "held = []\nwhile True: held.append(bytearray(b'x' * (8 << 20)))",
    "output flood": "import os\nwhile True: os.write(1, b'x' * 65536)",
    "disk filler": """
import os
while True:
    try:
        for number in range(200):
            with open(f"/workspace/{number}", "wb", buffering=0) as file:
                file.write(b"x" * (1 << 20))
    except OSError:
        for name in os.listdir("/workspace"):
            os.remove(f"/workspace/{name}")
""",
}
OUTCOMES = {
    "CPU spinner": (Outcome.timeout,),
    "fork bomb": (Outcome.timeout, Outcome.out_of_memory),
    "memory bomb": (Outcome.out_of_memory, Outcome.timeout),
    "output flood": (Outcome.output_limit, Outcome.timeout),
    "disk filler": (Outcome.timeout,),
}
PHASES = (*ABUSES, ALL)


@dataclass
class Felt:
    """Of all phases of one name."""

    caller: Histogram = field(default_factory=Histogram)
    inside: Histogram = field(default_factory=Histogram)
    lag: Histogram = field(default_factory=Histogram)

    def as_json(self) -> dict[str, Any]:
        parts = {"caller": self.caller, "inside": self.inside, "lag": self.lag}
        return {name: histogram.as_json() for name, histogram in parts.items()}


class Neighbourhood:
    def __init__(self, options: dict[str, Any], tally: Tally, nonces: Callable[[], int]) -> None:
        self._options = options
        self._tally = tally
        self._nonces = nonces
        self.felt = {name: Felt() for name in (QUIET, *PHASES)}

    async def visit(self, abuses: list[str], until: float, stop: Callable[[], bool]) -> None:
        """A quiet phase before each loud one, until the time is over."""
        async with AsyncSandbox(limits=NEIGHBOUR, **self._options) as neighbour:
            await self._call(neighbour, None)
            names = [name for abuse in abuses for name in (QUIET, abuse)]
            for done, name in enumerate(names):
                if stop():
                    break
                left = until - time.monotonic()
                await self._phase(neighbour, name, max(0.2, left / (len(names) - done)), stop)

    async def _phase(
        self, neighbour: AsyncSandbox, name: str, seconds: float, stop: Callable[[], bool]
    ) -> None:
        end = time.monotonic() + seconds
        abuses = list(ABUSES) if name == ALL else [] if name == QUIET else [name]
        async with anyio.create_task_group() as group:
            ready = [anyio.Event() for _ in abuses]
            for abuse, event in zip(abuses, ready, strict=True):
                group.start_soon(self._abuse, abuse, event)
            for event in ready:
                await event.wait()
            await anyio.sleep(min(SETTLE, seconds / 4))
            end = max(end, time.monotonic() + 0.1)
            felt = self.felt[name]
            group.start_soon(self._watch, felt)
            while time.monotonic() < end and not stop():
                await self._call(neighbour, felt)
                await anyio.sleep(PAUSE)
            group.cancel_scope.cancel()

    async def _call(self, neighbour: AsyncSandbox, felt: Felt | None) -> None:
        nonce = self._nonces()
        began = time.perf_counter()
        execution = await neighbour.run_code(CELL.replace("NONCE", str(nonce)))
        seconds = time.perf_counter() - began
        try:
            value = execution.value if isinstance(execution.value, tuple) else (None,)
            gives(execution, (nonce, TOTAL, value[-1]))
        except Wrong as error:
            self._tally.note_wrong("neighbour", False, str(error))
            return
        self._tally.row("neighbour", False).outcomes["ok"] += 1
        if felt is not None:
            felt.caller.add(seconds)
            felt.inside.add(float(str(value[-1])))

    async def _watch(self, felt: Felt) -> None:
        while True:
            began = time.perf_counter()
            await anyio.sleep(LOOK)
            felt.lag.add(time.perf_counter() - began - LOOK)

    async def _abuse(self, name: str, ready: anyio.Event) -> None:
        """Again and again, in one sandbox, which restarts an interpreter that died."""
        async with AsyncSandbox(limits=ABUSER, **self._options) as sandbox:
            await sandbox.run_code("1")
            ready.set()
            while True:
                self._note(name, await sandbox.run_code(ABUSES[name]))

    def _note(self, name: str, execution: Execution) -> None:
        kind = f"beside a neighbour: {name}"
        self._tally.row(kind, True).outcomes[str(execution.outcome)] += 1
        if execution.outcome not in OUTCOMES[name]:
            self._tally.note_wrong(kind, True, f"the outcome is {execution.outcome}")
