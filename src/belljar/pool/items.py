"""One item of a map: from what the caller wrote to its Execution."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

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
)
from belljar.pool import snippet
from belljar.pool.pooled_sandbox import NotBegun, Tenant
from belljar.pool.snippet import NoSnippet, Snippet
from belljar.results.execution import Execution
from belljar.sandbox import options as sandbox_options
from belljar.sandbox.options import Options
from belljar.sandbox.sandbox import AsyncSandbox

if TYPE_CHECKING:
    from belljar.pool.pool import AsyncPool

ATTEMPTS = 3  # at a guest for a snippet that has not begun
PAUSE = 0.2  # seconds before the second, twice that before the third

Run = Callable[[AsyncSandbox], Awaitable[Execution]]


@dataclass(frozen=True, kw_only=True)
class Order:
    """What all items of a map have in common."""

    owner: object
    timeout: float | None
    options: Mapping[str, Any]
    raising: bool  # what an item is refused for, instead of giving it an Execution


async def run(
    pool: AsyncPool, order: Order, number: int, item: object, at_work: set[Tenant]
) -> Execution:
    """Its Execution. What it is refused for is one, too: the others go on. What is no snippet at
    all, and a host that starts no guests, is raised: the others would fare no better."""
    try:
        return await _run(pool, order, item, at_work)
    except (NoSnippet, StartError, SandboxClosed) as error:
        raise _noted(error, number) from error.__cause__
    except (GuestLost, ProtocolError) as error:
        if order.raising:
            raise _noted(error, number) from error.__cause__
        return snippet.lost(error.message)
    except (InvalidOption, CannotTravel, FileError) as error:
        if order.raising:
            raise _noted(error, number) from error.__cause__
        return snippet.refused(error)


def _noted(error: SandboxError, number: int) -> SandboxError:
    error.add_note(f"item {number} of the map (the first is 0)")
    return error


async def _run(pool: AsyncPool, order: Order, item: object, at_work: set[Tenant]) -> Execution:
    part = snippet.coerce(item)
    part = part if part.timeout is not None else replace(part, timeout=order.timeout)
    options = pool._options({**order.options, **part.options})

    async def first(sandbox: AsyncSandbox) -> Execution:
        return await sandbox.run_code(part.code, timeout=part.timeout, env=part.env)

    if await is_rejected(options, part.code):
        return await without_guest(options, first)
    for attempt in itertools.count(1):
        try:
            tenant = await pool._lease(options, order.owner, None, once=True)
            at_work.add(tenant)
            try:
                await prepare(tenant, part)
                return await _begun(pool, tenant, part, first)
            finally:
                at_work.discard(tenant)
                await pool._guests.finish(tenant)
        except (StartError, GuestLost, ProtocolError):
            if attempt == ATTEMPTS:
                raise
            await anyio.sleep(PAUSE * attempt)
    raise AssertionError


async def prepare(tenant: Tenant, part: Snippet) -> None:
    """What it needs, before it begins."""
    for path, data in part.files.items():
        await tenant.files.write(path, data)
    if part.variables:
        await tenant._put_all(part.variables)


async def _begun(pool: AsyncPool, tenant: Tenant, part: Snippet, first: Run) -> Execution:
    """From here on it may have done something: it is not done again."""
    execution: Execution | None = None
    try:
        execution = await first(tenant)
        if part.then is None or not execution.ok:
            return execution
        return await tenant.run_code(part.then, timeout=part.timeout, env=part.env)
    except NotBegun as error:
        if execution is None:
            raise
        return snippet.lost(error.message)
    except (StartError, GuestLost, ProtocolError, SandboxClosed) as error:
        pool._check_open()
        return snippet.lost(error.message)
    except MemoryError as error:  # ours, for what it sent: no reason to stop the others
        return snippet.lost(str(error))


async def is_rejected(options: Options, code: str) -> bool:
    if options.policy is None:
        return False
    return not (await anyio.to_thread.run_sync(options.policy.check, code)).allowed


async def without_guest(options: Options, run: Run) -> Execution:
    """It says so itself, to whoever watches or records."""
    sandbox = AsyncSandbox._from_options(replace(options, id=sandbox_options.new_id()))
    try:
        return await run(sandbox)
    finally:
        await sandbox.close()
