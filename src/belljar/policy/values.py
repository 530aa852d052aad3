"""What names and expressions may stand for: bindings in scopes; values, which are a dotted name, a
constant, a literal container, or unknown; elements of values, and results of known calls."""

from __future__ import annotations

import ast
import builtins
import posixpath
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from belljar.policy import fold
from belljar.policy.fold import CannotFold

if TYPE_CHECKING:
    from belljar.policy.resolve import Resolver


@dataclass(slots=True, eq=False)
class Binding:
    """One place that binds a name: to an expression, a dotted name, or something unknown."""

    at: Place  # where the expression is evaluated
    sure: bool  # it happens whenever its block runs
    expression: ast.expr | None = None
    dotted: str | None = None
    elements: bool = False  # to an element of the expression
    values: tuple[Any, ...] | None = None  # the resolver's cache


@dataclass(slots=True, eq=False)
class Scope:
    kind: str  # module, class, function, comprehension
    parent: Scope | None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    outer: dict[str, str] = field(default_factory=dict)  # names declared global or nonlocal
    deleted: set[str] = field(default_factory=set)
    stars: list[str] = field(default_factory=list)  # modules whose names were all imported


Place = tuple[Scope, int]  # a place in the code: its scope, and its number in the source


@dataclass(slots=True, eq=False)
class Ref:
    """Something with a name: "os.system", "pathlib.Path()", "?.__class__" of any object."""

    path: str
    text: str | None = None  # of a pathlib.Path: its path, if that is constant


@dataclass(slots=True, eq=False)
class Const:
    value: Any


@dataclass(slots=True, eq=False)
class Literal:
    """A list, tuple, set or dict display."""

    node: ast.expr
    at: Place


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


_BUILTINS = frozenset(dir(builtins))
_MOST_ITEMS = 8  # elements that are followed if the index is not known


def namespace_variable(node: ast.expr) -> tuple[ast.Call, str] | None:
    """For `locals()["x"]` and `globals().get("x")`: the call that returns the namespace, and the
    name of the variable. None for any other expression."""
    if isinstance(node, ast.Call) and getattr(node.func, "attr", None) != "get":
        return None  # most calls; this must be cheap
    match node:
        case ast.Subscript(value=table, slice=ast.Constant(value=str(name)), ctx=ast.Load()):
            pass
        case ast.Call(
            func=ast.Attribute(attr="get", value=table),
            args=[ast.Constant(value=str(name)), *rest],
            keywords=[],
        ) if len(rest) < 2 and not any(isinstance(each, ast.Starred) for each in rest):
            pass
        case _:
            return None
    match table:
        case ast.Call(func=ast.Name(id="globals" | "locals" | "vars"), args=[], keywords=[]):
            return None if name.startswith("__") else (table, name)
    return None


def get_item(resolver: Resolver, base: Value, index: Any) -> Values:
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
        return resolver.lookup(index, (resolver.module, 1 << 60))
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
            return resolver.values(node.elts[index], base.at)
    elif isinstance(node, (ast.List, ast.Tuple)):
        try:
            return (Const(fold.item(resolver.plain_list(base), index)),)
        except CannotFold:
            return UNKNOWN
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == index:
                return resolver.values(value, base.at)
    return UNKNOWN


def get_any_item(resolver: Resolver, base: Value) -> Values:
    """The elements, when the index is unknown."""
    if isinstance(base, Literal):
        node = base.node
        if isinstance(node, ast.Dict):
            parts = node.values[:_MOST_ITEMS]
            return sum((resolver.values(each, base.at) for each in parts), ())
        return resolver.elements((base,))
    return (Ref(f"{base.path}[?]"),) if isinstance(base, Ref) else UNKNOWN


def _get_attribute(resolver: Resolver, path: str, node: ast.Call, at: Place) -> Values:
    """getattr(object, "name")"""
    if len(node.args) < 2:
        return UNKNOWN
    bases = resolver.values(node.args[0], at)
    names = resolver.values(node.args[1], at)
    return tuple(
        resolver.attribute_of(base, name.value)
        if isinstance(name, Const) and isinstance(name.value, str)
        else None
        for base in bases
        for name in names
    )


def _import_module(resolver: Resolver, path: str, node: ast.Call, at: Place) -> Values:
    """__import__("os"), importlib.import_module("os")"""
    argument = first_argument(node, "name")
    if argument is None:
        return UNKNOWN
    found: list[Value] = []
    for value in resolver.values(argument, at):
        if isinstance(value, Const) and isinstance(value.value, str):
            name = value.value
            whole = path != "builtins.__import__" or len(node.args) > 3 or node.keywords
            found.append(Ref(resolver.imported(name if whole else name.partition(".")[0])))
        else:
            found.append(None)
    return tuple(found)


def _get_namespace(resolver: Resolver, path: str, node: ast.Call, at: Place) -> Values:
    """vars(os) is os.__dict__"""
    if not node.args:
        return (Ref("builtins.vars()"),)
    return tuple(
        Ref(f"{base.path}.__dict__") if isinstance(base, Ref) else Ref("?.__dict__")
        for base in resolver.values(node.args[0], at)
    )


def _make_path(resolver: Resolver, path: str, node: ast.Call, at: Place) -> Values:
    try:
        parts = resolver.arguments(node, at)
        text = posixpath.join(*parts) if parts else "."
    except (CannotFold, TypeError):
        return (Ref("pathlib.Path()"),)
    return (Ref("pathlib.Path()", text),)


CALLS: dict[str, Any] = {
    "builtins.getattr": _get_attribute,
    "inspect.getattr_static": _get_attribute,
    "builtins.object.__getattribute__": _get_attribute,
    "builtins.type.__getattribute__": _get_attribute,
    "builtins.__import__": _import_module,
    "importlib.import_module": _import_module,
    "importlib._gcd_import": _import_module,
    "builtins.vars": _get_namespace,
    "pathlib.Path": _make_path,
    "pathlib.PurePath": _make_path,
}
