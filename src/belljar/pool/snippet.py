"""One piece of work for a pool: code, what it needs, and what is run after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Self

from belljar.errors import InvalidOption, SandboxError, unknown_option
from belljar.results.execution import ErrorInfo, Execution, Logs, Outcome, Usage
from belljar.sandbox import options
from belljar.sandbox.run import encode_code


@dataclass(frozen=True)
class Snippet:
    """Code for `Pool.map`, with what belongs to it alone.

    >>> Snippet("double(21)", variables={"x": 1}, timeout=5).timeout
    5
    """

    code: str
    then: str | None = field(default=None, kw_only=True)  # run after it if it went well: tests
    variables: Mapping[str, object] = field(default_factory=dict, kw_only=True)
    files: Mapping[str, str | bytes] = field(default_factory=dict, kw_only=True)  # by their paths
    env: Mapping[str, str] | None = field(default=None, kw_only=True)
    timeout: float | None = field(default=None, kw_only=True)  # seconds, of each of the two
    options: Mapping[str, object] = field(default_factory=dict, kw_only=True)  # of its sandbox
    metadata: object = field(default=None, kw_only=True)  # the caller's own, to know it again by

    def __new__(cls, *parts: object, **given: object) -> Self:
        _check_known(given)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for code in (self.code, *([] if self.then is None else [self.then])):
            encode_code(code)
        options.check_timeout(self.timeout, None)
        options.check_texts("env", self.env)
        for name in ("variables", "files", "options"):
            if not isinstance(getattr(self, name), Mapping):
                raise InvalidOption(f"{name} is a mapping, not {getattr(self, name)!r}")
        for variable in self.variables:
            options.check_name(variable)
        for path, data in self.files.items():
            if not isinstance(path, str) or not isinstance(data, (str, bytes)):
                raise InvalidOption(f"files are texts or bytes by their paths, not {path!r}")


_KNOWN = [each.name for each in fields(Snippet)]


class NoSnippet(InvalidOption):
    """What is none at all: a mistake of the program's, not of one item."""


def _check_known(names: Iterable[object]) -> None:
    for name in names:
        if name not in _KNOWN:
            error = unknown_option("part of a snippet", str(name), _KNOWN)
            raise NoSnippet(error.message, hint=error.hint)


def coerce(given: object) -> Snippet:
    """What a caller may write: a text, a mapping of the names of Snippet, or a Snippet."""
    if isinstance(given, Snippet):
        return given
    if isinstance(given, str):
        return Snippet(given)
    if not isinstance(given, Mapping):
        raise NoSnippet(
            f"a snippet is a str, a mapping or a Snippet, not {type(given).__name__}",
            hint='"6 * 7", or {"code": "x * 7", "variables": {"x": 6}}',
        )
    _check_known(given)
    if "code" not in given:
        raise NoSnippet("a snippet without code", hint='{"code": "6 * 7"}')
    return Snippet(**{str(name): value for name, value in given.items()})


def lost(why: str) -> Execution:
    """The Execution of code that may have begun, of which nothing is known but that."""
    return _without_a_run(Outcome.lost, "GuestLost", why, why, count=1)


def refused(error: SandboxError) -> Execution:
    """The Execution of an item that could not be run at all: its `execution_count` is 0."""
    name = type(error).__name__
    return _without_a_run(Outcome.error, name, error.message, "it was not run", count=0)


def _without_a_run(outcome: Outcome, name: str, why: str, note: str, *, count: int) -> Execution:
    return Execution(
        outcome=outcome,
        text=None,
        value=None,
        results=(),
        stdout="",
        stderr="",
        logs=Logs(stdout=(), stderr=()),
        error=ErrorInfo(name=name, value=why, traceback=f"{name}: {why}" if not count else ""),
        exit_code=None,
        signal=None,
        execution_count=count,
        usage=Usage(wall=0.0, cpu=None, peak_memory=None, output_bytes=0),
        state_preserved=False,
        truncated=False,
        notes=(note,),
    )
