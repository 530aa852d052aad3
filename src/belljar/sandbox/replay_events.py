"""Repeats what was done with a recorded sandbox besides running cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from belljar.errors import SandboxClosed, SandboxError, StartError
from belljar.protocol import values
from belljar.record.comparison import Difference, compare_commands
from belljar.record.parse import Malformed, Reader, load_command
from belljar.record.reader import Event
from belljar.results.execution import CommandResult

if TYPE_CHECKING:
    from belljar.sandbox.blocking import Sandbox
    from belljar.sandbox.contexts import Context


@dataclass(frozen=True, kw_only=True)
class ReplayedCommand:
    """A command that was run again."""

    line: int  # of the record
    command: str | tuple[str, ...]
    recorded: CommandResult
    replayed: CommandResult
    differences: tuple[Difference, ...]


class _Impossible(Exception):
    """Why an event cannot be repeated."""


class Events:
    """The events of one session, in one sandbox."""

    def __init__(
        self, sandbox: Sandbox, env: Mapping[str, str], *, exact: bool, longest: float
    ) -> None:
        """`longest`: seconds that a command may ask for."""
        self._sandbox = sandbox
        self._longest = longest
        self._env = env
        self._exact = exact
        self._rollbacks: dict[str, Callable[[], object]] = {}  # by the recorded checkpoint
        self._contexts: dict[str, Context] = {}  # by the recorded id
        self.commands: list[ReplayedCommand] = []
        self.notes: list[str] = []  # what could not be done, in sentences

    def play(self, event: Event) -> None:
        """Repeat it, or note why it cannot be repeated: cells that need it will differ."""
        files = self._sandbox.files
        known: dict[str, Callable[[Reader], object]] = {
            "rejected": lambda fields: None,  # nothing ran
            "restart": lambda fields: self._sandbox.restart(),
            "checkpoint": self._checkpoint,
            "rollback": self._rollback,
            "context": self._context,
            "put": self._put,
            "write": self._write,
            "remove": lambda fields: files.remove(fields.get("path", str)),
            "make_dir": lambda fields: files.make_dir(fields.get("path", str)),
            "rename": lambda fields: files.rename(fields.get("old", str), fields.get("new", str)),
            "command": lambda fields: self._command(fields, event.line),
        }
        if event.kind not in known:
            self._note(event, "this version does not know such events")
            return
        try:
            known[event.kind](Reader(event.fields))
        except (SandboxClosed, StartError):
            raise
        except SandboxError as error:
            self._note(event, error.message)
        except (_Impossible, Malformed, values.CannotTravel) as error:
            self._note(event, str(error))

    def _note(self, event: Event, why: str) -> None:
        self.notes.append(f"line {event.line}: {event.kind!r} could not be repeated: {why}")

    def _checkpoint(self, fields: Reader) -> None:
        checkpoint = self._sandbox.checkpoint()
        self._rollbacks[fields.get("id", str)] = lambda: self._sandbox.rollback(checkpoint)

    def _rollback(self, fields: Reader) -> None:
        id = fields.get("id", str)
        if id not in self._rollbacks:
            raise _Impossible(f"the record has no checkpoint {id!r} before it")
        self._rollbacks[id]()

    def _context(self, fields: Reader) -> None:
        id, operation = fields.get("id", str), fields.get("op", str)
        contexts = self._sandbox.contexts
        if operation == "create":
            name, cwd = fields.optional("name", str), fields.get("cwd", str)
            self._contexts[id] = contexts.create(name, cwd=cwd)
        elif operation == "restart":
            contexts.restart(self._get_context(id))
        elif operation == "remove":
            contexts.remove(self._get_context(id))
        else:
            raise _Impossible(f"this version does not know {operation!r}")

    def find_context(self, id: str) -> Context | None:
        """The context of the replay for that of the record; None if it is not there."""
        context = self._contexts.get(id)
        return context if context in self._sandbox.contexts.list() else None

    def _get_context(self, id: str) -> Context:
        context = self.find_context(id)
        if context is None:
            raise _Impossible(f"there is no context {id!r}")
        return context

    def _put(self, fields: Reader) -> None:
        absent = []
        id = fields.optional("context", str)
        context = None if id is None else self._get_context(id)
        given = fields.below("values")
        for name in given.line:
            blob = given.content(name)
            if blob is None:
                absent.append(name)
            else:
                plain = values.Reception(lenient=True)
                self._sandbox.set(name, values.decode(blob, reception=plain), context=context)
        if absent:
            raise _Impossible(f"the values of {', '.join(absent)} were too large for the record")

    def _write(self, fields: Reader) -> None:
        path, content = fields.get("path", str), fields.content("content")
        if content is None:
            raise _Impossible(f"the content of {path!r} was too large for the record")
        self._sandbox.files.write(path, content)

    def _command(self, fields: Reader, line: int) -> None:
        many = isinstance(fields.line.get("cmd"), list)
        command = fields.texts("cmd") if many else fields.get("cmd", str)
        stdin = None if fields.line.get("stdin") is None else fields.content("stdin")
        if "stdin" in fields.left_out:
            raise _Impossible("its standard input was too large for the record")
        recorded = load_command(fields)
        timeout = fields.optional("timeout", float)
        replayed = self._sandbox.commands.run(
            command,
            cwd=fields.optional("cwd", str),
            timeout=None if timeout is None else min(timeout, self._longest),
            env={name: self._env[name] for name in fields.texts("env") if name in self._env},
            stdin=stdin,
        )
        self.commands.append(
            ReplayedCommand(
                line=line,
                command=command,
                recorded=recorded,
                replayed=replayed,
                differences=compare_commands(
                    recorded, replayed, fields.left_out, exact=self._exact
                ),
            )
        )
