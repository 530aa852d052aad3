"""Calls whose arguments decide: attributes by name (getattr, operator's getters), format strings,
expressions of frames."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from belljar.policy.uses import FILE_RULES, check_file, show_text
from belljar.policy.values import Const, Literal, Place, Ref, Values, first_argument

if TYPE_CHECKING:
    from belljar.policy.analyser import Analyser


def check_call(analyser: Analyser, call: ast.Call, at: Place, relevant: set[str]) -> None:
    function = call.func
    if isinstance(function, ast.Name):
        handler = _BY_NAME.get(function.id)
        # Not by `paths`, which leaves out the builtin behind many other values of the name.
        found = analyser.resolver.lookup(function.id, at) if handler else ()
        builtin = f"builtins.{function.id}"
        if handler and any(isinstance(each, Ref) and each.path == builtin for each in found):
            handler(analyser, call, at)
        elif function.id in relevant and function.id not in _BY_NAME:
            _check_alias(analyser, call, function, at)
        return
    if isinstance(function, ast.Attribute):
        handler = _BY_METHOD.get(function.attr)
        if handler:
            handler(analyser, call, at)
        elif rule := analyser.known.methods.get(function.attr):
            _check_method(analyser, rule, call, function, at)
    elif isinstance(function, (ast.Call, ast.Subscript, ast.IfExp, ast.BoolOp, ast.NamedExpr)):
        _check_alias(analyser, call, function, at)


def _check_alias(analyser: Analyser, call: ast.Call, function: ast.expr, at: Place) -> None:
    """`g = getattr; g(o, name)`, `getattr(os, "system")("id")`, `[eval][0]("1")`."""
    for value in analyser.resolver.values(function, at):
        if not isinstance(value, Ref):
            continue
        if handler := _BY_PATH.get(value.path):
            handler(analyser, call, at)
        elif isinstance(function, (ast.Call, ast.IfExp, ast.BoolOp, ast.NamedExpr)):
            rule = analyser.rule_of(value.path)
            if rule and "." in value.path and not value.path.endswith(")"):
                analyser.use(rule, function, value, call, at)


def _check_method(
    analyser: Analyser, rule: str, call: ast.Call, function: ast.Attribute, at: Place
) -> None:
    """A method that is recognised by its name, unless its object is known to be another thing."""
    receivers = analyser.resolver.values(function.value, at)
    for value in receivers:
        if isinstance(value, Ref) and analyser.rule_of(f"{value.path}.{function.attr}"):
            return  # checked by its full name
        if isinstance(value, (Const, Literal)):
            return
    if rule in FILE_RULES:
        if rule == "BJ402" and any(isinstance(value, Ref) for value in receivers):
            return
        check_file(analyser, rule, function, f".{function.attr}", None, call, at)
    else:
        analyser.report(rule, function, f".{function.attr}")


def check_mention(analyser: Analyser, node: ast.Attribute, at: Place) -> None:
    """A method that is not called: `write = frame.to_csv`, `column.map(pandas.eval)`."""
    rule = analyser.known.methods.get(node.attr)
    if rule in ("BJ404", "BJ405"):
        check_file(analyser, rule, node, f".{node.attr}", None, None, at)
    elif node.attr == "eval" and "pandas.eval" in analyser.resolver.paths(node, at):
        analyser.report("BJ206", node, "pandas.eval")


def _check_vars(analyser: Analyser, call: ast.Call, at: Place) -> None:
    """vars() without an object is locals()."""
    if not call.args and not analyser.asks_by_name(call):
        analyser.report("BJ308", call, "vars")


def check_attribute_call(analyser: Analyser, call: ast.Call, at: Place) -> None:
    """getattr, setattr, delattr."""
    if len(call.args) < 2:
        if any(isinstance(each, ast.Starred) for each in call.args):
            analyser.report("BJ305", call, "getattr")
        return
    called = call.func.id if isinstance(call.func, ast.Name) else "getattr"
    objects = analyser.resolver.values(call.args[0], at)
    paths = [each.path for each in objects if isinstance(each, Ref)]
    roots = analyser.known.roots  # `modules`: those objects that are in a known module
    modules = [p for p in paths if p.partition(".")[0] in roots and not p.endswith((")", "]"))]
    for text in dict.fromkeys(analyser.texts(call.args[1], at)):
        if text is not None:
            _constant_attribute(analyser, call, objects, text, called)
            if called == "setattr" and modules:
                analyser.report("BJ310", call, f"setattr of {text!r}")
        elif modules:
            analyser.report("BJ306", call, f"{called}({modules[0]}, …)")
        else:
            analyser.report("BJ305", call, called)


def _constant_attribute(
    analyser: Analyser, call: ast.Call, objects: Values, text: str, called: str
) -> None:
    for base in objects:
        value = analyser.resolver.attribute_of(base, text)
        if text in analyser.known.watched:
            analyser.inner_attribute(call, text, value, set())
        if isinstance(value, Ref) and isinstance(base, Ref):
            if "(" not in base.path and analyser.known.power(base.path, text):
                analyser.report("BJ107", call, f"{base.path}.{text}")
            elif id(call) in analyser.survey.called or called == "setattr":
                continue  # a called function is checked with its arguments
            elif rule := analyser.rule_of(value.path):
                analyser.report(rule, call, value.path.removeprefix("builtins."))


def check_getter_call(analyser: Analyser, call: ast.Call, at: Place) -> None:
    """operator.attrgetter("a.b"), operator.methodcaller("name")"""
    known, function = analyser.known, call.func
    called = "a call"
    if isinstance(function, (ast.Attribute, ast.Name)):
        called = function.attr if isinstance(function, ast.Attribute) else function.id
    for argument in call.args[: 1 if called == "methodcaller" else None]:
        for text in analyser.texts(argument, at):
            if text is None:
                analyser.report("BJ305", call, called)
                continue
            steps = text.split(".")
            if any(step in known.watched or step.strip("_") in known.powers for step in steps):
                if len(steps) > 1:
                    analyser.report("BJ301", call, text[:60])
                else:
                    analyser.inner_attribute(call, text, Ref(f"?.{text}"), set())


_WALK = re.compile(
    r"\{[^{}]*?[.\[](?:__\w|_*(?:os|sys|builtins|subprocess|modules|environ)\b|(?:f|gi|tb|cr|ag)_\w+)"
)
_FRAME_MAKERS = ("pandas.", "polars.", "geopandas.", "dask.")


def check_format_call(analyser: Analyser, call: ast.Call, at: Place) -> None:
    """`"{0.__class__}".format(x)`"""
    function = call.func
    if not isinstance(function, ast.Attribute):
        return
    if isinstance(function.value, ast.Attribute) and function.value.attr == "style":
        return  # `frame.style.format` does not take a format string
    for value in analyser.resolver.values(function.value, at):
        if isinstance(value, Const) and isinstance(value.value, str):
            check_format_text(analyser, call, value.value)
        elif isinstance(value, Ref) and value.path in ("builtins.str", "string.Formatter()"):
            for text in analyser.texts(call.args[0], at) if call.args else ():
                if text is None:
                    analyser.report("BJ304", call, function.attr)
                else:
                    check_format_text(analyser, call, text)
        elif not isinstance(value, (Const, Literal)) and (call.args or call.keywords):
            analyser.report("BJ304", call, f".{function.attr}()")


def check_format_text(analyser: Analyser, call: ast.AST, text: str) -> None:
    plain = text.replace("{{", "").replace("}}", "")
    if found := _WALK.search(plain):
        analyser.report("BJ303", call, show_text(found[0]))


def check_frame_expression(analyser: Analyser, call: ast.Call, at: Place) -> None:
    """`frame.query("…")`, `frame.eval("…")`, `pandas.eval("…")`: a small language, but `@` and
    attributes lead out of it. `.eval()` of a model has no text, and is not checked."""
    argument = first_argument(call, "expr")
    if argument is None:
        return
    function = call.func
    called = "eval"  # of pandas, under any name
    if isinstance(function, ast.Attribute):
        called = function.attr
        paths = analyser.resolver.paths(function.value, at)
        if "builtins" in paths:  # builtins.eval has another rule
            return
        if called == "query" and not all(path.startswith(_FRAME_MAKERS) for path in paths):
            return
    for text in analyser.texts(argument, at):
        if text is not None:
            if _leads_out(text):
                analyser.report("BJ204", call, f".{called}()")
        elif called == "eval" or isinstance(argument, (ast.JoinedStr, ast.BinOp)):  # makes a text
            analyser.report("BJ206", call, f".{called}()")


def _leads_out(text: str) -> bool:
    """`@limit` is a variable and harmless; `@pd.read_csv`, `@f(...)` and dunders are not."""
    return bool(
        "__" in text
        or re.search(r"@\s*\w+\s*[.(\[]", text)
        or re.search(r"\bimport\b|\.\s*(?:pipe|apply|to_\w+|read_\w+)\s*\(", text)
    )


_BY_NAME = {
    "vars": _check_vars,
    "getattr": check_attribute_call,
    "setattr": check_attribute_call,
    "delattr": check_attribute_call,
}
_BY_METHOD = {
    "format": check_format_call,
    "format_map": check_format_call,
    "vformat": check_format_call,
    "query": check_frame_expression,
    "eval": check_frame_expression,
    "attrgetter": check_getter_call,
    "methodcaller": check_getter_call,
}
_BY_PATH = {
    **{f"builtins.{name}": handler for name, handler in _BY_NAME.items()},
    "pandas.eval": check_frame_expression,
    "operator.attrgetter": check_getter_call,
    "operator.methodcaller": check_getter_call,
    "inspect.getattr_static": check_attribute_call,
    "builtins.object.__getattribute__": check_attribute_call,
}
