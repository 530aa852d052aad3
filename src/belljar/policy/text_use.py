"""Texts with a language of their own: format strings, and expressions of frames."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from belljar.policy.file_use import shown
from belljar.policy.scopes import Scope
from belljar.policy.values import Const, Literal, Ref, Values, first_argument

if TYPE_CHECKING:
    from belljar.policy.analyser import Analyser

_WALK = re.compile(
    r"\{[^{}]*?[.\[](?:__\w|_*(?:os|sys|builtins|subprocess|modules|environ)\b|(?:f|gi|tb|cr|ag)_\w+)"
)
_FRAME_MAKERS = ("pandas.", "polars.", "geopandas.", "dask.")


def format_call(analyser: Analyser, call: ast.Call, scope: Scope, order: int) -> None:
    """`"{0.__class__}".format(x)`"""
    function = call.func
    if not isinstance(function, ast.Attribute):
        return
    if isinstance(function.value, ast.Attribute) and function.value.attr == "style":
        return  # `frame.style.format` is another thing
    receivers = analyser.resolver.values(function.value, scope, order)
    for value in receivers:
        if isinstance(value, Const) and isinstance(value.value, str):
            format_text(analyser, call, value.value)
        elif isinstance(value, Ref) and value.path in ("builtins.str", "string.Formatter()"):
            for text in analyser.texts(call.args[0], scope, order) if call.args else ():
                if text is None:
                    analyser.report("BJ304", call, function.attr)
                else:
                    format_text(analyser, call, text)
        elif not isinstance(value, (Const, Literal)) and (call.args or call.keywords):
            analyser.report("BJ304", call, f".{function.attr}()")


def format_text(analyser: Analyser, call: ast.AST, text: str) -> None:
    plain = text.replace("{{", "").replace("}}", "")
    if found := _WALK.search(plain):
        analyser.report("BJ303", call, shown(found[0]))


def frame_expression(analyser: Analyser, call: ast.Call, scope: Scope, order: int) -> None:
    """`frame.query("…")`, `frame.eval("…")`, `pandas.eval("…")`: its own small language, but `@`
    and attributes lead out of it. `.eval()` of a model has no text, and is none of our business."""
    argument = first_argument(call, "expr")
    if argument is None:
        return
    function = call.func
    called = "eval"  # of pandas, under whatever name
    if isinstance(function, ast.Attribute):
        called = function.attr
        receivers = analyser.resolver.values(function.value, scope, order)
        if not _may_be_frame(called, receivers):
            return
    for text in analyser.texts(argument, scope, order):
        if text is not None:
            if _leads_out(text):
                analyser.report("BJ204", call, f".{called}()")
        elif called == "eval" or _is_text(argument):
            analyser.report("BJ206", call, f".{called}()")


def _may_be_frame(called: str, receivers: Values) -> bool:
    for value in receivers:
        if isinstance(value, Ref):
            if value.path == "builtins":
                return False  # builtins.eval has rules of its own
            if called == "query" and not value.path.startswith(_FRAME_MAKERS):
                return False
    return True


def _leads_out(text: str) -> bool:
    """`@limit` is a variable and harmless; `@pd.read_csv`, `@f(...)` and dunders are not."""
    return bool(
        "__" in text
        or re.search(r"@\s*\w+\s*[.(\[]", text)
        or re.search(r"\bimport\b|\.\s*(?:pipe|apply|to_\w+|read_\w+)\s*\(", text)
    )


def _is_text(node: ast.expr) -> bool:
    """Put together as a text, though we do not know all of it."""
    return isinstance(node, (ast.JoinedStr, ast.BinOp))
