"""python_interpreter of dolphin-mcp's reasoning, and how an installed dolphin-mcp gets it.

The original runs code in its own process if DOLPHIN_USE_DOCKER_SANDBOX is not set. This one always
uses a sandbox: the variable chooses between a container and whatever sandbox this host has.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

from belljar.backends import auto
from belljar.backends.docker.settings import Docker
from belljar.backends.native.zygote_client import check_host
from belljar.compat.dolphin import docker_sandbox
from belljar.compat.dolphin.docker_sandbox import (
    DEFAULT_IMAGE,
    sandboxed_python_interpreter,
    wants_docker,
)
from belljar.environment.environment import Environment
from belljar.errors import SandboxError


def python_interpreter(
    code: str,
    context: dict[str, Any],
    use_docker_sandbox: bool = False,
    session_id: str | None = None,
    docker_image_name: str = DEFAULT_IMAGE,
    docker_image_tag: str = "latest",
    *,
    backend: str | Docker | None = None,
    sandbox_base_dir: str = "/tmp/sandboxes",
    environment: str | Environment | None = None,
) -> str:
    """Run code in the session of the context, always in a sandbox.

    The sandbox is a container if `use_docker_sandbox` or DOLPHIN_USE_DOCKER_SANDBOX asks for one
    (dolphin's loop passes False unless it is configured). Otherwise it is native if this host
    allows that, else a container. Afterwards `context` has the plain variables that the code left.
    """
    if backend is None:
        backend = "docker" if use_docker_sandbox or wants_docker() else _without_docker()
    return sandboxed_python_interpreter(
        code,
        context,
        session_id,
        docker_image_name,
        docker_image_tag,
        backend=backend,
        sandbox_base_dir=sandbox_base_dir,
        environment=environment,
    )


def _without_docker() -> str | None:
    """The backend of BELLJAR_BACKEND, else "native" if this host supports it, else None."""
    if wanted := os.environ.get(auto.WANTED):
        return wanted
    try:
        check_host()
    except SandboxError:
        return None
    return "native"


def install() -> None:
    """Put this docker_sandbox and this python_interpreter into an installed dolphin-mcp.

    Call it before the first use of dolphin-mcp. Raises ImportError if it is not installed.
    """
    if importlib.util.find_spec("dolphin_mcp") is None:
        raise ImportError("dolphin-mcp is not installed: pip install dolphin-mcp")
    sys.modules["dolphin_mcp.docker_sandbox"] = docker_sandbox
    reasoning: Any = importlib.import_module("dolphin_mcp.reasoning")
    reasoning.sandboxed_python_interpreter = sandboxed_python_interpreter
    reasoning.python_interpreter = python_interpreter
