"""What `belljar map` reads: lines of JSON, or files of Python, each with an id."""

from __future__ import annotations

import hashlib
import json
import select
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from belljar.errors import InvalidOption, unknown_option

if TYPE_CHECKING:
    from io import RawIOBase

_PARTS = ("code", "then", "variables", "files", "env", "timeout")
_KNOWN = (*_PARTS, "id", "metadata")
_CHUNK = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Entry:
    id: str
    where: str  # for people
    metadata: object
    parts: Mapping[str, Any]  # of the Snippet

    @property
    def digest(self) -> str:
        """Of all that is run: a result knows by it what it is the result of."""
        text = json.dumps(self.parts, sort_keys=True, default=repr)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Common:
    """What every snippet gets that does not say it itself."""

    then: str | None = None
    files: Mapping[str, bytes] | None = None

    def added(self, parts: dict[str, Any]) -> dict[str, Any]:
        if self.then is not None:
            parts.setdefault("then", self.then)
        if self.files and isinstance(parts.get("files", {}), dict):
            parts["files"] = {**self.files, **parts.get("files", {})}
        return parts


def comes_by_and_by(name: str) -> bool:
    """A pipe, maybe of somebody who waits for results before he goes on."""
    return name == "-" or not (Path(name).is_file() or Path(name).is_dir())


def read(name: str, common: Common) -> Iterator[Entry]:
    """Each snippet, as it is needed. No id comes twice."""
    seen: dict[str, str] = {}
    for entry in _directory(name, common) if Path(name).is_dir() else _lines(name, common):
        if entry.id in seen:
            raise InvalidOption(
                f"two snippets have the id {entry.id!r}: {seen[entry.id]}, and {entry.where}",
                hint='a line without "id" has its number',
            )
        seen[entry.id] = entry.where
        yield entry


def _directory(name: str, common: Common) -> Iterator[Entry]:
    from belljar.cli.run import read_code

    found = sorted(path for path in Path(name).rglob("*.py") if path.is_file())
    if not found:
        raise InvalidOption(f"there is no *.py below {name!r}")
    for path in found:
        parts = common.added({"code": read_code(str(path))})
        id_ = str(path.relative_to(name))
        yield Entry(id=id_, where=repr(str(path)), metadata=None, parts=parts)


def _lines(name: str, common: Common) -> Iterator[Entry]:
    for number, line in enumerate(_split(name), 1):
        if line.strip():
            yield _parse(f"line {number} of {name!r}", number, line, common)


def _split(name: str) -> Iterator[bytes]:
    if name == "-":
        # Not through its buffer: a thread that waits for that would spoil the interpreter's end.
        buffer: Any = sys.stdin.buffer
        yield from _split_stream(getattr(buffer, "raw", buffer))
        return
    try:
        with open(name, "rb", buffering=0) as file:
            yield from _split_stream(file)
    except OSError as error:
        raise InvalidOption(f"cannot read {name!r}: {error.strerror}") from error


def _split_stream(stream: RawIOBase) -> Iterator[bytes]:
    """Lines, each as soon as it is there."""
    parts: list[bytes] = []
    while (chunk := stream.read(_CHUNK)) != b"":
        if chunk is None:  # one that does not block
            select.select([stream], [], [])
            continue
        *lines, last = chunk.split(b"\n")
        for line in lines:
            yield b"".join([*parts, line])
            parts.clear()
        parts.append(last)
    yield b"".join(parts)


def _parse(where: str, number: int, line: bytes, common: Common) -> Entry:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidOption(f"{where} is not JSON: {error}") from error
    if isinstance(given, str):
        given = {"code": given}
    if not isinstance(given, dict) or not isinstance(given.get("code"), str):
        raise InvalidOption(f"{where} has no code", hint='{"code": "print(6 * 7)"}, or a text')
    for key in given:
        if key not in _KNOWN:
            unknown = unknown_option("part of a snippet", key, _KNOWN)
            hint = f'{unknown.hint}; what is your own goes into "metadata"'
            raise InvalidOption(f"{where}: {unknown.message}", hint=hint)
    id_ = given.get("id")
    id_ = number if id_ is None else id_
    if isinstance(id_, bool) or not isinstance(id_, (str, int)):
        raise InvalidOption(f"{where}: id is a text or a whole number, not {id_!r}")
    parts = common.added({part: given[part] for part in _PARTS if given.get(part) is not None})
    return Entry(id=str(id_), where=where, metadata=given.get("metadata"), parts=parts)
