"""Runs rows of the suite in one setting, and returns the report."""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import platform
import pwd
import re
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from belljar import __version__
from belljar.backends.isolation import Isolation
from belljar.conformance import attempts
from belljar.conformance.canaries import ENVIRONMENT_SECRET, VARIABLE, Canaries
from belljar.conformance.controls import ControlRuns
from belljar.conformance.footprint import find_leftovers, take_footprint
from belljar.conformance.programs import Program, programs
from belljar.conformance.report_data import (
    Attempt,
    ControlResult,
    Head,
    Look,
    NotHere,
    NotRun,
    Report,
    RowResult,
    State,
)
from belljar.conformance.rows import ROWS, Row, explain_mechanisms
from belljar.conformance.setting import Setting, machine_lock, remove_stale_directories
from belljar.conformance.stage import Check, Make, Stage, checks
from belljar.sandbox.blocking import Sandbox

Progress = Callable[[int, int, str], None]  # done, of how many, what is next
_BEST_EFFORT = (
    "without control groups the memory limit is best effort here, and `isolation` says so; the "
    "attempt was made and did not reach the host"
)
_NO_CONTROL = ControlResult(where="not run", tripped=None, showed="--no-controls was given")


def run(
    setting: Setting,
    rows: Collection[int],
    progress: Progress,
    *,
    controls: bool = True,
    make: Make | None = None,
) -> Report:
    """`make` creates sandboxes; tests pass one that creates weakened sandboxes."""
    began = time.monotonic()
    remove_stale_directories()
    make = make or functools.partial(Sandbox.create, environment="python", **setting.options)
    # Set before any guest starts, so that a guest which inherits it is noticed.
    os.environ[VARIABLE] = ENVIRONMENT_SECRET
    try:
        with Canaries(setting) as canaries:
            # This starts the zygote and the runtime's threads, which stay.
            with make(strict=False) as sandbox:
                sandbox.run_code("1")
                isolation = sandbox.isolation
            before = take_footprint(setting)
            with contextlib.closing(Stage(setting=setting, canaries=canaries, make=make)) as stage:
                results = tuple(_run_rows(rows, stage, controls, progress))
            left = tuple(find_leftovers(before, setting, matters=_is_leftover))
    finally:
        os.environ.pop(VARIABLE, None)
    seconds = time.monotonic() - began
    head = describe_machine(setting, isolation, controls=controls, seconds=seconds)
    return Report(head=head, rows=results, leftovers=left)


def _is_leftover(line: str) -> bool:
    """False for zygotes, their launchers, connections and systemd scopes: they stay until this
    process ends."""
    if line.startswith(("process", "namespace")) or "descriptor(s)" in line:
        return False
    return not re.search(r"/belljar-\d+-\d+\.scope\b", line)


# --- rows ------------------------------------------------------------------------------------


def _run_rows(
    numbers: Collection[int], stage: Stage, with_controls: bool, progress: Progress
) -> Iterator[RowResult]:
    """Each attempt is made once, and reported in every row it belongs to."""
    controls = ControlRuns(stage) if with_controls else None
    done: dict[str, Attempt] = {}
    chosen = [row for row in ROWS if row.number in numbers]
    parts = {row.number: list_attempts(row) for row in chosen}
    names = {part.name for each in parts.values() for part in each}
    for row in chosen:
        for part in parts[row.number]:
            if part.name not in done:
                progress(len(done), len(names), f"row {row.number}: {part.name}")
                done[part.name] = make_attempt(part, stage, controls)
        yield RowResult(
            number=row.number,
            title=row.title,
            family=row.family,
            mechanisms=explain_mechanisms(
                row.stopped_by, stage.setting.kind, counted=stage.setting.counted
            ),
            attempts=tuple(done[part.name] for part in parts[row.number]),
        )


def list_attempts(row: Row) -> list[Program | Check]:
    found: list[Program | Check] = [p for p in programs() if row.number in p.rows]
    return found + [check for check in checks() if row.number in check.rows]


def make_attempt(part: Program | Check, stage: Stage, controls: ControlRuns | None) -> Attempt:
    began = time.monotonic()
    look = _try(part, stage, controls)
    if look.only_late:  # try again: the machine may have been busy
        late = look.late[0]
        look = _try(part, stage, controls)
        look.saw(f"at the first try {late}")
    control, state, why = look.found_control, look.state, look.why
    in_memory = isinstance(part, Program) and part.oracle == "memory"
    if look.problems:
        state = State.FAILED
    elif state is State.HELD and control is not None and control.tripped is False:
        state = State.VACUOUS
    elif state is State.HELD and in_memory and not stage.setting.counted:
        state, why = State.BEST_EFFORT, _BEST_EFFORT
    return Attempt(
        name=part.name,
        what=part.what,
        expected=attempts.describe_expectation(part, counted=stage.setting.counted)
        if isinstance(part, Program)
        else part.expected,
        actual=look.actual or _describe_result(state, look),
        evidence=tuple(look.evidence),
        problems=tuple(look.problems),
        control=control,
        state=state,
        why=why,
        seconds=time.monotonic() - began,
    )


def _try(part: Program | Check, stage: Stage, controls: ControlRuns | None) -> Look:
    look = Look()
    try:
        if isinstance(part, Program) and not part.suits_this_machine:
            raise NotHere(f"the attempt works on {part.head['machine']} only")
        with machine_lock():
            if isinstance(part, Program):
                look.actual = attempts.try_program(part, stage, look)
            else:
                part.run(stage, look)
        seen = look.control_result()
        if isinstance(part, Program):
            seen = (seen or controls.run(part)) if controls else _NO_CONTROL
        look.found_control = seen
    except NotHere as error:
        look.state, look.why = State.NOT_APPLICABLE, str(error)
    except NotRun as error:
        look.state, look.why = State.NOT_RUN, str(error)
    except Exception as error:
        # This attempt fails; the others go on.
        look.wrong(f"the attempt could not be judged: {type(error).__name__}: {error}")
    finally:
        stage.close_all()
    return look


def _describe_result(state: State, look: Look) -> str:
    if state is State.FAILED:
        return f"{len(look.problems)} of {len(look.problems) + len(look.evidence)} checks failed"
    return f"as expected, in {len(look.evidence)} checks" if state is State.HELD else str(state)


def describe_machine(
    setting: Setting, isolation: Isolation, *, controls: bool, seconds: float
) -> Head:
    return Head(
        version=__version__,
        setting=setting.name,
        backend=setting.backend,
        runtime=setting.runtime,
        user=_user(),
        machine=_machine(),
        kernel=f"{platform.system()} {platform.release()}",
        system=_system(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        engine=setting.engine,
        isolation=isolation,
        controls=controls,
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=seconds,
    )


def _user() -> str:
    uid = os.geteuid()
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _machine() -> str:
    found = re.search(r"MemTotal: +(\d+)", Path("/proc/meminfo").read_text())
    memory = f"{int(found[1]) / 1024**2:.1f} GiB" if found else "unknown"
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    name = f", {model[1]}" if model else ""
    return f"{platform.machine()}, {os.cpu_count()} processors{name}, {memory} of memory"


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return "unknown"
