"""Reading an audit log: its last line, the files it was moved aside to, whether it is whole."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from belljar.errors import InvalidOption
from belljar.observe.audit_line import FIRST, SCHEMA, digest

LONGEST = 16 * 1024 * 1024  # of a line that is read; ours are far shorter


@dataclass(frozen=True, kw_only=True)
class Damage:
    """One thing that is wrong with the log."""

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
    """Follow the chain from the first line to the last, through the files moved aside as well.

    `head`: the hash that the last line must have, or one of the lines before it, as `Audit.head`
    gave it at some time: finds also that lines were cut off at the end.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidOption(f"an audit log is a path, not {path!r}")
    base = Path(path).expanduser().absolute()
    files = [*rotated(base), *([base] if base.exists() else [])]
    if not files:
        raise InvalidOption(f"there is no audit log {str(base)!r}")
    damage: list[Damage] = []
    # What is before the oldest file may have been removed on purpose: then it begins anywhere.
    expected = FIRST if not _was_cut(base, files) else None
    number, total, seen_head = None if expected is None else 0, 0, head is None
    last = FIRST
    for file in files:
        with open(file, "rb") as stream:
            for place, line in enumerate(_lines(stream), 1):
                total += 1
                for problem in _problems(line, expected, number):
                    damage.append(Damage(file=str(file), line=place, problem=problem))
                expected = last = digest(line, key)
                number = sequence_of(line) or (None if number is None else number + 1)
                seen_head = seen_head or last == head
    if not seen_head:
        damage.append(
            Damage(file=str(base), line=0, problem="the line that was the last once is missing")
        )
    return Verified(files=tuple(map(str, files)), lines=total, head=last, damage=tuple(damage))


def _problems(line: bytes, expected: str | None, number: int | None) -> Iterator[str]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        yield "it is no JSON: torn by a crash, or changed"
        return
    if not isinstance(record, dict) or record.get("v") != SCHEMA:
        yield f"it is not of schema {SCHEMA}"
        return
    if expected is not None and record.get("prev") != expected:
        yield "the line before was changed, or lines are missing before it"
    elif number is not None and record.get("seq") != number + 1:
        yield f"it is number {record.get('seq')!r}, not {number + 1}"


def rotated(path: Path) -> list[Path]:
    """The files that it was moved aside to, the oldest first."""
    form = re.compile(re.escape(path.name) + r"\.([0-9]{6,})")
    found = [
        (int(match[1]), each)
        for each in (path.parent.iterdir() if path.parent.is_dir() else ())
        if (match := form.fullmatch(each.name))
    ]
    return [each for _, each in sorted(found)]


def _was_cut(base: Path, files: list[Path]) -> bool:
    """Whether the oldest files are gone, as where only the last ones are kept."""
    first = files[0]
    if first == base:
        return False
    return first.name != f"{base.name}.000001"


def tail(descriptor: int, size: int) -> tuple[list[bytes], bool]:
    """The last lines without their newlines, one at least if there is any; and whether the last
    one lacks it."""
    data, start = b"", size
    while start > 0 and b"\n" not in data[:-1] and len(data) < LONGEST:
        step = min(start, 256 * 1024)
        start -= step
        data = os.pread(descriptor, step, start) + data
    if not data:
        return [], False
    lines = data.removesuffix(b"\n").split(b"\n")
    # Unless it began at the beginning, the first one may be half a line.
    return (lines[1:] if start > 0 and len(lines) > 1 else lines), not data.endswith(b"\n")


def last_sequence(lines: list[bytes]) -> int:
    """The number that the last of these lines has, or would have if it was torn."""
    for behind, line in enumerate(reversed(lines)):
        if number := sequence_of(line):
            return number + behind
    return 0


def sequence_of(line: bytes) -> int:
    """The number of a line; 0 of one that does not say it."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return 0
    number = found.get("seq") if isinstance(found, dict) else 0
    return number if type(number) is int else 0


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    while line := stream.readline(LONGEST):
        yield line.removesuffix(b"\n")
