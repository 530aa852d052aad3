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
    from belljar.backends.docker.settings import Docker
    from belljar.blocking import Sandbox
    from belljar.chart import Chart, ChartType
    from belljar.checkpoint import Checkpoint
    from belljar.environment import Environment
    from belljar.errors import (
        BackendUnavailable,
        CannotTravel,
        CheckpointLost,
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
        ManagerClosed,
        ManagerFull,
        NameMissing,
        NameTaken,
        NotADirectory,
        PermissionDenied,
        PoolClosed,
        PoolFull,
        ProtocolError,
        QuotaExceeded,
        SandboxClosed,
        SandboxError,
        SandboxMissing,
        StartError,
    )
    from belljar.execution import (
        Call,
        CommandResult,
        ErrorInfo,
        Execution,
        FileChanges,
        Logs,
        Outcome,
        Result,
        Usage,
    )
    from belljar.files import FileInfo
    from belljar.functions import HostFunction
    from belljar.isolation import Isolation, Layer
    from belljar.limits import Limits
    from belljar.managing.blocking import SandboxManager
    from belljar.managing.decide import ManagerStats
    from belljar.managing.manager import AsyncSandboxManager
    from belljar.mount import Mount
    from belljar.oneshot import run
    from belljar.policy import Policy
    from belljar.pooling.blocking import Pool
    from belljar.pooling.pool import AsyncPool
    from belljar.pooling.snippet import Snippet
    from belljar.pooling.stats import PoolStats
    from belljar.record.replaying import Replay, replay
    from belljar.sandbox import AsyncSandbox
    from belljar.shell import AsyncShell, Shell
    from belljar.transfers import Transfer

_HOME = {
    "belljar.backends.docker.settings": ("Docker",),
    "belljar.blocking": ("Sandbox",),
    "belljar.managing.blocking": ("SandboxManager",),
    "belljar.chart": ("Chart", "ChartType"),
    "belljar.checkpoint": ("Checkpoint",),
    "belljar.environment": ("Environment",),
    "belljar.errors": (
        "BackendUnavailable",
        "CannotTravel",
        "CheckpointLost",
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
        "ManagerClosed",
        "ManagerFull",
        "NameMissing",
        "NameTaken",
        "NotADirectory",
        "PermissionDenied",
        "PoolClosed",
        "PoolFull",
        "ProtocolError",
        "QuotaExceeded",
        "SandboxClosed",
        "SandboxError",
        "SandboxMissing",
        "StartError",
    ),
    "belljar.execution": (
        "Call",
        "CommandResult",
        "ErrorInfo",
        "Execution",
        "FileChanges",
        "Logs",
        "Outcome",
        "Result",
        "Usage",
    ),
    "belljar.files": ("FileInfo",),
    "belljar.functions": ("HostFunction",),
    "belljar.isolation": (
        "Isolation",
        "Layer",
    ),
    "belljar.limits": ("Limits",),
    "belljar.managing.manager": ("AsyncSandboxManager",),
    "belljar.managing.decide": ("ManagerStats",),
    "belljar.mount": ("Mount",),
    "belljar.oneshot": ("run",),
    "belljar.policy": ("Policy",),
    "belljar.pooling.blocking": ("Pool",),
    "belljar.pooling.pool": ("AsyncPool",),
    "belljar.pooling.snippet": ("Snippet",),
    "belljar.pooling.stats": ("PoolStats",),
    "belljar.record.replaying": ("Replay", "replay"),
    "belljar.sandbox": ("AsyncSandbox",),
    "belljar.shell": ("AsyncShell", "Shell"),
    "belljar.transfers": ("Transfer",),
}
_MODULES = ("config", "events", "functions", "observe", "policy")
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _MODULES:  # used by their names: belljar.functions.stubs(...)
        return importlib.import_module(f"belljar.{name}")
    if name not in _MODULE_OF:
        errors = importlib.import_module("belljar.errors")
        error: AttributeError = errors.attribute_error("module 'belljar'", name, __dir__())
        raise error
    value = globals()[name] = getattr(importlib.import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})


__all__ = [
    "AsyncPool",
    "AsyncSandbox",
    "AsyncSandboxManager",
    "AsyncShell",
    "BackendUnavailable",
    "Call",
    "CannotTravel",
    "Chart",
    "ChartType",
    "Checkpoint",
    "CheckpointLost",
    "CommandResult",
    "Docker",
    "Environment",
    "EnvironmentBuildError",
    "ErrorInfo",
    "Execution",
    "ExecutionError",
    "ExecutionOutOfMemory",
    "ExecutionTimeout",
    "FileChanges",
    "FileError",
    "FileExists",
    "FileInfo",
    "FileMissing",
    "GuestLost",
    "HostFunction",
    "InvalidOption",
    "IsADirectory",
    "Isolation",
    "Layer",
    "LimitNotEnforceable",
    "Limits",
    "Logs",
    "ManagerClosed",
    "ManagerFull",
    "ManagerStats",
    "Mount",
    "NameMissing",
    "NameTaken",
    "NotADirectory",
    "Outcome",
    "PermissionDenied",
    "Policy",
    "Pool",
    "PoolClosed",
    "PoolFull",
    "PoolStats",
    "ProtocolError",
    "QuotaExceeded",
    "Replay",
    "Result",
    "Sandbox",
    "SandboxClosed",
    "SandboxError",
    "SandboxManager",
    "SandboxMissing",
    "Shell",
    "Snippet",
    "StartError",
    "Transfer",
    "Usage",
    "__version__",
    "replay",
    "run",
]
