"""Belljar: run Python that nobody has read, and get back everything it did.

    from belljar import Sandbox

    with Sandbox() as sandbox:
        print(sandbox.run_code("sum(range(10))").text)

Names are imported when they are first used, so that `import belljar` costs next to nothing.
"""

import importlib
import importlib.machinery
import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from belljar.backends.docker.settings import Docker
    from belljar.backends.isolation import Isolation, Layer
    from belljar.backends.mounts import Mount
    from belljar.environment.environment import Environment
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
    from belljar.files.api import FileInfo
    from belljar.files.transfer import Transfer
    from belljar.functions.registry import HostFunction
    from belljar.limits import Limits
    from belljar.policy import Policy
    from belljar.pool.blocking import Pool, SandboxManager
    from belljar.pool.manager import AsyncSandboxManager
    from belljar.pool.pool import AsyncPool
    from belljar.pool.snippet import Snippet
    from belljar.pool.stats import ManagerStats, PoolStats
    from belljar.results.chart import Chart, ChartType
    from belljar.results.execution import (
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
    from belljar.sandbox.blocking import Sandbox
    from belljar.sandbox.checkpoints import Checkpoint
    from belljar.sandbox.oneshot import run
    from belljar.sandbox.replay import Replay, replay
    from belljar.sandbox.sandbox import AsyncSandbox
    from belljar.sandbox.shell import AsyncShell, Shell

__version__ = "0.1.0"

_HOME = {
    "belljar.backends.docker.settings": ("Docker",),
    "belljar.sandbox.blocking": ("Sandbox",),
    "belljar.results.chart": ("Chart", "ChartType"),
    "belljar.sandbox.checkpoints": ("Checkpoint",),
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
    "belljar.results.execution": (
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
    "belljar.files.api": ("FileInfo",),
    "belljar.functions.registry": ("HostFunction",),
    "belljar.backends.isolation": (
        "Isolation",
        "Layer",
    ),
    "belljar.limits": ("Limits",),
    "belljar.pool.manager": ("AsyncSandboxManager",),
    "belljar.backends.mounts": ("Mount",),
    "belljar.sandbox.oneshot": ("run",),
    "belljar.policy": ("Policy",),
    "belljar.pool.blocking": ("Pool", "SandboxManager"),
    "belljar.pool.pool": ("AsyncPool",),
    "belljar.pool.snippet": ("Snippet",),
    "belljar.pool.stats": ("ManagerStats", "PoolStats"),
    "belljar.sandbox.replay": ("Replay", "replay"),
    "belljar.sandbox.sandbox": ("AsyncSandbox",),
    "belljar.sandbox.shell": ("AsyncShell", "Shell"),
    "belljar.files.transfer": ("Transfer",),
}
_MODULES = ("config", "events", "functions", "observe", "policy")
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
# Import paths that documents named before the modules moved.
_MOVED = {
    "belljar.chart": "belljar.results.chart",
    "belljar.execution": "belljar.results.execution",
    "belljar.export": "belljar.record.export",
    "belljar.sessions": "belljar.files.sessions",
}


class _MovedModules:
    """Imports a module by an old path: it is the same module as by the new one."""

    @classmethod
    def find_spec(
        cls, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, cls()) if name in _MOVED else None  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Let Python make an empty module, which `exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        sys.modules[name] = importlib.import_module(_MOVED[name])


sys.meta_path.append(_MovedModules)


def __getattr__(name: str) -> object:
    if name in _MODULES or f"belljar.{name}" in _MOVED:  # used as belljar.functions.stubs(...)
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
