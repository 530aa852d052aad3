"""From what a run left behind to its Execution: the outcome, the value, and notes for people.

`Finished` is all that the host knows of a run that has ended. The functions here depend on nothing
else. They read frames that a hostile guest may have made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from belljar.backends.base import init_settings
from belljar.errors import CannotTravel, ProtocolError
from belljar.limits import Limits, format_size
from belljar.protocol import messages, values, wire
from belljar.results.execution import (
    Call,
    CommandResult,
    ErrorInfo,
    Execution,
    FileChanges,
    Logs,
    Outcome,
    Result,
    Usage,
)
from belljar.results.result import TABLE
from belljar.sandbox import value_transfer

if TYPE_CHECKING:
    pass

MAX_CHANGES = 1024 * 1024  # bytes that tell of changed files; init keeps to the same number
RESTARTED = "variables were lost: the interpreter had to be restarted"


class FinalValue(NamedTuple):
    """What ended a cell before its last line."""

    value: object  # of a host function: as it was returned
    encoded: bool = False  # data of the guest, which is not decoded yet


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A run that has ended."""

    done: wire.Frame | None  # the guest's last word; None: the guest is gone
    lost: Exception | None  # why there is no last word
    stopped_for: Outcome | None  # the limit that ended it
    interrupted: bool  # by the caller
    results: tuple[Result, ...]
    logs: Logs
    usage: Usage
    truncated: bool  # output was dropped
    dropped: bool  # parts of results were too large
    cut: bool  # the text of a result was
    files: FileChanges | None
    memory_kills: int  # processes killed because memory ran out, while it ran
    memory_kills_in_all: int  # and since the guest was started
    calls: tuple[Call, ...]
    calls_left_out: int
    host_time_is_up: bool  # host functions took more time than is excused
    value: list[value_transfer.Blob]  # at most one; taken out when it is decoded
    no_room: str | None  # why there is no value, though the guest sent one
    final: list[FinalValue]  # the first one stands

    @property
    def stdout(self) -> str:
        return "".join(self.logs.stdout)

    @property
    def stderr(self) -> str:
        return "".join(self.logs.stderr)

    def number(self, name: str) -> int | None:
        """A number out of the last frame, in the range that exit codes and signals have."""
        value = self.done.header.get(name) if self.done is not None else None
        return value if type(value) is int and -(2**31) <= value < 2**32 else None

    async def decode_value(self, limit: int, reception: values.Reception) -> object:
        """The value, once: a large one must not live as long as this record."""
        if self.no_room is not None:
            raise MemoryError(self.no_room)
        return await value_transfer.decode(self.value.pop(), limit, reception=reception)


def decide(
    *,
    status: str | None,
    error: str | None,
    stopped_for: Outcome | None,
    memory_kills: int,
    interrupted: bool,
) -> Outcome:
    """The outcome of a cell. `status` is init's: ok, error, exit, died; None: init is gone."""
    gone = status is None or status == "died"
    if gone and memory_kills > 0:
        return Outcome.out_of_memory
    if stopped_for is not None:
        return stopped_for
    if status is None:
        return Outcome.lost
    if status == "died":
        return Outcome.killed
    if status == "exit":
        return Outcome.exit
    if status == "error":
        if interrupted and error == "KeyboardInterrupt":
            return Outcome.cancelled
        return Outcome.out_of_memory if error == "MemoryError" else Outcome.error
    return Outcome.ok if status == "ok" else Outcome.lost


async def make_execution(
    run: Finished,
    *,
    limits: Limits,
    count: int,
    kills_before: int = 0,  # of processes, because memory ran out, up to the end of the last cell
    ended: str | None = None,  # why the sandbox can no longer be used
    state_lost: bool = False,  # variables were lost before it began
    remarks: tuple[str, ...] = (),
    with_value: bool = True,
) -> Execution:
    header = run.done.header if run.done is not None else {}
    status = str(header.get("status")) if run.done is not None else None
    error = parse_error(run.done.payload) if run.done is not None and status == "error" else None
    # Since the last cell, not since the start of this one: a process that is killed in between,
    # because of memory that the last cell left behind, may die only now.
    kills = max(run.memory_kills_in_all - kills_before, run.memory_kills)  # others may run beside
    outcome = decide(
        status=status,
        error=error.name if error else None,
        stopped_for=run.stopped_for,
        memory_kills=kills,
        interrupted=run.interrupted,
    )
    if outcome is Outcome.lost and ended is not None:
        outcome = Outcome.killed  # by close(), kill(), or the end of its lifetime
    lost = run.done is None or header.get("lost") is True
    fresh = state_lost or header.get("state_lost") is True
    main = next((r for r in reversed(run.results) if r.is_main_result), None)
    value, missing = None, None
    about = _received_notes(header) if "notes" in header else []
    if outcome is Outcome.ok and with_value:
        value, missing = await _decode_value(run, header, main, limits, about)
    notes = (*remarks, *_notes(run, outcome, limits, ended, lost=lost, fresh=fresh, kills=kills))
    if missing is not None:
        notes += (f"value is None, because {missing}; see text and results",)
    # A `return` is the value as well. Another end stands, whatever the code did after it.
    finished, final = outcome is Outcome.ok and header.get("final") is True, None
    if finished:
        final = value
    elif run.final:
        finished = True
        final, missing = await _decode_final(run.final[0], limits, about)
        if missing is not None:
            notes += (f"final is None, because {missing}",)
    notes += tuple(about)
    return Execution(
        outcome=outcome,
        text=main.text if main is not None else None,
        value=value,
        results=run.results,
        stdout="".join(run.logs.stdout),
        stderr="".join(run.logs.stderr),
        logs=run.logs,
        error=error,
        exit_code=run.number("exit_code"),
        signal=run.number("signal"),
        execution_count=count,
        usage=run.usage,
        state_preserved=not lost and not fresh,
        truncated=run.truncated or run.dropped or run.cut,
        calls=run.calls,
        files=run.files if run.done is not None else None,
        notes=notes,
        finished=finished,
        final=final,
    )


def make_command_result(run: Finished) -> CommandResult:
    code, signal = run.number("exit_code"), run.number("signal")
    gone = run.done is None
    if run.memory_kills > 0 and (gone or signal == 9):
        outcome = Outcome.out_of_memory
    elif run.stopped_for is not None:
        outcome = run.stopped_for
    elif gone:
        outcome = Outcome.lost
    elif signal is not None:
        outcome = Outcome.killed
    else:
        outcome = Outcome.ok if code == 0 else Outcome.exit
    return CommandResult(
        stdout=run.stdout,
        stderr=run.stderr,
        exit_code=code,
        signal=signal,
        outcome=outcome,
        usage=run.usage,
        truncated=run.truncated,
    )


async def _decode_value(
    run: Finished,
    header: dict[str, object],
    main: Result | None,
    limits: Limits,
    notes: list[str],
) -> tuple[object, str | None]:
    """The value, and why there is no value; `notes` gets what it was instead."""
    why = header.get("value_error")
    shown = main.raw if header.get("shown") is True and main is not None else {}
    reception = values.Reception(lenient=True)
    try:
        if isinstance(table := shown.get(TABLE), bytes):
            value = await value_transfer.decode(
                table, len(table), limits.output, reception=reception
            )
        elif isinstance(picture := shown.get("image/png"), bytes):
            notes.append("value is a figure, taken as PNG")
            value = picture
        elif run.no_room is not None:
            return None, run.no_room
        else:
            blob = run.value.pop() if run.value else b""
            # The caller did not ask for it: it may be as long as the worker was told, never less
            # than SHORT.
            if len(blob) > value_transfer.SHORT:
                most = init_settings(limits, share=False)["result"]
                assert isinstance(most, int)
                if len(blob) > most:
                    return None, f"it takes more than {format_size(most)}"
            if blob and values.needs_thread(blob):
                value = await value_transfer.decode(
                    blob, len(blob), limits.output, reception=reception
                )
            else:
                value = values.decode(blob, len(blob), limits.output, reception) if blob else None
        notes += reception.notes
    except (CannotTravel, values.CannotTravel, MemoryError) as error:
        return None, str(error) or "there was no memory for it"
    return (None, why) if isinstance(why, str) else (value, None)


def _received_notes(header: dict[str, object]) -> list[str]:
    """About values that the guest got, in its own words."""
    notes = header.get("notes")
    if not isinstance(notes, list):
        return []
    kept = [note[: messages.MAX_REASON] for note in notes if isinstance(note, str)]
    return kept[: messages.MAX_NOTES]


async def _decode_final(
    given: FinalValue, limits: Limits, notes: list[str]
) -> tuple[object, str | None]:
    """The value that ended the cell, and why it did not come."""
    if not given.encoded:
        return given.value, None
    blob = given.value
    assert isinstance(blob, bytes)
    reception = values.Reception(lenient=True)
    try:
        made = await value_transfer.decode(blob, len(blob), limits.output, reception=reception)
    except (CannotTravel, values.CannotTravel, MemoryError) as error:
        return None, str(error) or "there was no memory for it"
    notes += reception.notes
    return made, None


def _notes(
    run: Finished,
    outcome: Outcome,
    limits: Limits,
    ended: str | None,
    *,
    lost: bool,
    fresh: bool,
    kills: int,
) -> Iterator[str]:
    if run.done is None:
        why = f"it {ended}" if ended else "its first process died"
        yield f"the sandbox is gone ({why}); variables and files are lost"
    elif lost:
        yield RESTARTED
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
    if run.logs.background:
        yield "threads or processes of earlier cells wrote output: see logs.background"
    if run.calls_left_out:
        yield f"{run.calls_left_out} more calls of host functions are not in calls"
    if run.host_time_is_up:
        yield (
            f"host functions took more than {limits.host_time:g} s; time beyond that counts as "
            "time of the code: Limits(host_time=...) allows more"
        )


# -- frames that a hostile guest may have made ------------------------------------------------


def parse_result(frame: wire.Frame) -> Result:
    data: dict[str, str | bytes] = {}
    position = 0
    parts = frame.header.get("parts")
    if not isinstance(parts, list) or len(parts) > messages.MAX_PARTS:
        raise ProtocolError("a result has no list of parts, or too many parts")
    for part in parts:
        if not isinstance(part, dict):
            raise ProtocolError("a part of a result is malformed")
        mime, size = part.get("mime"), part.get("size")
        if not isinstance(mime, str) or len(mime) > messages.MAX_NAME:
            raise ProtocolError("a part of a result has no valid MIME type")
        if type(size) is not int or size < 0:
            raise ProtocolError("a part of a result has no valid size")
        raw = frame.payload[position : position + size]
        position += size
        data[mime] = _decode_text(raw) if part.get("text") is True else raw
    return Result(raw=data, is_main_result=frame.header.get("main") is True)


def parse_error(payload: bytes) -> ErrorInfo | None:
    if len(payload) > messages.MAX_ERROR:
        return None
    try:
        body = json.loads(payload)
        fields = {name: body[name] for name in ("name", "value", "traceback")}
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    if not all(isinstance(value, str) for value in fields.values()):
        return None
    return ErrorInfo(**fields)


def parse_changes(frame: wire.Frame) -> FileChanges | None:
    """The files that a cell changed, as init reports them; None if there were too many."""
    if frame.header.get("unknown") is True:
        return None
    if len(frame.payload) > MAX_CHANGES:
        raise ProtocolError("the list of changed files is too long")
    try:
        body = json.loads(frame.payload)
        lists = {name: body[name] for name in ("created", "changed", "removed")}
    except (ValueError, RecursionError, KeyError, TypeError):
        raise ProtocolError("the list of changed files is malformed") from None
    for paths in lists.values():
        if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
            raise ProtocolError("the list of changed files is malformed")
    return FileChanges(**{name: tuple(paths) for name, paths in lists.items()})


def _decode_text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace")
