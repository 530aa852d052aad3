"""Read a record: its sessions, and in each the cells and events in their order."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from belljar.backends.mounts import WORKSPACE
from belljar.errors import InvalidOption
from belljar.limits import RULES, Limits
from belljar.record.format import FORMAT, MAX_LINE, MAX_RECORD, VERSION
from belljar.record.parse import Malformed, Reader, load_execution
from belljar.results.execution import Execution
from belljar.text import parse_json

_HEADER = re.compile(rb'\s*\{[^{}]{0,400}"format":\s*"%s"' % FORMAT.encode())


@dataclass(frozen=True, kw_only=True)
class RecordedEnvironment:
    """The description of an environment. Build it only if you trust the record: code that it
    preloads runs outside any sandbox."""

    name: str
    packages: tuple[str, ...]
    python: str | None
    preload: tuple[str, ...]
    warmup: str = ""
    allow_builds: bool = False


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell as it was recorded."""

    number: int  # 1 is the first of the record
    line: int  # of the file
    code: str
    execution: Execution
    timeout: float | None  # as the caller gave it
    env: tuple[str, ...]  # names of the variables set for this cell
    undo_on_error: bool = False
    file: str | None  # the name of the file with the code
    argv: tuple[str, ...] | None  # sys.argv, if it was set
    stdin: bytes | None  # what it read from standard input, if it had one
    csv: bool = False  # whether its tables were sent as CSV, too
    allow_return: bool = False  # whether its code could `return` at the top level
    notebook: bool = False  # whether it could be written as for a notebook
    context: str | None = None  # the id of its interpreter; None: the sandbox's own
    began: float  # seconds since the epoch
    left_out: Mapping[str, str]  # place in the line -> SHA-256 of what was too large


@dataclass(frozen=True, kw_only=True)
class Event:
    """Another operation on the sandbox."""

    kind: str
    line: int
    began: float
    fields: Mapping[str, object]  # as they are in the file


@dataclass(frozen=True, kw_only=True)
class Session:
    """One sandbox, from its start."""

    id: str
    line: int
    belljar: str = "?"  # the version that wrote it
    sandbox: str = "?"
    backend: str = "auto"
    environment: RecordedEnvironment
    limits: Limits
    env: tuple[str, ...]  # names; a record does not have the values
    functions: tuple[str, ...]  # names
    metadata: Mapping[str, str]
    host_files: tuple[str, ...]  # paths in the guest at which it saw files of the host
    workdir: str = WORKSPACE
    began: float
    steps: tuple[Cell | Event, ...] = ()
    closed: bool = False  # the record has its end

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(step for step in self.steps if isinstance(step, Cell))


@dataclass(frozen=True, kw_only=True)
class Record:
    path: Path
    sessions: tuple[Session, ...]
    notes: tuple[str, ...]  # sentences about oddities of the file

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(cell for session in self.sessions for cell in session.cells)


def is_record(file: int) -> bool:
    """True if the file begins as a record does."""
    return _HEADER.match(os.pread(file, 4096, 0)) is not None


def read(path: str | os.PathLike[str]) -> Record:
    """Read a record; raises InvalidOption with the file and the line of an error."""
    source = Path(path)
    reading = _Reading(source)
    try:
        # O_NONBLOCK: opening a pipe without a writer would block.
        file = os.fdopen(os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidOption(f"cannot read the record {str(source)!r}: {reason}") from error
    with file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise InvalidOption(f"{str(source)!r} is not a regular file")
        if not is_record(file.fileno()):
            raise InvalidOption(
                f"{str(source)!r} is not a record",
                hint="Sandbox(record=...) and `belljar run --record FILE` write records",
            )
        for number, line in _lines(file, source):
            reading.take(number, line)
    return reading.done()


def _lines(file: IO[bytes], path: Path) -> Iterator[tuple[int, bytes]]:
    number, size = 0, 0
    while line := file.readline(MAX_LINE + 1):
        number, size = number + 1, size + len(line)
        if len(line) > MAX_LINE:
            raise _line_error(path, number, f"it is longer than {MAX_LINE >> 20} MiB")
        if size > MAX_RECORD:
            raise _line_error(path, number, f"the record has more than {MAX_RECORD >> 20} MiB")
        if line.strip():
            yield number, line


def _line_error(path: Path, line: int, why: str) -> InvalidOption:
    return InvalidOption(f"{str(path)!r}, line {line}: {why}")


class _Reading:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._sessions: dict[str, Session] = {}
        self._steps: dict[str, list[Cell | Event]] = {}
        self._notes: list[str] = []
        self._cells = 0
        # Line and error of an incomplete line: allowed at the end, or before a new session.
        self._torn: tuple[int, str] | None = None

    def take(self, number: int, line: bytes) -> None:
        try:
            parsed = parse_json(line)
            if not isinstance(parsed, dict):
                raise ValueError("it is not an object")
        except (ValueError, RecursionError) as error:
            self._refuse_torn()
            self._torn = number, str(error)
            return
        reader = Reader(parsed)
        try:
            kind = reader.get("kind", str)
            if kind == "session":
                self._accept_torn()
                self._begin(number, reader)
            else:
                self._refuse_torn()
                self._step(number, kind, reader)
        except (Malformed, InvalidOption) as error:
            raise _line_error(self._path, number, str(error)) from error

    def done(self) -> Record:
        self._accept_torn()
        sessions = tuple(
            replace(session, steps=tuple(self._steps[session.id]))
            for session in self._sessions.values()
        )
        return Record(path=self._path, sessions=sessions, notes=tuple(self._notes))

    def _begin(self, number: int, line: Reader) -> None:
        if line.get("format", str) != FORMAT:
            raise Malformed(f"the format is not {FORMAT!r}")
        version = line.get("version", int)
        if version != VERSION:
            raise Malformed(
                f"version {version} of the format is unknown; this Belljar reads {VERSION}"
            )
        session = line.make(
            Session,
            id=line.get("session", str),
            line=number,
            environment=line.below("environment").make(RecordedEnvironment),
            limits=self._limits(number, line),
            metadata=line.mapping("metadata") if "metadata" in line.line else {},
            began=line.get("at", float, 0.0),
            steps=(),
            closed=False,
        )
        if session.id in self._sessions:
            raise Malformed(f"the session {session.id!r} has already started")
        self._sessions[session.id] = session
        self._steps[session.id] = []

    def _limits(self, number: int, line: Reader) -> Limits:
        """The explicit limits, and those whose default was another one."""
        given = line.below("limits").line
        explicit = line.texts("explicit_limits")
        for name in given:
            if name not in RULES:
                self._notes.append(f"line {number}: this Belljar has no limit {name!r}")
        return Limits.coerce(
            {
                name: value
                for name, value in given.items()
                if name in RULES and (name in explicit or value != RULES[name].default)
            }
        )

    def _step(self, number: int, kind: str, line: Reader) -> None:
        id = line.get("session", str)
        if id not in self._sessions:
            raise Malformed(f"the session {id!r} has not started")
        began = line.get("at", float, 0.0)
        if kind == "end":
            self._sessions[id] = replace(self._sessions[id], closed=True)
        elif kind == "cell":
            self._cells += 1
            cell = line.make(
                Cell,
                number=self._cells,
                line=number,
                code=line.text("code"),
                execution=load_execution(line),
                argv=line.texts("argv") if "argv" in line.line else None,
                stdin=line.content("stdin") if "stdin" in line.line else None,
                began=began,
                left_out=line.left_out,
            )
            self._steps[id].append(cell)
        else:
            event = Event(kind=kind, line=number, began=began, fields=line.line)
            self._steps[id].append(event)

    def _accept_torn(self) -> None:
        if self._torn is not None:
            self._notes.append(
                f"line {self._torn[0]} is incomplete: its writer was stopped in the middle"
            )
            self._torn = None

    def _refuse_torn(self) -> None:
        if self._torn is not None:
            raise _line_error(self._path, self._torn[0], f"it is not JSON: {self._torn[1]}")
