"""First pass: where each name is bound, and a list of the places that the second pass checks.

One walk in the order of the source, with a handler for each kind of node. It does not recurse:
nesting costs heap memory, not the interpreter's stack.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from belljar.policy.document import Caps
from belljar.policy.source import Problem, find_range
from belljar.policy.values import Binding, Place, Scope


@dataclass(slots=True)
class Survey:
    """What the first pass found."""

    module: Scope
    names: list[tuple[ast.Name, Place]] = field(default_factory=list)
    # what a chain of attributes starts from, and the attributes from there outwards
    chains: list[tuple[ast.expr, list[ast.Attribute], Place]] = field(default_factory=list)
    calls: list[tuple[ast.Call, Place]] = field(default_factory=list)
    imports: list[ast.Import | ast.ImportFrom] = field(default_factory=list)
    subscripts: list[tuple[ast.Subscript, Place]] = field(default_factory=list)
    patterns: list[ast.MatchClass] = field(default_factory=list)  # `case C(attribute=name)`
    called: dict[int, ast.Call] = field(default_factory=dict)  # by id() of what is called
    bound: set[str] = field(default_factory=set)  # names that may be aliases
    searched: set[int] = field(default_factory=set)  # id() of the right operands of `in`


def survey(tree: ast.Module, caps: Caps, deadline: float) -> Survey:
    return _Walk(caps, deadline).run(tree)


_Entry = tuple[Any, Scope, int, bool]  # a node, its scope, its depth, whether it surely runs
_IDLE = {"ctx", "op", "ops", "kind", "kwd_attrs", "type_comment", "type_ignores", "conversion"}
# The fields of each kind that may hold nodes to check, last first: they go onto a stack.
_FIELDS = {
    kind: tuple(name for name in reversed(kind._fields) if name not in _IDLE)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}


class _Walk:
    def __init__(self, caps: Caps, deadline: float) -> None:
        self.caps = caps
        self.deadline = deadline
        self.count = 0
        self.found = Survey(Scope("module", None))
        self.stack: list[_Entry] = []

    def run(self, tree: ast.Module) -> Survey:
        self.push(tree.body, self.found.module, 1, True)
        stack, deepest, most = self.stack, self.caps.depth, self.caps.nodes
        while stack:
            node, scope, depth, sure = stack.pop()
            self.count = count = self.count + 1
            if depth > deepest:
                raise Problem("BJ003", f"more than {deepest} levels", find_range(node))
            if not count & 0x3FF:
                if count > most:
                    raise Problem("BJ004", f"more than {most}", find_range(node))
                if time.thread_time() > self.deadline:
                    raise Problem("BJ005", "the walk did not end", find_range(node))
            handler = _HANDLERS.get(node.__class__)
            if handler is not None:
                handler(self, node, scope, depth, sure)
            else:
                self.children(node, scope, depth, sure)
        if self.count > most:
            raise Problem("BJ004", f"more than {most}")
        return self.found

    def children(self, node: ast.AST, scope: Scope, depth: int, sure: bool) -> None:
        stack, depth = self.stack, depth + 1
        for name in _FIELDS[node.__class__]:
            value = getattr(node, name, None)
            if value.__class__ is list:
                stack.extend([(each, scope, depth, sure) for each in reversed(value) if each])
            elif isinstance(value, ast.AST):
                stack.append((value, scope, depth, sure))

    def push(self, nodes: Any, scope: Scope, depth: int, sure: bool) -> None:
        self.stack.extend(
            [(node, scope, depth, sure) for node in reversed(nodes) if node is not None]
        )

    # -- bindings ---------------------------------------------------------------------------

    def bind(self, name: str, scope: Scope, sure: bool, **what: Any) -> None:
        """Record a binding in the scope that owns the name, as `global` and `nonlocal` say."""
        home = scope
        declared = scope.outer.get(name)
        if declared == "global":
            home, sure = self.found.module, False
        elif declared == "nonlocal" and scope.parent is not None:
            home, sure = scope.parent, False
        home.bindings.setdefault(name, []).append(Binding((scope, self.count), sure, **what))
        if what and what.get("expression").__class__ not in _NEVER_ALIASES:
            self.found.bound.add(name)

    def assign(
        self, target: ast.expr, value: ast.expr, scope: Scope, depth: int, sure: bool
    ) -> None:
        if isinstance(target, ast.Name):
            self.bind(target.id, scope, sure, expression=value)
        elif (
            isinstance(target, (ast.Tuple, ast.List))
            and isinstance(value, (ast.Tuple, ast.List))
            and len(target.elts) == len(value.elts)
            and not any(isinstance(each, ast.Starred) for each in (*target.elts, *value.elts))
        ):
            if depth > self.caps.depth:
                raise Problem("BJ003", f"more than {self.caps.depth} levels", find_range(target))
            for one, other in zip(target.elts, value.elts, strict=True):
                self.assign(one, other, scope, depth + 1, sure)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for one in target.elts:
                if isinstance(one, ast.Name):
                    self.bind(one.id, scope, sure, expression=value, elements=True)
                else:
                    self.stack.append((one, scope, depth + 1, sure))
        else:
            self.stack.append((target, scope, depth + 1, sure))

    # -- statements -------------------------------------------------------------------------

    def on_assign(self, node: ast.Assign, scope: Scope, depth: int, sure: bool) -> None:
        for target in node.targets:
            self.assign(target, node.value, scope, depth, sure)
        self.stack.append((node.value, scope, depth + 1, sure))

    def on_annotated(self, node: ast.AnnAssign, scope: Scope, depth: int, sure: bool) -> None:
        if node.value is not None:
            self.assign(node.target, node.value, scope, depth, sure)
        self.push([node.annotation, node.value], scope, depth + 1, sure)

    def on_walrus(self, node: ast.NamedExpr, scope: Scope, depth: int, sure: bool) -> None:
        home = scope
        while home.kind == "comprehension" and home.parent is not None:
            home = home.parent
        self.bind(node.target.id, home, False, expression=node.value)
        self.stack.append((node.value, scope, depth + 1, sure))

    def on_for(self, node: ast.For | ast.AsyncFor, scope: Scope, depth: int, sure: bool) -> None:
        self.loop(node.target, node.iter, scope, depth, False)
        self.push([*node.body, *node.orelse], scope, depth + 1, False)
        self.stack.append((node.iter, scope, depth + 1, sure))

    def loop(
        self, target: ast.expr, iterated: ast.expr, scope: Scope, depth: int, sure: bool
    ) -> None:
        if isinstance(target, ast.Name):
            self.bind(target.id, scope, sure, expression=iterated, elements=True)
        else:
            self.stack.append((target, scope, depth + 1, sure))

    def on_with_item(self, node: ast.withitem, scope: Scope, depth: int, sure: bool) -> None:
        if node.optional_vars is not None:
            self.assign(node.optional_vars, node.context_expr, scope, depth, sure)
        self.stack.append((node.context_expr, scope, depth + 1, sure))

    def on_delete(self, node: ast.Delete, scope: Scope, depth: int, sure: bool) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                scope.deleted.add(target.id)
            else:
                self.stack.append((target, scope, depth + 1, sure))

    def on_global(
        self, node: ast.Global | ast.Nonlocal, scope: Scope, depth: int, sure: bool
    ) -> None:
        word = "global" if isinstance(node, ast.Global) else "nonlocal"
        scope.outer.update(dict.fromkeys(node.names, word))

    def on_block(self, node: ast.stmt, scope: Scope, depth: int, sure: bool) -> None:
        """Statements of a block may not run."""
        self.children(node, scope, depth, False)

    def on_handler(self, node: ast.ExceptHandler, scope: Scope, depth: int, sure: bool) -> None:
        if node.name:
            self.bind(node.name, scope, False)
        self.children(node, scope, depth, False)

    def on_import(self, node: ast.Import, scope: Scope, depth: int, sure: bool) -> None:
        self.found.imports.append(node)
        for alias in node.names:
            if alias.asname:
                self.bind(alias.asname, scope, sure, dotted=alias.name)
            else:
                top = alias.name.partition(".")[0]
                self.bind(top, scope, sure, dotted=top)

    def on_import_from(self, node: ast.ImportFrom, scope: Scope, depth: int, sure: bool) -> None:
        self.found.imports.append(node)
        module = "." * node.level + (node.module or "")
        for alias in node.names:
            if alias.name == "*":
                scope.stars.append(module)
            else:
                dotted = f"{module}.{alias.name}"
                self.bind(alias.asname or alias.name, scope, sure, dotted=dotted)

    def on_function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope, depth: int, sure: bool
    ) -> None:
        self.bind(node.name, scope, sure)
        inner = Scope("function", scope)
        self.push(node.body, inner, depth + 1, sure)
        self.arguments(node.args, scope, inner, depth, sure)
        self.push([*node.decorator_list, node.returns], scope, depth + 1, sure)
        self.push(getattr(node, "type_params", ()), inner, depth + 1, sure)  # Python 3.12

    def on_lambda(self, node: ast.Lambda, scope: Scope, depth: int, sure: bool) -> None:
        inner = Scope("function", scope)
        self.stack.append((node.body, inner, depth + 1, sure))
        self.arguments(node.args, scope, inner, depth, sure)

    def arguments(
        self, arguments: ast.arguments, scope: Scope, inner: Scope, depth: int, sure: bool
    ) -> None:
        """Bind the parameters. Defaults and annotations are evaluated outside, where the function
        is defined."""
        positional = [*arguments.posonlyargs, *arguments.args]
        first = len(positional) - len(arguments.defaults)
        pairs = [*zip(positional, [*[None] * first, *arguments.defaults], strict=True)]
        pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        pairs += [(one, None) for one in (arguments.vararg, arguments.kwarg) if one is not None]
        for parameter, default in pairs:
            known = [Binding((scope, self.count), True)]
            if default is not None:
                known.append(Binding((scope, self.count), True, expression=default))
                self.found.bound.add(parameter.arg)
            inner.bindings[parameter.arg] = known
        self.push([parameter.annotation for parameter, _ in pairs], scope, depth + 2, sure)
        self.push([default for _, default in pairs], scope, depth + 2, sure)

    def on_class(self, node: ast.ClassDef, scope: Scope, depth: int, sure: bool) -> None:
        self.bind(node.name, scope, sure)
        inner = Scope("class", scope)
        self.push(node.body, inner, depth + 1, sure)
        self.push(getattr(node, "type_params", ()), inner, depth + 1, sure)  # Python 3.12
        keywords = [keyword.value for keyword in node.keywords]
        self.push([*node.decorator_list, *node.bases, *keywords], scope, depth + 1, sure)

    def on_comprehension(
        self,
        node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp,
        scope: Scope,
        depth: int,
        sure: bool,
    ) -> None:
        inner = Scope("comprehension", scope)
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self.push(parts, inner, depth + 1, sure)
        for generator in reversed(node.generators):
            self.push([generator.iter, *generator.ifs], inner, depth + 2, sure)
            self.loop(generator.target, generator.iter, inner, depth, True)

    def on_match_name(
        self, node: ast.MatchAs | ast.MatchStar | ast.MatchMapping, scope: Scope, *rest: Any
    ) -> None:
        name = node.rest if isinstance(node, ast.MatchMapping) else node.name
        if name:
            self.bind(name, scope, False)
        self.children(node, scope, *rest)

    def on_match_class(self, node: ast.MatchClass, *rest: Any) -> None:
        self.found.patterns.append(node)
        self.children(node, *rest)

    # -- expressions ------------------------------------------------------------------------

    def on_name(self, node: ast.Name, scope: Scope, depth: int, sure: bool) -> None:
        if isinstance(node.ctx, ast.Load):
            self.found.names.append((node, (scope, self.count)))
        else:
            self.bind(node.id, scope, sure)

    def on_attribute(self, node: ast.Attribute, scope: Scope, depth: int, sure: bool) -> None:
        chain = [node]
        base = node.value
        while isinstance(base, ast.Attribute):
            chain.append(base)
            base = base.value
        if depth + len(chain) > self.caps.depth:
            raise Problem("BJ003", f"more than {self.caps.depth} levels", find_range(node))
        self.count += len(chain) - 1
        chain.reverse()
        self.found.chains.append((base, chain, (scope, self.count)))
        if not isinstance(base, ast.Name):  # a plain name is checked with its chain
            self.stack.append((base, scope, depth + len(chain), sure))

    def on_call(self, node: ast.Call, scope: Scope, depth: int, sure: bool) -> None:
        self.found.calls.append((node, (scope, self.count)))
        self.found.called[id(node.func)] = node
        if node.keywords:
            self.push([keyword.value for keyword in node.keywords], scope, depth + 1, sure)
        if node.args:
            self.push(node.args, scope, depth + 1, sure)
        self.stack.append((node.func, scope, depth + 1, sure))

    def on_subscript(self, node: ast.Subscript, scope: Scope, depth: int, sure: bool) -> None:
        self.found.subscripts.append((node, (scope, self.count)))
        self.push([node.value, node.slice], scope, depth + 1, sure)

    def on_compare(self, node: ast.Compare, *rest: Any) -> None:
        # Only the last one: in `a in b in c`, b is also searched for in c.
        if isinstance(node.ops[-1], (ast.In, ast.NotIn)):
            self.found.searched.add(id(node.comparators[-1]))
        self.children(node, *rest)

    def on_idle(self, node: ast.AST, *rest: Any) -> None:
        return None


_KINDS: dict[Callable[..., None], tuple[type[ast.AST], ...]] = {
    _Walk.on_assign: (ast.Assign,),
    _Walk.on_annotated: (ast.AnnAssign,),
    _Walk.on_walrus: (ast.NamedExpr,),
    _Walk.on_for: (ast.For, ast.AsyncFor),
    _Walk.on_with_item: (ast.withitem,),
    _Walk.on_delete: (ast.Delete,),
    _Walk.on_global: (ast.Global, ast.Nonlocal),
    _Walk.on_block: (ast.If, ast.While, ast.Try, ast.TryStar, ast.With, ast.AsyncWith, ast.Match),
    _Walk.on_handler: (ast.ExceptHandler,),
    _Walk.on_import: (ast.Import,),
    _Walk.on_import_from: (ast.ImportFrom,),
    _Walk.on_function: (ast.FunctionDef, ast.AsyncFunctionDef),
    _Walk.on_lambda: (ast.Lambda,),
    _Walk.on_class: (ast.ClassDef,),
    _Walk.on_comprehension: (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
    _Walk.on_match_class: (ast.MatchClass,),
    _Walk.on_match_name: (ast.MatchAs, ast.MatchStar, ast.MatchMapping),
    _Walk.on_name: (ast.Name,),
    _Walk.on_attribute: (ast.Attribute,),
    _Walk.on_call: (ast.Call,),
    _Walk.on_subscript: (ast.Subscript,),
    _Walk.on_compare: (ast.Compare,),
    _Walk.on_idle: (ast.Constant, ast.Pass),
}
_HANDLERS = {kind: handler for handler, kinds in _KINDS.items() for kind in kinds}


# A name that is bound to one of these is not an alias.
_NEVER_ALIASES = {
    *(ast.Constant, ast.JoinedStr, ast.Compare, ast.UnaryOp, ast.Lambda),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
}
