"""The one small interface of all that is measured, ours and others'.

A Peer starts Places; a Place runs code and gives what it printed, until it is closed. What a peer
cannot do at all it leaves out of `works`, with the reason in `cannot`.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from quiet import busy_seconds

IMPORTS = "import numpy, pandas, matplotlib"
# The code of a cold start: the imports, and a first use of one.
FIRST = f"{IMPORTS}\nprint(int(pandas.DataFrame({{'a': range(10)}}).a.sum()))"
ANSWER = "45"
# Before memory is looked at: all that Belljar's guests have, though not every code needs it.
RESIDENT = "import numpy, pandas, matplotlib.pyplot"

# What the command line runs: the name of a figure, the Environment, the code, what it prints.
COMMANDS = {
    "print(1), python": ("python", "print(1)", "1"),
    "print(1), data": ("data", "print(1)", "1"),
    "script with pandas": (
        "data",
        "import pandas\nprint(int(pandas.DataFrame({'a': range(10)}).a.sum()))",
        ANSWER,
    ),
}

ALL = (
    *("cold", "command", "trip", "frames", "throughput", "memory", "streaming"),
    *("cells", "outputs", "many", "burst"),
)
Watch = Callable[[int], None] | None
Environ = dict[str, str] | None
NO_SESSION = "each run is a new interpreter: nothing lives from one to the next"
NOTHING_WAITS = "no interpreter waits in its container between two runs"
NO_FRAMES = "has no way for a frame of its own"


class Missing(Exception):
    """A peer that cannot run here; the words say why."""


class NotTried(Exception):
    """Work that would take too long; the words say how long."""


@dataclass
class Storm:
    """Many one-shots: how long each took, and all; the clocks run from `begin` to `end`."""

    times: list[float] = field(default_factory=list)
    took: float = 0.0
    processor: float = 0.0  # seconds of all processes of the machine

    def begin(self) -> float:
        self.processor = -busy_seconds()
        self.took = -time.perf_counter()
        return -self.took

    def end(self) -> None:
        self.took += time.perf_counter()
        self.processor += busy_seconds()


class Place:
    """One place where code runs: a process, a container, a session."""

    def run(self, code: str) -> str:
        """Give what the code printed."""
        raise NotImplementedError

    def trip(self) -> None:
        """One round trip: `1+1` in a live session."""
        if self.run("print(1+1)").strip() != "2":
            raise RuntimeError("1+1 was not 2")

    def stream(self, code: str, callback: Callable[[int], None]) -> None:
        """Run code, and tell the callback how many bytes (or characters) came, as they come."""
        raise NotImplementedError

    def put(self, frame: object) -> None:
        """Make a frame known inside as `frame`."""
        raise NotImplementedError

    def get(self) -> object:
        """Fetch `frame`."""
        raise NotImplementedError

    def processes(self) -> Iterable[int]:
        """The processes that are there for this place, beside those that this one started."""
        return ()

    def close(self) -> None:
        """Nothing is left of it."""


class Peer:
    title = ""  # as in the tables
    settings = ""  # how it is configured here
    isolation = ""  # what stands between the code and the host
    works: tuple[str, ...] = ALL[:-1]  # all but bursts
    cannot: dict[str, str] = {}  # noqa: RUF012  work: why it is not measured
    first = FIRST
    resident = RESIDENT
    rounds = 1.0  # share of the usual repetitions: what takes seconds is repeated less
    most_at_once = 32
    warm = False  # something was started already: what a process pays once is paid

    def prepare(self) -> None:
        """Once, not measured: whatever is built or looked up. Raises Missing."""

    def version(self) -> str:
        return ""

    def start(self, **wishes: object) -> Place:
        """A new place. `wishes`: output (bytes that must pass), memory (bytes)."""
        raise NotImplementedError

    def settle(self) -> None:
        """Called, not measured, before each cold start: a pool fills up again."""

    def one_shot(self) -> None:
        """A whole life: start, the first result, the end."""
        place = self.start()
        try:
            expect(place.run(self.first), ANSWER)
        finally:
            place.close()

    def trips(self, place: Place, count: int) -> list[float]:
        times = []
        for _ in range(count):
            began = time.perf_counter()
            place.trip()
            times.append(time.perf_counter() - began)
        return times

    def command(self, environment: str, *words: str) -> tuple[list[str], Environ]:
        """The command that runs `-c CODE` or a file, and its environment."""
        raise NotImplementedError

    def storm(self, at_once: int, seconds: float, least: int, watch: Watch = None) -> Storm:
        """One-shots, `at_once` at a time, for some seconds.

        `watch` is told after each how many there have been.
        """
        storm = Storm()
        times = storm.times
        end = storm.begin() + seconds

        def worker() -> None:
            while time.perf_counter() < end or len(times) < least:
                start = time.perf_counter()
                self.one_shot()
                times.append(time.perf_counter() - start)
                if watch is not None:
                    watch(len(times))

        with ThreadPoolExecutor(at_once) as threads:
            for done in [threads.submit(worker) for _ in range(at_once)]:
                done.result()
        storm.end()
        return storm

    def burst(self, count: int) -> dict[str, object]:
        """As in work/growth.py; only of pools."""
        raise NotImplementedError

    def close(self) -> None:
        """The end of the process: whatever it holds."""


def expect(got: str | None, wanted: str) -> None:
    if (got or "").strip() != wanted:
        raise RuntimeError(f"the answer was {got!r} instead of {wanted!r}")


def command(*arguments: str, check: bool = True) -> str:
    """What a command printed; Missing says why it could not."""
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Missing(f"there is no {arguments[0]} here") from error
    if check and done.returncode:
        last = (done.stderr.strip().splitlines() or ["no words"])[-1]
        raise Missing(f"{' '.join(arguments[:3])}: {last}")
    return done.stdout.strip()


def read_all(arguments: list[str], callback: Callable[[int], None], **options: object) -> None:
    """Run a command, and tell the callback of its output as it comes."""
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, bufsize=0, **options)  # type: ignore[call-overload]
    try:
        while part := process.stdout.read(1 << 16):
            callback(len(part))
    finally:
        process.stdout.close()
        if process.wait():
            raise RuntimeError(f"{arguments[0]} failed with {process.returncode}")
