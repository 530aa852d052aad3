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
    found: dict[str, None] = {}
    for entry in told[:10_000]:
        if isinstance(entry, str) and all(part.isidentifier() for part in entry.split(".")):
            found[entry] = None
    return tuple(found)


def learn(observed: Sequence[Observed], base: Policy) -> Learned:
    """The smallest change of `base` that allows all the code: an exact list of imports, and each
    rule that fired turned off. Code that cannot be parsed is noted, and raises nothing."""
    notes: list[str] = []
    imports: dict[str, bool] = {}
    for each in observed:
        reached = set(each.imported or ())
        for module in written(each.code):
            imports[module] = imports.get(module, False) or module in reached
        for module in reached:
            imports[module] = True
        notes += _notes(each)
    imports = dict(sorted(_top(imports).items()))
    document = replace(
        base.document,
        name="learned",
        version="1",
        imports=ImportLists(allow=tuple(imports)),
        rules={**base.actions, "BJ101": "deny", "BJ102": "deny"},
    )
    return _loosened(observed, document, imports, notes, base)


def _loosened(
    observed: Sequence[Observed],
    document: Document,
    imports: dict[str, bool],
    notes: list[str],
    base: Policy,
) -> Learned:
    """Turn off the rules that still fire. A rule that always denies stays, and is noted."""
    needed: dict[str, list[str]] = {}
    for each in observed:
        for finding in Policy(document).check(each.code).findings:
            if finding.severity != "note" and not RULES[finding.rule].fixed:
                place = f"{each.name}:{finding.line}"
                places = needed.setdefault(finding.rule, [])
                if place not in places:
                    places.append(place)
    rules: dict[str, Action] = {**document.rules, **dict.fromkeys(needed, "off")}
    policy = Policy(replace(document, rules=rules))
    for each in observed:
        report = policy.check(each.code)
        if not report.allowed:
            notes.append(f"{each.name} is still denied: {report.summary()}")
    notes.insert(0, f"learned from {', '.join(each.name for each in observed)}")
    return Learned(policy=policy, imports=imports, rules=needed, notes=notes, base=base)


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


def _top(imports: dict[str, bool]) -> dict[str, bool]:
    """Without modules whose parent is listed: `pandas` covers `pandas.api.types`."""
    return {
        name: reached
        for name, reached in imports.items()
        if not any(name.startswith(f"{other}.") for other in imports)
    }
