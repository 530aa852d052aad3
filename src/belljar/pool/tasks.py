"""Tasks that belong to nobody's task group: a manager's sweeper, and the ends of its sandboxes.

A manager may be used without `async with`, so there is no task group to start them in. And the end
of a sandbox must not be cut short because whoever asked for it was cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import anyio

from belljar.errors import SandboxClosed

_log = logging.getLogger("belljar")

_running: set[asyncio.Task[None]] = set()  # the loop itself keeps only weak references


def spawn(function: Callable[[], Awaitable[None]]) -> None:
    """Start a task on this event loop. It must not raise."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        import trio

        trio.lowlevel.spawn_system_task(function)
        return
    task = loop.create_task(_run(function))
    _running.add(task)
    task.add_done_callback(_running.discard)


async def _run(function: Callable[[], Awaitable[None]]) -> None:
    await function()


def keep_doing(
    found: Callable[[], Callable[[], Awaitable[object]] | None],
    *,
    every: float,
    scope: anyio.CancelScope,
) -> None:
    """Do what is found, again and again with a pause, until it is not found any more (its object
    is gone) or the scope is cancelled."""

    async def go_on() -> None:
        with scope:
            while True:
                await anyio.sleep(every)
                todo = found()
                if todo is None:
                    return
                try:
                    await todo()
                except SandboxClosed:
                    return
                except Exception:
                    _log.exception("it failed, and is tried again in %g s", every)
                del todo  # else it would be kept alive during the pause

    spawn(go_on)
