"""Trace one operation over the host, the guest's init and its worker: calls, files and turns.

`scripts/walk` runs it. It shows what an engineer reads to follow an operation: the functions that
are called, the files they are in, and how often the next call is in another file.

- A call is the entry of a Python function of Belljar. A generator or coroutine counts once, when it
  first runs, and not when it is resumed. Comprehensions do not count: newer Pythons inline them.
- A file that both sides use, such as the wire protocol, is one file.
- A turn is a call in another file than the call before it in the same process. The threads of the
  host count together.
- A start counts the host, and init from the fork on. The zygote's own calls do not count, nor does
  the worker, which `start` does not wait for.
- An operation ends when no process has made a call for SETTLE seconds. Timing decides whether some
  calls happen (a wait, periodic work of the host): of ROUNDS rounds, the median is shown.

Only the native backend is traced. The product has no hook for this: the tracer is put before the
program that starts the launcher and the zygote. Its record is a file mapped into memory, which
guests inherit from the zygote, so the confinement does not stop it.
"""
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import argparse
import inspect
import json
import mmap
import sys
import tempfile
import time
from ast import literal_eval
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

import belljar
from belljar import Sandbox

# For `--check`: the largest number that passes.
LIMITS = {"run_code": {"files": 24, "calls": 300}, "start": {"files": 34}}
ROUNDS = 11
SETTLE = 0.03

# All that is known of the product: the name of the program that the tracer is put before, how file
# names begin inside the guest, and the functions with which init and worker begin after their fork.
BOOTSTRAP = "BOOTSTRAP"
GUEST_FILES = "<belljar>/_belljar/"
BIRTHS = {"_become_init": 1, "_become_worker": 2}  # their places in PROCESSES

HOST_FILES = str(Path(belljar.__file__).parent) + "/"
# The zygote has no area, and is not recorded: two processes would write to it at once.
PROCESSES = ("host", "init", "worker")
SWITCH, AREA = 8, 1 << 20  # bytes of the record: the switch, then the calls of each process
GUEST_FD = 100


class Tracer:
    """Write calls to the record while the switch is on.

    The source of this class is sent to the guest, whose Python may be 3.9.
    """

    def __init__(self, page, prefix, place, areas, births):
        import dis
        import threading
        import time

        self.page, self.prefix, self.place, self.areas = page, prefix, place, areas
        self.lock, self.dis, self.first_yield = threading.Lock(), dis, {}
        self.clock, self.births = time.monotonic_ns, births
        threading.setprofile(self.hook)
        sys.setprofile(self.hook)

    def hook(self, frame, event, arg):
        if event != "call":
            return
        with self.lock:
            ours = frame.f_code.co_filename.startswith(self.prefix)
            if ours:
                self.place = self.births.get(frame.f_code.co_name, self.place)
            if self.page[0] and ours and self.place is not None and self.is_entry(frame):
                self.write(frame, *self.areas[self.place])

    def is_entry(self, frame):
        code = frame.f_code
        if code not in self.first_yield:
            at = [i.offset for i in self.dis.get_instructions(code) if "YIELD_" in i.opname]
            inlined = code.co_name.endswith(("comp>", "genexpr>"))
            self.first_yield[code] = -1 if inlined else min(at, default=1 << 30)
        return frame.f_lasti < self.first_yield[code]

    def write(self, frame, start, stop):
        code, depth, above = frame.f_code, 0, frame.f_back
        while above is not None:
            depth += above.f_code.co_filename.startswith(self.prefix)
            above = above.f_back
        name = getattr(code, "co_qualname", code.co_name)
        call = (self.clock(), depth, code.co_filename[len(self.prefix) :], name)
        line = repr(call).encode() + b"\n"
        used = int.from_bytes(self.page[start : start + 8], "little")
        at, end = start + 8 + used, start + 8 + used + len(line)
        if end <= stop:
            self.page[at:end] = line
            self.page[start : start + 8] = (used + len(line)).to_bytes(8, "little")


# The launcher sees the host's files. The zygote does not, but has the launcher's descriptor.
IN_GUEST = f"""
import mmap, os, sys
{{source}}
try:
    os.dup2(os.open({{path!r}}, os.O_RDWR), {GUEST_FD})
except FileNotFoundError:
    Tracer(mmap.mmap({GUEST_FD}, 0), {GUEST_FILES!r}, None, {{areas}}, {{births}})
    os.close({GUEST_FD})
"""


class Call(NamedTuple):
    time: int
    depth: int  # how many calls of Belljar are below it on the stack
    file: str  # below src/belljar
    function: str
    process: str


class Record:
    """The calls of all processes, in memory that they share."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(SWITCH + len(PROCESSES) * AREA))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), 0)
        self._starts = [SWITCH + index * AREA for index in range(len(PROCESSES))]
        areas = [(start, start + AREA) for start in self._starts]
        tracer = inspect.getsource(Tracer)
        program = IN_GUEST.format(source=tracer, path=str(path), areas=areas, births=BIRTHS)
        modules = [module for name, module in sys.modules.items() if name.startswith("belljar.")]
        holders = [each for each in modules if isinstance(vars(each).get(BOOTSTRAP), str)]
        if not holders:
            raise SystemExit(f"walk: no module of belljar has {BOOTSTRAP}; was it renamed?")
        for module in holders:
            setattr(module, BOOTSTRAP, program + getattr(module, BOOTSTRAP))
        Tracer(self._page, HOST_FILES, 0, areas, {})

    @contextmanager
    def recording(self) -> Iterator[None]:
        for start in self._starts:
            self._page[start : start + 8] = bytes(8)
        self._page[0] = 1
        try:
            yield
            before: list[int] = []
            while (now := self._sizes()) != before:
                before = now
                time.sleep(SETTLE)
        finally:
            self._page[0] = 0

    def _sizes(self) -> list[int]:
        return [int.from_bytes(self._page[at : at + 8], "little") for at in self._starts]

    def calls(self) -> list[Call]:
        found = []
        for process, start, size in zip(PROCESSES, self._starts, self._sizes(), strict=True):
            lines = self._page[start + 8 : start + 8 + size].decode().splitlines()
            found += [Call(*literal_eval(line), process) for line in lines]
        return sorted(found)


class Walk:
    def __init__(self, name: str, calls: list[Call]) -> None:
        self.name, self.calls = name, calls
        self.files = list(dict.fromkeys(call.file for call in calls))  # by first use
        texts = [Path(HOST_FILES, file).read_bytes() for file in self.files]
        self.lines = sum(text.count(b"\n") for text in texts)
        paths = [[call.file for call in calls if call.process == process] for process in PROCESSES]
        self.turns = sum(one != other for path in paths for one, other in pairwise(path))

    def broken_limits(self) -> list[str]:
        limits = LIMITS.get(self.name, {}).items()
        found = [(len(getattr(self, what)), what, limit) for what, limit in limits]
        return [
            f"{self.name} takes {n} {what}, more than {most}" for n, what, most in found if n > most
        ]

    def as_json(self) -> dict[str, object]:
        numbers = {"calls": len(self.calls), "files": len(self.files), "lines": self.lines}
        trace = [{**call._asdict(), "time": call.time - self.calls[0].time} for call in self.calls]
        return {"walk": self.name, **numbers, "turns": self.turns, "trace": trace}


# -- the operations -------------------------------------------------------------------------


def add(one: int, other: int) -> int:
    return one + other


def start(after: ExitStack) -> bool:
    sandbox = Sandbox()
    after.callback(sandbox.close)
    sandbox.start()
    return True


# What it is, the processes that count, and the operation: in a live sandbox, with a stack of what
# to do when it has been recorded. True if the result is right.
Operation = Callable[[Sandbox, ExitStack], bool]
OPERATIONS: dict[str, tuple[str, tuple[str, ...], Operation]] = {
    "run_code": ('run_code("1+1")', PROCESSES, lambda live, _: live.run_code("1+1").value == 2),
    "start": ("Sandbox() and start", ("host", "init"), lambda _, after: start(after)),
    "write": ("files.write", PROCESSES, lambda live, _: live.files.write("a", "text").size == 4),
    "call": ("one host function", PROCESSES, lambda live, _: live.run_code("add(1, 2)").value == 3),
}


def trace(names: list[str]) -> Iterator[Walk]:
    with tempfile.TemporaryDirectory() as directory:
        record = Record(Path(directory, "record"))
        with Sandbox() as live:
            for name in sorted(names, key=list(OPERATIONS).index):
                if name == "call":  # the last: the other cells have no host function
                    live.expose(add)
                rounds = [Walk(name, trace_once(record, live, name)) for _ in range(ROUNDS)]
                rounds.sort(key=lambda walk: (len(walk.files), len(walk.calls)))
                yield rounds[ROUNDS // 2]
        sys.setprofile(None)


def trace_once(record: Record, live: Sandbox, name: str) -> list[Call]:
    _, processes, operation = OPERATIONS[name]
    with ExitStack() as after:
        with record.recording():
            right = operation(live, after)
        calls = [call for call in record.calls() if call.process in processes]
    if not right:
        raise SystemExit(f"walk: {name} gave a wrong result")
    if not any(call.process == "init" for call in calls):
        raise SystemExit("walk: the guest made no calls; is the native backend available?")
    return calls


# -- output ---------------------------------------------------------------------------------


def table(title: str, *headings: str) -> Table:
    made = Table(title, box=box.ROUNDED if sys.stdout.isatty() else box.ASCII)
    for heading in headings:
        made.add_column(heading, justify="right")
    return made


def table_of_walks(walks: list[Walk]) -> Table:
    made = table("walk", "calls", *PROCESSES, "files", "lines to open", "turns")
    for walk in walks:
        shares = Counter(call.process for call in walk.calls)
        numbers = [len(walk.calls), *(shares[process] for process in PROCESSES)]
        numbers += [len(walk.files), walk.lines, walk.turns]
        made.add_row(OPERATIONS[walk.name][0], *(f"{number:,}" for number in numbers))
    return made


def table_of_files(walk: Walk) -> Table:
    made = table(OPERATIONS[walk.name][0], *PROCESSES)
    shares = Counter((call.file, call.process) for call in walk.calls)
    for file in walk.files:
        made.add_row(file, *(str(shares[file, process] or "") for process in PROCESSES))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("walks", nargs="*", metavar="WALK", help=", ".join(OPERATIONS))
    parser.add_argument("--files", action="store_true", help="the files, with calls per process")
    parser.add_argument("--tree", action="store_true", help="every call, by time, indented")
    parser.add_argument("--json", action="store_true", help="numbers and calls as JSON")
    parser.add_argument("--check", action="store_true", help="fail if a walk is beyond its limit")
    given = parser.parse_args()
    if unknown := set(given.walks) - set(OPERATIONS):
        parser.error(f"unknown walk {', '.join(unknown)}: use {', '.join(OPERATIONS)}")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    walks = list(trace(given.walks or list(OPERATIONS)))
    for walk in [] if given.json else walks:
        if given.tree:
            print(OPERATIONS[walk.name][0])
            for call in walk.calls:
                print(f"{call.process:7}{'  ' * call.depth}{call.function}  {call.file}")
        if given.files:
            console.print(table_of_files(walk))
    if given.json:
        print(json.dumps([walk.as_json() for walk in walks], indent=1))
    else:
        console.print(table_of_walks(walks))
    broken = [limit for walk in walks for limit in walk.broken_limits()]
    if given.check and broken:
        raise SystemExit("walk: " + "; ".join(broken))


if __name__ == "__main__":
    main()
