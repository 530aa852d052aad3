"""One piece of work for a pool: code, what it needs, and what is run after it."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
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
from belljar.results.execution import ErrorInfo, Execution, Logs, Outcome, Usage
from belljar.sandbox import options, policy_gate
from belljar.sandbox import options as sandbox_options
from belljar.sandbox.options import Options
from belljar.sandbox.sandbox import AsyncSandbox

if TYPE_CHECKING:
    from belljar.pool.pool import AsyncPool


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
            options.encode_code(code)
        options.check_timeout(self.timeout, None)
        options.texts("env", self.env)
        for name in ("variables", "files", "options"):
            if not isinstance(getattr(self, name), Mapping):
                raise InvalidOption(f"{name} is a mapping, not {getattr(self, name)!r}")
        for variable in self.variables:
            options.check_name(variable)
        for path, data in self.files.items():
            if not isinstance(path, str) or not isinstance(data, (str, bytes)):
                raise InvalidOption(f"files are texts or bytes by their paths, not {path!r}")


_KNOWN = [each.name for each in fields(Snippet)]


class NotASnippet(InvalidOption):
    """What is none at all: a mistake of the program's, not of one item."""


def _check_known(names: Iterable[object]) -> None:
    for name in names:
        if name not in _KNOWN:
            error = unknown_option("part of a snippet", str(name), _KNOWN)
            raise NotASnippet(error.message, hint=error.hint)


def parse_snippet(given: object) -> Snippet:
    """What a caller may write: a text, a mapping of the names of Snippet, or a Snippet."""
    if isinstance(given, Snippet):
        return given
    if isinstance(given, str):
        return Snippet(given)
    if not isinstance(given, Mapping):
        raise NotASnippet(
            f"a snippet is a str, a mapping or a Snippet, not {type(given).__name__}",
            hint='"6 * 7", or {"code": "x * 7", "variables": {"x": 6}}',
        )
    _check_known(given)
    if "code" not in given:
        raise NotASnippet("a snippet without code", hint='{"code": "6 * 7"}')
    return Snippet(**{str(name): value for name, value in given.items()})


def lost_execution(why: str) -> Execution:
    """The Execution of code that may have begun, of which nothing is known but that."""
    return _without_a_run(Outcome.lost, "GuestLost", why, why, count=1)


def refused_execution(error: SandboxError) -> Execution:
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


ATTEMPTS = 3  # at a guest for a snippet that has not begun
PAUSE = 0.2  # seconds before the second, twice that before the third

RunCode = Callable[[AsyncSandbox], Awaitable[Execution]]


@dataclass(frozen=True, kw_only=True)
class MapOptions:
    """What all items of a map have in common."""

    owner: object
    timeout: float | None
    options: Mapping[str, Any]
    raising: bool  # what an item is refused for, instead of giving it an Execution


async def run_item(
    pool: AsyncPool, order: MapOptions, number: int, item: object, at_work: set[PooledSandbox]
) -> Execution:
    """Its Execution. What it is refused for is one, too: the others go on. What is no snippet at
    all, and a host that starts no guests, is raised: the others would fare no better."""
    try:
        return await _run_on_guest(pool, order, item, at_work)
    except (NotASnippet, StartError, SandboxClosed) as error:
        raise _noted(error, number) from error.__cause__
    except (GuestLost, ProtocolError) as error:
        if order.raising:
            raise _noted(error, number) from error.__cause__
        return lost_execution(error.message)
    except (InvalidOption, CannotTravel, FileError) as error:
        if order.raising:
            raise _noted(error, number) from error.__cause__
        return refused_execution(error)


def _noted(error: SandboxError, number: int) -> SandboxError:
    error.add_note(f"item {number} of the map (the first is 0)")
    return error


async def _run_on_guest(
    pool: AsyncPool, order: MapOptions, item: object, at_work: set[PooledSandbox]
) -> Execution:
    part = parse_snippet(item)
    part = part if part.timeout is not None else replace(part, timeout=order.timeout)
    options = pool._options({**order.options, **part.options})

    async def first(sandbox: AsyncSandbox) -> Execution:
        return await sandbox.run_code(part.code, timeout=part.timeout, env=part.env)

    if await is_rejected(options, part.code):
        return await run_without_guest(options, first)
    for attempt in itertools.count(1):
        try:
            tenant = await pool._lease(options, order.owner, None, once=True)
            at_work.add(tenant)
            try:
                await send_inputs(tenant, part)
                return await _begun(pool, tenant, part, first)
            finally:
                at_work.discard(tenant)
                await pool._guests.finish(tenant)
        except (StartError, GuestLost, ProtocolError):
            if attempt == ATTEMPTS:
                raise
            await anyio.sleep(PAUSE * attempt)
    raise AssertionError


async def send_inputs(tenant: PooledSandbox, part: Snippet) -> None:
    """What it needs, before it begins."""
    for path, data in part.files.items():
        await tenant.files.write(path, data)
    if part.variables:
        await tenant.put_all(part.variables)


async def _begun(
    pool: AsyncPool, tenant: PooledSandbox, part: Snippet, first: RunCode
) -> Execution:
    """From here on it may have done something: it is not done again."""
    execution: Execution | None = None
    try:
        execution = await first(tenant)
        if part.then is None or not execution.ok:
            return execution
        return await tenant.run_code(part.then, timeout=part.timeout, env=part.env)
    except LostBeforeStart as error:
        if execution is None:
            raise
        return lost_execution(error.message)
    except (StartError, GuestLost, ProtocolError, SandboxClosed) as error:
        pool._check_open()
        return lost_execution(error.message)
    except MemoryError as error:  # ours, for what it sent: no reason to stop the others
        return lost_execution(str(error))


async def is_rejected(options: Options, code: str) -> bool:
    return options.policy is not None and not (await policy_gate.ask(options.policy, code)).allowed


async def run_without_guest(options: Options, run: RunCode) -> Execution:
    """It says so itself, to whoever watches or records."""
    sandbox = object.__new__(AsyncSandbox)
    sandbox._prepare(replace(options, id=sandbox_options._new_id()))
    try:
        return await run(sandbox)
    finally:
        await sandbox.close()
