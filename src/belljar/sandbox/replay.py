"""Run a record again, and report what differs.

    replay = belljar.replay("session.jsonl")
    print(replay.same, replay)

The code runs in fresh sandboxes, like any other code. The recorded environment is used only if the
caller knows it, because its packages are imported outside of any sandbox, and a record may come
from anywhere.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from belljar.environment.environment import BUILTIN, Environment, resolve
from belljar.environment.requirement import hide_secrets
from belljar.errors import InvalidOption
from belljar.files.script import Script, make_input
from belljar.limits import Limits
from belljar.record.comparison import Difference, compare_cells
from belljar.record.reader import Cell, Record, Session, read
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
    """The result of running a record again."""

    record: Record
    cells: tuple[ReplayedCell, ...]  # those that were compared
    commands: tuple[ReplayedCommand, ...]
    notes: tuple[str, ...]  # what is not as it was recorded, in sentences

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
        compared = [(f"cell {each.recorded.number}", each.differences) for each in self.cells]
        compared += [(f"command, line {each.line}", each.differences) for each in self.commands]
        for name, differences in compared:
            what = ", ".join(each.what for each in differences)
            lines.append(f"{name}: {f'differs: {what}' if what else 'same'}")
            lines += [str(each) for each in differences]
        return printable("\n".join(lines))


def _differ(cells: Iterable[ReplayedCell], commands: Iterable[ReplayedCommand]) -> bool:
    return any(cell.differences for cell in cells) or any(each.differences for each in commands)


def _plain(differences: tuple[Difference, ...]) -> dict[str, object]:
    listed = [
        {"what": each.what, "recorded": each.recorded, "replayed": each.replayed}
        for each in differences
    ]
    return {"same": not differences, "differences": listed}


# The limits that a record may have without being trusted.
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
    replaying = _Replaying(
        record=record if isinstance(record, Record) else read(record),
        environment=None if environment is None else resolve(environment),
        known=known,
        trust_environment=trust_environment,
        limits=limits or {},
        env=options.check_texts("env", env),
        functions=functions or {},
        backend=backend,
        strict=strict,
        timeout=options.check_timeout(timeout, None),
        wanted=cells,
        exact=exact,
        stop_at_first=stop_at_first,
        on_cell=on_cell,
    )
    return replaying.run()


@dataclass(kw_only=True)
class _Replaying:
    """What the caller asked for, and what was done so far."""

    record: Record
    environment: Environment | None
    known: Mapping[str, Environment]
    trust_environment: bool
    limits: Mapping[str, object]
    env: Mapping[str, str]
    functions: Mapping[str, Callable[..., object]]
    backend: str
    strict: bool | None
    timeout: float | None
    wanted: Collection[int] | None  # numbers of cells; None: all
    exact: bool
    stop_at_first: bool
    on_cell: Callable[[ReplayedCell], object] | None
    cells: list[ReplayedCell] = field(default_factory=list)
    commands: list[ReplayedCommand] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def run(self) -> Replay:
        record = self.record
        numbers = {cell.number for cell in record.cells}
        self._chosen = numbers if self.wanted is None else set(self.wanted)
        if missing := self._chosen - numbers:
            raise InvalidOption(
                f"there is no cell {min(missing)} in {str(record.path)!r}",
                hint=f"it has {len(numbers)} cells",
            )
        # Every environment is looked up before anything is run.
        environments = {each.id: self._find_environment(each) for each in record.sessions}
        for session in record.sessions:
            if self._has_work(session) and not self._enough():
                self._run(session, environments[session.id])
        return Replay(
            record=record,
            cells=tuple(self.cells),
            commands=tuple(self.commands),
            notes=tuple(self.notes),
        )

    def _has_work(self, session: Session) -> bool:
        """If the caller chose cells, a session without a chosen cell is not run."""
        if self.wanted is None:
            return bool(session.steps)
        return any(cell.number in self._chosen for cell in session.cells)

    def _enough(self) -> bool:
        return self.stop_at_first and _differ(self.cells, self.commands)

    def _run(self, session: Session, environment: Environment) -> None:
        self._note_what_is_missing(session)
        last = max((c.number for c in session.cells if c.number in self._chosen), default=0)
        with Sandbox(
            backend=self.backend,
            environment=environment,
            limits=self._limits(session).replace(**self.limits),
            env=self.env,
            functions=self.functions,
            strict=self.strict,
            workdir=session.workdir,
        ) as sandbox:
            events = Events(sandbox, self.env, exact=self.exact, longest=self._longest)
            for step in session.steps:
                if isinstance(step, Cell):
                    if self.wanted is not None and step.number > last:
                        break
                    self._cell(sandbox, step, events)
                else:
                    events.play(step)
                    self.commands += events.commands
                    events.commands.clear()
                if self._enough():
                    break
            self.notes += events.notes

    def _limits(self, session: Session) -> Limits:
        """The recorded limits. A record may come from anywhere, so high ones are lowered."""
        if self.trust_environment:
            return session.limits
        lower: dict[str, object] = {}
        for name, most in _MODERATE.items():
            recorded = getattr(session.limits, name)
            if name not in self.limits and (recorded is None or recorded > most):
                lower[name] = most
        if lower:
            names = ", ".join(lower)
            self.notes.append(f"limits were lowered, because the record is not trusted: {names}")
        return session.limits.replace(**lower)

    @property
    def _longest(self) -> float:
        """Seconds that a single cell or command may ask for."""
        return math.inf if self.trust_environment else _MODERATE["timeout"]

    def _cell(self, sandbox: Sandbox, cell: Cell, events: Events) -> None:
        """Also runs a cell that was not chosen, for the variables it leaves."""
        replayed: Execution | None = None
        context = None if cell.context is None else events.find_context(cell.context)
        absent = next((part for part in ("code", "stdin") if part in cell.left_out), None)
        if absent is not None:
            gone = Difference(what=absent, recorded="not in the record", replayed="not run")
            differences: tuple[Difference, ...] = (gone,)
        elif cell.context is not None and context is None:
            gone = Difference(what="context", recorded=cell.context, replayed="not there, not run")
            differences = (gone,)
        else:
            env = self.env
            recorded = None if cell.timeout is None else min(cell.timeout, self._longest)
            script = Script(
                code=cell.code,
                name=cell.file,
                argv=cell.argv,
                stdin=make_input(cell.stdin),
                csv=cell.csv,
                allow_return=cell.allow_return,
            )
            replayed = sandbox.run_code(
                script,
                timeout=self.timeout or recorded,
                env={name: env[name] for name in cell.env if name in env},
                undo_on_error=cell.undo_on_error,
                notebook=cell.notebook,
                context=context,
            )
            differences = compare_cells(cell, replayed, exact=self.exact)
        if cell.number in self._chosen:
            done = ReplayedCell(recorded=cell, replayed=replayed, differences=differences)
            self.cells.append(done)
            if self.on_cell is not None:
                self.on_cell(done)

    def _note_what_is_missing(self, session: Session) -> None:
        names = {*session.env, *(name for cell in session.cells for name in cell.env)}
        if variables := sorted(names - set(self.env)):
            self.notes.append(
                f"the values of environment variables are not recorded, and were not given: "
                f"{', '.join(variables)}"
            )
        if session.host_files:
            self.notes.append(
                f"files of the host are not in a record: {', '.join(session.host_files)}"
            )
        if functions := sorted(set(session.functions) - set(self.functions)):
            self.notes.append(
                f"functions of the host are not in a record, and were not given: "
                f"{', '.join(functions)}"
            )

    def _find_environment(self, session: Session) -> Environment:
        if self.environment is not None:
            return self.environment
        recorded = session.environment
        known = self.known.get(recorded.name)
        if known is not None:
            if sorted(map(hide_secrets, known.packages)) != sorted(recorded.packages):
                self.notes.append(
                    f"the environment {recorded.name!r} had other packages when this was recorded"
                )
            return known
        if not self.trust_environment:
            raise InvalidOption(
                f"the record was made in an environment of its own, {recorded.name!r}",
                hint="give environment=Environment(...), or trust_environment=True if you know "
                "where the record comes from: packages are imported outside of any sandbox",
            )
        return Environment(
            recorded.name,
            packages=recorded.packages,
            python=recorded.python,
            preload=recorded.preload,
            warmup=recorded.warmup,
            allow_builds=recorded.allow_builds,
        )
