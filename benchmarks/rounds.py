"""The course of a benchmark: every kind of work, in turns over all who can do it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from contender import Contender, Failed
from figures import Figures, percentile
from peers.contract import COMMANDS

MB = 1_000_000
QUICK_START = 0.1  # seconds
QUICK_RATE = 10.0  # one-shots per second
SLOW_TRIPS = 6  # of what takes more than 20 ms, in each round
SLOW_FRAME = 3.0  # seconds for 10 MB: then 100 MB are not tried
PATIENCE = {"frames": 60.0}  # seconds for an answer; 180 for all other work


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is done; a peer's own `rounds` is a share of it."""

    cold: int = 5  # turns of starts, after one that is not counted
    cold_quick: int = 5  # starts in a turn, of what takes less than QUICK_START
    commands: int = 7  # after one that is not counted
    trips: int = 1000
    trip_rounds: int = 2
    frames: tuple[tuple[int, int], ...] = ((10, 3), (100, 2))  # MB, rounds
    at_once: tuple[int, ...] = (1, 2, 8, 32)
    storm_seconds: float = 3.0
    storm_rounds: int = 3  # of those who do more than QUICK_RATE
    storm_patience: float = 12.0  # seconds that the first of all may take
    places: int = 3
    stream_seconds: float = 1.0
    stream_rounds: int = 2
    stream_most: int = 256 << 20
    cells: int = 50_000
    cells_of_others: int = 500
    sandboxes: int = 500
    burst: int = 64
    bursts: int = 3
    outputs: tuple[int, ...] = (1 << 10, 32 << 10, 1 << 20, 10 << 20, 100 << 20)
    output_seconds: float = 5.0


QUICK = Scale(
    cold=2,
    cold_quick=2,
    commands=2,
    trips=60,
    trip_rounds=1,
    frames=((10, 1),),
    at_once=(8,),
    storm_seconds=1.0,
    storm_rounds=1,
    storm_patience=8.0,
    places=2,
    stream_seconds=0.3,
    stream_rounds=1,
    stream_most=64 << 20,
    cells=500,
    cells_of_others=100,
    sandboxes=20,
    bursts=1,
    outputs=(1 << 10, 1 << 20, 10 << 20),
    output_seconds=1.0,
)


class Course:
    def __init__(
        self, contenders: list[Contender], scale: Scale, soak: int, rest: Callable[[], None]
    ) -> None:
        self.contenders = contenders
        self.scale = scale
        self.soak = soak
        self.rest = rest  # called between two kinds of work, while nothing is done
        self.figures = Figures()
        self.took: dict[str, float] = {}  # seconds, by work
        self.courses: dict[str, list[dict[str, float]]] = {}  # of cells, by peer
        self.works: dict[str, Callable[[], None]] = {
            "cold": self.cold,
            "command": self.command,
            "trip": self.trip,
            "frames": self.frames,
            "throughput": self.throughput,
            "memory": self.memory,
            "streaming": self.streaming,
            "cells": self.cells,
            "outputs": self.outputs,
            "many": self.many,
            "burst": self.burst,
        }

    def run(self, only: list[str]) -> None:
        for name, work in self.works.items():
            if name in only:
                print(f"{name} ...", file=sys.stderr)
                began = time.monotonic()
                work()
                self.took[name] = round(time.monotonic() - began, 1)
                print(f"{name}: {self.took[name]:.0f} s", file=sys.stderr)
                self.rest()
        if self.soak:
            print(f"{self.soak:,} one-shots ...", file=sys.stderr)
            self.soaked()

    def able(self, work: str) -> list[Contender]:
        return [
            one for one in self.contenders if not one.why_not(work) and work not in one.failures
        ]

    def ask(self, one: Contender, kind: str, work: str, /, **order: object) -> object | None:
        """The answer; None, and a note of the reason, where it fails."""
        if kind in one.failures:
            return None
        try:
            answer: object = one.ask(work, PATIENCE.get(work, 180.0), **order)
        except Failed as error:
            one.failures[kind] = str(error)
            print(f"  {one.name}, {kind}: {error}", file=sys.stderr)
            return None
        return answer

    def share(self, one: Contender, count: int, least: int = 2) -> int:
        return max(least, round(count * one.about["rounds"]))

    def cold(self) -> None:
        found: dict[str, list[dict[str, float]]] = {}
        for number in range(self.scale.cold + 1):  # the first of each is not counted
            for one in self.able("cold"):
                if number > self.share(one, self.scale.cold):
                    continue
                last = found.get(one.name, [{"seconds": 1.0}])[-1]["seconds"]
                for _ in range(self.scale.cold_quick if number and last < QUICK_START else 1):
                    answer = self.ask(one, "cold", "cold")
                    if isinstance(answer, dict):
                        found.setdefault(one.name, []).append(answer)
        for name, answers in found.items():
            counted = answers[1:]
            if not name.endswith("pool"):  # a pool has paid for it before the clock started
                self.figures.add("cold", "first of a process", name, "s", [answers[0]["seconds"]])
            self.figures.add("cold", "first result", name, "s", [a["seconds"] for a in counted])
            lives = [a["seconds"] + a["close"] for a in counted]
            self.figures.add("cold", "first result and end", name, "s", lives)
            self.figures.add("close", "close", name, "s", [a["close"] for a in counted])

    def command(self) -> None:
        for what in COMMANDS:
            found: dict[str, list[float]] = {}
            for _ in range(self.scale.commands + 1):  # the first of each is not counted
                for one in self.able("command"):
                    answer = self.ask(one, "command", "command", what=what)
                    if isinstance(answer, float):
                        found.setdefault(one.name, []).append(answer)
            for name, times in found.items():
                self.figures.add("command", what, name, "s", times[1:])

    def trip(self) -> None:
        found: dict[str, list[float]] = {}
        quick: dict[str, bool] = {}  # whether many fit into a second
        for _ in range(self.scale.trip_rounds):
            for one in self.able("trip"):
                count = self.scale.trips // self.scale.trip_rounds
                if not quick.get(one.name):
                    trial = self.ask(one, "trip", "trips", count=3)
                    if not isinstance(trial, list):
                        continue
                    quick[one.name] = percentile(trial, 0.5) < 0.02
                if not quick[one.name]:
                    count = min(count, SLOW_TRIPS)
                answer = self.ask(one, "trip", "trips", count=count)
                if isinstance(answer, list):
                    found.setdefault(one.name, []).extend(answer)
        for name, times in found.items():
            self.figures.add("trip", "round trip", name, "s", times)
            self.figures.add("trip", "p99", name, "s", [percentile(times, 0.99)])

    def frames(self) -> None:
        for size, rounds in self.scale.frames:
            for one in self.able("frames"):
                before = self.figures.value("frames", "10 MB in", one.name)
                if before is not None and before > SLOW_FRAME:
                    one.failures["frames, 100 MB"] = f"not tried: 10 MB in took {before:.0f} s"
                    continue
                kind = f"frames, {size} MB"
                answer = self.ask(
                    one, kind, "frames", size=size * MB, rounds=self.share(one, rounds)
                )
                if isinstance(answer, dict):
                    both = [a + b for a, b in zip(answer["in"], answer["out"], strict=True)]
                    for what, values in (("in", answer["in"]), ("out", answer["out"])):
                        self.figures.add("frames", f"{size} MB {what}", one.name, "s", values)
                    self.figures.add("frames", f"{size} MB both", one.name, "s", both)

    def throughput(self) -> None:
        for at_once in self.scale.at_once:
            rates: dict[str, list[float]] = {}
            times: dict[str, list[float]] = {}
            costs: dict[str, list[float]] = {}
            for number in range(self.scale.storm_rounds):
                for one in self.able("throughput"):
                    if not self.allowed(one, at_once):
                        continue
                    if number and rates.get(one.name, [0.0])[0] < QUICK_RATE:
                        continue
                    wanted = {"seconds": self.scale.storm_seconds, "least": at_once}
                    wanted["patience"] = self.scale.storm_patience
                    kind = f"throughput at {at_once}"
                    answer = self.ask(one, kind, "storm", at_once=at_once, **wanted)
                    if isinstance(answer, dict):
                        rates.setdefault(one.name, []).append(len(answer["times"]) / answer["took"])
                        times.setdefault(one.name, []).extend(answer["times"])
                        each = answer["processor"] / len(answer["times"])
                        costs.setdefault(one.name, []).append(each)
            for name, each in times.items():
                what = f"at {at_once}"
                self.figures.add("throughput", f"{what}: rate", name, "per second", rates[name])
                self.figures.add("throughput", f"{what}: p50", name, "s", each)
                self.figures.add("throughput", f"{what}: p99", name, "s", [percentile(each, 0.99)])
                self.figures.add("throughput", f"{what}: processor", name, "s", costs[name])

    def allowed(self, one: Contender, at_once: int) -> bool:
        """Whether it is asked for so many at once at all; if not, it is said."""
        kind = f"throughput at {at_once}"
        if at_once > one.about["most_at_once"]:
            one.failures[kind] = f"not tried: at most {one.about['most_at_once']} at once here"
        return kind not in one.failures

    def memory(self) -> None:
        for one in self.able("memory"):
            count = self.share(one, self.scale.places)
            answer = self.ask(one, "memory", "memory", count=count)
            if isinstance(answer, dict):
                self.figures.add("memory", "private", one.name, "bytes", answer["private"])
                self.figures.add("memory", "proportional", one.name, "bytes", answer["pss"])

    def streaming(self) -> None:
        for kind in ("writes", "lines"):
            for one in self.able("streaming"):
                answer = self.ask(
                    one,
                    f"streaming, {kind}",
                    "streaming",
                    kind=kind,
                    most=self.scale.stream_most,
                    seconds=self.scale.stream_seconds,
                    rounds=self.scale.stream_rounds,
                )
                if isinstance(answer, dict):
                    rates = [answer["bytes"] / MB / seconds for seconds in answer["seconds"]]
                    self.figures.add("streaming", kind, one.name, "MB/s", rates)

    def cells(self) -> None:
        for one in self.able("cells"):
            ours = one.name.startswith("belljar")
            count = self.scale.cells if ours else self.scale.cells_of_others
            answer = self.ask(one, "cells", "cells", count=count)
            if isinstance(answer, dict):
                add = self.figures.add
                course = self.courses[one.name] = answer["course"]
                add("cells", "count", one.name, "", [float(count)])
                add("cells", "old session", one.name, "s", [answer["old"]])
                add("cells", "new session beside it", one.name, "s", [answer["new"]])
                early, late = course[len(course) // 10], course[-1]
                between = late["cells"] - early["cells"]
                for side in ("init", "worker", "host"):
                    kept = (late[f"{side}_bytes"] - early[f"{side}_bytes"]) / between
                    add("cells", f"kept per cell, {side}", one.name, "bytes", [kept])

    def outputs(self) -> None:
        for one in self.able("outputs"):
            sizes, seconds = list(self.scale.outputs), self.scale.output_seconds
            answer = self.ask(one, "outputs", "outputs", sizes=sizes, seconds=seconds)
            if isinstance(answer, dict):
                for size, took in answer["seconds"].items():
                    self.figures.add("outputs", size, one.name, "s", [took])
                for size in sizes[len(answer["seconds"]) :]:
                    why = f"not tried: would take more than {seconds:.0f} s"
                    one.failures[f"output of {size >> 20} MB"] = why

    def many(self) -> None:
        for one in self.able("many"):
            count = self.scale.sandboxes
            answer = self.ask(one, "many", "many", count=count)
            if isinstance(answer, dict):
                tenth = max(count // 10, 1)
                times, add = answer["times"], self.figures.add
                add("many", "first tenth", one.name, "s", times[:tenth])
                add("many", "last tenth", one.name, "s", times[-tenth:])
                add("many", "alone, afterwards", one.name, "s", answer["alone"])
                add("many", "an answer of each", one.name, "s", answer["answers"])
                add("many", "private, each", one.name, "bytes", [answer["private"]])
                add("many", "close", one.name, "s", [answer["closing"]])
                add("many", "new page, before", one.name, "s", [answer["page"]])
                add("many", "new page, beside", one.name, "s", [answer["page_beside"]])
                add("many", "count", one.name, "", [float(len(times))])

    def burst(self) -> None:
        count = self.scale.burst
        for one in self.able("burst"):
            for number in range(self.scale.bursts):
                answer = self.ask(one, "burst", "burst", count=count)
                if isinstance(answer, dict):
                    what, add = f"burst {number + 1}", self.figures.add
                    add("burst", f"{what}: wait", one.name, "s", answer["waits"])
                    add("burst", f"{what}: last answer", one.name, "s", [max(answer["answers"])])
                    add("burst", f"{what}: full again", one.name, "s", [answer["full"]])
                    add("burst", f"{what}: processes left", one.name, "", [answer["left"]])

    def soaked(self) -> None:
        for one in self.contenders:
            if one.name != "belljar_pool" or one.missing:
                continue
            try:
                answer = one.ask("soak", 600 + self.soak / 10, count=self.soak, at_once=8)
            except Failed as error:
                one.failures["soak"] = str(error)
                continue
            memory, add = answer["memory"], self.figures.add
            add("soak", "one-shots", one.name, "", [float(answer["count"])])
            add("soak", "rate", one.name, "per second", [answer["per_second"]])
            add("soak", "memory, second tenth", one.name, "bytes", [memory[1]])
            add("soak", "memory, last tenth", one.name, "bytes", [memory[-1]])
