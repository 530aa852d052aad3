"""One shot: a sandbox for one piece of code."""

from __future__ import annotations

import inspect
import os
from typing import Any

from belljar.errors import unknown_option
from belljar.results.execution import Execution
from belljar.sandbox.blocking import Sandbox

_RUN = frozenset(inspect.signature(Sandbox.run_code).parameters) - {"self", "code"}
_MAKE = frozenset(inspect.signature(Sandbox.__init__).parameters) - {"self"}


def run(code: str | os.PathLike[str], **given: Any) -> Execution:
    """Run code in a sandbox of its own; the options are those of Sandbox and of run_code.

    `env` goes to the sandbox.

        execution = belljar.run("1 + 1", timeout=5, environment="python")
    """
    for name in given:
        if name not in _RUN | _MAKE:
            raise unknown_option("option", name, sorted(_RUN | _MAKE))
    making = {name: value for name, value in given.items() if name in _MAKE}
    running = {name: value for name, value in given.items() if name not in _MAKE}
    with Sandbox(**making) as sandbox:
        return sandbox.run_code(code, **running)
