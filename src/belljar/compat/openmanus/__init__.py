"""OpenManus' sandbox under its own names: `from belljar.compat.openmanus import DockerSandbox`.

The modules have the names of the original, too: what was `app.sandbox.core.sandbox` is
`belljar.compat.openmanus.core.sandbox`, `app.config` is `.config`, `app.tool` is `.tool`.
"""

from belljar.compat.openmanus.client import (
    SANDBOX_CLIENT,
    BaseSandboxClient,
    LocalSandboxClient,
    create_sandbox_client,
)
from belljar.compat.openmanus.config import SandboxSettings
from belljar.compat.openmanus.core.exceptions import (
    SandboxError,
    SandboxResourceError,
    SandboxTimeoutError,
)
from belljar.compat.openmanus.core.manager import SandboxManager
from belljar.compat.openmanus.core.sandbox import DockerSandbox
from belljar.compat.openmanus.core.terminal import AsyncDockerizedTerminal, DockerSession
from belljar.compat.openmanus.tool.chart_visualization.python_execute import NormalPythonExecute
from belljar.compat.openmanus.tool.python_execute import PythonExecute

__all__ = [
    "SANDBOX_CLIENT",
    "AsyncDockerizedTerminal",
    "BaseSandboxClient",
    "DockerSandbox",
    "DockerSession",
    "LocalSandboxClient",
    "NormalPythonExecute",
    "PythonExecute",
    "SandboxError",
    "SandboxManager",
    "SandboxResourceError",
    "SandboxSettings",
    "SandboxTimeoutError",
    "create_sandbox_client",
]
