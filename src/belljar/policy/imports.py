"""Imports by statement: against the lists, stars, relative ones, and modules out of modules."""

from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING

from belljar.policy.document import ImportLists

DEPENDING = {"BJ205", "BJ702", "BJ401", "BJ402", "BJ403", "BJ404", "BJ405"}

if TYPE_CHECKING:
    from belljar.policy.analyser import Analyser


def listed(lists: ImportLists, name: str) -> str:
    """Say allow, deny or unlisted: the longest entry that fits decides, and deny a tie."""
    entries = _entries(lists)
    while name:
        if answer := entries.get(name):
            return answer
        name = name.rpartition(".")[0]
    return "unlisted"


@functools.lru_cache(maxsize=64)
def _entries(lists: ImportLists) -> dict[str, str]:
    found = {entry.removesuffix(".*"): "allow" for entry in lists.allow}
    return found | {entry.removesuffix(".*"): "deny" for entry in lists.deny}


def judge(analyser: Analyser, node: ast.AST, name: str) -> None:
    """One module by its full name."""
    lists = analyser.policy.document.imports
    canonical = analyser.known.canonical(name)
    answers = {listed(lists, name), listed(lists, canonical)}
    if "deny" in answers:
        analyser.report("BJ101", node, name)
    elif "allow" not in answers:
        analyser.report("BJ102", node, name)


def check(analyser: Analyser, node: ast.Import | ast.ImportFrom) -> None:
    if isinstance(node, ast.Import):
        for alias in node.names:
            judge(analyser, alias, alias.name)
        return
    module = node.module or ""
    if node.level:
        analyser.report("BJ104", node, "." * node.level + module)
        return
    # `from os import path` may be allowed where os is not.
    dotted = {alias: f"{module}.{alias.name}" for alias in node.names}
    targets = (name if _has_own_entry(analyser, name) else module for name in dotted.values())
    for target in dict.fromkeys(targets):
        judge(analyser, node, target)
    for alias, name in dotted.items():
        _taken(analyser, alias, module, name)


def _taken(analyser: Analyser, alias: ast.alias, module: str, dotted: str) -> None:
    """What is imported from the module may be of interest by itself."""
    known = analyser.known
    if alias.name == "*":
        analyser.report("BJ103", alias, module)
    elif known.power(module, alias.name):
        analyser.report("BJ107", alias, dotted)
    elif alias.name in known.watched and alias.name.startswith("__"):
        analyser.report("BJ302", alias, dotted)
    else:
        name = known.canonical(dotted)
        rule = analyser.rule_of(name)
        # Where it depends on the arguments, its calls are looked at.
        if rule and "." in name and rule not in DEPENDING:
            analyser.report(rule, alias, name.removeprefix("builtins."))


def _has_own_entry(analyser: Analyser, dotted: str) -> bool:
    lists = analyser.policy.document.imports
    return dotted in lists.allow or dotted in lists.deny
