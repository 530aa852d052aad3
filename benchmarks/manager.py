"""A manager under random load, kills and idle sweeps, against a ledger of what was done.

`scripts/bench manager --seconds 300 --sandboxes 50` runs it. Workers make, use, delete and kill
sandboxes at random, while idle and old ones are swept beside them. An end that no
worker asked for is counted; at the end the manager's numbers must be those of the ledger, and
nothing may be left: processes, control groups, mounts, descriptors, as seen from outside.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import resource
import statistics
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
from rich import box
from rich.console import Console
from rich.table import Table

from belljar import AsyncSandbox, Execution, Outcome, SandboxClosed, SandboxError
from belljar.backends.event_loop import here
from belljar.errors import ManagerFull, NameTaken, SandboxMissing
from belljar.pool.manager import AsyncSandboxManager

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import census  # the tests' own, which asks nothing of belljar

SWEEP = 0.25  # seconds between two sweeps
LIVES = 4  # the lifetime, in times that one may be idle
WORKERS = 24
OWNERS = ("alice", "bob", "carol", "dave")
WAIT = 0.5
DYING = 1.0  # seconds that a process may take to die, on a busy machine


def owner_of(name: str) -> str:
    """Always the same owner for a name."""
    return OWNERS[zlib.crc32(name.encode()) % len(OWNERS)]


class Ledger:
    """What was done, written down beside the manager."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.made: set[str] = set()  # ids
        self.ended: set[str] = set()
        self.deleted: set[str] = set()
        self.killed: dict[str, float] = {}  # by id: when, the last time
        self.under_way: Counter[str] = Counter()  # by id: executions

    async def make(self, **options: object) -> AsyncSandbox:
        """The manager's factory."""
        sandbox = AsyncSandbox(**options)  # type: ignore[arg-type]
        await sandbox.start()
        self.made.add(sandbox.id)
        close = sandbox.close

        async def noted() -> None:
            self.ended.add(sandbox.id)
            if self.under_way[sandbox.id] and not self.was_ended(sandbox.id):
                self.counts["busy_swept"] += 1
            await close()

        sandbox.close = noted  # type: ignore[method-assign]
        return sandbox

    def was_ended(self, id: str, began: float = math.inf) -> bool:
        """Deleted; or killed meanwhile, or so shortly before that the kernel was not yet done."""
        since = min(began, time.monotonic()) - DYING
        return id in self.deleted or self.killed.get(id, -math.inf) > since

    @property
    def alive(self) -> int:
        return len(self.made) - len(self.ended)

    def fault(self, what: str) -> None:
        self.wrong.append(what)


class Load:
    def __init__(
        self, manager: AsyncSandboxManager, ledger: Ledger, names: int, idle: float, seed: int
    ) -> None:
        self.manager = manager
        self.ledger = ledger
        self.names = [f"s{number}" for number in range(names)]
        self.idle = idle
        self.random = random.Random(seed)
        self.seen: list[int] = []  # how many there were, again and again
        self.actions: dict[Callable[[str], Awaitable[None]], int] = {
            self.use: 60,
            self.use_directly: 15,
            self.use_for_long: 2,
            self.run_out_of_time: 2,
            self.delete: 6,
            self.kill: 4,
            self.create: 4,
        }

    async def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        async with anyio.create_task_group() as tasks:
            for _ in range(WORKERS):
                tasks.start_soon(self.work, until)
            tasks.start_soon(self.watch, until)

    async def work(self, until: float) -> None:
        choices, weights = list(self.actions), list(self.actions.values())
        while time.monotonic() < until:
            (action,) = self.random.choices(choices, weights)
            # Some names are asked for often, and some so seldom that they are swept in between.
            index = int(len(self.names) * self.random.random() ** 2)
            await action(self.names[index])

    async def watch(self, until: float) -> None:
        """Never more than allowed, at any moment."""
        while time.monotonic() < until:
            stats = self.manager.stats()
            places = stats.total + stats.starting + stats.ending
            self.seen.append(stats.total)
            if places > stats.max_sandboxes:
                self.ledger.fault(f"{places} places of {stats.max_sandboxes} are taken")
            await anyio.sleep(0.01)

    # -- what workers do --------------------------------------------------------------------

    async def create(self, name: str) -> None:
        try:
            await self.manager.create(name, owner=owner_of(name))
        except NameTaken:
            return
        except ManagerFull:
            self.ledger.counts["refused"] += 1
        except SandboxMissing:
            self.ledger.counts["given_up"] += 1

    async def ensure(self, name: str) -> AsyncSandbox | None:
        try:
            return await self.manager.get_or_create(name, owner=owner_of(name), wait=WAIT)
        except ManagerFull:
            self.ledger.counts["refused"] += 1
        except SandboxMissing:
            self.ledger.counts["given_up"] += 1
        return None

    async def use(self, name: str) -> None:
        if await self.ensure(name) is None:
            return
        try:
            async with self.manager.operation(name) as sandbox:
                await self.calculate(sandbox)
        except SandboxMissing:
            self.ledger.counts["gone_before_use"] += 1

    async def use_directly(self, name: str) -> None:
        """As get() gives it, without telling the manager."""
        sandbox = await self.ensure(name)
        if sandbox is not None:
            await self.calculate(sandbox)

    async def use_for_long(self, name: str) -> None:
        """Longer than an idle one may stay."""
        if await self.ensure(name) is None:
            return
        try:
            async with self.manager.operation(name) as sandbox:
                await self.calculate(sandbox, f"import time; time.sleep({self.idle * 1.5})")
        except SandboxMissing:
            self.ledger.counts["gone_before_use"] += 1

    async def run_out_of_time(self, name: str) -> None:
        if await self.ensure(name) is None:
            return
        try:
            async with self.manager.operation(name) as sandbox:
                code = "while True: pass"
                await self.judge(sandbox, code, Outcome.timeout, timeout=0.2)
        except SandboxMissing:
            self.ledger.counts["gone_before_use"] += 1

    async def calculate(self, sandbox: AsyncSandbox, before: str = "0") -> None:
        number = self.random.randrange(10**6)
        mark = f"mark = globals().get('mark') or {sandbox.id!r}"
        execution = await self.judge(
            sandbox, f"{before}\n{mark}\n[{number} * {number}, mark]", Outcome.ok
        )
        if execution is not None and execution.value != [number * number, sandbox.id]:
            self.ledger.fault(f"{number}² is {execution.value} in {sandbox.id}")

    async def judge(
        self, sandbox: AsyncSandbox, code: str, expected: Outcome, timeout: float | None = None
    ) -> Execution | None:
        """One execution; an outcome other than ok must have been asked for here."""
        ledger, began = self.ledger, time.monotonic()
        ledger.under_way[sandbox.id] += 1
        try:
            execution = await sandbox.run_code(code, timeout=timeout)
        except SandboxError as error:
            # Taken with get(), it may have been found dead before it was used.
            dead = isinstance(error, SandboxClosed) and sandbox.id in ledger.killed
            self.cut_short(sandbox, f"{type(error).__name__}: {error}", dead, began)
            return None
        finally:
            ledger.under_way[sandbox.id] -= 1
        ledger.counts["executions"] += 1
        if execution.outcome is expected:
            return execution if expected is Outcome.ok else None
        self.cut_short(sandbox, f"{execution.outcome} instead of {expected}", False, began)
        return None

    def cut_short(self, sandbox: AsyncSandbox, what: str, excused: bool, began: float) -> None:
        ledger = self.ledger
        ledger.counts["cut_short"] += 1
        if not excused and not ledger.was_ended(sandbox.id, began):
            ledger.fault(f"{sandbox.id}: {what}")

    async def delete(self, name: str) -> None:
        if (sandbox := self.there(name)) is None:
            return
        self.ledger.deleted.add(sandbox.id)
        try:
            await self.manager.delete(name)
            self.ledger.counts["deleted"] += 1
        except SandboxMissing:  # it has just been found dead
            self.ledger.counts["gone_before_delete"] += 1

    async def kill(self, name: str) -> None:
        """Kill the guest without telling the manager."""
        sandbox = self.there(name)
        place = None if sandbox is None else sandbox._session
        if sandbox is not None and place is not None:
            self.ledger.killed[sandbox.id] = time.monotonic()
            self.ledger.counts["killed"] += 1
            place.guest.kill()

    def there(self, name: str) -> AsyncSandbox | None:
        """Without asking the manager, for whom that would be a use of it."""
        entry = self.manager._table.named.get(name)
        return None if entry is None else entry.sandbox


# -- the run --------------------------------------------------------------------------------------


async def measure(
    seconds: float, sandboxes: int, *, idle: float, environment: str, seed: int
) -> dict[str, object]:
    """One run: what was done, and what is wrong, which should be nothing."""
    async with AsyncSandbox(environment=environment) as first:
        await first.run_code("1")  # what a process has once: the zygote, the event loop's thread
    before = census.take()
    memory = _memory()
    ledger = Ledger()
    manager = AsyncSandboxManager(
        max_sandboxes=sandboxes,
        max_per_owner=max(2, sandboxes // 3),
        idle_timeout=idle,
        lifetime=idle * LIVES,
        cleanup_interval=SWEEP,
        factory=ledger.make,
        environment=environment,
    )
    load = Load(manager, ledger, names=sandboxes * 3 // 2, idle=idle, seed=seed)
    began = time.monotonic()
    try:
        await load.run(seconds)
    finally:
        at_end = manager.stats()
        _compare(ledger, at_end, manager.names())
        closing = time.monotonic()
        await manager.close()
        ended = time.monotonic()
    stats = manager.stats()
    _compare(ledger, stats, [])
    leaks = census.settle(before, ignore=["thread"])
    return {
        "seconds": round(ended - began, 1),
        "seed": seed,
        "loop": sniff(),
        "environment": environment,
        "sandboxes": sandboxes,
        "idle_timeout": idle,
        "most_at_once": max(load.seen),
        "median_at_once": statistics.median(load.seen),
        "executions": ledger.counts["executions"],
        "cut_short_as_wanted": ledger.counts["cut_short"],
        "killed_from_outside": ledger.counts["killed"],
        "stats": {name: value for name, value in stats.to_dict().items() if isinstance(value, int)},
        "close_seconds": round(ended - closing, 3),
        "alive_when_closed": at_end.total,
        "memory_before": memory,
        "memory_after": _memory(),
        "busy_swept": ledger.counts["busy_swept"],
        "wrong": ledger.wrong,
        "leaks": leaks,
    }


def _compare(ledger: Ledger, stats: object, names: list[str]) -> None:
    """The manager's numbers against what was written down."""
    told = stats.to_dict()  # type: ignore[attr-defined]
    others = ("swept_idle", "swept_lifetime", "lost", "closed")
    ours = {
        "created": len(ledger.made),
        "total": ledger.alive,
        "deleted": ledger.counts["deleted"],
        "refused": ledger.counts["refused"],
        "active_operations": 0,
        "starting": 0,
        "waiting": 0,
    }
    for name, value in ours.items():
        if told[name] != value:
            ledger.fault(f"stats: {name} is {told[name]}, and {value} was counted")
    gone = len(ledger.ended) - ledger.counts["deleted"]
    if sum(told[name] for name in others) != gone:
        ledger.fault(f"stats: {gone} ended without delete(), and {told} says otherwise")
    if len(names) != ledger.alive:
        ledger.fault(f"{len(names)} names for {ledger.alive} sandboxes")


def sniff() -> str:
    return type(here()).__module__.partition(".")[0]


def _memory() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def show(found: dict[str, object]) -> None:
    table = Table(box=box.SIMPLE, show_header=False)
    for name, value in found.items():
        if name == "stats" and isinstance(value, dict):
            value = ", ".join(f"{key} {number}" for key, number in value.items())
        elif isinstance(value, list):
            value = f"{len(value)}" + "".join(f"\n{line}" for line in value[:10])
        table.add_row(name, str(value))
    console = Console()
    console.print(f"{platform.machine()}, Python {platform.python_version()}")
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--sandboxes", type=int, default=50)
    parser.add_argument("--idle", type=float, default=2.0, help="seconds without use")
    parser.add_argument("--environment", default="python")
    parser.add_argument("--loop", choices=("asyncio", "trio"), default="asyncio")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    census.become_subreaper()

    async def run() -> dict[str, object]:
        return await measure(
            args.seconds,
            args.sandboxes,
            idle=args.idle,
            environment=args.environment,
            seed=args.seed,
        )

    # A temporary directory of our own: whatever is in it at the end was left behind.
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TMPDIR"] = tempfile.tempdir = scratch
        found = anyio.run(run, backend=args.loop)
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        show(found)
    return 1 if found["wrong"] or found["leaks"] or found["busy_swept"] else 0


if __name__ == "__main__":
    sys.exit(main())
