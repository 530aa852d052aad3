"""What an expression may stand for: a dotted name, a constant, a literal container, or unknown."""

from __future__ import annotations

import ast
from typing import Any

from belljar.policy.scopes import Scope


class Ref:
    """Something with a name: "os.system", "pathlib.Path()", "?.__class__" of whatever object."""

    __slots__ = ("path", "text")

    def __init__(self, path: str, text: str | None = None) -> None:
        self.path = path
        self.text = text  # of a pathlib.Path: the path it is, if that is constant

    def __repr__(self) -> str:
        return f"Ref({self.path})"


class Const:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Literal:
    """A list, tuple, set or dict as it is written."""

    __slots__ = ("node", "order", "scope")

    def __init__(self, node: ast.expr, scope: Scope, order: int) -> None:
        self.node, self.scope, self.order = node, scope, order


Value = Ref | Const | Literal | None
Values = tuple[Value, ...]
UNKNOWN: Values = (None,)


def first_argument(node: ast.Call, *names: str) -> ast.expr | None:
    """The first positional argument, or the one that has one of these names."""
    if node.args:
        return node.args[0]
    for keyword in node.keywords:
        if keyword.arg in names:
            return keyword.value
    return None
