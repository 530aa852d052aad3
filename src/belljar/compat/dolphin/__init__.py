"""dolphin-mcp's Docker sandbox under its own names, over Belljar's sandboxes.

    from belljar.compat.dolphin import DockerSandboxExecutor

`install()` puts it into an installed dolphin-mcp, whose reasoning then uses it.
"""

from __future__ import annotations

from belljar.compat.dolphin.docker_sandbox import (
    ALLOWED_LIBRARIES,
    DockerSandboxExecutor,
    sandboxed_python_interpreter,
    validate_imports,
)
from belljar.compat.dolphin.reasoning import install, python_interpreter

__all__ = [
    "ALLOWED_LIBRARIES",
    "DockerSandboxExecutor",
    "install",
    "python_interpreter",
    "sandboxed_python_interpreter",
    "validate_imports",
]
