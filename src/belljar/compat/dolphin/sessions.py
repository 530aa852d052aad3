"""Live sessions: one sandbox per directory, shared by all executors of this process that name it,
and the variables that their code leaves."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from belljar.compat import set_plain
from belljar.compat.placement import HeadStart
from belljar.errors import (
    CannotTravel,
    ExecutionError,
    InvalidOption,
    NameMissing,
    SandboxClosed,
    SandboxError,
)
from belljar.results.execution import Execution, Outcome, describe_end
from belljar.sandbox.blocking import Sandbox
from belljar.sandbox.options import check_name

log = logging.getLogger(__name__)

SESSION_KEY = "__sandbox_session_id__"  # the entry of a context that names its session
NOT_VARIABLES = (SESSION_KEY, "__builtins__")


class Session:
    """A sandbox that starts with the first code, and again after it has ended."""

    def __init__(self, directory: Path, options: Mapping[str, Any]) -> None:
        self.directory = directory
        self.options = dict(options)
        self._sandbox: Sandbox | None = None
        self._head_start: HeadStart | None = None  # until there is code for it
        self._known: dict[str, str] = {}  # see take_changed
        self._turn = threading.RLock()
        self.users = 0

    def start_ahead(self) -> None:
        """Start the sandbox in the background, before there is code for it, unless something must
        be built or fetched. If no code comes, the sandbox ends with this object."""
        if not self._turn.acquire(blocking=False):
            return  # it is being used
        try:
            if self._sandbox or self._head_start or len(_ahead) >= MOST_AHEAD:
                return
            self._head_start = HeadStart([self.options], build=False, preload=False)
            _ahead.add(self._head_start)
        except SandboxError as error:  # the first code meets the same error, and raises it
            log.debug("session %s: no start ahead: %s", self.directory.name, error)
        finally:
            self._turn.release()

    def _get_sandbox(self) -> Sandbox:
        head_start, self._head_start = self._head_start, None
        if head_start is not None:
            try:
                self._sandbox = head_start.take()
            except (SandboxError, OSError) as error:  # if the cause lasts, the next start says it
                log.debug("session %s: the start ahead failed: %s", self.directory.name, error)
        if self._sandbox is None:
            self._sandbox = Sandbox(**self.options)
        return self._sandbox

    def run(
        self,
        code: str,
        context: Mapping[str, object] | None,
        *,
        fill: dict[str, Any] | None = None,
    ) -> str:
        """Return the output of the code, and after it the failure, if there was one. `fill`: the
        context again, if it is to receive the variables that the code has left."""
        with self._turn:
            was_used = self._head_start is None
            try:
                return self._run(code, context, fill)
            except SandboxClosed:
                # It was idle for too long, or this process is a fork: start another, and say so.
                self._sandbox, self._known = None, {}
                output = self._run(code, context, fill)
                return output + "[the session was restarted]\n" if was_used else output

    def _run(
        self, code: str, context: Mapping[str, object] | None, fill: dict[str, Any] | None
    ) -> str:
        sandbox = self._get_sandbox()
        known, self._known = self._known, {}  # if this fails, nothing is known
        variables = _context_variables(context)
        if fill is not None:
            variables = take_changed(known, variables)
        if variables:
            for name, value in variables.items():
                set_plain(sandbox, name, value)
        written: list[str] = []
        execution = sandbox.run_code(code, on_stdout=written.append, on_stderr=written.append)
        if fill is not None and execution.state_preserved:
            self._known = fill_context(fill, known, fetch_variables(sandbox))
        return format_output("".join(written), execution, str(self.options["limits"]["memory"]))

    def close(self) -> None:
        """The variables are gone, the files stay. May be called twice."""
        with self._turn:
            sandbox, self._sandbox = self._sandbox, None
            head_start, self._head_start = self._head_start, None
            self._known = {}
        if head_start is not None:
            head_start.close()
        if sandbox is not None:
            sandbox.close()


def _context_variables(context: Mapping[str, object] | None) -> dict[str, object]:
    """The entries of a context as variables, and all of them under the name `context`."""
    if context is None:
        return {}
    if not isinstance(context, Mapping):
        raise InvalidOption(f"context is a dict of variables, not {type(context).__name__}")
    found = {name: value for name, value in context.items() if name not in NOT_VARIABLES}
    for name in found:
        check_name(name)
    return {**found, "context": found} if found else {}


def format_output(output: str, execution: Execution, memory: str) -> str:
    """Output first, then the failure under its prefix, then Belljar's notes."""
    if failure := _describe_failure(execution, memory):
        output = f"{_end_line(output)}EXECUTION ERROR:\n{failure}"
    for note in execution.notes:
        if note.startswith("value is None"):
            continue  # a script has no value
        output = f"{_end_line(output)}[{note}]\n"
    return output


def _end_line(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def _describe_failure(execution: Execution, memory: str) -> str:
    lost = "" if execution.state_preserved else " The variables of this session are gone."
    match execution.outcome:
        case Outcome.ok:
            return ""
        case Outcome.exit if execution.exit_code in (0, None):
            return ""
        case Outcome.error if execution.error is not None:
            return _end_line(execution.error.traceback)
        case Outcome.timeout:
            took = f"{execution.usage.wall:.0f} seconds"
            return f"Execution timed out after {took}, and was stopped.{lost}\n"
        case Outcome.out_of_memory:
            return f"Out of memory: the code wanted more than memory_limit={memory}.{lost}\n"
        case _:
            return f"{describe_end(execution, 'the code')}.{lost}\n"


# -- sessions that share a directory --------------------------------------------------------

MOST_AHEAD = 2  # sandboxes that are started before there is code for them

_lock = threading.RLock()
_sessions: weakref.WeakValueDictionary[Path, Session] = weakref.WeakValueDictionary()
_ahead: weakref.WeakSet[HeadStart] = weakref.WeakSet()


def find_session(directory: Path, options: Mapping[str, Any]) -> Session | None:
    """The live session of this directory, or a new one; None if it has other options."""
    with _lock:
        session = _sessions.get(directory)
        if session is None:
            session = _sessions[directory] = Session(directory, options)
        return session if session.options == dict(options) else None


def enter_session(directory: Path, options: Mapping[str, Any]) -> Session:
    """`find_session`, for a user. Raises ValueError if the session is in use with other options:
    two sandboxes cannot share one directory."""
    with _lock:
        session = find_session(directory, options)
        if session is None:
            raise ValueError(
                f"session {directory.name!r} is in use with other options; close it first"
            )
        session.users += 1
        return session


def release_session(session: Session, *, entered: bool) -> None:
    """The last user closes the session. `entered` False: it was only started ahead."""
    with _lock:
        session.users -= entered
        if session.users > 0:
            return
        if _sessions.get(session.directory) is session:
            del _sessions[session.directory]
    session.close()


def _after_fork() -> None:
    """The sandboxes belong to the parent."""
    global _lock, _sessions, _ahead
    _lock, _sessions = threading.RLock(), weakref.WeakValueDictionary()
    _ahead = weakref.WeakSet()


os.register_at_fork(after_in_child=_after_fork)

# -- the variables that code leaves, copied into the caller's context ------------------------
# dolphin-mcp's loop hands the same dict to every call, and without Docker the code once ran with it
# as its namespace. Here the variables stay in the sandbox as they are (two names of one list, a
# function that uses it), and the context gets copies of the plain data. What the caller then
# changes in the context goes in with the next call, and nothing else does.

FETCH_TIMEOUT = 10.0  # seconds
MOST_BYTES = 1_000_000  # of one variable, about; larger ones stay in the sandbox
MOST_BYTES_IN_ALL = 8 * MOST_BYTES
LARGEST_INT = 10_000  # bits; Python does not write much larger ones as text
CONTEXT = "context"  # the name of the whole context in the code
_COLLECTED = "__belljar_left__"

# This runs in the sandbox, where the code may have changed anything; it can deceive only itself.
# Only exact types: the methods of a subclass are the code's, and could be called here.
_COLLECT = f"""
def collect(names):
    def size(value, depth=0):
        kind = type(value)
        if kind in (type(None), bool, float, complex):
            return 10
        if kind is int and value.bit_length() <= {LARGEST_INT}:
            return 10
        if kind in (str, bytes):
            return 10 + len(value)
        if kind not in (list, tuple, dict) or depth > 50 or len(value) > {MOST_BYTES}:
            return {MOST_BYTES}
        total = 10
        for each in value.items() if kind is dict else value:
            if kind is dict:
                if type(each[0]) is not str:
                    return {MOST_BYTES}
                total += len(each[0])
                each = each[1]
            total += size(each, depth + 1)
            if total >= {MOST_BYTES}:
                break
        return total
    found, room = {{}}, {MOST_BYTES_IN_ALL}
    for name, value in list(names.items()):
        if type(name) is str and name.isidentifier() and name.strip("_0123456789"):
            if not name.startswith("__") and name != {CONTEXT!r}:
                taken = size(value)
                if taken < {MOST_BYTES} and taken <= room:
                    found[name] = value
                    room -= taken
    return found
"""
_COLLECT_CODE = (
    f"{_COLLECTED} = (lambda _: (exec({_COLLECT!r}, _), _['collect'](globals()))[1])({{}})"
)


def fetch_variables(sandbox: Sandbox) -> dict[str, Any] | None:
    """The plain variables of the sandbox; None if they cannot be read."""
    if not sandbox.run_code(_COLLECT_CODE, timeout=FETCH_TIMEOUT).ok:
        return None
    try:
        found = sandbox.get(_COLLECTED, timeout=FETCH_TIMEOUT)
    except (CannotTravel, NameMissing, ExecutionError) as error:
        log.info("the variables of a session could not be read: %s", error)
        return None
    return found if isinstance(found, dict) else None


def take_changed(known: dict[str, str], variables: Mapping[str, object]) -> dict[str, object]:
    """The variables of a context that the sandbox lacks, or has with another value. They are added
    to `known`: the variables that both have, with the text of each value."""
    news = {
        name: value
        for name, value in variables.items()
        if name != CONTEXT and known.get(name) != _value_text(value)
    }
    known.update((name, _value_text(value)) for name, value in news.items())
    return {**news, CONTEXT: variables[CONTEXT]} if news else {}


def fill_context(
    context: dict[str, Any], known: Mapping[str, str], found: Mapping[str, Any] | None
) -> dict[str, str]:
    """Add what was found to the context, and remove what the code has deleted; return what is known
    then."""
    if found is None:
        return {}
    texts = {name: _value_text(value) for name, value in found.items()}
    for name in known:
        if name not in texts and _is_plain(context.get(name)):
            context.pop(name, None)
    for name, value in found.items():
        if name not in context or _value_text(context[name]) != texts[name]:
            context[name] = value
    return texts


def _value_text(value: object) -> str:
    """The same text for equal plain data of the same types; unique for any other object."""
    return repr(value) if _is_plain(value) else f"<{type(value).__name__} {id(value)}>"


def _is_plain(value: object, depth: int = 0) -> bool:
    if type(value) is int:
        return value.bit_length() <= LARGEST_INT
    if type(value) is dict:
        return depth < 100 and all(
            type(key) is str and _is_plain(each, depth + 1) for key, each in value.items()
        )
    if type(value) is list or type(value) is tuple:
        return depth < 100 and all(_is_plain(each, depth + 1) for each in value)
    return value is None or type(value) in (bool, float, complex, str, bytes)
