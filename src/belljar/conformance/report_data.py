"""The results of an attempt, of a row and of the whole suite, and the report as JSON."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TypeVar

from belljar.backends.isolation import Isolation
from belljar.conformance.processes import TooLate, wait_until
from belljar.conformance.rows import ROWS
from belljar.errors import SandboxError

T = TypeVar("T")


class State(StrEnum):
    HELD = "held"
    FAILED = "failed"
    VACUOUS = "vacuous"  # its control did not trip: the attempt proves nothing
    BEST_EFFORT = "best effort"  # nothing on this host enforces it
    NOT_APPLICABLE = "does not apply"
    NOT_RUN = "not run"


BAD = (State.FAILED, State.VACUOUS)
# Worst first: a row has the state of its worst attempt. Attempts that were not made count last.
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

    where: str  # it ran
    tripped: bool | None  # None: it did not run
    showed: str  # what the oracle saw, or why it did not run


@dataclass(frozen=True, kw_only=True)
class Attempt:
    name: str
    what: str  # what is tried
    state: State
    why: str = ""  # the attempt was not made, or does not apply
    expected: str
    actual: str
    evidence: tuple[str, ...] = ()  # observed from outside
    problems: tuple[str, ...] = ()
    control: ControlResult | None = None
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RowResult:
    number: int
    title: str
    family: str
    mechanisms: tuple[str, ...]
    attempts: tuple[Attempt, ...]

    @property
    def state(self) -> State:
        found = {attempt.state for attempt in self.attempts}
        return next((state for state in _ORDER if state in found), State.NOT_RUN)

    @property
    def seconds(self) -> float:
        return sum(attempt.seconds for attempt in self.attempts)


@dataclass(frozen=True, kw_only=True)
class Head:
    """Where and when the suite ran."""

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
    leftovers: tuple[str, ...] = ()  # what the suite left on the machine

    @property
    def totals(self) -> dict[State, int]:
        states = [row.state for row in self.rows]
        return {state: states.count(state) for state in State}

    @property
    def held(self) -> bool:
        """True if a row held, none failed or is vacuous, and nothing was left behind."""
        states = {row.state for row in self.rows}
        return State.HELD in states and not states & {*BAD} and not self.leftovers


@dataclass
class Look:
    """What one attempt observes: evidence, problems, and the results of its controls."""

    state: State = State.HELD  # as long as there is no problem
    why: str = ""
    actual: str = ""  # the outcome in words
    found_control: ControlResult | None = None
    evidence: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    tripped: list[bool] = field(default_factory=list)
    showed: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)  # problems that are only slowness

    def saw(self, text: str) -> None:
        self.evidence.append(text)

    def wrong(self, text: str) -> None:
        self.problems.append(text)

    def expect(self, holds: object, text: str, instead: object = "") -> None:
        """`text`: the claim that must hold. `instead`: what was found if it does not."""
        if holds:
            self.saw(text)
        else:
            self.wrong(f"not so: {text}" + (f" ({instead!s:.400})" if instead != "" else ""))

    def happens(
        self, condition: Callable[[], T | None], what: str, timeout: float = 30.0
    ) -> T | None:
        """Wait for an event; it is a problem if it does not happen in time."""
        try:
            return wait_until(condition, timeout, what)
        except TooLate as error:
            self.wrong(str(error))
            return None

    @contextlib.contextmanager
    def refused(
        self,
        what: str,
        kind: type[Exception] | tuple[type[Exception], ...] = SandboxError,
        errno: int | None = None,
    ) -> Iterator[None]:
        """The body must raise an error of this kind, and with this errno if one is given."""
        try:
            yield
        except kind as error:
            told = str(error).splitlines()[0][:200]
            self.expect(errno in (None, getattr(error, "errno", None)), f"{what} refused: {told}")
        else:
            self.wrong(f"{what} was accepted")

    def in_time(self, seconds: float, most: float) -> None:
        text = f"it took {seconds:.1f} s; {most:g} s are allowed"
        if seconds < most:
            self.saw(text)
        else:
            self.late.append(text)
            self.wrong(text)

    @property
    def only_late(self) -> bool:
        """True if slowness is the only problem: the machine may have been busy."""
        return bool(self.late) and self.problems == self.late

    def control(self, tripped: object, text: str) -> None:
        """The same attempt where nothing stops it: the oracle must trip."""
        self.tripped.append(bool(tripped))
        self.showed.append(text)

    def control_result(self) -> ControlResult | None:
        if not self.tripped:
            return None
        return ControlResult(
            where="simulated", tripped=all(self.tripped), showed="; ".join(self.showed)
        )


SCHEMA = 1  # of the JSON; it changes when a field changes its meaning or goes away


def render_json(report: Report) -> str:
    head = report.head
    names = ("backend", "runtime", "user", "machine", "kernel", "system", "python", "engine")
    fields = {
        "schema": SCHEMA,
        "held": report.held,
        "rows_not_asked_for": len(ROWS) - len(report.rows),
        "totals": {state.value: count for state, count in report.totals.items()},
        "belljar": head.version,
        "date": head.date,
        "seconds": round(head.seconds, 1),
        "setting": {"name": head.setting, **{name: getattr(head, name) for name in names}},
        "controls": head.controls,
        "isolation": head.isolation.to_dict(),
        "rows": [_row_to_dict(row) for row in report.rows],
        "left_behind": list(report.leftovers),
    }
    return json.dumps(fields, indent=2) + "\n"


def _row_to_dict(row: RowResult) -> dict[str, object]:
    return {
        "row": row.number,
        "title": row.title,
        "family": row.family,
        "state": row.state.value,
        "mechanisms": list(row.mechanisms),
        "seconds": round(row.seconds, 2),
        "attempts": [_attempt_to_dict(each) for each in row.attempts],
    }


def _attempt_to_dict(attempt: Attempt) -> dict[str, object]:
    fields = asdict(attempt) | {"seconds": round(attempt.seconds, 2)}
    return {"name": fields.pop("name"), "attempt": fields.pop("what"), **fields}
