"""OpenManus' sandbox under its own names: `from belljar.compat.openmanus import DockerSandbox`.

The modules have the names of the original, too: what was `app.sandbox.core.sandbox` is
`belljar.compat.openmanus.core.sandbox`, `app.config` is `.config`, `app.tool` is `.tool`.
"""

from belljar.compat.openmanus.client import (
    SANDBOX_CLIENT as SANDBOX_CLIENT,
)
from belljar.compat.openmanus.client import (
    BaseSandboxClient as BaseSandboxClient,
)
from belljar.compat.openmanus.client import (
    LocalSandboxClient as LocalSandboxClient,
)
from belljar.compat.openmanus.client import (
    create_sandbox_client as create_sandbox_client,
)
from belljar.compat.openmanus.config import SandboxSettings as SandboxSettings
from belljar.compat.openmanus.core.exceptions import (
    SandboxError as SandboxError,
)
from belljar.compat.openmanus.core.exceptions import (
    SandboxResourceError as SandboxResourceError,
)
from belljar.compat.openmanus.core.exceptions import (
    SandboxTimeoutError as SandboxTimeoutError,
)
from belljar.compat.openmanus.core.manager import SandboxManager as SandboxManager
from belljar.compat.openmanus.core.sandbox import DockerSandbox as DockerSandbox
from belljar.compat.openmanus.core.terminal import (
    AsyncDockerizedTerminal as AsyncDockerizedTerminal,
)
from belljar.compat.openmanus.core.terminal import (
    DockerSession as DockerSession,
)
from belljar.compat.openmanus.tools import (
    NormalPythonExecute as NormalPythonExecute,
)
from belljar.compat.openmanus.tools import (
    PythonExecute as PythonExecute,
)

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
