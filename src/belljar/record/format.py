"""The format of a record.

A record is a file of JSON lines in ASCII, one object per line, each with its "kind":

    {"kind": "session", "format": "belljar-record", "version": 1, "session": "…", "environment": …}
    {"kind": "cell", "session": "…", "code": "1 + 1", "timeout": 30.0, "execution": {…}}
    {"kind": "write", "session": "…", "path": "/workspace/a.csv", "content": {"base64": …}}
    {"kind": "end", "session": "…"}

The length of a line is bounded, so that a reader can be strict: a part that would make it longer is
replaced by its size and hash. `parse` reads lines back.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from belljar.environment.environment import Environment
from belljar.environment.requirement import hide_secrets
from belljar.files.script import Script
from belljar.results.execution import Call, CommandResult, Execution, Result

FORMAT = "belljar-record"
VERSION = 1
MAX_LINE = 128 * 2**20  # bytes; longer ones are refused when read
MAX_RECORD = 2 * 2**30  # bytes of the whole file, which a reader holds in memory
FULL = 2**30  # bytes of the file, beyond which lines have little more than sizes and hashes
MAX_CELL = 32 * 2**20  # bytes of JSON of all parts of one line
MAX_LATE = 64 * 2**10  # the same beyond FULL: usually enough for the code
MAX_PART = 16 * 2**20  # bytes of JSON for one text or picture
INLINE = 2**20  # bytes of a file or a value that are kept with its event
BEGINNING = 1000  # characters that are kept of a text that is left out


class Room:
    """The room that is left in one line of a record that has `size` bytes already."""

    def __init__(self, size: int = 0) -> None:
        self._left = MAX_CELL if size < FULL else MAX_LATE

    def text(self, text: str) -> object:
        needed = len(json.dumps(text))
        if self._reserve(needed):
            return text
        begins = text[:BEGINNING] if self._reserve(6 * BEGINNING) else ""
        return _absent(text.encode("utf-8", "surrogatepass")) | {"begins": begins}

    def line(self, text: str) -> str:
        """A short text, or "" if there is no more room."""
        return text if self._reserve(len(json.dumps(text))) else ""

    def binary(self, raw: bytes | memoryview) -> object:
        needed = len(raw) * 4 // 3 + 4
        if not self._reserve(needed):
            return _absent(raw)
        return {"base64": base64.b64encode(raw).decode("ascii")}

    def _reserve(self, needed: int) -> bool:
        if needed > min(MAX_PART, self._left):
            return False
        self._left -= needed
        return True


def _absent(raw: bytes | memoryview) -> dict[str, object]:
    return {"left_out": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}


def dump_cell(code: str, execution: Execution, room: Room) -> dict[str, object]:
    """The parts of a line that may be large: the code and its Execution."""
    return {
        "code": room.text(code),
        "execution": {
            "outcome": execution.outcome.value,
            "text": None if execution.text is None else room.text(execution.text),
            "error": None
            if execution.error is None
            else {name: room.text(text) for name, text in asdict(execution.error).items()},
            "stdout": room.text(execution.stdout),
            "stderr": room.text(execution.stderr),
            "background": room.text("".join(execution.logs.background)),
            "results": [_dump_result(result, room) for result in execution.results],
            "exit_code": execution.exit_code,
            "signal": execution.signal,
            "execution_count": execution.execution_count,
            "usage": asdict(execution.usage),
            "state_preserved": execution.state_preserved,
            "truncated": execution.truncated,
            "notes": [room.line(note) for note in execution.notes],
            "calls": [_dump_call(call, room) for call in execution.calls],
            "files": None if execution.files is None else asdict(execution.files),
            "saved": execution.saved,
            "finished": execution.finished,
        },
    }


def _dump_call(call: Call, room: Room) -> dict[str, object]:
    fields = asdict(call)
    texts = {name: room.line(text) for name, text in fields.items() if isinstance(text, str)}
    return fields | texts


def _dump_result(result: Result, room: Room) -> dict[str, object]:
    return {
        "is_main_result": result.is_main_result,
        "raw": {
            mime: room.text(content) if isinstance(content, str) else room.binary(bytes(content))
            for mime, content in result.raw.items()
        },
    }


def dump_field(value: object, room: Room) -> object:
    """Any field of an event; bytes become base64, or size and hash if they are more than INLINE."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        raw = memoryview(value).cast("B")
        return room.binary(raw) if len(raw) <= INLINE else _absent(raw)
    if isinstance(value, CommandResult):
        texts = {"stdout": room.text(value.stdout), "stderr": room.text(value.stderr)}
        return value.to_dict() | texts
    if isinstance(value, Mapping):
        return {str(name): dump_field(each, room) for name, each in value.items()}
    if isinstance(value, Sequence):
        return [dump_field(each, room) for each in value]
    raise TypeError(f"a record cannot hold a {type(value).__name__}")


def dump_script(script: Script) -> dict[str, object]:
    """The file name, arguments and standard input of a cell, if it had any."""
    stdin = None if script.stdin is None else script.stdin.recorded()
    fields = {"file": script.name, "argv": script.argv, "csv": script.csv or None, "stdin": stdin}
    fields |= {"allow_return": script.allow_return or None, "notebook": script.notebook or None}
    return {name: value for name, value in fields.items() if value is not None}


def dump_environment(environment: Environment) -> dict[str, object]:
    """The fields of an Environment; a local wheel is named without its directory."""
    return asdict(environment) | {
        "packages": [hide_secrets(package) for package in environment.packages]
    }
