"""Other systems' sandboxes under their own names, each a thin adapter over the one engine:

belljar.compat.pandasai      PandasAI's DockerSandbox
belljar.compat.openmanus     OpenManus' DockerSandbox, SandboxManager and tools
belljar.compat.dolphin       dolphin-mcp's DockerSandboxExecutor
belljar.compat.executor      DockerExecutor, DockerConfig, SecurityValidator, ContainerMonitor
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from belljar.errors import CannotTravel

if TYPE_CHECKING:
    from belljar.sandbox.blocking import Sandbox

# The adapted systems know plain data alone: a member of an Enum, a named tuple or a dataclass
# counts as what it holds. Anything else that cannot travel is an error.
_HOLDS_DATA = "which only its sender knows"


def set_plain(sandbox: Sandbox, name: str, value: object) -> None:
    try:
        sandbox.set(name, value, lenient=False)
    except CannotTravel as error:
        if _HOLDS_DATA not in error.message:
            raise
        sandbox.set(name, value)


def get_plain(sandbox: Sandbox, name: str, *, timeout: float | None = None) -> object:
    try:
        return sandbox.get(name, timeout=timeout)
    except CannotTravel as error:
        if _HOLDS_DATA not in error.message:
            raise
        return sandbox.get(name, timeout=timeout, lenient=True)
