"""Learn mode: the smallest policy that allows code that was run.

The text shows the imports and rules of the code, whether they were reached or not. The run adds
modules whose names only the run knew (`importlib.import_module(name)`). The guest's own process
reports these, and the code can deceive it: a learned policy is a proposal to review.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from belljar.policy.document import SCHEMA, Document, ImportLists, to_toml
from belljar.policy.policy import PRESETS, Policy
from belljar.policy.rules import RULES, Action
from belljar.text import one_line

_WIDEST = 300  # characters of a comment

# Runs in the guest before the code. It notes each import by the code itself, not by a library that
# the code imported.
WATCH = """\
def _watch():
    import builtins, importlib, json, sys, types
    seen = []
    real_import, real_module = builtins.__import__, importlib.import_module

    def note(name, level):
        if level == 0 and isinstance(name, str) and name != table.__name__ and len(seen) < 10000:
            seen.append(name[:200])

    def __import__(name, globals=None, locals=None, fromlist=(), level=0):
        if globals is not None and globals.get("__name__") == "__main__":
            note(name, level)
        elif globals is None and sys._getframe(1).f_globals.get("__name__") == "__main__":
            note(name, level)
        return real_import(name, globals, locals, fromlist, level)

    def import_module(name, package=None):
        if sys._getframe(1).f_globals.get("__name__") == "__main__":
            note(name, 0)
        return real_module(name, package)

    table = types.ModuleType("_belljar_learned")
    table.tell = lambda write=sys.stdout.write: write(json.dumps(seen))
    sys.modules[table.__name__] = table
    builtins.__import__, importlib.import_module = __import__, import_module
_watch()
del _watch
"""
TELL = "print(); _ = __import__('_belljar_learned').tell()"


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What was seen of one file."""

    name: str
    code: str
    outcome: str  # of the run
    imported: tuple[str, ...] | None  # by the code itself; None: the run did not report it


@dataclass(frozen=True, kw_only=True)
class Learned:
    policy: Policy
    imports: dict[str, bool]  # module → whether the run really imported it
    rules: dict[str, list[str]]  # rule → where it is needed
    notes: list[str]  # what the reader should know
    base: Policy  # what it starts from

    def to_toml(self) -> str:
        """The policy, with the reasons as comments: its changes to a preset, or all of it."""
        whole = self.base.name not in PRESETS or self.base != Policy.preset(self.base.name)
        document = self.policy.document
        head: dict[str, object] = {"schema": SCHEMA}
        if not whole:
            head["extends"] = self.base.name
        head |= {"name": document.name, "version": document.version, "unknown": document.unknown}
        lines = [*(f"# {one_line(note, _WIDEST)}" for note in self.notes), to_toml(head)]
        lines += ["[imports]", "deny = []", "allow = ["]
        for module, reached in self.imports.items():
            entry = json.dumps(module, ensure_ascii=False)
            lines.append(f"    {entry}," + ("" if reached else "  # not seen to happen"))
        lines += ["]", "", "[rules]"]
        for identity, action in sorted(document.rules.items()):
            if whole or action != self.base.actions[identity]:
                where = ", ".join(self.rules.get(identity, ())[:4])
                told = f"  # {RULES[identity].name}: {one_line(where, _WIDEST)}" if where else ""
                lines.append(f'{identity} = "{action}"{told}')
        rest = {
            key: value
            for key, value in document.to_dict().items()
            if whole and key in ("names", "paths", "limits", "messages")
        }
        return "\n".join(lines) + "\n" + (to_toml(rest) if rest else "")


def parse_told(text: str) -> tuple[str, ...] | None:
    """The modules that the guest reports: foreign text, of which only names are used."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, list):
        return None
    names = [entry for entry in told[:10_000] if isinstance(entry, str)]
    return tuple(dict.fromkeys(n for n in names if all(map(str.isidentifier, n.split(".")))))


def learn(observed: Sequence[Observed], base: Policy) -> Learned:
    """The smallest change of `base` that allows all the code: an exact list of imports, and each
    rule that fired turned off. Code that cannot be parsed is noted, and raises nothing."""
    imports = _find_imports(observed)
    document = replace(
        base.document,
        name="learned",
        version="1",
        imports=ImportLists(allow=tuple(imports)),
        rules={**base.actions, "BJ101": "deny", "BJ102": "deny"},
    )
    needed = _find_rules(observed, Policy(document))
    policy = Policy(replace(document, rules={**document.rules, **dict.fromkeys(needed, "off")}))
    notes = [f"learned from {', '.join(each.name for each in observed)}"]
    for each in observed:
        notes += _notes(each)
    for each in observed:
        report = policy.check(each.code)
        if not report.allowed:
            notes.append(f"{each.name} is still denied: {report.summary()}")
    return Learned(policy=policy, imports=imports, rules=needed, notes=notes, base=base)


def _find_imports(observed: Sequence[Observed]) -> dict[str, bool]:
    """The modules, and whether a run imported them; `pandas` covers `pandas.api.types`."""
    reached = {module for each in observed for module in each.imported or ()}
    found = reached | {module for each in observed for module in written(each.code)}
    return {
        module: module in reached
        for module in sorted(found)
        if not any(module.startswith(f"{other}.") for other in found)
    }


def _find_rules(observed: Sequence[Observed], policy: Policy) -> dict[str, list[str]]:
    """The rules to turn off, and where they fire. A rule that always denies stays."""
    needed: dict[str, list[str]] = {}
    for each in observed:
        for finding in policy.check(each.code).findings:
            if finding.severity != "note" and not RULES[finding.rule].fixed:
                place = f"{each.name}:{finding.line}"
                places = needed.setdefault(finding.rule, [])
                if place not in places:
                    places.append(place)
    return needed


def _notes(each: Observed) -> Iterable[str]:
    if each.outcome != "ok":
        yield f"{each.name} ended with the outcome {each.outcome}: later imports were not seen"
    if each.imported is None:
        yield f"{each.name}: the run did not report its imports; these are from the text only"


def written(code: str) -> list[str]:
    """The modules that the text imports, by statements or by calls with a constant name."""
    rules: dict[str, Action] = {id_: "off" for id_, rule in RULES.items() if not rule.fixed}
    rules["BJ102"] = "deny"
    nothing = Document(imports=ImportLists(), rules=rules, messages={"BJ102": "{name}"})
    found = Policy(nothing).check(code).findings
    return [each.message for each in found if each.rule == "BJ102"]
