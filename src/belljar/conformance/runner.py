"""Runs rows of the suite in one setting, and gives the report."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from belljar.backends.isolation import Isolation
from belljar.conformance import attempts, machine
from belljar.conformance.alone import undisturbed
from belljar.conformance.canaries import ENVIRONMENT_SECRET, VARIABLE, Canaries
from belljar.conformance.checks import Check, checks
from belljar.conformance.footprint import settle, take
from belljar.conformance.mechanisms import explain
from belljar.conformance.programs import Program, programs
from belljar.conformance.proofs import Proofs
from belljar.conformance.results import (
    Attempt,
    ControlResult,
    Look,
    NotHere,
    NotRun,
    Report,
    RowResult,
    State,
)
from belljar.conformance.rows import ROWS, Row
from belljar.conformance.setting import Setting, sweep
from belljar.conformance.stage import Make, Stage
from belljar.sandbox.blocking import Sandbox

Progress = Callable[[int, int, str], None]  # done, of how many, what is next
_BEST_EFFORT = (
    "without control groups the memory limit is best effort here, and `isolation` says so; it was "
    "tried all the same, and nothing of the host was reached"
)
_NOT_WANTED = ControlResult(kind="not run", tripped=None, showed="controls were not asked for")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is to be run."""

    setting: Setting
    rows: Collection[int]
    controls: bool = True


def run(wanted: Wanted, progress: Progress, make: Make | None = None) -> Report:
    """`make`: how a sandbox is made, for those who want to see the suite fail."""
    began = time.monotonic()
    sweep()
    options = _options(wanted.setting)
    make = make or _maker(options)
    with _environment_secret(), Canaries(wanted.setting) as canaries:
        isolation = _measure(make)  # the zygote and the runtime's own threads are there from now on
        before = take(wanted.setting)
        stage = Stage(
            setting=wanted.setting,
            canaries=canaries,
            make=make,
            options=options,
            controls=wanted.controls,
        )
        try:
            rows = tuple(_rows(wanted, stage, progress))
        finally:
            stage.close()
        left = tuple(settle(before, wanted.setting, matters=_matters))
    seconds = time.monotonic() - began
    head = machine.head(wanted.setting, isolation, controls=wanted.controls, seconds=seconds)
    return Report(head=head, rows=rows, leftovers=left)


def _options(setting: Setting) -> dict[str, str]:
    runtime = {"runtime": setting.runtime} if setting.docker and setting.runtime else {}
    return {"backend": setting.backend, **runtime}


def _maker(options: dict[str, str]) -> Make:
    def make(**given: object) -> Sandbox:
        return Sandbox.create(**{"environment": "python", **options, **given})  # type: ignore[arg-type]

    return make


def _measure(make: Make) -> Isolation:
    with make(strict=False) as sandbox:
        sandbox.run_code("1")
        return sandbox.isolation


def _matters(line: str) -> bool:
    """Zygotes and their launchers stay until this process ends, and so do their connections and
    the scopes that the user's systemd has given them."""
    if line.startswith(("process", "namespace")) or "descriptor(s)" in line:
        return False
    return not re.search(r"/belljar-\d+-\d+\.scope\b", line)


@contextlib.contextmanager
def _environment_secret() -> Iterator[None]:
    """In the host's environment before any guest starts, so that an inherited one is seen."""
    os.environ[VARIABLE] = ENVIRONMENT_SECRET
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)


# --- rows ------------------------------------------------------------------------------------


def _rows(wanted: Wanted, stage: Stage, progress: Progress) -> Iterator[RowResult]:
    """Each attempt is made once, and shown in every row it belongs to."""
    proofs = Proofs(stage)
    done: dict[str, Attempt] = {}
    chosen = [row for row in ROWS if row.number in wanted.rows]
    parts = {row.number: parts_of(row) for row in chosen}
    names = {part.name for each in parts.values() for part in each}
    for row in chosen:
        for part in parts[row.number]:
            if part.name not in done:
                progress(len(done), len(names), f"row {row.number}: {part.name}")
                done[part.name] = attempt(part, stage, proofs)
        yield RowResult(
            number=row.number,
            title=row.title,
            family=row.family,
            mechanisms=explain(row.stopped_by, stage.setting.kind, counted=stage.setting.counted),
            attempts=tuple(done[part.name] for part in parts[row.number]),
        )
    progress(len(done), len(names), "")


def parts_of(row: Row) -> list[Program | Check]:
    found: list[Program | Check] = [p for p in programs() if row.number in p.rows]
    return found + [check for check in checks() if row.number in check.rows]


def attempt(part: Program | Check, stage: Stage, proofs: Proofs) -> Attempt:
    began = time.monotonic()
    found = _try(part, stage, proofs)
    if found.look.only_late:  # once more: this machine may have had other things to do
        late = found.look.late[0]
        found = _try(part, stage, proofs)
        found.look.saw(f"at the first try {late}")
    look, control, state = found.look, found.control, found.state
    if look.problems:
        state = State.FAILED
    elif state is State.HELD and control is not None and control.tripped is False:
        state = State.VACUOUS
    elif state is State.HELD and _is_best_effort(part, stage):
        state, found.why = State.BEST_EFFORT, _BEST_EFFORT
    return Attempt(
        name=part.name,
        what=part.attempt if isinstance(part, Program) else part.what,
        expected=_expected(part, stage),
        actual=found.actual or _actual(state, look),
        evidence=tuple(look.evidence),
        problems=tuple(look.problems),
        control=control,
        state=state,
        why=found.why,
        seconds=time.monotonic() - began,
    )


def _is_best_effort(part: Program | Check, stage: Stage) -> bool:
    return isinstance(part, Program) and part.oracle == "memory" and not stage.setting.counted


@dataclass
class _Tried:
    look: Look
    state: State = State.HELD
    why: str = ""
    actual: str = ""
    control: ControlResult | None = None


def _try(part: Program | Check, stage: Stage, proofs: Proofs) -> _Tried:
    tried = _Tried(Look())
    try:
        if isinstance(part, Program):
            tried.actual, tried.control = _program(part, stage, proofs, tried.look)
        else:
            with undisturbed():
                part.run(stage, tried.look)
            tried.control = tried.look.control_result()
    except NotHere as error:
        tried.state, tried.why = State.NOT_APPLICABLE, str(error)
    except NotRun as error:
        tried.state, tried.why = State.NOT_RUN, str(error)
    except Exception as error:
        # What went wrong while an attempt was judged is a failure of it, and not of the others.
        tried.look.wrong(f"it could not be judged: {type(error).__name__}: {error}")
    finally:
        stage.close_all()
    return tried


def _program(
    program: Program, stage: Stage, proofs: Proofs, look: Look
) -> tuple[str, ControlResult]:
    if not program.suits_this_machine:
        raise NotHere(f"the attempt is for {program.head['machine']} alone")
    with undisturbed():
        actual = attempts.release(program, stage, look)
    if not stage.controls:
        return actual, _NOT_WANTED
    return actual, look.control_result() or proofs.of(program)


def _expected(part: Program | Check, stage: Stage) -> str:
    if isinstance(part, Program):
        return attempts.expectation(part, counted=stage.setting.counted)
    return part.expected


def _actual(state: State, look: Look) -> str:
    if state is State.FAILED:
        return f"{len(look.problems)} of {len(look.problems) + len(look.evidence)} looks went wrong"
    return f"as expected, in {len(look.evidence)} looks" if state is State.HELD else str(state)
