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
from belljar.policy.source import Problem, find_range
from belljar.policy.values import (
    CALLS,
    UNKNOWN,
    Binding,
    Const,
    Literal,
    Place,
    Ref,
    Scope,
    Value,
    Values,
    get_any_item,
    get_item,
    namespace_variable,
)

_BUILTINS = frozenset(dir(builtins)) - {"__doc__", "__name__", "__package__"} | {"__builtins__"}
_NAMESPACES = {"builtins.globals", "builtins.locals", "builtins.vars"}
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

    def values(self, node: ast.expr, at: Place) -> Values:
        handler = _BY_KIND.get(node.__class__)
        if handler is None or self.depth >= _DEEPEST:
            return UNKNOWN
        self.steps += 1
        if not self.steps & 0x3FF and time.thread_time() > self.deadline:
            raise Problem("BJ005", "its names take too long to follow", find_range(node))
        self.depth += 1
        try:
            found: Values = handler(self, node, at)
        except CannotFold:
            return UNKNOWN
        finally:
            self.depth -= 1
        return found if len(found) <= _MOST else _fewer(found)

    def constant(self, node: ast.expr, at: Place) -> Any:
        """The constant value; raises CannotFold unless there is exactly one."""
        found = self.values(node, at)
        if len(found) == 1:
            if isinstance(found[0], Const):
                return found[0].value
            if isinstance(found[0], Literal):
                return self.plain_list(found[0])
        raise CannotFold

    def paths(self, node: ast.expr, at: Place) -> list[str]:
        """The dotted names that the expression may be."""
        return [value.path for value in self.values(node, at) if isinstance(value, Ref)]

    def plain_list(self, literal: Literal) -> list[Any]:
        node = literal.node
        if not isinstance(node, (ast.List, ast.Tuple)) or len(node.elts) > 2000:
            raise CannotFold
        return [self.constant(each, literal.at) for each in node.elts]

    # -- names ------------------------------------------------------------------------------

    def name(self, node: ast.Name, at: Place) -> Values:
        return self.lookup(node.id, at)

    def lookup(self, name: str, at: Place) -> Values:
        bindings, free = self.bindings_of(name, at)
        key = (name, at[0], free)  # not id(at[0]): ids of comprehensions are reused
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

    def bindings_of(self, name: str, at: Place) -> tuple[list[Binding], bool]:
        """The bindings that the name may refer to, and whether it may also be a builtin."""
        found: list[Binding] = []
        scope, order = at
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
                    each.sure and each.at[1] < order for each in here
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
            found = self.values(binding.expression, binding.at)
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
                    elements += self.values(each, value.at)
            elif isinstance(value, Const) and isinstance(value.value, (str, list)):
                elements += [Const(each) for each in value.value[: _MOST + 1]]
            else:
                elements.append(None)
        return tuple(elements[:_MOST]) + ((None,) if len(elements) > _MOST else ())

    # -- parts ------------------------------------------------------------------------------

    def attribute(self, node: ast.Attribute, at: Place) -> Values:
        bases = self.values(node.value, at)
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

    def variable(self, node: ast.expr, at: Place) -> Values | None:
        """The values of `locals()["x"]`, `globals().get("x", default)`; None for others."""
        found = namespace_variable(node)
        if found is None:
            return None
        call, name = found
        called = {each.path if isinstance(each, Ref) else "" for each in self.values(call.func, at)}
        if not called <= _NAMESPACES:
            return None
        in_module = called == {"builtins.globals"}
        values = self.lookup(name, (self.module, at[1]) if in_module else at)
        for default in node.args[1:] if isinstance(node, ast.Call) else ():
            values += self.values(default, at)
        return values

    def subscript(self, node: ast.Subscript, at: Place) -> Values:
        if (known := self.variable(node, at)) is not None:
            return known
        bases = self.values(node.value, at)
        try:
            index = self._index(node.slice, at)
        except CannotFold:
            return tuple(each for base in bases for each in get_any_item(self, base))
        return tuple(each for base in bases for each in get_item(self, base, index))

    def _index(self, node: ast.expr, at: Place) -> Any:
        if not isinstance(node, ast.Slice):
            return self.constant(node, at)
        parts = (node.lower, node.upper, node.step)
        return slice(*(None if each is None else self.constant(each, at) for each in parts))

    # -- calls ------------------------------------------------------------------------------

    def call(self, node: ast.Call, at: Place) -> Values:
        if (known := self.variable(node, at)) is not None:
            return known
        folded = self._text_call(node, at)
        if folded is not None:
            return (folded,)
        made: list[Value] = []
        for function in self.values(node.func, at):
            made += self._result(function, node, at)
        return tuple(made)

    def _text_call(self, node: ast.Call, at: Place) -> Const | None:
        """`"".join(...)`, `"so".replace(...)`: a method of a constant."""
        function = node.func
        if not isinstance(function, ast.Attribute) or node.keywords:
            return None
        base = function.value
        if isinstance(base, ast.Name) and not self.bindings_of(base.id, at)[0]:
            return None
        try:
            value = self.constant(function.value, at)
            return Const(fold.method(value, function.attr, self.arguments(node, at)))
        except CannotFold:
            return None

    def arguments(self, node: ast.Call, at: Place) -> list[Any]:
        return [self.series(each, at) for each in node.args]

    def series(self, node: ast.expr, at: Place) -> Any:
        """A constant; also `map(chr, [...])` and `(chr(n) for n in [...])`."""
        match node:
            case ast.GeneratorExp() | ast.ListComp():
                return self._comprehended(node, at)
            case ast.Call(func=ast.Name(id="map"), args=[function, items]):
                match self.values(function, at):
                    case (Ref(path=path),) if path in fold.FOLDING:
                        made = self.series(items, at)[:2000]
                        return [fold.call(path, [each]) for each in made]
        return self.constant(node, at)

    def _comprehended(self, node: ast.GeneratorExp | ast.ListComp, at: Place) -> list[Any]:
        generator = node.generators[0]
        if len(node.generators) != 1 or generator.ifs or not isinstance(generator.target, ast.Name):
            raise CannotFold
        items = self.series(generator.iter, at)
        if not isinstance(items, (list, str, bytes)) or len(items) > 2000:
            raise CannotFold
        made = []
        for each in items:
            inner = Scope("comprehension", at[0])
            bound = Binding((inner, at[1]), True, expression=ast.Constant(each))
            inner.bindings[generator.target.id] = [bound]
            made.append(self.constant(node.elt, (inner, at[1])))
        return made

    def _result(self, function: Value, node: ast.Call, at: Place) -> Values:
        if not isinstance(function, Ref):
            return UNKNOWN
        path = function.path
        if path in fold.FOLDING and node.args and not node.keywords:
            try:
                return (Const(fold.call(path, self.arguments(node, at))),)
            except CannotFold:
                return (Ref(f"{path}()"),)
        special = CALLS.get(path)
        if special is not None:
            made: Values = special(self, path, node, at)
            return made
        return (Ref(self.catalogue.canonical(f"{path}()"), function.text),)

    # -- operators --------------------------------------------------------------------------

    def binary(self, node: ast.BinOp, at: Place) -> Values:
        if isinstance(node.op, ast.Div):
            return self._joined_path(self.values(node.left, at), node, at)
        parts = [node]  # `"a" + "b" + "c" + ...` leans to the left
        while isinstance(parts[-1].left, ast.BinOp):
            parts.append(parts[-1].left)
        made = self.constant(parts[-1].left, at)
        for each in reversed(parts):
            made = fold.binary(type(each.op).__name__, made, self.constant(each.right, at))
        return (Const(made),)

    def _joined_path(self, lefts: Values, node: ast.BinOp, at: Place) -> Values:
        if not any(isinstance(each, Ref) and each.path == "pathlib.Path()" for each in lefts):
            return UNKNOWN
        try:
            right = str(self.constant(node.right, at))
        except CannotFold:
            return (Ref("pathlib.Path()"),)
        return tuple(
            Ref("pathlib.Path()", None if each.text is None else posixpath.join(each.text, right))
            for each in lefts
            if isinstance(each, Ref)
        )

    def unary(self, node: ast.UnaryOp, at: Place) -> Values:
        value = self.constant(node.operand, at)
        if isinstance(node.op, ast.USub) and isinstance(value, (int, float)):
            return (Const(-value),)
        return UNKNOWN

    def joined(self, node: ast.JoinedStr, at: Place) -> Values:
        text = ""
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                if part.format_spec is not None or part.conversion not in (-1, 115):
                    return UNKNOWN
                part = part.value
            text += str(self.constant(part, at))
            if len(text) > fold.LONGEST:
                return UNKNOWN
        return (Const(text),)

    def either(self, node: ast.IfExp, at: Place) -> Values:
        return self.values(node.body, at) + self.values(node.orelse, at)

    def any_of(self, node: ast.BoolOp, at: Place) -> Values:
        return sum((self.values(each, at) for each in node.values[:_MOST]), ())

    def inner(self, node: ast.NamedExpr | ast.Await, at: Place) -> Values:
        return self.values(node.value, at)

    def literal(self, node: ast.expr, at: Place) -> Values:
        return (Literal(node, at),)

    def plain(self, node: ast.Constant, at: Place) -> Values:
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
