"""Belljar: run Python that no human has read, and get back everything it did.

    from belljar import Sandbox

    with Sandbox() as sandbox:
        print(sandbox.run_code("sum(range(10))").text)

Names are imported when they are first used, so that `import belljar` costs next to nothing. Only
the errors are there at once: every other module needs them. `import X as X` makes a name public for
type checkers.
"""

import importlib
import importlib.machinery
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from belljar.errors import BackendUnavailable as BackendUnavailable
from belljar.errors import CannotTravel as CannotTravel
from belljar.errors import CheckpointLost as CheckpointLost
from belljar.errors import EnvironmentBuildError as EnvironmentBuildError
from belljar.errors import ExecutionError as ExecutionError
from belljar.errors import ExecutionOutOfMemory as ExecutionOutOfMemory
from belljar.errors import ExecutionTimeout as ExecutionTimeout
from belljar.errors import FileError as FileError
from belljar.errors import FileExists as FileExists
from belljar.errors import FileMissing as FileMissing
from belljar.errors import GuestLost as GuestLost
from belljar.errors import InvalidOption as InvalidOption
from belljar.errors import IsADirectory as IsADirectory
from belljar.errors import LimitNotEnforceable as LimitNotEnforceable
from belljar.errors import ManagerClosed as ManagerClosed
from belljar.errors import ManagerFull as ManagerFull
from belljar.errors import NameMissing as NameMissing
from belljar.errors import NameTaken as NameTaken
from belljar.errors import NotADirectory as NotADirectory
from belljar.errors import PermissionDenied as PermissionDenied
from belljar.errors import PoolClosed as PoolClosed
from belljar.errors import PoolFull as PoolFull
from belljar.errors import ProtocolError as ProtocolError
from belljar.errors import QuotaExceeded as QuotaExceeded
from belljar.errors import SandboxClosed as SandboxClosed
from belljar.errors import SandboxError as SandboxError
from belljar.errors import SandboxMissing as SandboxMissing
from belljar.errors import SandboxPaused as SandboxPaused
from belljar.errors import StartError as StartError

if TYPE_CHECKING:
    from belljar.backends.base import Location as Location
    from belljar.backends.base import UsageSample as UsageSample
    from belljar.backends.docker.settings import Docker as Docker
    from belljar.backends.isolation import Isolation as Isolation
    from belljar.backends.isolation import Layer as Layer
    from belljar.backends.mounts import Mount as Mount
    from belljar.environment.environment import Environment as Environment
    from belljar.files.api import FileInfo as FileInfo
    from belljar.files.transfer import Transfer as Transfer
    from belljar.files.watch import FileEvent as FileEvent
    from belljar.functions.registry import HostFunction as HostFunction
    from belljar.limits import Limits as Limits
    from belljar.policy import Policy as Policy
    from belljar.pool.blocking import Pool as Pool
    from belljar.pool.blocking import SandboxManager as SandboxManager
    from belljar.pool.manager import AsyncSandboxManager as AsyncSandboxManager
    from belljar.pool.pool import AsyncPool as AsyncPool
    from belljar.pool.snippet import Snippet as Snippet
    from belljar.pool.stats import ManagerStats as ManagerStats
    from belljar.pool.stats import PoolStats as PoolStats
    from belljar.results.chart import Chart as Chart
    from belljar.results.chart import ChartType as ChartType
    from belljar.results.execution import Call as Call
    from belljar.results.execution import CommandResult as CommandResult
    from belljar.results.execution import ErrorInfo as ErrorInfo
    from belljar.results.execution import Execution as Execution
    from belljar.results.execution import FileChanges as FileChanges
    from belljar.results.execution import Logs as Logs
    from belljar.results.execution import Outcome as Outcome
    from belljar.results.execution import Result as Result
    from belljar.results.execution import Usage as Usage
    from belljar.sandbox.blocking import Process as Process
    from belljar.sandbox.blocking import Sandbox as Sandbox
    from belljar.sandbox.blocking import run as run
    from belljar.sandbox.contexts import Context as Context
    from belljar.sandbox.event_stream import EndEvent as EndEvent
    from belljar.sandbox.event_stream import OutputEvent as OutputEvent
    from belljar.sandbox.event_stream import ResultEvent as ResultEvent
    from belljar.sandbox.event_stream import StreamEvent as StreamEvent
    from belljar.sandbox.guest_session import Checkpoint as Checkpoint
    from belljar.sandbox.ports import Forward as Forward
    from belljar.sandbox.process import AsyncProcess as AsyncProcess
    from belljar.sandbox.process import Chunk as Chunk
    from belljar.sandbox.process import ProcessInfo as ProcessInfo
    from belljar.sandbox.replay import Replay as Replay
    from belljar.sandbox.replay import replay as replay
    from belljar.sandbox.sandbox import AsyncSandbox as AsyncSandbox
    from belljar.sandbox.shell import AsyncShell as AsyncShell
    from belljar.sandbox.shell import Shell as Shell

__version__ = "0.1.0"

_HOME = {
    "belljar.backends.base": ("Location", "UsageSample"),
    "belljar.backends.docker.settings": ("Docker",),
    "belljar.sandbox.blocking": ("Process", "Sandbox", "run"),
    "belljar.results.chart": ("Chart", "ChartType"),
    "belljar.sandbox.guest_session": ("Checkpoint",),
    "belljar.environment": ("Environment",),
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
    "belljar.policy": ("Policy",),
    "belljar.pool.blocking": ("Pool", "SandboxManager"),
    "belljar.pool.pool": ("AsyncPool",),
    "belljar.pool.snippet": ("Snippet",),
    "belljar.pool.stats": ("ManagerStats", "PoolStats"),
    "belljar.sandbox.contexts": ("Context",),
    "belljar.sandbox.event_stream": ("EndEvent", "OutputEvent", "ResultEvent", "StreamEvent"),
    "belljar.sandbox.ports": ("Forward",),
    "belljar.sandbox.process": ("AsyncProcess", "Chunk", "ProcessInfo"),
    "belljar.sandbox.replay": ("Replay", "replay"),
    "belljar.sandbox.sandbox": ("AsyncSandbox",),
    "belljar.sandbox.shell": ("AsyncShell", "Shell"),
    "belljar.files.transfer": ("Transfer",),
    "belljar.files.watch": ("FileEvent",),
}
_MODULES = ("config", "events", "functions", "observe", "policy")
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
_ERRORS = [
    name
    for name, each in globals().items()
    if isinstance(each, type) and issubclass(each, SandboxError)
]
_PUBLIC = sorted([*_ERRORS, *_MODULE_OF, "__version__"])
if not TYPE_CHECKING:  # type checkers understand literal lists only, and read the imports instead
    __all__ = _PUBLIC
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


def on_runtime_start() -> None:
    """Connect the layers: the runtime calls this when it starts, before the first sandbox does.

    `observe` is above the runtime, which must not import it. Presence lets `belljar ps` see the
    sandboxes of this process.
    """
    importlib.import_module("belljar.observe.presence").install()


def __dir__() -> list[str]:
    return sorted({*_PUBLIC, *_MODULES})
