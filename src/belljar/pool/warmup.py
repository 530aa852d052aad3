"""What a guest does before it waits for its tenant, when nobody is waiting.

A guest is a fork: memory that it writes to for the first time is copied then, which makes the first
cell several times as long as the second. In a rehearsal that happens ahead of the tenant.
"""

from __future__ import annotations

from belljar.environment.environment import Environment
from belljar.errors import InvalidOption

_PLAIN = "repr(1)"
# An image of the caller's need not have it.
_WITH_PANDAS = """\
try:
    import pandas
except ImportError:
    repr(1)
else:
    frame = pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    repr(frame), frame["a"].sum()
"""


def check(given: object) -> str | None:
    if given is not None and not isinstance(given, str):
        raise InvalidOption(f"rehearsal is code as a str, not {type(given).__name__}")
    return given


def code_for(environment: Environment, given: str | None) -> str:
    """What the caller said, or what suits the packages; an empty text stands for none."""
    if given is not None:
        return given
    return _WITH_PANDAS if "pandas" in environment.preload else _PLAIN
