"""The removal of a container, by ever stronger means, each with its time limit.

Nothing here stops a container the polite way: that waits ten seconds for a process that will
not listen. Whoever calls this wants it gone.
"""

from __future__ import annotations

from urllib.parse import quote

import anyio

from belljar.backends.docker import health
from belljar.backends.docker.client.engine import Engine, EngineError

# Seconds. A removal takes some tens of milliseconds; a busy disk makes that seconds.
REMOVE_TIMEOUT = 5.0
FORCE_TIMEOUT = 8.0
KILL_TIMEOUT = 4.0
PING_TIMEOUT = 5.0
GONE_TIMEOUT = 4.0  # how long another's removal is watched
# What is just ending may be refused for that (Podman), or its files may be in use for a moment.
PAUSE = 0.3

_NO_ANSWER = 0
_NOT_FOUND = 404
_CONFLICT = 409
_BROKEN = 500


async def remove(engine: Engine, container: str) -> None:
    """Remove it with its anonymous volumes: as it is, then by force, then killed and by force.

    `container` is an id or a name. One that is gone already, or that somebody else is removing,
    is fine. Raises EngineError, the last of them, when it is still there. Called by a guest's
    close (shielded from cancellation) and by the sweep; twice is allowed.
    """
    failure: EngineError | None = None
    for attempt in (_remove, _force, _kill_and_force, _kill_and_force):
        if failure is not None and failure.status >= _BROKEN:
            await anyio.sleep(PAUSE)
        try:
            await attempt(engine, container)
            return
        except EngineError as error:
            if error.status == _NOT_FOUND:
                return
            if _is_being_removed(error) and await _is_gone(engine, container):
                return
            failure = error
            # No answer: either the removal is slow, or the engine hangs or is away altogether,
            # and stronger means would only wait longer.
            if error.status == _NO_ANSWER and not await health.answers(engine, PING_TIMEOUT):
                break
    assert failure is not None
    if not _is_being_removed(failure):  # else somebody is still at it, and it will go
        raise failure


async def _remove(engine: Engine, container: str) -> None:
    await _delete(engine, container, force=False, timeout=REMOVE_TIMEOUT)


async def _force(engine: Engine, container: str) -> None:
    await _delete(engine, container, force=True, timeout=FORCE_TIMEOUT)


async def _kill_and_force(engine: Engine, container: str) -> None:
    try:
        await engine.request("POST", f"{_path(container)}/kill", timeout=KILL_TIMEOUT)
    except EngineError as error:
        if error.status == _NOT_FOUND:
            raise
        # 409: it does not run any more. Anything else: the removal will tell better.
    await _delete(engine, container, force=True, timeout=FORCE_TIMEOUT)


async def _delete(engine: Engine, container: str, *, force: bool, timeout: float) -> None:
    await engine.request(
        "DELETE", _path(container), query={"v": True, "force": force}, timeout=timeout
    )


def _path(container: str) -> str:
    return f"/containers/{quote(container, safe='')}"


def _is_being_removed(error: EngineError) -> bool:
    return error.status == _CONFLICT and "in progress" in error.message


async def _is_gone(engine: Engine, container: str) -> bool:
    """Watch somebody else's removal come to its end."""
    with anyio.move_on_after(GONE_TIMEOUT):
        while True:
            try:
                await engine.request("GET", f"{_path(container)}/json", timeout=PING_TIMEOUT)
            except EngineError as error:
                return error.status == _NOT_FOUND
            await anyio.sleep(0.05)
    return False
