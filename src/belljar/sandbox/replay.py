"""Run a record again, and tell what differs.

    replay = belljar.replay("session.jsonl")
    print(replay.same, replay)

The code runs in fresh sandboxes, like any other code. What a record says about its environment is
followed only if the caller knows that environment, because its packages are imported outside of
any sandbox, and a record may come from anywhere.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from belljar.environment.environment import BUILTIN, Environment, resolve
from belljar.environment.requirement import hide_secrets
from belljar.errors import InvalidOption
from belljar.files.script import Script, make_input
from belljar.limits import Limits
from belljar.record.comparison import Difference, compare_cells
from belljar.record.reader import Cell, Record, RecordedEnvironment, Session, read
from belljar.results.execution import Execution
from belljar.sandbox import options
from belljar.sandbox.blocking import Sandbox
from belljar.sandbox.replay_events import Events, ReplayedCommand
from belljar.text import printable


@dataclass(frozen=True, kw_only=True)
class ReplayedCell:
    """A cell that was run again."""

    recorded: Cell
    replayed: Execution | None  # None: its code or its input is not in the record
    differences: tuple[Difference, ...]

    @property
    def same(self) -> bool:
        return not self.differences


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What came of running a record again."""

    record: Record
    cells: tuple[ReplayedCell, ...]  # those that were compared
    commands: tuple[ReplayedCommand, ...]
    notes: tuple[str, ...]  # what could not be as it was, in sentences

    @property
    def same(self) -> bool:
        """Nothing that was compared differs."""
        return not _differ(self.cells, self.commands)

    def to_dict(self) -> dict[str, object]:
        """Give plain data that JSON can carry."""
        return {
            "same": self.same,
            "cells": [
                {
                    "number": each.recorded.number,
                    "line": each.recorded.line,
                    "code": each.recorded.code,
                    **_plain(each.differences),
                    "wall": {
                        "recorded": each.recorded.execution.usage.wall,
                        "replayed": each.replayed.usage.wall if each.replayed else None,
                    },
                }
                for each in self.cells
            ],
            "commands": [
                {"line": each.line, "command": each.command, **_plain(each.differences)}
                for each in self.commands
            ],
            "notes": [*self.record.notes, *self.notes],
        }

    def __str__(self) -> str:
        lines = [f"[{note}]" for note in (*self.record.notes, *self.notes)]
        for cell in self.cells:
            what = ", ".join(each.what for each in cell.differences)
            lines.append(f"cell {cell.recorded.number}: {f'differs: {what}' if what else 'same'}")
            lines += [str(each) for each in cell.differences]
        for command in self.commands:
            what = ", ".join(each.what for each in command.differences)
            lines.append(f"command, line {command.line}: {f'differs: {what}' if what else 'same'}")
            lines += [str(each) for each in command.differences]
        return printable("\n".join(lines))


def _differ(cells: Iterable[ReplayedCell], commands: Iterable[ReplayedCommand]) -> bool:
    return any(cell.differences for cell in cells) or any(each.differences for each in commands)


def _plain(differences: tuple[Difference, ...]) -> dict[str, object]:
    listed = [
        {"what": each.what, "recorded": each.recorded, "replayed": each.replayed}
        for each in differences
    ]
    return {"same": not differences, "differences": listed}


# What a record may ask of this host without being trusted.
_MODERATE: dict[str, float] = {
    "memory": 2 * 2**30,
    "cpus": 2.0,
    "processes": 256,
    "open_files": 4096,
    "workspace": 2**30,
    "tmp": 2**30,
    "output": 64 * 2**20,
    "timeout": 600.0,
    "host_time": 600.0,
}


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """How to run it, as the caller asked."""

    environment: Environment | None
    known: Mapping[str, Environment]
    trust_environment: bool
    limits: Mapping[str, object]
    env: Mapping[str, str]
    functions: Mapping[str, Callable[..., object]]
    backend: str
    strict: bool | None
    timeout: float | None
    cells: Collection[int] | None
    exact: bool
    stop_at_first: bool
    on_cell: Callable[[ReplayedCell], object] | None


def replay(
    record: str | os.PathLike[str] | Record,
    *,
    environment: str | Environment | None = None,
    trust_environment: bool = False,
    limits: Limits | Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    functions: Mapping[str, Callable[..., object]] | None = None,
    backend: str = "auto",
    strict: bool | None = None,
    timeout: float | None = None,
    cells: Collection[int] | None = None,
    exact: bool = False,
    stop_at_first: bool = False,
    on_cell: Callable[[ReplayedCell], object] | None = None,
    known: Mapping[str, Environment] = BUILTIN,
) -> Replay:
    """Run every cell of a record again, in a fresh sandbox for each session, and compare.

    Environment and limits are the recorded ones, changed by what is given here; `timeout` is then
    that of every cell. `known` are the environments a record may name; `trust_environment` builds
    any other one as the record describes it, and takes its limits however high they are. `env`
    and `functions` give what a record cannot hold. `cells`: compare only those numbers, and run
    none after them. `exact` counts addresses and tracebacks too. `on_cell` is called after each
    cell that was compared.
    """
    if isinstance(limits, Limits):
        limits = {name: getattr(limits, name) for name in limits.explicit}
    wanted = _Wanted(
        environment=None if environment is None else resolve(environment),
        known=known,
        trust_environment=trust_environment,
        limits=limits or {},
        env=options.texts("env", env),
        functions=functions or {},
        backend=backend,
        strict=strict,
        timeout=options.check_timeout(timeout, None),
        cells=cells,
        exact=exact,
        stop_at_first=stop_at_first,
        on_cell=on_cell,
    )
    return _Replaying(record if isinstance(record, Record) else read(record), wanted).run()


class _Replaying:
    def __init__(self, record: Record, wanted: _Wanted) -> None:
        self._record = record
        self._wanted = wanted
        self._cells: list[ReplayedCell] = []
        self._commands: list[ReplayedCommand] = []
        self._notes: list[str] = []
        numbers = {cell.number for cell in record.cells}
        chosen = numbers if wanted.cells is None else set(wanted.cells)
        if missing := chosen - numbers:
            raise InvalidOption(
                f"there is no cell {min(missing)} in {str(record.path)!r}",
                hint=f"it has {len(numbers)} cells",
            )
        self._chosen = chosen
        # Every environment is looked up before anything is run.
        self._environments = {each.id: self._environment(each) for each in record.sessions}

    def run(self) -> Replay:
        for session in self._record.sessions:
            if self._has_work(session) and not self._enough():
                self._run(session)
        return Replay(
            record=self._record,
            cells=tuple(self._cells),
            commands=tuple(self._commands),
            notes=tuple(self._notes),
        )

    def _has_work(self, session: Session) -> bool:
        """Without a cell that was chosen it has none, unless nobody chose."""
        if self._wanted.cells is None:
            return bool(session.steps)
        return any(cell.number in self._chosen for cell in session.cells)

    def _enough(self) -> bool:
        return self._wanted.stop_at_first and _differ(self._cells, self._commands)

    def _run(self, session: Session) -> None:
        wanted = self._wanted
        self._note_what_is_missing(session)
        last = max((c.number for c in session.cells if c.number in self._chosen), default=0)
        with self._sandbox(session) as sandbox:
            events = Events(sandbox, wanted.env, exact=wanted.exact, longest=self._longest)
            for step in session.steps:
                if isinstance(step, Cell):
                    if wanted.cells is not None and step.number > last:
                        break
                    self._cell(sandbox, step)
                else:
                    events.play(step)
                    self._commands += events.commands
                    events.commands.clear()
                if self._enough():
                    break
            self._notes += events.notes

    def _sandbox(self, session: Session) -> Sandbox:
        wanted = self._wanted
        return Sandbox(
            backend=wanted.backend,
            environment=self._environments[session.id],
            limits=self._limits(session).replace(**wanted.limits),
            env=wanted.env,
            functions=wanted.functions,
            strict=wanted.strict,
            workdir=session.workdir,
        )

    def _limits(self, session: Session) -> Limits:
        """Those of the record, which may be a stranger's: only so far as they are moderate."""
        if self._wanted.trust_environment:
            return session.limits
        lower: dict[str, object] = {}
        for name, most in _MODERATE.items():
            recorded = getattr(session.limits, name)
            if name not in self._wanted.limits and (recorded is None or recorded > most):
                lower[name] = most
        if lower:
            names = ", ".join(lower)
            self._notes.append(f"recorded with higher limits ({names}), which were not trusted")
        return session.limits.replace(**lower)

    @property
    def _longest(self) -> float:
        """Seconds that a single cell or command may ask for."""
        return math.inf if self._wanted.trust_environment else _MODERATE["timeout"]

    def _cell(self, sandbox: Sandbox, cell: Cell) -> None:
        """One that was not chosen is run all the same, for the variables it leaves."""
        replayed: Execution | None = None
        absent = next((part for part in ("code", "stdin") if part in cell.left_out), None)
        if absent is not None:
            gone = Difference(what=absent, recorded="not in the record", replayed="not run")
            differences: tuple[Difference, ...] = (gone,)
        else:
            env = self._wanted.env
            recorded = None if cell.timeout is None else min(cell.timeout, self._longest)
            script = Script(
                code=cell.code,
                name=cell.file,
                argv=cell.argv,
                stdin=make_input(cell.stdin),
                csv=cell.csv,
            )
            replayed = sandbox.run_code(
                script,
                timeout=self._wanted.timeout or recorded,
                env={name: env[name] for name in cell.env if name in env},
                undo_on_error=cell.undo_on_error,
            )
            differences = compare_cells(cell, replayed, exact=self._wanted.exact)
        if cell.number in self._chosen:
            done = ReplayedCell(recorded=cell, replayed=replayed, differences=differences)
            self._cells.append(done)
            if self._wanted.on_cell is not None:
                self._wanted.on_cell(done)

    def _note_what_is_missing(self, session: Session) -> None:
        names = {*session.env, *(name for cell in session.cells for name in cell.env)}
        if variables := sorted(names - set(self._wanted.env)):
            self._notes.append(
                f"the values of environment variables are not recorded, and were not given: "
                f"{', '.join(variables)}"
            )
        if session.host_files:
            self._notes.append(
                f"files of the host are not in a record: {', '.join(session.host_files)}"
            )
        if functions := sorted(set(session.functions) - set(self._wanted.functions)):
            self._notes.append(
                f"functions of the host are not in a record, and were not given: "
                f"{', '.join(functions)}"
            )

    def _environment(self, session: Session) -> Environment:
        if self._wanted.environment is not None:
            return self._wanted.environment
        recorded = session.environment
        known = self._wanted.known.get(recorded.name)
        if known is not None:
            if sorted(map(hide_secrets, known.packages)) != sorted(recorded.packages):
                self._notes.append(
                    f"the environment {recorded.name!r} had other packages when this was recorded"
                )
            return known
        if not self._wanted.trust_environment:
            raise InvalidOption(
                f"the record was made in an environment of its own, {recorded.name!r}",
                hint="give environment=Environment(...), or trust_environment=True if you know "
                "where the record comes from: packages are imported outside of any sandbox",
            )
        return _described(recorded)


def _described(recorded: RecordedEnvironment) -> Environment:
    return Environment(
        recorded.name,
        packages=recorded.packages,
        python=recorded.python,
        preload=recorded.preload,
        warmup=recorded.warmup,
        allow_builds=recorded.allow_builds,
    )
