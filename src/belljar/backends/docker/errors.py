"""What can go wrong with an engine.

EngineError                     it refused, broke off, or did not answer (a SandboxError)
└── EngineUnavailable           it could not be reached at all (also a BackendUnavailable)
"""

from __future__ import annotations

import json
from typing import Any

from belljar.backends.docker.endpoint import Endpoint
from belljar.errors import BackendUnavailable, SandboxError
from belljar.printable import printable

MAX_WORDS = 2000  # characters of what an engine says about a failure


class EngineError(SandboxError):
    """`status` is that of HTTP, or 0 without an answer; `message` has the engine's own words."""

    def __init__(self, message: str, *, status: int = 0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status

    def _keywords(self) -> dict[str, Any]:
        return super()._keywords() | {"status": self.status}


class EngineUnavailable(EngineError, BackendUnavailable):
    """There is no connection to the engine; nothing was asked of it."""


def refused(status: int, body: bytes) -> EngineError:
    """The error for an answer that says no."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        said = None
    words = said.get("message") if isinstance(said, dict) else body.decode("utf-8", "replace")
    text = cleaned(words) if isinstance(words, str) else ""
    return EngineError(text or f"the engine answered with status {status}", status=status)


def cleaned(words: str) -> str:
    text = printable(words[:MAX_WORDS]).strip()
    return text if len(words) <= MAX_WORDS else f"{text} …"


def unreachable(endpoint: Endpoint, error: OSError) -> EngineUnavailable:
    """The error for a connection that did not come about."""
    return EngineUnavailable(f"no connection to the engine at {endpoint}: {error}")


def broken(endpoint: Endpoint, what: str, error: Exception, said: str) -> EngineError:
    """The error for an answer that is none. `said`: by a program in between, about its end."""
    return EngineError(f"the engine at {endpoint} broke off ({what}): {cleaned(str(error))}")
