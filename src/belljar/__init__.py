"""Belljar: run Python that nobody has read, and get back everything it did.

    from belljar import Sandbox

    with Sandbox() as sandbox:
        print(sandbox.run_code("sum(range(10))").text)

Names are imported when they are first used, so that `import belljar` costs next to nothing.
"""

import importlib
from typing import TYPE_CHECKING

from belljar._version import __version__

if TYPE_CHECKING:
    from belljar.blocking import Sandbox
    from belljar.environment import Environment
    from belljar.errors import (
        BackendUnavailable,
        EnvironmentBuildError,
        ExecutionError,
        ExecutionOutOfMemory,
        ExecutionTimeout,
        FileError,
        FileExists,
        FileMissing,
        GuestLost,
        InvalidOption,
        IsADirectory,
        LimitNotEnforceable,
        NotADirectory,
        PermissionDenied,
        ProtocolError,
        SandboxClosed,
        SandboxError,
        StartError,
    )
    from belljar.execution import (
        CommandResult,
        ErrorInfo,
        Execution,
        Logs,
        Outcome,
        Result,
        Usage,
    )
    from belljar.files import FileInfo
    from belljar.isolation import Isolation, Layer
    from belljar.limits import Limits
    from belljar.oneshot import run
    from belljar.sandbox import AsyncSandbox

_HOME = {
    "belljar.blocking": ("Sandbox",),
    "belljar.environment": ("Environment",),
    "belljar.errors": (
        "BackendUnavailable",
        "EnvironmentBuildError",
        "ExecutionError",
        "ExecutionOutOfMemory",
        "ExecutionTimeout",
        "FileError",
        "FileExists",
        "FileMissing",
        "GuestLost",
        "InvalidOption",
        "IsADirectory",
        "LimitNotEnforceable",
        "NotADirectory",
        "PermissionDenied",
        "ProtocolError",
        "SandboxClosed",
        "SandboxError",
        "StartError",
    ),
    "belljar.execution": (
        "CommandResult",
        "ErrorInfo",
        "Execution",
        "Logs",
        "Outcome",
        "Result",
        "Usage",
    ),
    "belljar.files": ("FileInfo",),
    "belljar.isolation": (
        "Isolation",
        "Layer",
    ),
    "belljar.limits": ("Limits",),
    "belljar.oneshot": ("run",),
    "belljar.sandbox": ("AsyncSandbox",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'belljar' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "AsyncSandbox",
    "BackendUnavailable",
    "CommandResult",
    "Environment",
    "EnvironmentBuildError",
    "ErrorInfo",
    "Execution",
    "ExecutionError",
    "ExecutionOutOfMemory",
    "ExecutionTimeout",
    "FileError",
    "FileExists",
    "FileInfo",
    "FileMissing",
    "GuestLost",
    "InvalidOption",
    "IsADirectory",
    "Isolation",
    "Layer",
    "LimitNotEnforceable",
    "Limits",
    "Logs",
    "NotADirectory",
    "Outcome",
    "PermissionDenied",
    "ProtocolError",
    "Result",
    "Sandbox",
    "SandboxClosed",
    "SandboxError",
    "StartError",
    "Usage",
    "__version__",
    "run",
]
