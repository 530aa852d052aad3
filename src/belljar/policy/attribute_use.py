"""Attributes by a name that is a text: getattr, setattr, delattr, and operator's getters."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from belljar.policy.scopes import Scope
from belljar.policy.values import Ref, Values

if TYPE_CHECKING:
    from belljar.policy.analyser import Analyser


def attribute_by_name(analyser: Analyser, call: ast.Call, scope: Scope, order: int) -> None:
    """getattr, setattr, delattr."""
    if len(call.args) < 2:
        if any(isinstance(each, ast.Starred) for each in call.args):
            analyser.report("BJ305", call, "getattr")
        return
    called = call.func.id if isinstance(call.func, ast.Name) else "getattr"
    objects = analyser.resolver.values(call.args[0], scope, order)
    for text in dict.fromkeys(analyser.texts(call.args[1], scope, order)):
        if text is None:
            modules = [each for each in map(_of_module(analyser), objects) if each]
            if modules:
                analyser.report("BJ306", call, f"{called}({modules[0]}, …)")
            else:
                analyser.report("BJ305", call, called)
            continue
        _constant_attribute(analyser, call, objects, text, called)
        if called == "setattr" and any(map(_of_module(analyser), objects)):
            analyser.report("BJ310", call, f"setattr of {text!r}")


def _of_module(analyser: Analyser) -> Callable[[object], str | None]:
    """The name of a module the catalogue knows, or of something in it."""

    def name(value: object) -> str | None:
        if not isinstance(value, Ref) or value.path.endswith((")", "]")):
            return None
        return value.path if value.path.partition(".")[0] in analyser.known.roots else None

    return name


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
                continue  # what is called is looked at with its arguments
            elif rule := analyser.rule_of(value.path):
                analyser.report(rule, call, value.path.removeprefix("builtins."))


def getter(analyser: Analyser, call: ast.Call, scope: Scope, order: int) -> None:
    """operator.attrgetter("a.b"), operator.methodcaller("name")"""
    if not call.args:
        return
    for argument in call.args[: 1 if _called(call) == "methodcaller" else None]:
        for text in analyser.texts(argument, scope, order):
            if text is None:
                analyser.report("BJ305", call, _called(call))
                continue
            steps = text.split(".")
            for step in steps:
                if step in analyser.known.watched or step.strip("_") in analyser.known.powers:
                    value = Ref("?." + text)
                    rule = "BJ301" if len(steps) > 1 else None
                    if rule:
                        analyser.report(rule, call, text[:60])
                    else:
                        analyser.inner_attribute(call, step, value, set())
                    break


def _called(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else "a call"
