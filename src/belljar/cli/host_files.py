"""What the code missed and this host has: `--put` it.

Only what was missing by a plain relative name, below the current directory, is looked for. The
answer is for the user and goes to stderr: not into the Execution, JSON or a record, from where it
could reach the code's author, who would learn which files there are by asking for them.
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from belljar.results.execution import Execution


def find_missing(execution: Execution, script: str | None) -> tuple[str, str] | None:
    """What to say of a file or module that the code did not find and that is here, and the option
    that the general note names. `script`: the file that was run, beside which it may lie."""
    from belljar.sandbox import advice

    if execution.outcome != "error" or execution.error is None:
        return None
    module, path = advice.missing_module(execution.error), advice.missing_file(execution.error)
    name = f"{module}.py" if module is not None else path
    if name is None:
        return None
    for directory in dict.fromkeys(("", os.path.dirname(script or ""))):
        here = os.path.join(directory, name)
        if _is_below_here(here):
            target = "" if os.path.basename(here) == name else f":{name}"
            option = "--with" if module is not None else "--put"
            return option, f"{here} is on this host: --put {shlex.quote(here + target)}"
    return None


def _is_below_here(path: str) -> bool:
    """Whether it is a file in the current directory or below, wherever links lead."""
    root = os.path.realpath(os.curdir)
    real = os.path.realpath(path)
    return os.path.commonpath([root, real]) == root and os.path.isfile(real)
