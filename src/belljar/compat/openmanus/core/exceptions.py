"""What OpenManus raises about sandboxes. They are Belljar's errors too, and carry a hint.

SandboxError
├── SandboxTimeoutError     a command took too long (a TimeoutError); it has been killed
└── SandboxResourceError    a command wanted more memory, or wrote more, than it may
"""

from __future__ import annotations

from typing import Any

from belljar import errors


class SandboxError(errors.SandboxError):
    """The root of what the sandbox of OpenManus raises."""

    def __init__(self, message: str = "", *, hint: str | None = None, output: str = "") -> None:
        super().__init__(message, hint=hint)
        self.output = output  # what the command had written before

    def _keywords(self) -> dict[str, Any]:
        return super()._keywords() | {"output": self.output}


class SandboxTimeoutError(SandboxError, TimeoutError):
    """The command took too long. It has been killed, with what it had started."""


class SandboxResourceError(SandboxError):
    """The command wanted more of the machine than the sandbox may use."""
