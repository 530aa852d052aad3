"""OpenManus' exceptions about sandboxes. They are Belljar's errors too, and carry a hint.

SandboxError
├── SandboxTimeoutError     a command took too long (a TimeoutError), and was killed
└── SandboxResourceError    a command exceeded its memory or output limit
"""

from __future__ import annotations

from typing import Any

from belljar import errors


class SandboxError(errors.SandboxError):
    """The root of OpenManus' sandbox errors."""

    def __init__(self, message: str = "", *, hint: str | None = None, output: str = "") -> None:
        super().__init__(message, hint=hint)
        self.output = output  # what the command had written before

    def _keywords(self) -> dict[str, Any]:
        return super()._keywords() | {"output": self.output}


class SandboxTimeoutError(SandboxError, TimeoutError):
    """The command took too long. It was killed, with all its children."""


class SandboxResourceError(SandboxError):
    """The command exceeded a limit of the sandbox."""
