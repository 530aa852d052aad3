"""By which name a sandbox of an execution is known: its container's id, or its own."""

from __future__ import annotations

from belljar.sandbox.blocking import Sandbox
from belljar.sandbox.sandbox import AsyncSandbox


def container_id(sandbox: Sandbox | AsyncSandbox) -> str:
    """Of a sandbox that has been started."""
    seen = sandbox.whereabouts
    return (seen.container if seen is not None else None) or sandbox.id
