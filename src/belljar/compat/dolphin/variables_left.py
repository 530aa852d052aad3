"""The variables that code has left, as plain data, and a context that is to have them.

dolphin-mcp's loop hands the same dict to every call, and without Docker the code once ran with it
as its namespace. Here the variables stay in the sandbox, where they are what they were (two names
of one list, a function that uses it); the context gets copies of those that are plain data. What
the caller then changes in the context goes in with the next call, and nothing else does.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from belljar.errors import CannotTravel, ExecutionError, NameMissing
from belljar.sandbox.blocking import Sandbox

log = logging.getLogger(__name__)

TIMEOUT = 10.0  # seconds
MOST = 1_000_000  # bytes of one variable, about; larger ones stay in the sandbox alone
MOST_OF_ALL = 8 * MOST
LARGEST_INT = 10_000  # bits; Python writes no much larger ones as text
CONTEXT = "context"  # by which the code finds the whole context; not a variable of its own
_NAME = "__belljar_left__"

# Runs in the sandbox, which may have been told anything by the code: it would deceive itself.
# Exactly these types: a subclass is a class of the code's, whose methods might be called.
_COLLECT = f"""
def collect(names):
    def size(value, depth=0):
        kind = type(value)
        if value is None or kind in (bool, float, complex):
            return 10
        if kind is int and value.bit_length() <= {LARGEST_INT}:
            return 10
        if kind in (str, bytes):
            return 10 + len(value)
        if kind not in (list, tuple, dict) or depth > 50 or len(value) > {MOST}:
            return {MOST}
        total = 10
        for each in value.items() if kind is dict else value:
            if kind is dict:
                if type(each[0]) is not str:
                    return {MOST}
                total += len(each[0])
                each = each[1]
            total += size(each, depth + 1)
            if total >= {MOST}:
                break
        return total
    found, room = {{}}, {MOST_OF_ALL}
    for name, value in list(names.items()):
        if type(name) is str and name.isidentifier() and name.strip("_0123456789"):
            if not name.startswith("__") and name != {CONTEXT!r}:
                taken = size(value)
                if taken < {MOST} and taken <= room:
                    found[name] = value
                    room -= taken
    return found
"""
_CODE = f"{_NAME} = (lambda _: (exec({_COLLECT!r}, _), _['collect'](globals()))[1])({{}})"


def fetch(sandbox: Sandbox) -> dict[str, Any] | None:
    """The plain variables of the sandbox; None if they cannot be had."""
    if not sandbox.run_code(_CODE, timeout=TIMEOUT).ok:
        return None
    try:
        found = sandbox.get(_NAME, timeout=TIMEOUT)
    except (CannotTravel, NameMissing, ExecutionError) as error:
        log.info("the variables of a session could not be had: %s", error)
        return None
    return found if isinstance(found, dict) else None


class Known:
    """What a context and the sandbox both have, by name: the text of each value."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def changed(self, variables: Mapping[str, object]) -> dict[str, object]:
        """Those of a context that the sandbox does not have, or has with another value. They are
        taken to be there from now on."""
        news = {
            name: value
            for name, value in variables.items()
            if name != CONTEXT and self._texts.get(name) != _text(value)
        }
        self._texts |= {name: _text(value) for name, value in news.items()}
        return {**news, CONTEXT: variables[CONTEXT]} if news else {}

    def fill(self, context: dict[str, Any], found: Mapping[str, Any] | None) -> None:
        """Let the context have what was found, and lose what the code has deleted."""
        if found is None:
            self._texts = {}
            return
        texts = {name: _text(value) for name, value in found.items()}
        for name in self._texts:
            if name not in texts and _is_plain(context.get(name)):
                context.pop(name, None)
        for name, value in found.items():
            if name not in context or _text(context[name]) != texts[name]:
                context[name] = value
        self._texts = texts


def _text(value: object) -> str:
    """Equal for equal plain data, types included; of other objects, for nothing else."""
    return repr(value) if _is_plain(value) else f"<{type(value).__name__} {id(value)}>"


def _is_plain(value: object, depth: int = 0) -> bool:
    if type(value) is int:
        return value.bit_length() <= LARGEST_INT
    if value is None or type(value) in (bool, float, complex, str, bytes):
        return True
    if type(value) is dict:
        return depth < 100 and all(
            type(key) is str and _is_plain(each, depth + 1) for key, each in value.items()
        )
    return (
        type(value) in (list, tuple)
        and depth < 100
        and all(_is_plain(each, depth + 1) for each in value)  # type: ignore[attr-defined]
    )
