"""Belljar: run Python that nobody has read, and get back everything it did.

from belljar import Sandbox

with Sandbox() as sandbox:
    print(sandbox.run_code("sum(range(10))").text)
"""

from belljar._version import __version__
from belljar.blocking import Sandbox
from belljar.environment import Environment
from belljar.errors import (
    BackendUnavailable,
    EnvironmentBuildError,
    ExecutionError,
    ExecutionOutOfMemory,
    ExecutionTimeout,
    FileError,
    FileMissing,
    GuestLost,
    InvalidOption,
    LimitNotEnforceable,
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
    "FileInfo",
    "FileMissing",
    "GuestLost",
    "InvalidOption",
    "Isolation",
    "Layer",
    "LimitNotEnforceable",
    "Limits",
    "Logs",
    "Outcome",
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
