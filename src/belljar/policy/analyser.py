"""Second pass: what the places of the first pass stand for, and which rules apply.

Each match is reported as an event of a rule; check.py makes findings of events by the policy.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from belljar.policy import calls, uses, values
from belljar.policy.calls import check_format_text
from belljar.policy.catalogue import catalogue
from belljar.policy.resolve import Resolver
from belljar.policy.scopes import Survey
from belljar.policy.uses import FILE_RULES, check_file
from belljar.policy.values import Const, Place, Ref, Value

if TYPE_CHECKING:
    from belljar.policy.policy import Policy

Report = Callable[[str, ast.AST, str], None]  # rule, where, what

_BY_NAME = {"getattr", "setattr", "delattr"}


class Analyser:
    """One check of one piece of code; `report` is called with each event."""

    def __init__(
        self,
        policy: Policy,
        survey: Survey,
        report: Report,
        nested: Callable[[str, ast.AST], None],
        deadline: float,
    ) -> None:
        self.policy = policy
        self.survey = survey
        self.known = catalogue()
        self.report = report
        self.nested = nested  # checks code in a string of the code
        self.resolver = Resolver(survey.module, self.known, deadline)

    def run(self) -> None:
        for statement in self.survey.imports:
            uses.check_import(self, statement)
        relevant = self._relevant()
        # Most names are used more than once, and match no rule each time. (For builtins it depends
        # on the place: a binding may hide them from there on.)
        idle: set[tuple[str, int]] = set()
        always = self.known.builtins | _BY_NAME | {"__builtins__"}
        for name, at in self.survey.names:
            key = (name.id, id(at[0]))
            if name.id not in relevant or key in idle:
                continue
            if not self._name(name, at) and name.id not in always:
                idle.add(key)
        for base, chain, at in self.survey.chains:
            self._chain(base, chain, at, relevant)
        for call, at in self.survey.calls:
            calls.check_call(self, call, at, relevant)
        for subscript, at in self.survey.subscripts:
            self._subscript(subscript, at)
        for pattern in self.survey.patterns:
            for attribute in pattern.kwd_attrs:
                if attribute in self.known.watched:
                    self.inner_attribute(pattern, attribute, None, set())

    def _relevant(self) -> set[str]:
        """Names that may stand for something in the catalogue."""
        names = _BY_NAME | {"vars", "__builtins__"} | self.known.builtins | self.survey.bound
        names |= self.known.usual.keys() - self.survey.module.bindings.keys()
        names |= set(self.policy.document.names.deny)  # lists builtins without "builtins."
        if self.survey.module.stars:
            names |= {name.id for name, _ in self.survey.names}
        return names

    # -- names and attributes ---------------------------------------------------------------

    def _name(self, node: ast.Name, at: Place) -> bool:
        """True if a rule applies to it."""
        call = self.survey.called.get(id(node))
        if node.id in _BY_NAME and call is None and id(node) in self._arguments:
            self.report("BJ305", node, node.id)
        told, used = set(), False
        for value in self.resolver.lookup(node.id, at):
            if isinstance(value, Ref) and value.path not in told:
                told.add(value.path)
                if rule := self._rule_of_use(value.path):
                    self.use(rule, node, value, call, at)
                    used = True
        return used

    @cached_property
    def _arguments(self) -> set[int]:
        """id() of names that are arguments of a call: `map(getattr, objects, names)`."""
        calls = self.survey.calls
        return {id(each) for call, _ in calls for each in call.args if isinstance(each, ast.Name)}

    def _rule_of_use(self, path: str) -> str | None:
        """Not of a module by itself: it does nothing, and its import is checked elsewhere."""
        return None if path in self.known.roots else self.rule_of(path)

    def _chain(
        self, base: ast.expr, chain: list[ast.Attribute], at: Place, relevant: set[str]
    ) -> None:
        known = self.known
        outer = chain[-1]
        call = self.survey.called.get(id(outer))
        if call is None and isinstance(outer.ctx, ast.Load):
            calls.check_mention(self, outer, at)
        if isinstance(base, ast.Name) and base.id not in relevant:
            # The usual case, which must be cheap: an object, and attributes without a rule.
            for each in chain:
                attribute = each.attr
                if attribute in known.watched or attribute.strip("_") in known.guessed:
                    break
            else:
                return
        told: set[tuple[str, int]] = set()
        for value in self.resolver.values(base, at):
            if isinstance(value, Ref) and isinstance(base, ast.Name):
                if rule := self._rule_of_use(value.path):
                    self.use(rule, base, value, None, at)
            elif (
                isinstance(value, Const)
                and isinstance(value.value, str)
                and outer.attr in ("format", "format_map")
                and call is None
            ):
                check_format_text(self, outer, value.value)
            self._steps(value, chain, call, at, told)

    def _steps(
        self,
        value: Value,
        chain: list[ast.Attribute],
        call: ast.Call | None,
        at: Place,
        told: set[tuple[str, int]],
    ) -> None:
        """Follow the attributes, and report those with a rule."""
        known, resolver = self.known, self.resolver
        for each in chain:
            before, value = value, resolver.attribute_of(value, each.attr)
            if each.attr in known.watched:
                self.inner_attribute(each, each.attr, value, told)
            if not isinstance(value, Ref):
                continue
            if (
                isinstance(each.ctx, ast.Store)
                and isinstance(before, Ref)
                and before.path in known.powers
            ):
                self._once(told, "BJ310", each, f"{before.path}.{each.attr}")
                return
            if (
                isinstance(before, Ref)
                and "(" not in before.path
                and not before.path.startswith("?")
                and known.power(before.path, each.attr)
            ):
                self._once(told, "BJ107", each, f"{before.path}.{each.attr}")
                continue
            rule = self.rule_of(value.path)
            if rule and (before is None or not value.path.startswith("?.")):
                if isinstance(before, Ref) and self.rule_of(before.path) and "." in before.path:
                    continue  # reported at the step before
                if (rule, id(each)) not in told:
                    told.add((rule, id(each)))
                    self.use(rule, each, value, call if each is chain[-1] else None, at)

    def inner_attribute(
        self, node: ast.AST, attribute: str, value: Value, told: set[tuple[str, int]]
    ) -> None:
        """An attribute that leads to the inside of an object; two in a row are a walk."""
        known = self.known
        if attribute in known.frames:
            if attribute not in ("__context__", "__cause__", "with_traceback"):
                self._once(told, "BJ307", node, attribute)
            return
        path = value.path if isinstance(value, Ref) else attribute
        steps = path.replace("()", "").replace("[]", "").replace("[?]", "").split(".")
        walked = [step for step in steps if step in known.walked]
        if "__code__" in walked:  # the attributes of a code object lead no further
            walked = [step for step in walked if not step.startswith("co_")]
        through = [step for step in steps if step in known.passing]
        if attribute in known.far or len(walked) > 1 or (through and walked):
            self._once(told, "BJ301", node, ".".join(steps).removeprefix("?.") or attribute)
        elif attribute != "__annotations__":
            self._once(told, "BJ302", node, attribute)

    def _once(self, told: set[tuple[str, int]], rule: str, node: ast.AST, name: str) -> None:
        if (rule, id(node)) not in told:
            told.add((rule, id(node)))
            self.report(rule, node, name)

    def _subscript(self, node: ast.Subscript, at: Place) -> None:
        """`globals()["__builtins__"]`, `sys.modules["os"]`: access by name in a table."""
        if not self._may_be_table(node.value):
            return
        paths = self.resolver.paths(node.value, at)
        table = next((each for each in paths if each in _TABLES or each.endswith(_ENDS)), None)
        own = isinstance(node.slice, ast.Name) and node.slice.id == "__name__"
        if table is not None and ("(" in table or own):  # `sys.modules[__name__]` is its own module
            table = None
        if table is not None and not isinstance(node.ctx, ast.Load):
            self.report("BJ310", node, table)
            return
        for value in self.resolver.values(node, at):
            if not isinstance(value, Ref):
                continue
            if "[?]" in value.path:
                if table is not None and not value.path.startswith("?"):
                    self.report("BJ306", node, f"{table}[…]")
            elif "[" not in value.path and (rule := self._rule_of_use(value.path)):
                self.use(rule, node, value, self.survey.called.get(id(node)), at)

    def _may_be_table(self, node: ast.expr) -> bool:
        """A cheap filter, as most subscripts are of frames, lists and dicts."""
        if isinstance(node, ast.Name):
            return node.id in self.survey.bound or node.id == "__builtins__"
        if isinstance(node, ast.Attribute):
            return node.attr in _ATTRIBUTES
        return isinstance(node, (ast.Call, ast.Subscript, ast.List, ast.Tuple, ast.Dict))

    def rule_of(self, path: str) -> str | None:
        """The policy's own lists of names come before the catalogue."""
        lists = self.policy.document.names
        if lists.allow or lists.deny:
            answer = uses.look_up(lists, path.removeprefix("builtins."))
            if answer != "unlisted":
                return "BJ901" if answer == "deny" else None
        return self.known.rule(path) or self.known.rule_behind(path)

    # -- uses of names in the catalogue -------------------------------------------------------

    def use(self, rule: str, node: ast.expr, value: Ref, call: ast.Call | None, at: Place) -> None:
        path = value.path.removeprefix("builtins.")
        if rule in FILE_RULES:
            check_file(self, rule, node, path, value.text, call, at)
        elif rule == "BJ105":
            uses.check_import_call(self, node, path, call, at)
        elif rule == "BJ201":
            uses.check_evaluation(self, node, path, call, at)
        elif not self._is_harmless(rule, path, call, at):
            self.report(rule, node, path)
        if uses.unpickles(path, call):
            self.report("BJ701", node, path)

    def _is_harmless(self, rule: str, path: str, call: ast.Call | None, at: Place) -> bool:
        if rule == "BJ205":
            return not uses.takes_code(self, call, at)
        if rule == "BJ308":
            return self.asks_by_name(call)
        return rule == "BJ702" and uses.loads_plain_yaml(self, path, call, at)

    def asks_by_name(self, call: ast.Call | None) -> bool:
        """True for `"x" in locals()`, `locals()["x"]`, `globals().get("x")`."""
        return id(call) in self._one_name

    @cached_property
    def _one_name(self) -> set[int]:
        """id() of namespace calls that read one name."""
        places = [each for each, _ in (*self.survey.subscripts, *self.survey.calls)]
        found = map(values.namespace_variable, places)
        return {id(each[0]) for each in found if each} | self.survey.searched

    def texts(self, node: ast.expr, at: Place) -> Iterator[str | None]:
        """The texts that the expression may be; None for unknown ones."""
        for value in self.resolver.values(node, at):
            yield value.value if isinstance(value, Const) and isinstance(value.value, str) else None


_TABLES = ("builtins", "sys.modules")
_ENDS = (".__dict__", ".__globals__", ".__builtins__", ".f_globals", ".f_builtins")
_ATTRIBUTES = {"modules", "f_locals", *(each[1:] for each in _ENDS)}
