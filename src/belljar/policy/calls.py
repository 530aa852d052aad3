"""Calls, by what is called: which of them have arguments that decide."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from belljar.policy.attribute_use import attribute_by_name, getter
from belljar.policy.file_use import FILE_RULES, file_use
from belljar.policy.scopes import Scope
from belljar.policy.text_use import format_call, frame_expression
from belljar.policy.values import Const, Literal, Ref

if TYPE_CHECKING:
    from belljar.policy.analyser import Analyser


def check(analyser: Analyser, call: ast.Call, scope: Scope, order: int, relevant: set[str]) -> None:
    function = call.func
    if isinstance(function, ast.Name):
        handler = _BY_NAME.get(function.id)
        if handler is not None and _is_builtin(analyser, function.id, scope, order):
            handler(analyser, call, scope, order)
        elif function.id in relevant and function.id not in _BY_NAME:
            _aliased(analyser, call, function, scope, order)
        return
    if isinstance(function, ast.Attribute):
        handler = _BY_METHOD.get(function.attr)
        if handler is not None:
            handler(analyser, call, scope, order)
        elif rule := analyser.known.methods.get(function.attr):
            _method(analyser, rule, call, function, scope, order)
    elif isinstance(function, (ast.Call, ast.Subscript, ast.IfExp, ast.BoolOp, ast.NamedExpr)):
        _aliased(analyser, call, function, scope, order)


def _is_builtin(analyser: Analyser, name: str, scope: Scope, order: int) -> bool:
    values = analyser.resolver.lookup(name, scope, order)
    return any(isinstance(value, Ref) and value.path == f"builtins.{name}" for value in values)


def _aliased(
    analyser: Analyser, call: ast.Call, function: ast.expr, scope: Scope, order: int
) -> None:
    """`g = getattr; g(o, name)`, `getattr(os, "system")("id")`, `[eval][0]("1")`."""
    for value in analyser.resolver.values(function, scope, order):
        if not isinstance(value, Ref):
            continue
        short = value.path.removeprefix("builtins.")
        handler = _BY_NAME.get(short) if value.path.startswith("builtins.") else None
        handler = handler or _BY_PATH.get(value.path)
        if handler is not None:
            handler(analyser, call, scope, order)
        elif isinstance(function, (ast.Call, ast.IfExp, ast.BoolOp, ast.NamedExpr)):
            rule = analyser.rule_of(value.path)
            if rule and "." in value.path and not value.path.endswith(")"):
                analyser.use(rule, function, value, call, scope, order)


def _method(
    analyser: Analyser,
    rule: str,
    call: ast.Call,
    function: ast.Attribute,
    scope: Scope,
    order: int,
) -> None:
    """A method whose name says enough, unless the object is known and something else."""
    receivers = analyser.resolver.values(function.value, scope, order)
    for value in receivers:
        if isinstance(value, Ref) and analyser.rule_of(f"{value.path}.{function.attr}"):
            return  # by its full name it has been looked at
        if isinstance(value, (Const, Literal)):
            return
    if rule in FILE_RULES:
        if rule == "BJ402" and any(isinstance(value, Ref) for value in receivers):
            return
        file_use(analyser, rule, function, f".{function.attr}", None, call, scope, order)
    else:
        analyser.report(rule, function, f".{function.attr}")


def mentioned(analyser: Analyser, node: ast.Attribute, scope: Scope, order: int) -> None:
    """A method that is not called here: `write = frame.to_csv`, `column.map(pandas.eval)`."""
    rule = analyser.known.methods.get(node.attr)
    if rule in ("BJ404", "BJ405"):
        file_use(analyser, rule, node, f".{node.attr}", None, None, scope, order)
    elif node.attr == "eval":
        for value in analyser.resolver.values(node, scope, order):
            if isinstance(value, Ref) and value.path == "pandas.eval":
                analyser.report("BJ206", node, "pandas.eval")


def _variables(analyser: Analyser, call: ast.Call, scope: Scope, order: int) -> None:
    """vars() without an object is locals()."""
    if not call.args and not analyser.asks_by_name(call):
        analyser.report("BJ308", call, "vars")


_BY_NAME = {
    "vars": _variables,
    "getattr": attribute_by_name,
    "setattr": attribute_by_name,
    "delattr": attribute_by_name,
}
_BY_METHOD = {
    "format": format_call,
    "format_map": format_call,
    "vformat": format_call,
    "query": frame_expression,
    "eval": frame_expression,
    "attrgetter": getter,
    "methodcaller": getter,
}
_BY_PATH = {
    "pandas.eval": frame_expression,
    "operator.attrgetter": getter,
    "operator.methodcaller": getter,
    "inspect.getattr_static": attribute_by_name,
    "builtins.object.__getattribute__": attribute_by_name,
}
