"""What came of an attempt, of a row, and of the whole suite."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from belljar.backends.isolation import Isolation


class State(StrEnum):
    HELD = "held"
    FAILED = "failed"
    VACUOUS = "vacuous"  # its control did not trip: the look proves nothing
    BEST_EFFORT = "best effort"  # this host has nothing that would enforce it
    NOT_APPLICABLE = "does not apply"
    NOT_RUN = "not run"


BAD = (State.FAILED, State.VACUOUS)
# Worst first: a row is what the worst of its attempts is, but for those that say nothing.
_ORDER = (
    *(State.FAILED, State.VACUOUS, State.BEST_EFFORT, State.HELD),
    *(State.NOT_RUN, State.NOT_APPLICABLE),
)


class NotHere(Exception):
    """The attempt has no meaning in this setting."""


class NotRun(Exception):
    """The attempt has a meaning, but cannot be made here."""


@dataclass(frozen=True, kw_only=True)
class ControlResult:
    """The same attempt where it must succeed, and whether the oracle saw it."""

    kind: str  # where it was run
    tripped: bool | None  # None: it was not run
    showed: str  # what was seen there, or why it was not run


@dataclass(frozen=True, kw_only=True)
class Attempt:
    name: str
    what: str  # what is tried
    expected: str
    actual: str
    evidence: tuple[str, ...] = ()  # observed from outside
    problems: tuple[str, ...] = ()
    control: ControlResult | None = None
    state: State
    why: str = ""  # it was not run, or does not apply
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RowResult:
    number: int
    title: str
    family: str
    mechanisms: tuple[str, ...]
    attempts: tuple[Attempt, ...]
    why: str = ""  # of a row without attempts

    @property
    def state(self) -> State:
        found = {attempt.state for attempt in self.attempts}
        return next((state for state in _ORDER if state in found), State.NOT_RUN)

    @property
    def seconds(self) -> float:
        return sum(attempt.seconds for attempt in self.attempts)


@dataclass(frozen=True, kw_only=True)
class Head:
    """Where and when it was run."""

    version: str  # of belljar
    setting: str
    backend: str
    runtime: str | None
    user: str
    machine: str  # processor, number, memory
    kernel: str
    system: str
    python: str
    engine: str | None
    isolation: Isolation
    controls: bool
    date: str  # ISO, UTC
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Report:
    head: Head
    rows: tuple[RowResult, ...]
    leftovers: tuple[str, ...] = ()  # of the suite as a whole, after its end

    @property
    def totals(self) -> dict[State, int]:
        states = [row.state for row in self.rows]
        return {state: states.count(state) for state in State}

    @property
    def held(self) -> bool:
        """Nothing failed, nothing is vacuous, nothing was left behind, and something was run."""
        totals = self.totals
        bad = any(totals[state] for state in BAD)
        return not bad and not self.leftovers and totals[State.HELD] > 0


@dataclass
class Look:
    """What a check writes down while it looks."""

    evidence: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    tripped: list[bool] = field(default_factory=list)
    showed: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)  # problems that are nothing but slowness

    def saw(self, text: str) -> None:
        self.evidence.append(text)

    def wrong(self, text: str) -> None:
        self.problems.append(text)

    def expect(self, holds: object, text: str, instead: object = "") -> None:
        """`text`: what should be so. `instead`: what was found where it is not."""
        if holds:
            self.saw(text)
        else:
            self.wrong(f"not so: {text}" + (f" ({instead!s:.400})" if instead != "" else ""))

    def in_time(self, seconds: float, most: float) -> None:
        if seconds < most:
            self.saw(f"it took {seconds:.1f} s, of {most:g} allowed")
        else:
            self.late.append(f"it took {seconds:.1f} s, of {most:g} allowed")
            self.wrong(self.late[-1])

    @property
    def only_late(self) -> bool:
        """The machine may have been busy: nothing else went wrong."""
        return bool(self.late) and self.problems == self.late

    def control(self, tripped: object, text: str) -> None:
        """Where nothing stops it, the oracle must see it."""
        self.tripped.append(bool(tripped))
        self.showed.append(text)

    def control_result(self) -> ControlResult | None:
        if not self.tripped:
            return None
        return ControlResult(
            kind="simulated", tripped=all(self.tripped), showed="; ".join(self.showed)
        )
