"""From a run that has ended to its Execution: the outcome, the value, and notes for people."""

from __future__ import annotations

from collections.abc import Iterator

from belljar.backends import base
from belljar.errors import CannotTravel, ExecutionError
from belljar.limits import Limits, format_size
from belljar.results.execution import Execution, Outcome, Result
from belljar.results.result import TABLE
from belljar.sandbox import value_transfer
from belljar.sandbox.run import Run, decide, parse_error

STARTED_ANEW = "variables were lost: the interpreter had to be started anew"


async def of(
    run: Run,
    *,
    kills_before: int,  # for want of memory, up to the last cell
    ended: str | None,  # why the sandbox can be used no more
    fresh: bool,  # variables were lost before it began
    count: int,
    limits: Limits,
    with_value: bool,
) -> tuple[Execution, int]:
    """The Execution, and how many processes were killed for want of memory up to now."""
    after = await run.after()
    status = str(run.done.header.get("status")) if run.done is not None else None
    payload = run.done.payload if run.done is not None else b""
    error = parse_error(payload) if status == "error" else None
    # Since the last cell, not since the start of this one: what is killed in between, for
    # memory that the last one left behind, may die only now.
    kills = after.memory_kills - kills_before
    outcome = decide(
        status=status,
        error=error.name if error else None,
        stopped_for=run.stopped_for,
        memory_kills=kills,
        interrupted=run.interrupted,
    )
    if outcome is Outcome.lost and ended is not None:
        outcome = Outcome.killed  # by close(), kill(), or the end of its lifetime
    lost = run.done is None or run.flag("lost")
    fresh = fresh or run.flag("state_lost")
    main = next((r for r in reversed(run.results) if r.is_main_result), None)
    value, unplain = None, None
    if outcome is Outcome.ok and with_value:
        value, unplain = await _value(run, main, limits)
    notes = tuple(_notes(run, outcome, limits, ended=ended, lost=lost, fresh=fresh, kills=kills))
    if run.host_time_is_up:
        notes += (
            f"host functions took more than {limits.host_time:g} s, and what is beyond counts as "
            "time of the code: Limits(host_time=...) allows more",
        )
    if unplain is not None:
        notes += (f"value is None, because {unplain}; see text and results",)
    execution = Execution(
        outcome=outcome,
        text=main.text if main is not None else None,
        value=value,
        results=tuple(run.results),
        stdout=run.streams["stdout"].text,
        stderr=run.streams["stderr"].text,
        logs=run.logs(),
        error=error,
        exit_code=run.number("exit_code"),
        signal=run.number("signal"),
        execution_count=count,
        usage=run.usage(after),
        state_preserved=not lost and not fresh,
        truncated=run.truncated or run.dropped or run.cut,
        calls=tuple(run.calls.made),
        files=run.files if run.done is not None else None,
        notes=notes,
    )
    return execution, after.memory_kills


async def _value(run: Run, main: Result | None, limits: Limits) -> tuple[object, str | None]:
    """The value, and why there is none that could come."""
    why = run.text("value_error")
    try:
        if (
            run.flag("shown")
            and main is not None
            and isinstance(table := main.raw.get(TABLE), bytes)
        ):
            value = await value_transfer.decode(table, len(table), limits.output)
        else:
            blob = run.take_value()
            if len(blob) > (most := _longest(limits)):
                return None, f"it takes more than {format_size(most)}"
            value = await value_transfer.decode(blob, len(blob), limits.output) if blob else None
    except (CannotTravel, MemoryError) as error:
        return None, str(error) or "there was no memory for it"
    return (value, None) if why is None else (None, why)


def _longest(limits: Limits) -> int:
    """Bytes of a value that nobody asked for: the number that the worker was given."""
    most = base.init_settings(limits, share=False)["result"]
    assert isinstance(most, int)
    return most


def _notes(
    run: Run,
    outcome: Outcome,
    limits: Limits,
    *,
    ended: str | None,
    lost: bool,
    fresh: bool,
    kills: int,
) -> Iterator[str]:
    if run.done is None:
        why = f"it {ended}" if ended else "its first process died"
        yield f"the sandbox is gone ({why}); variables and files are lost"
    elif lost:
        yield STARTED_ANEW
    if fresh:
        yield "variables of earlier cells were not there: their interpreter had died"
    if kills > 0 and outcome is not Outcome.out_of_memory:
        yield "a process was killed because the sandbox was out of memory"
    if run.truncated:
        yield "output past the limit was dropped"
    if run.cut:
        most = format_size(limits.output)
        yield f"the text of a result is cut after {most}, and ends in \u2026: its repr is longer"
    if run.dropped:
        yield "parts of a result were too large and left out"
    if run.streams["background"].chunks:
        yield "threads or processes of earlier cells wrote output: see logs.background"
    if run.calls.unrecorded:
        yield f"{run.calls.unrecorded} more calls of host functions are not in calls"


def raise_for(execution: Execution) -> None:
    """For operations that have no Execution to give: what went wrong is an exception."""
    try:
        execution.raise_for_outcome()
    except ExecutionError as error:
        if not execution.state_preserved:
            error.message = f"{error.message}; the variables of the sandbox are lost"
        raise
