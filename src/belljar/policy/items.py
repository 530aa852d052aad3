"""An element of something, by its index: of literals, constants, and tables of names."""

from __future__ import annotations

import ast
import builtins
from typing import TYPE_CHECKING, Any

from belljar.policy import fold
from belljar.policy.fold import CannotFold
from belljar.policy.values import UNKNOWN, Const, Literal, Ref, Value, Values

if TYPE_CHECKING:
    from belljar.policy.resolve import Resolver

_BUILTINS = frozenset(dir(builtins))
_MOST = 8  # elements that are followed if the index is not known
_NAMESPACES = ("globals", "locals", "vars")


def variable(node: ast.expr) -> tuple[ast.Call, str] | None:
    """What `locals()["x"]` and `globals().get("x")` read: one variable, which has a plain name.

    The call that gives the namespace, and the name; None for any other expression.
    """
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        table, key = node.value, node.slice
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "get"
        and len(node.args) in (1, 2)
        and not node.keywords
        and not isinstance(node.args[-1], ast.Starred)
    ):
        table, key = node.func.value, node.args[0]
    else:
        return None
    if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
        return None
    if (
        isinstance(table, ast.Call)
        and isinstance(table.func, ast.Name)
        and table.func.id in _NAMESPACES
        and not table.args
        and not table.keywords
        and not key.value.startswith("__")
    ):
        return table, key.value
    return None


def item(resolver: Resolver, base: Value, index: Any) -> Values:
    if isinstance(base, Const):
        try:
            return (Const(fold.item(base.value, index)),)
        except CannotFold:
            return UNKNOWN
    if isinstance(base, Literal):
        return _literal_item(resolver, base, index)
    if isinstance(base, Ref) and isinstance(index, str):
        return _named_item(resolver, base, index)
    return (Ref(f"{base.path}[]"),) if isinstance(base, Ref) else UNKNOWN


def _named_item(resolver: Resolver, base: Ref, index: str) -> Values:
    if base.path == "sys.modules":
        return (Ref(resolver.catalogue.canonical(index)),)
    if base.path in ("builtins.globals()", "builtins.locals()", "builtins.vars()"):
        return resolver.lookup(index, resolver.module, 1 << 60)
    if base.path == "builtins" or base.path.endswith(".__builtins__"):
        return (Ref(f"builtins.{index}"),)
    if base.path.endswith(".__dict__"):
        return (resolver.attribute_of(Ref(base.path.removesuffix(".__dict__")), index),)
    if base.path.endswith((".__globals__", ".f_globals", ".f_builtins", ".f_locals")):
        known = resolver.catalogue
        if index == "__builtins__" or index in known.roots:
            return (Ref(known.canonical(index.replace("__builtins__", "builtins"))),)
        return (Ref(f"builtins.{index}"),) if index in _BUILTINS else UNKNOWN
    return (Ref(f"{base.path}[]"),)


def _literal_item(resolver: Resolver, base: Literal, index: Any) -> Values:
    node = base.node
    if isinstance(node, (ast.List, ast.Tuple)) and isinstance(index, int):
        if -len(node.elts) <= index < len(node.elts):
            return resolver.values(node.elts[index], base.scope, base.order)
    elif isinstance(node, (ast.List, ast.Tuple)):
        try:
            return (Const(fold.item(resolver.plain_list(base), index)),)
        except CannotFold:
            return UNKNOWN
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == index:
                return resolver.values(value, base.scope, base.order)
    return UNKNOWN


def any_item(resolver: Resolver, base: Value) -> Values:
    """The index is not known."""
    if isinstance(base, Literal):
        node = base.node
        if isinstance(node, ast.Dict):
            parts = node.values[:_MOST]
            return sum((resolver.values(each, base.scope, base.order) for each in parts), ())
        return resolver.elements((base,))
    return (Ref(f"{base.path}[?]"),) if isinstance(base, Ref) else UNKNOWN
