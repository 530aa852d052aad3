"""What an expression may stand for: a dotted name, a constant, a literal container, or unknown.

One method for each kind of expression. Names are followed through imports, assignments, defaults,
loops over literals and containers. A name with several bindings may stand for each of them. `None`
among the values means that it may also be something that the text does not show.
"""

from __future__ import annotations

import ast
import builtins
import posixpath
import time
from typing import Any

from belljar.policy import fold
from belljar.policy.catalogue import Catalogue
from belljar.policy.fold import CannotFold
from belljar.policy.values import (
    CALLS,
    UNKNOWN,
    Binding,
    Const,
    Exceeded,
    Literal,
    Ref,
    Scope,
    Value,
    Values,
    get_any_item,
    get_item,
    namespace_variable,
)

_BUILTINS = frozenset(dir(builtins)) - {"__doc__", "__name__", "__package__"} | {"__builtins__"}
_NAMESPACES = ("builtins.globals", "builtins.locals", "builtins.vars")
_DEEPEST = 40
_MOST = 8  # values of one expression that are followed


class Resolver:
    def __init__(self, module: Scope, known: Catalogue, deadline: float) -> None:
        self.module = module
        self.deadline = deadline
        self.catalogue = known
        self.steps = 0
        self.depth = 0
        self.following = 0  # bindings under way
        self.looked_up: dict[tuple[str, Scope, bool], Values] = {}

    def values(self, node: ast.expr, scope: Scope, order: int) -> Values:
        handler = _BY_KIND.get(node.__class__)
        if handler is None or self.depth >= _DEEPEST:
            return UNKNOWN
        self.steps += 1
        if not self.steps & 0x3FF and time.thread_time() > self.deadline:
            raise Exceeded("BJ005", "its names take too long to follow", node)
        self.depth += 1
        try:
            found: Values = handler(self, node, scope, order)
        finally:
            self.depth -= 1
        return found if len(found) <= _MOST else _fewer(found)

    def constant(self, node: ast.expr, scope: Scope, order: int) -> Any:
        """The constant value; raises CannotFold unless there is exactly one."""
        found = self.values(node, scope, order)
        if len(found) == 1:
            if isinstance(found[0], Const):
                return found[0].value
            if isinstance(found[0], Literal):
                return self.plain_list(found[0])
        raise CannotFold

    def plain_list(self, literal: Literal) -> list[Any]:
        node = literal.node
        if not isinstance(node, (ast.List, ast.Tuple)) or len(node.elts) > 2000:
            raise CannotFold
        return [self.constant(each, literal.scope, literal.order) for each in node.elts]

    # -- names ------------------------------------------------------------------------------

    def name(self, node: ast.Name, scope: Scope, order: int) -> Values:
        return self.lookup(node.id, scope, order)

    def lookup(self, name: str, scope: Scope, order: int) -> Values:
        bindings, free = self.bindings_of(name, scope, order)
        key = (name, scope, free)  # not id(scope): ids of comprehensions are reused
        if key in self.looked_up:
            return self.looked_up[key]
        distinct: dict[object, Value] = {}
        for binding in bindings:
            for value in self._bound(binding, name):
                distinct[value.path if isinstance(value, Ref) else value] = value
        found = list(distinct.values())
        if free:
            if name in _BUILTINS:
                path = self.catalogue.canonical(f"builtins.{name}")
                found.append(Ref("builtins" if name == "__builtins__" else path))
            elif self.module.stars and not bindings:
                found += [Ref(f"{module}.{name}") for module in self.module.stars]
            elif not bindings:
                # The code does not bind it: an earlier cell may have imported that module.
                module = self.catalogue.usual.get(name)
                found.append(None if module is None else Ref(module))
        if not self.following:  # inside of a cycle the answer may be incomplete
            self.looked_up[key] = tuple(found)
        return tuple(found)

    def bindings_of(self, name: str, scope: Scope, order: int) -> tuple[list[Binding], bool]:
        """The bindings that the name may refer to, and whether it may also be a builtin."""
        found: list[Binding] = []
        current: Scope | None = scope
        while current is not None:
            if current.kind == "class" and current is not scope:
                current = current.parent
                continue
            declared = current.outer.get(name)
            if declared is not None:
                current = self.module if declared == "global" else current.parent
                if current is self.module and declared == "nonlocal":
                    break
            if current is None:
                break
            here = current.bindings.get(name)
            if here:
                found += here
                if current.kind in ("function", "comprehension"):
                    return found, False
                # In modules and classes a name is the builtin until it is bound, and after `del`.
                if name not in current.deleted and any(
                    each.sure and each.order < order for each in here
                ):
                    return found, False
            current = current.parent
        return found, True

    def _bound(self, binding: Binding, name: str) -> Values:
        if binding.values is not None:
            return binding.values
        if binding.dotted is not None:
            binding.values = (Ref(self.imported(binding.dotted)),)
            return binding.values
        if binding.expression is None:
            return UNKNOWN
        # A preliminary value, in case it refers to itself: `open = open`.
        binding.values = (Ref(f"builtins.{name}"),) if name in _BUILTINS else UNKNOWN
        self.following += 1
        try:
            found = self.values(binding.expression, binding.scope, binding.order)
            binding.values = self.elements(found) if binding.elements else found
        finally:
            self.following -= 1
        return binding.values

    def imported(self, dotted: str) -> str:
        """The module behind a dotted name: `from random import _os` is os."""
        module, _, last = dotted.rpartition(".")
        power = self.catalogue.power(module, last) if module and module[0] != "." else None
        return power or self.catalogue.canonical(dotted)

    def elements(self, found: Values) -> Values:
        elements: list[Value] = []
        for value in found:
            if isinstance(value, Literal) and isinstance(
                value.node, (ast.List, ast.Tuple, ast.Set)
            ):
                for each in value.node.elts[: _MOST + 1]:
                    elements += self.values(each, value.scope, value.order)
            elif isinstance(value, Const) and isinstance(value.value, (str, list)):
                elements += [Const(each) for each in value.value[: _MOST + 1]]
            else:
                elements.append(None)
        return tuple(elements[:_MOST]) + ((None,) if len(elements) > _MOST else ())

    # -- parts ------------------------------------------------------------------------------

    def attribute(self, node: ast.Attribute, scope: Scope, order: int) -> Values:
        bases = self.values(node.value, scope, order)
        return tuple(self.attribute_of(base, node.attr) for base in bases)

    def attribute_of(self, base: Value, name: str) -> Value:
        known = self.catalogue
        if isinstance(base, Ref):
            if "(" not in base.path and (power := known.power(base.path, name)):
                return Ref(power)
            if name == "__self__" and base.path.startswith("builtins."):
                return Ref("builtins")  # print.__self__ is the module
            if base.path in ("builtins", "builtins.__dict__"):
                return Ref(known.canonical(f"builtins.{name}"))
            if "(" in base.path and name.strip("_") in known.guessed:
                return Ref(known.canonical(name.strip("_")))
            return Ref(known.canonical(f"{base.path}.{name}"), base.text)
        if name in known.watched or name in known.passing:
            return Ref(f"?.{name}")
        if base is None and name.strip("_") in known.guessed:
            return Ref(known.canonical(name.strip("_")))
        return None

    def variable(self, node: ast.expr, scope: Scope, order: int) -> Values | None:
        """The values of `locals()["x"]`, `globals().get("x", default)`; None for others."""
        found = namespace_variable(node)
        if found is None:
            return None
        call, name = found
        called = self.values(call.func, scope, order)
        if not all(isinstance(each, Ref) and each.path in _NAMESPACES for each in called):
            return None
        all_global = called == (Ref("builtins.globals"),)
        values = self.lookup(name, self.module if all_global else scope, order)
        for default in node.args[1:] if isinstance(node, ast.Call) else ():
            values += self.values(default, scope, order)
        return values

    def subscript(self, node: ast.Subscript, scope: Scope, order: int) -> Values:
        if (known := self.variable(node, scope, order)) is not None:
            return known
        bases = self.values(node.value, scope, order)
        try:
            index = self._index(node.slice, scope, order)
        except CannotFold:
            return tuple(each for base in bases for each in get_any_item(self, base))
        return tuple(each for base in bases for each in get_item(self, base, index))

    def _index(self, node: ast.expr, scope: Scope, order: int) -> Any:
        if isinstance(node, ast.Slice):
            parts = (node.lower, node.upper, node.step)
            return slice(
                *(None if each is None else self.constant(each, scope, order) for each in parts)
            )
        return self.constant(node, scope, order)

    # -- calls ------------------------------------------------------------------------------

    def call(self, node: ast.Call, scope: Scope, order: int) -> Values:
        if (known := self.variable(node, scope, order)) is not None:
            return known
        folded = self._text_call(node, scope, order)
        if folded is not None:
            return (folded,)
        made: list[Value] = []
        for function in self.values(node.func, scope, order):
            made += self._result(function, node, scope, order)
        return tuple(made)

    def _text_call(self, node: ast.Call, scope: Scope, order: int) -> Const | None:
        """`"".join(...)`, `"so".replace(...)`: a method of a constant."""
        function = node.func
        if not isinstance(function, ast.Attribute) or node.keywords:
            return None
        base = function.value
        if isinstance(base, ast.Name) and not self.bindings_of(base.id, scope, order)[0]:
            return None
        try:
            value = self.constant(function.value, scope, order)
            return Const(fold.method(value, function.attr, self.arguments(node, scope, order)))
        except CannotFold:
            return None

    def arguments(self, node: ast.Call, scope: Scope, order: int) -> list[Any]:
        return [self.series(each, scope, order) for each in node.args]

    def series(self, node: ast.expr, scope: Scope, order: int) -> Any:
        """A constant; also `map(chr, [...])` and `(chr(n) for n in [...])`."""
        if isinstance(node, (ast.GeneratorExp, ast.ListComp)):
            return self._comprehended(node, scope, order)
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "map"
            and len(node.args) == 2
        ):
            functions = self.values(node.args[0], scope, order)
            if len(functions) == 1 and isinstance(functions[0], Ref):
                path = functions[0].path
                if path in fold.FOLDING:
                    items = self.series(node.args[1], scope, order)
                    return [fold.call(path, [each]) for each in items[:2000]]
        return self.constant(node, scope, order)

    def _comprehended(
        self, node: ast.GeneratorExp | ast.ListComp, scope: Scope, order: int
    ) -> list[Any]:
        generator = node.generators[0]
        if len(node.generators) != 1 or generator.ifs or not isinstance(generator.target, ast.Name):
            raise CannotFold
        items = self.series(generator.iter, scope, order)
        if not isinstance(items, (list, str, bytes)) or len(items) > 2000:
            raise CannotFold
        made = []
        for each in items:
            inner = Scope("comprehension", scope)
            bound = Binding(inner, order, True, expression=ast.Constant(each))
            inner.bindings[generator.target.id] = [bound]
            made.append(self.constant(node.elt, inner, order))
        return made

    def _result(self, function: Value, node: ast.Call, scope: Scope, order: int) -> Values:
        if not isinstance(function, Ref):
            return UNKNOWN
        path = function.path
        if path in fold.FOLDING and node.args and not node.keywords:
            try:
                return (Const(fold.call(path, self.arguments(node, scope, order))),)
            except CannotFold:
                return (Ref(f"{path}()"),)
        special = CALLS.get(path)
        if special is not None:
            made: Values = special(self, path, node, scope, order)
            return made
        return (Ref(self.catalogue.canonical(f"{path}()"), function.text),)

    # -- operators --------------------------------------------------------------------------

    def binary(self, node: ast.BinOp, scope: Scope, order: int) -> Values:
        if isinstance(node.op, ast.Div):
            return self._joined_path(self.values(node.left, scope, order), node, scope, order)
        parts = [node]  # `"a" + "b" + "c" + ...` leans to the left
        while isinstance(parts[-1].left, ast.BinOp):
            parts.append(parts[-1].left)
        try:
            made = self.constant(parts[-1].left, scope, order)
            for each in reversed(parts):
                right = self.constant(each.right, scope, order)
                made = fold.binary(type(each.op).__name__, made, right)
        except CannotFold:
            return UNKNOWN
        return (Const(made),)

    def _joined_path(self, lefts: Values, node: ast.BinOp, scope: Scope, order: int) -> Values:
        if not any(isinstance(each, Ref) and each.path == "pathlib.Path()" for each in lefts):
            return UNKNOWN
        try:
            right = str(self.constant(node.right, scope, order))
        except CannotFold:
            return (Ref("pathlib.Path()"),)
        return tuple(
            Ref("pathlib.Path()", None if each.text is None else posixpath.join(each.text, right))
            for each in lefts
            if isinstance(each, Ref)
        )

    def unary(self, node: ast.UnaryOp, scope: Scope, order: int) -> Values:
        try:
            value = self.constant(node.operand, scope, order)
        except CannotFold:
            return UNKNOWN
        if isinstance(node.op, ast.USub) and isinstance(value, (int, float)):
            return (Const(-value),)
        return UNKNOWN

    def joined(self, node: ast.JoinedStr, scope: Scope, order: int) -> Values:
        parts: list[str] = []
        try:
            for each in node.values:
                if isinstance(each, ast.FormattedValue):
                    if each.format_spec is not None or each.conversion not in (-1, 115):
                        return UNKNOWN
                    parts.append(str(self.constant(each.value, scope, order)))
                else:
                    parts.append(str(self.constant(each, scope, order)))
        except CannotFold:
            return UNKNOWN
        text = "".join(parts)
        return (Const(text),) if len(text) <= fold.LONGEST else UNKNOWN

    def either(self, node: ast.IfExp, scope: Scope, order: int) -> Values:
        return self.values(node.body, scope, order) + self.values(node.orelse, scope, order)

    def any_of(self, node: ast.BoolOp, scope: Scope, order: int) -> Values:
        return sum((self.values(each, scope, order) for each in node.values[:_MOST]), ())

    def inner(self, node: ast.NamedExpr | ast.Await, scope: Scope, order: int) -> Values:
        return self.values(node.value, scope, order)

    def literal(self, node: ast.expr, scope: Scope, order: int) -> Values:
        return (Literal(node, scope, order),)

    def plain(self, node: ast.Constant, scope: Scope, order: int) -> Values:
        return (Const(node.value),)


def _fewer(found: Values) -> Values:
    """The first values, named ones before others, and unknown for the rest."""
    named = [value for value in found if isinstance(value, Ref)]
    others = [value for value in found if value is not None and not isinstance(value, Ref)]
    return (*named[: 4 * _MOST], *others[:_MOST], None)


_BY_KIND: dict[type[ast.expr], Any] = {
    ast.Name: Resolver.name,
    ast.Attribute: Resolver.attribute,
    ast.Subscript: Resolver.subscript,
    ast.Call: Resolver.call,
    ast.BinOp: Resolver.binary,
    ast.UnaryOp: Resolver.unary,
    ast.JoinedStr: Resolver.joined,
    ast.IfExp: Resolver.either,
    ast.BoolOp: Resolver.any_of,
    ast.NamedExpr: Resolver.inner,
    ast.Await: Resolver.inner,
    ast.List: Resolver.literal,
    ast.Tuple: Resolver.literal,
    ast.Set: Resolver.literal,
    ast.Dict: Resolver.literal,
    ast.Constant: Resolver.plain,
}
