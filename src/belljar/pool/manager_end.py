"""The end of one sandbox of a manager: in bounded time, come what may."""

from __future__ import annotations

import anyio

from belljar.errors import SandboxError
from belljar.sandbox.sandbox import AsyncSandbox

END_TIMEOUT = 15.0  # seconds for a sandbox to save its files and end, before it is killed
KILL_TIMEOUT = 15.0


async def end(sandbox: AsyncSandbox) -> SandboxError | None:
    """End it in bounded time, come what may; gives what went wrong."""
    trouble: SandboxError | None = None
    with anyio.CancelScope(shield=True):
        with anyio.move_on_after(END_TIMEOUT) as scope:
            try:
                await sandbox.close()
            except Exception as error:
                trouble = _as_ours(error)
        if not scope.cancelled_caught and trouble is None:
            return None
        with anyio.move_on_after(KILL_TIMEOUT):
            try:
                await sandbox.kill()
            except Exception as error:
                return _as_ours(error)
    return trouble or SandboxError(f"did not end within {END_TIMEOUT:g} s, and was killed")


def _as_ours(error: Exception) -> SandboxError:
    if isinstance(error, SandboxError):
        return error
    made = SandboxError(f"could not be ended: {type(error).__name__}: {error}")
    made.__cause__ = error
    return made
