"""Parse the lines of a record.

A record may come from anywhere, so nothing in it is trusted: each value must have the type that
`format` writes there, or the line is refused.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import TypeVar

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

T = TypeVar("T")


class Malformed(Exception):
    """A line does not follow the format; the message says where."""


@dataclass(frozen=True)
class Reader:
    """Reads values of the expected type from parsed JSON, or raises Malformed."""

    line: Mapping[str, object]
    at: str = ""  # the place in the line, for messages
    left_out: dict[str, str] = field(default_factory=dict)  # place -> SHA-256

    def get(self, name: str, kind: type[T], default: T | None = None) -> T:
        value = self.line.get(name, default)
        # In Python a bool is an int; and people may write the float 1.0 as 1.
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value) if abs(value) < 2**1000 else math.inf
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise Malformed(f"{self._place(name)} is not {_article(kind)}")
        huge = isinstance(value, int) and abs(value) >= 2**63
        if huge or (isinstance(value, float) and not math.isfinite(value)):
            raise Malformed(f"{self._place(name)} is too large")
        return value

    def count(self, name: str) -> int:
        number = self.get(name, int, 0)
        if number < 0:
            raise Malformed(f"{self._place(name)} is negative")
        return number

    def optional(self, name: str, kind: type[T]) -> T | None:
        return None if self.line.get(name) is None else self.get(name, kind)

    def below(self, name: str) -> Reader:
        value = self.line.get(name)
        if not isinstance(value, dict):
            raise Malformed(f"{self._place(name)} is not an object")
        return Reader(value, self._place(name), self.left_out)

    def each(self, name: str) -> list[Reader]:
        values = self.get(name, list, [])
        indexed = {f"{name}[{index}]": value for index, value in enumerate(values)}
        outer = Reader(indexed, self.at, self.left_out)
        return [outer.below(index) for index in indexed]

    def texts(self, name: str) -> tuple[str, ...]:
        values = self.get(name, list, [])
        if not all(isinstance(value, str) for value in values):
            raise Malformed(f"{self._place(name)} has an item that is not a text")
        return tuple(values)

    def mapping(self, name: str) -> dict[str, str]:
        inner = self.below(name)
        return {key: inner.get(key, str) for key in inner.line}

    def make(self, cls: type[T], **known: object) -> T:
        """A dataclass with the values of the fields that are not known."""
        values = dict(known)
        for each in fields(cls):  # type: ignore[arg-type]
            if each.name not in known:
                default = None if each.default is MISSING else each.default
                values[each.name] = self._field(each.name, str(each.type), default)
        return cls(**values)

    def _field(self, name: str, annotation: str, default: object) -> object:
        word, _, optional = annotation.partition(" | ")
        if optional:
            return self.optional(name, _KINDS[word])
        if word == "tuple[str, ...]":
            return self.texts(name)
        return self.count(name) if word == "int" else self.get(name, _KINDS[word], default)

    def text(self, name: str) -> str:
        """A text; if it was left out, its beginning and a sentence about the rest."""
        value = self.line.get(name)
        if value is None:
            return ""
        if isinstance(value, dict):
            inner = self.below(name)
            size = self._note_absence(inner, name)
            begins = inner.get("begins", str, "")
            return f"{begins}\n[{size:,} bytes in all; the rest is not in the record]"
        return self.get(name, str)

    def content(self, name: str) -> bytes | None:
        """Bytes, or None if they were left out."""
        inner = self.below(name)
        if "base64" not in inner.line:
            self._note_absence(inner, name)
            return None
        try:
            return base64.b64decode(inner.get("base64", str), validate=True)
        except (binascii.Error, ValueError) as error:
            raise Malformed(f"{self._place(name)} is not base64: {error}") from None

    def _note_absence(self, inner: Reader, name: str) -> int:
        size = inner.count("left_out")
        self.left_out[self._place(name)] = inner.get("sha256", str)
        return size

    def _place(self, name: str) -> str:
        return f"{self.at}.{name}" if self.at else name


_KINDS: dict[str, type[object]] = {"str": str, "int": int, "float": float, "bool": bool}


def _article(kind: type[object]) -> str:
    names = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
    return names.get(kind, "a list" if kind is list else "an object")


def load_execution(line: Reader) -> Execution:
    """Undo `dump_cell`. `line.left_out` gets the places of what was left out."""
    told = line.below("execution")
    stdout, stderr, background = (told.text(name) for name in ("stdout", "stderr", "background"))
    return told.make(
        Execution,
        outcome=_load_outcome(told),
        text=None if told.line.get("text") is None else told.text("text"),
        value=None,  # a record has the texts of a value, not the value
        final=None,
        results=tuple(_load_result(each) for each in told.each("results")),
        stdout=stdout,
        stderr=stderr,
        logs=Logs(
            stdout=(stdout,) if stdout else (),
            stderr=(stderr,) if stderr else (),
            background=(background,) if background else (),
        ),
        error=_load_error(told),
        usage=told.below("usage").make(Usage),
        state_preserved=told.get("state_preserved", bool, True),
        truncated=told.get("truncated", bool, False),
        calls=tuple(each.make(Call) for each in told.each("calls")),
        files=None if told.line.get("files") is None else told.below("files").make(FileChanges),
        policy=None,
    )


def _load_outcome(told: Reader) -> Outcome:
    try:
        return Outcome(told.get("outcome", str))
    except ValueError:
        raise Malformed(f"{told.at}.outcome {told.line['outcome']!r:.100} is unknown") from None


def _load_error(told: Reader) -> ErrorInfo | None:
    if told.line.get("error") is None:
        return None
    error = told.below("error")
    return ErrorInfo(
        name=error.text("name"), value=error.text("value"), traceback=error.text("traceback")
    )


def _load_result(told: Reader) -> Result:
    raw: dict[str, str | bytes] = {}
    parts = told.below("raw")
    for mime, part in parts.line.items():
        if isinstance(part, dict) and "begins" not in part:
            # If it was left out: empty content in its place, so that `formats()` still names it.
            raw[mime] = parts.content(mime) or b""
        else:
            raw[mime] = parts.text(mime)
    return Result(raw=raw, is_main_result=told.get("is_main_result", bool, False))


def load_command(line: Reader) -> CommandResult:
    told = line.below("result")
    return told.make(
        CommandResult,
        stdout=told.text("stdout"),
        stderr=told.text("stderr"),
        outcome=_load_outcome(told),
        usage=told.below("usage").make(Usage),
        truncated=told.get("truncated", bool, False),
        stdout_bytes=None,
        stderr_bytes=None,
    )
