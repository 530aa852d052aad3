"""Snippet: one piece of work for a pool, and how one item of a map is run."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Self

import anyio

from belljar.errors import (
    CannotTravel,
    FileError,
    GuestLost,
    InvalidOption,
    ProtocolError,
    SandboxClosed,
    SandboxError,
    StartError,
    unknown_option,
)
from belljar.pool.pooled_sandbox import LostBeforeStart, PooledSandbox
from belljar.results.execution import ErrorInfo, Execution, Outcome
from belljar.sandbox.not_run import make_empty
from belljar.sandbox.options import (
    Options,
    check_name,
    check_texts,
    check_timeout,
    new_id,
)
from belljar.sandbox.sandbox import AsyncSandbox, check_policy, encode_code

if TYPE_CHECKING:
    from belljar.pool.pool import AsyncPool


ATTEMPTS = 3  # to run a snippet, while it has not begun
PAUSE = 0.2  # seconds before the second, twice that before the third

RunCode = Callable[[AsyncSandbox], Awaitable[Execution]]


@dataclass(frozen=True)
class Snippet:
    """Code for `Pool.map`, with its own inputs and options.

    >>> Snippet("double(21)", variables={"x": 1}, timeout=5).timeout
    5
    """

    code: str
    _: KW_ONLY
    then: str | None = None  # runs after it if it succeeded, such as tests
    variables: Mapping[str, object] = field(default_factory=dict)
    files: Mapping[str, str | bytes] = field(default_factory=dict)  # by their paths
    env: Mapping[str, str] | None = None
    timeout: float | None = None  # seconds, for each of the two
    options: Mapping[str, object] = field(default_factory=dict)  # of its sandbox
    metadata: object = None  # the caller's own; not looked at

    def __new__(cls, *parts: object, **given: object) -> Self:
        _check_known(given)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for code in (self.code, *([] if self.then is None else [self.then])):
            encode_code(code)
        check_timeout(self.timeout, None)
        check_texts("env", self.env)
        for name in ("variables", "files", "options"):
            if not isinstance(getattr(self, name), Mapping):
                raise InvalidOption(f"{name} is a mapping, not {getattr(self, name)!r}")
        for variable in self.variables:
            check_name(variable)
        for path, data in self.files.items():
            if not isinstance(path, str) or not isinstance(data, (str, bytes)):
                raise InvalidOption(f"files are texts or bytes by their paths, not {path!r}")


_KNOWN = [each.name for each in fields(Snippet)]


class NotASnippet(InvalidOption):
    """Not a snippet at all: a mistake in the program, so the map stops."""


def _check_known(names: Iterable[object]) -> None:
    for name in names:
        if name not in _KNOWN:
            error = unknown_option("part of a snippet", str(name), _KNOWN)
            raise NotASnippet(error.message, hint=error.hint)


def parse_snippet(given: object) -> Snippet:
    """A Snippet, from a text, a mapping with the names of Snippet, or a Snippet."""
    if isinstance(given, Snippet):
        return given
    if isinstance(given, str):
        return Snippet(given)
    if not isinstance(given, Mapping):
        raise NotASnippet(
            f"a snippet is a str, a mapping or a Snippet, not {type(given).__name__}",
            hint='"6 * 7", or {"code": "x * 7", "variables": {"x": 6}}',
        )
    _check_known(given)  # before the next error: it names a misspelt "code"
    if "code" not in given:
        raise NotASnippet("the snippet has no code", hint='{"code": "6 * 7"}')
    return Snippet(**{str(name): value for name, value in given.items()})


def lost_execution(why: str) -> Execution:
    """The Execution of code that may have begun, and whose guest was lost."""
    error = ErrorInfo(name="GuestLost", value=why, traceback="")
    return make_empty(Outcome.lost, error, (why,), count=1)


def refused_execution(error: SandboxError) -> Execution:
    """The Execution of an item that could not be run: its `execution_count` is 0."""
    name, why = type(error).__name__, error.message
    shown = ErrorInfo(name=name, value=why, traceback=f"{name}: {why}")
    return make_empty(Outcome.error, shown, ("the code was not run",), count=0)


async def run_item(
    pool: AsyncPool,
    number: int,
    item: object,
    at_work: set[PooledSandbox],
    *,
    owner: Hashable,
    timeout: float | None,
    options: Mapping[str, Any],
    raising: bool,
) -> Execution:
    """Run one item of a map with the map's options. An item that cannot be run has an Execution,
    too, so that the others go on; with `raising`, why it cannot be run is raised. Raises what would
    stop the others as well: an item that is not a snippet, no guest starts."""
    try:
        part = parse_snippet(item)
        part = part if part.timeout is not None else replace(part, timeout=timeout)
        return await run_on_guest(
            pool,
            pool._kinds.options({**options, **part.options}),
            part,
            lambda sandbox: _run_both(pool, sandbox, part),
            owner=owner,
            retried=(StartError, GuestLost, ProtocolError),
            at_work=at_work,
        )
    except (NotASnippet, StartError, SandboxClosed) as error:
        raise _add_number(error, number) from error.__cause__
    except (GuestLost, ProtocolError, InvalidOption, CannotTravel, FileError) as error:
        if raising:
            raise _add_number(error, number) from error.__cause__
        if isinstance(error, (GuestLost, ProtocolError)):
            return lost_execution(error.message)
        return refused_execution(error)


def _add_number(error: SandboxError, number: int) -> SandboxError:
    error.add_note(f"item {number} of the map (the first is 0)")
    return error


async def run_on_guest(
    pool: AsyncPool,
    options: Options,
    part: Snippet,
    run: RunCode,
    *,
    owner: Hashable,
    wait: float | None = None,
    retried: tuple[type[Exception], ...] = (LostBeforeStart,),
    at_work: set[PooledSandbox],
) -> Execution:
    """Run a snippet on an unused guest; after one of the `retried` errors, on another one."""
    policy = options.policy
    if policy is not None and not (await check_policy(policy, part.code)).allowed:
        return await _run_without_guest(options, run)
    for attempt in itertools.count(1):
        try:
            sandbox = await pool._lease(options, owner, wait, once=True)
            at_work.add(sandbox)
            try:
                await send_inputs(sandbox, part)
                return await run(sandbox)
            finally:
                at_work.discard(sandbox)
                await pool._guests.close_sandbox(sandbox)
        except retried:
            if attempt == ATTEMPTS:
                raise
            await anyio.sleep(PAUSE * attempt)
        except SandboxClosed:
            pool._check_open()
            raise
    raise AssertionError


async def send_inputs(sandbox: PooledSandbox, part: Snippet) -> None:
    """Write its files and variables, before it begins."""
    for path, data in part.files.items():
        await sandbox.files.write(path, data)
    if part.variables:
        await sandbox._put_all(part.variables)


async def _run_both(pool: AsyncPool, sandbox: AsyncSandbox, part: Snippet) -> Execution:
    """Run the code, then `then`. Code that may have begun is not run a second time."""
    execution: Execution | None = None
    try:
        execution = await sandbox.run_code(part.code, timeout=part.timeout, env=part.env)
        if part.then is None or not execution.ok:
            return execution
        return await sandbox.run_code(part.then, timeout=part.timeout, env=part.env)
    except LostBeforeStart as error:
        if execution is None:
            raise
        return lost_execution(error.message)
    except (StartError, GuestLost, ProtocolError, SandboxClosed) as error:
        pool._check_open()
        return lost_execution(error.message)
    except MemoryError as error:  # this process lacks memory for what the guest sent
        return lost_execution(str(error))


async def _run_without_guest(options: Options, run: RunCode) -> Execution:
    """Let a sandbox without a guest reject the code, so that events and records show it."""
    sandbox = AsyncSandbox._from_options(replace(options, id=new_id()))
    try:
        return await run(sandbox)
    finally:
        await sandbox.close()
