"""The lines of an audit log: how an event becomes a line, and how `verify` checks the chain.

Text of a guest stands inside of JSON strings in ASCII: no newline, control character or quote in it
can end a line or forge a second one.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Literal

from belljar import events
from belljar.errors import InvalidOption

LONGEST = 16 * 1024 * 1024  # bytes of a line that is read; those we write are far shorter


@dataclass(frozen=True, kw_only=True)
class Damage:
    """One defect of the log."""

    file: str
    line: int  # from 1 on
    problem: str


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What `verify` found."""

    files: tuple[str, ...]  # the oldest first
    lines: int
    head: str  # the hash of the last line
    damage: tuple[Damage, ...]

    @property
    def ok(self) -> bool:
        return not self.damage


def verify(
    path: str | os.PathLike[str], *, key: bytes | None = None, head: str | None = None
) -> Verified:
    """Check the chain from the first line to the last, through the renamed files as well.

    `head`: a hash that `Audit.head` gave at some time. Some line must have it, which finds lines
    that were cut off at the end.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidOption(f"an audit log is a path, not {path!r}")
    base = Path(path).expanduser().absolute()
    files = [*find_rotated(base), *([base] if base.exists() else [])]
    if not files:
        raise InvalidOption(f"there is no audit log {str(base)!r}")
    damage: list[Damage] = []
    # The oldest files may have been removed on purpose: then the chain begins anywhere.
    expected = FIRST if files[0].name in (base.name, f"{base.name}.000001") else None
    number, total, seen_head = None if expected is None else 0, 0, head is None
    last = FIRST
    for file in files:
        with open(file, "rb") as stream:
            for place, line in enumerate(_lines(stream), 1):
                total += 1
                for problem in _problems(line, expected, number):
                    damage.append(Damage(file=str(file), line=place, problem=problem))
                expected = last = hash_line(line, key)
                number = parse_sequence(line) or (None if number is None else number + 1)
                seen_head = seen_head or last == head
    if not seen_head:
        problem = "no line has the hash given as `head`: lines were cut off"
        damage.append(Damage(file=str(base), line=0, problem=problem))
    return Verified(files=tuple(map(str, files)), lines=total, head=last, damage=tuple(damage))


def _problems(line: bytes, expected: str | None, number: int | None) -> Iterator[str]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        yield "it is not JSON: cut off by a crash, or changed"
        return
    if not isinstance(record, dict) or record.get("v") != SCHEMA:
        yield f"it is not of schema {SCHEMA}"
        return
    if expected is not None and record.get("prev") != expected:
        yield "the line before was changed, or lines are missing before it"
    elif number is not None and record.get("seq") != number + 1:
        yield f"it is number {record.get('seq')!r}, not {number + 1}"


def find_rotated(path: Path) -> list[Path]:
    """The renamed, full files of this log, the oldest first."""
    form = re.compile(re.escape(path.name) + r"\.([0-9]{6,})")
    found = [
        (int(match[1]), each)
        for each in (path.parent.iterdir() if path.parent.is_dir() else ())
        if (match := form.fullmatch(each.name))
    ]
    return [each for _, each in sorted(found)]


def read_tail(descriptor: int, size: int) -> tuple[list[bytes], bool]:
    """The last lines (at least one, unless the file is empty), without their newlines; and whether
    the newline of the last one is missing."""
    data, start = b"", size
    while start > 0 and b"\n" not in data[:-1] and len(data) < LONGEST:
        step = min(start, 256 * 1024)
        start -= step
        data = os.pread(descriptor, step, start) + data
    if not data:
        return [], False
    lines = data.removesuffix(b"\n").split(b"\n")
    # Unless the file was read from its start, the first line may be incomplete.
    return (lines[1:] if start > 0 and len(lines) > 1 else lines), not data.endswith(b"\n")


def last_sequence(lines: list[bytes]) -> int:
    """The number of the last of these lines; counted on from the last one that has a number."""
    for behind, line in enumerate(reversed(lines)):
        if number := parse_sequence(line):
            return number + behind
    return 0


def parse_sequence(line: bytes) -> int:
    """The number of a line; 0 if it has none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return 0
    number = found.get("seq") if isinstance(found, dict) else 0
    return number if type(number) is int else 0


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    while line := stream.readline(LONGEST):
        yield line.removesuffix(b"\n")


SCHEMA = 1
FIRST = "0" * 64  # stands for the hash of the line before the first one
MAX_ITEMS = 200  # of one list
MAX_HASHED = 16 * 1024 * 1024  # bytes of a file's content
MAX_TEXT = 1000  # characters of one text; the code may be longer

Code = Literal["hash", "full"]
Record = dict[str, object]


def hash_line(line: bytes, key: bytes | None) -> str:
    """The hash of a line (without its newline), for the next one."""
    if key is not None:
        return hmac.new(key, line, hashlib.sha256).hexdigest()
    return hashlib.sha256(line).hexdigest()


def encode_line(record: Record, *, sequence: int, previous: str, most: int) -> bytes:
    """The line, with its newline. Fields that do not fit are left out; `left_out` names them."""
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


def describe_event(event: events.Event, who: Record, *, code: Code, now: float) -> Record:
    """The fields of an event, without those of the chain."""
    subject = event.subject
    owner = subject.metadata.get("owner")  # that the program gave
    record: Record = {
        "time": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
        "event": _NAMES[type(event)],
        "who": {**who, "owner": None if owner is None else _text(owner)},
        "sandbox": subject.id,
        "backend": subject.backend,
        "environment": _text(subject.environment),
        **_describe_kind(event),
    }
    given = getattr(event, "code", None)
    if isinstance(given, str):
        raw = given.encode("utf-8", "surrogatepass")
        record |= {"code_sha256": hashlib.sha256(raw).hexdigest(), "code_bytes": len(raw)}
        record |= {"code": given} if code == "full" else {}
    return record


def _describe_kind(event: events.Event) -> Record:
    """The fields that only this kind of event has."""
    match event:
        case events.Starting():
            given = list(event.subject.metadata.items())[:MAX_ITEMS]
            metadata = {_text(key): _text(value) for key, value in given}
            return {"limits": event.subject.limits.to_dict(), "metadata": metadata}
        case events.Started():
            seen = event.whereabouts
            return {"seconds": _round(event.seconds), "pid": seen.pid, "container": seen.container}
        case events.StartFailed() | events.CellFailed():
            told = {"name": type(event.error).__name__, "message": _text(str(event.error))}
            return {"seconds": _round(event.seconds), "error": told}
        case events.CellEnded():
            return _describe_cell(event)
        case events.CommandEnded():
            return _describe_command(event)
        case events.FilesChanged():
            changed = list(event.fields.items())[:MAX_ITEMS]
            fields = {_text(name): _plain(value) for name, value in changed}
            return {"operation": event.operation, "fields": fields}
        case events.Ended():
            return {"reason": _text(event.reason), "seconds": _round(event.seconds)}
    return {}


def _describe_cell(event: events.CellEnded) -> Record:
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


def _describe_command(event: events.CommandEnded) -> Record:
    result = event.result
    shown = event.cmd if isinstance(event.cmd, str) else list(event.cmd)[:MAX_ITEMS]
    return {
        "command": _text(shown) if isinstance(shown, str) else [_text(part) for part in shown],
        "outcome": result.outcome.value,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "usage": _usage(result.usage),
    }


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


def _usage(usage: object) -> Record:
    names = ("wall", "cpu", "peak_memory", "output_bytes")
    return {name: _round(getattr(usage, name)) for name in names}


def _plain(value: object) -> object:
    """A value of a file operation. Of content, only the size and the hash are kept."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        size = memoryview(value).nbytes
        # Hashing takes a millisecond for each megabyte, and blocks the event loop.
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
