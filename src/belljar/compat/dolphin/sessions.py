"""Live sessions: one sandbox for each directory, shared by all who name it in this process."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from belljar import runtime
from belljar.compat import where
from belljar.compat.dolphin import variables_left
from belljar.compat.dolphin.variables_left import Known
from belljar.errors import CannotTravel, InvalidOption, SandboxClosed, SandboxError
from belljar.results import ending
from belljar.results.execution import Execution, Outcome
from belljar.sandbox.blocking import Sandbox
from belljar.sandbox.options import check_name

log = logging.getLogger(__name__)

SESSION_KEY = "__sandbox_session_id__"  # where a context keeps which session is its own
NOT_VARIABLES = (SESSION_KEY, "__builtins__")


class Session:
    """A sandbox that is started when code comes, and anew when it has gone."""

    def __init__(self, directory: Path, options: Mapping[str, Any]) -> None:
        self.directory = directory
        self.options = dict(options)
        self._sandbox: Sandbox | None = None
        self._known = Known()
        self._turn = threading.RLock()
        self._unused: weakref.finalize[..., Any] | None = None  # ends what was started ahead
        self.users = 0

    def start_ahead(self) -> None:
        """Start the sandbox in the background, before there is code for it. If there never is,
        it ends with this object."""
        if not self._turn.acquire(blocking=False):
            return  # it is being used
        try:
            if self._sandbox is not None or len(_ahead) >= MOST_AHEAD:
                return
            self._sandbox = Sandbox(**self.options)
            self._unused = weakref.finalize(self, _end, self._sandbox)
            self._unused.atexit = False  # the runtime itself ends everything then
            _ahead.add(self)
            where.start_ahead(self._sandbox)
        except SandboxError as error:  # it is said when there is code
            log.debug("session %s: %s", self.directory.name, error)
        finally:
            self._turn.release()

    def _begin(self) -> Sandbox:
        """The sandbox, which is used from now on."""
        if self._sandbox is None:
            self._sandbox = Sandbox(**self.options)
        if self._unused is not None:
            self._unused.detach()
            self._unused = None
            _ahead.discard(self)
        return self._sandbox

    def run(
        self,
        code: str,
        context: Mapping[str, object] | None,
        *,
        fill: dict[str, Any] | None = None,
    ) -> str:
        """The output of the code, and after it what went wrong, if anything did. `fill`: the
        context again, if it is to have the variables that the code has left."""
        with self._turn:
            begun = self._unused is None
            try:
                return self._run(code, context, fill)
            except SandboxClosed:
                # Idle for too long, or its process has forked: a new one, and it is said.
                self._sandbox, self._known = None, Known()
                output = self._run(code, context, fill)
                return output + "[the session was started anew]\n" if begun else output

    def _run(
        self, code: str, context: Mapping[str, object] | None, fill: dict[str, Any] | None
    ) -> str:
        sandbox = self._begin()
        known, self._known = self._known, Known()  # nothing is known, if this fails
        variables = _variables(context)
        if fill is not None:
            variables = known.changed(variables)
        if variables:
            sandbox.put(**variables)
        written: list[str] = []
        execution = sandbox.run_code(code, on_stdout=written.append, on_stderr=written.append)
        if fill is not None and execution.state_preserved:
            known.fill(fill, variables_left.fetch(sandbox))
            self._known = known
        return said("".join(written), execution, str(self.options["limits"]["memory"]))

    def close(self) -> None:
        """The variables are gone, the files stay. May be called twice."""
        with self._turn:
            if self._sandbox is None:
                return
            sandbox = self._begin()
            self._sandbox, self._known = None, Known()
        sandbox.close()


def _variables(context: Mapping[str, object] | None) -> dict[str, object]:
    """What a context gives to the code: its entries, and itself under the name `context`."""
    if context is None:
        return {}
    if not isinstance(context, Mapping):
        raise InvalidOption(f"context is a dict of variables, not {type(context).__name__}")
    found = {name: value for name, value in context.items() if name not in NOT_VARIABLES}
    for name in found:
        check_name(name)
    return {**found, "context": found} if found else {}


def said(output: str, execution: Execution, memory: str) -> str:
    """Output first, then the failure under its prefix, then our remarks."""
    if failure := _failure(execution, memory):
        output = f"{_line(output)}EXECUTION ERROR:\n{failure}"
    for note in execution.notes:
        if note.startswith("value is None"):
            continue  # a script has no value, so nobody misses it
        output = f"{_line(output)}[{note}]\n"
    return output


def _line(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def _failure(execution: Execution, memory: str) -> str:
    lost = "" if execution.state_preserved else " The variables of this session are gone."
    match execution.outcome:
        case Outcome.ok:
            return ""
        case Outcome.exit if execution.exit_code in (0, None):
            return ""
        case Outcome.error if execution.error is not None:
            return _line(execution.error.traceback)
        case Outcome.timeout:
            took = f"{execution.usage.wall:.0f} seconds"
            return f"Execution timed out after {took}, and was stopped.{lost}\n"
        case Outcome.out_of_memory:
            return f"Out of memory: the code wanted more than memory_limit={memory}.{lost}\n"
        case _:
            return f"{ending.sentence(execution, 'the code')}.{lost}\n"


# -- who shares which -----------------------------------------------------------------------

MOST_AHEAD = 2  # sandboxes that are started before there is code for them

_lock = threading.RLock()
_sessions: weakref.WeakValueDictionary[Path, Session] = weakref.WeakValueDictionary()
_ahead: weakref.WeakSet[Session] = weakref.WeakSet()


def enter(directory: Path, options: Mapping[str, Any]) -> Session:
    """The live session of this directory, or a new one. Raises ValueError if it is in use with
    other options: two sandboxes cannot have one directory."""
    with _lock:
        session = _sessions.get(directory)
        if session is None:
            session = _sessions[directory] = Session(directory, options)
        elif session.options != dict(options):
            raise ValueError(
                f"session {directory.name!r} is in use with other options; close it first"
            )
        session.users += 1
        return session


def start_ahead(directory: Path, options: Mapping[str, Any]) -> Session | None:
    """Start the sandbox of this directory's session in the background, and return the session.

    None if the session is in use with other options; entering it raises the error."""
    with _lock:
        session = _sessions.get(directory)
        if session is None:
            session = _sessions[directory] = Session(directory, options)
        elif session.options != dict(options):
            return None
    session.start_ahead()
    return session


def forget(session: Session) -> None:
    """End a session that was started ahead, unless it is in use."""
    with _lock:
        if session.users:
            return
    session.close()


def _end(sandbox: Sandbox) -> None:
    """For a session that nobody has any more, and nobody has used."""
    inner = sandbox._sandbox

    async def kill() -> None:
        try:
            await inner.kill()
        except SandboxError as error:
            log.debug("sandbox %s: %s", inner.id, error)  # it ends with the runtime at the latest

    if inner._lifecycle.pid == os.getpid():  # else it is the parent's
        runtime.current().submit(kill)


def leave(session: Session) -> None:
    """The last one out ends the sandbox."""
    with _lock:
        session.users -= 1
        if session.users > 0:
            return
        if _sessions.get(session.directory) is session:
            del _sessions[session.directory]
    session.close()


def problem(error: SandboxError) -> str:
    """What Belljar could not do, as text for the caller of the code."""
    if isinstance(error, CannotTravel):
        return f"ERROR:\nthe context cannot go into the sandbox: {error}\n"
    return f"ERROR:\n{error}\n"


def _after_fork() -> None:
    """The sandboxes are the parent's."""
    global _lock, _sessions, _ahead
    _lock, _sessions = threading.RLock(), weakref.WeakValueDictionary()
    _ahead = weakref.WeakSet()


os.register_at_fork(after_in_child=_after_fork)
