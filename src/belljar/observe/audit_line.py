"""One line of the audit log: what is said of an event, capped, chained to the line before.

Everything a guest said stands inside of JSON strings in ASCII: no newline, no control character
and no quote of it can end a line or forge a second one.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Literal

from belljar import events

SCHEMA = 1
FIRST = "0" * 64  # what comes before the first line
MAX_ITEMS = 200  # of one list
MAX_HASHED = 16 * 1024 * 1024  # bytes of a file's content
MAX_TEXT = 1000  # characters of one text, but for the code

Code = Literal["hash", "full"]
Record = dict[str, object]


def digest(line: bytes, key: bytes | None) -> str:
    """What the next line says of this one (without its newline)."""
    if key is not None:
        return hmac.new(key, line, hashlib.sha256).hexdigest()
    return hashlib.sha256(line).hexdigest()


def encode(record: Record, *, sequence: int, previous: str, most: int) -> bytes:
    """The line, with its newline. What does not fit is left out, and that is said."""
    for left_out in ((), ("code",), ("code", *_HEAVY), tuple(record.keys() - _NEEDED)):
        kept = {name: value for name, value in record.items() if name not in left_out}
        gone = sorted(record.keys() & set(left_out))
        line = json.dumps(
            {
                "v": SCHEMA,
                "seq": sequence,
                **kept,
                **({"left_out": gone} if gone else {}),
                "prev": previous,
            },
            separators=(",", ":"),
            ensure_ascii=True,
            allow_nan=False,
        ).encode()
        if len(line) < most:
            break
    return line + b"\n"


_HEAVY = ("findings", "calls", "files", "fields", "metadata", "command")
_NEEDED = frozenset(("time", "event", "who", "sandbox", "code_sha256", "outcome", "verdict"))


def describe(event: events.Event, who: Record, *, code: Code, now: float) -> Record:
    """What is said of an event, without the chain."""
    subject = event.subject
    record: Record = {
        "time": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
        "event": _NAMES[type(event)],
        "who": {**who, "owner": _owner(subject.metadata)},
        "sandbox": subject.id,
        "backend": subject.backend,
        "environment": _text(subject.environment),
    }
    more = _MORE.get(type(event))
    if more is not None:
        record |= more(event)
    given = getattr(event, "code", None)
    if isinstance(given, str):
        record |= _code(given, code)
    return record


def _owner(metadata: Mapping[str, str]) -> str | None:
    """For whom the program made the sandbox, if it says so: metadata={"owner": ...}."""
    return _text(metadata["owner"]) if "owner" in metadata else None


def _code(given: str, how: Code) -> Record:
    raw = given.encode("utf-8", "surrogatepass")
    said: Record = {"code_sha256": hashlib.sha256(raw).hexdigest(), "code_bytes": len(raw)}
    return said | {"code": given} if how == "full" else said


def _starting(event: events.Event) -> Record:
    subject = event.subject
    metadata = {
        _text(key): _text(value) for key, value in list(subject.metadata.items())[:MAX_ITEMS]
    }
    return {"limits": subject.limits.to_dict(), "metadata": metadata}


def _started(event: events.Event) -> Record:
    assert isinstance(event, events.Started)
    seen = event.whereabouts
    return {"seconds": _round(event.seconds), "pid": seen.pid, "container": seen.container}


def _failed(event: events.Event) -> Record:
    assert isinstance(event, (events.StartFailed, events.CellFailed))
    error = event.error
    return {
        "seconds": _round(event.seconds),
        "error": {"name": type(error).__name__, "message": _text(str(error))},
    }


def _cell(event: events.Event) -> Record:
    assert isinstance(event, events.CellEnded)
    done = event.execution
    record: Record = {
        "outcome": done.outcome.value,
        "began": _round(event.began),
        "seconds": _round(event.seconds),
        "usage": _usage(done.usage),
        "error": None if done.error is None else _text(done.error.name),
    }
    report = done.policy
    if report is not None:
        record |= {
            "policy": _text(report.policy),
            "verdict": "allow" if report.allowed else "deny",
            "found": report.verdict.value,
            "findings": [
                {"rule": _text(each.rule), "severity": each.severity, "line": each.line}
                for each in report.findings[:MAX_ITEMS]
            ],
        }
    if done.calls:
        record["calls"] = [
            {"name": _text(call.name), "ok": call.ok, "seconds": _round(call.duration)}
            for call in done.calls[:MAX_ITEMS]
        ]
        record["calls_made"] = len(done.calls)
    if done.files:
        changed = {kind: getattr(done.files, kind) for kind in ("created", "changed", "removed")}
        record["files"] = {
            kind: [_text(name) for name in names[:MAX_ITEMS]]
            for kind, names in changed.items()
            if names
        }
        record["files_changed"] = sum(map(len, changed.values()))
    return record


def _command(event: events.Event) -> Record:
    assert isinstance(event, events.CommandEnded)
    result = event.result
    shown = event.cmd if isinstance(event.cmd, str) else list(event.cmd)[:MAX_ITEMS]
    return {
        "command": _text(shown) if isinstance(shown, str) else [_text(part) for part in shown],
        "outcome": result.outcome.value,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "usage": _usage(result.usage),
    }


def _files(event: events.Event) -> Record:
    assert isinstance(event, events.FilesChanged)
    fields = list(event.fields.items())[:MAX_ITEMS]
    return {
        "operation": event.operation,
        "fields": {_text(name): _plain(value) for name, value in fields},
    }


def _ended(event: events.Event) -> Record:
    assert isinstance(event, events.Ended)
    return {"reason": _text(event.reason), "seconds": _round(event.seconds)}


_NAMES: Mapping[type[events.Event], str] = {
    events.Starting: "sandbox.starting",
    events.Started: "sandbox.started",
    events.StartFailed: "sandbox.start_failed",
    events.CellStarting: "cell.starting",
    events.CellEnded: "cell.ended",
    events.CellFailed: "cell.failed",
    events.CommandEnded: "command.ended",
    events.FilesChanged: "files.changed",
    events.Ended: "sandbox.ended",
}
_MORE: Mapping[type[events.Event], Callable[[events.Event], Record]] = {
    events.Starting: _starting,
    events.Started: _started,
    events.StartFailed: _failed,
    events.CellEnded: _cell,
    events.CellFailed: _failed,
    events.CommandEnded: _command,
    events.FilesChanged: _files,
    events.Ended: _ended,
}


def _usage(usage: object) -> Record:
    names = ("wall", "cpu", "peak_memory", "output_bytes")
    return {name: _round(getattr(usage, name)) for name in names}


def _plain(value: object) -> object:
    """A value of a file operation: content is told by its size and hash, never kept."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        size = memoryview(value).nbytes
        # Hashing takes a millisecond for each megabyte, and others wait.
        hashed = hashlib.sha256(value).hexdigest() if size <= MAX_HASHED else None
        return {"bytes": size, "sha256": hashed}
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return _round(value)
    return _text(value if isinstance(value, str) else str(value))


def _text(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


def _round(value: float | int | None) -> float | int | None:
    """JSON has neither nan nor infinity."""
    if value is None or isinstance(value, int):
        return value
    return round(value, 6) if abs(value) < 1e15 else None
