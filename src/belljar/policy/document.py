"""A policy as data: what the file may say, checked once, when it is read.

extends = "strict"             # start from a preset; what is below changes it
name = "reports"
version = "1"
unknown = "deny"               # what the verdict "unknown" means: "allow" or "deny"
[imports]                      # the longest entry that fits decides; "os" covers "os.path"
allow = ["numpy", "pandas"]    # in place of the preset's list;
extend_allow = ["sqlite3"]     # beside it, and taken off the other one; also extend_deny
deny = ["os"]
[names]                        # dotted names, with "*" at the end for all below
allow = ["os.path.*"]
deny = ["pandas.read_clipboard"]
[paths]                        # globs; relative paths are below the working directory
allow = ["./**", "/tmp/**"]
[rules]                        # id or name = "deny" | "unknown" | "note" | "off"
BJ201 = "note"
[messages]                     # id or name = what to say; {name} is what was found
[limits]                       # bytes, lines, depth, nodes, seconds
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from belljar.errors import InvalidOption, unknown_option
from belljar.policy.rules import ACTIONS, BY_NAME, RULES, Action

SCHEMA = 1
_KEYS = (
    *("schema", "extends", "name", "version", "description", "unknown"),
    *("imports", "names", "paths", "rules", "messages", "limits"),
)


@dataclass(frozen=True, kw_only=True)
class ImportLists:
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Caps:
    """What a check costs at most; beyond, the code is denied without being judged."""

    bytes: int = 1_000_000
    lines: int = 50_000
    depth: int = 500
    nodes: int = 500_000
    seconds: float = 5.0  # of processor time: a busy machine is no reason to deny


@dataclass(frozen=True, kw_only=True)
class Document:
    name: str = "custom"
    version: str = "0"
    description: str = ""
    unknown: str = "deny"
    imports: ImportLists = field(default_factory=ImportLists)
    names: ImportLists = field(default_factory=ImportLists)
    paths: tuple[str, ...] = ()
    rules: Mapping[str, Action] = field(default_factory=dict)
    messages: Mapping[str, str] = field(default_factory=dict)
    limits: Caps = field(default_factory=Caps)

    def to_dict(self) -> dict[str, object]:
        return {
            "schema": SCHEMA,
            "name": self.name,
            "version": self.version,
            "description": self.description,
            "unknown": self.unknown,
            "imports": {"allow": list(self.imports.allow), "deny": list(self.imports.deny)},
            "names": {"allow": list(self.names.allow), "deny": list(self.names.deny)},
            "paths": {"allow": list(self.paths)},
            "rules": dict(self.rules),
            "messages": dict(self.messages),
            "limits": {each.name: getattr(self.limits, each.name) for each in fields(Caps)},
        }


def parse(data: Mapping[str, Any], base: Document) -> Document:
    """The document that `data` describes, starting from `base`, which `extends` named."""
    _known("key of a policy", data, _KEYS)
    if data.get("schema", SCHEMA) != SCHEMA:
        raise InvalidOption(
            f"the policy is written for schema {data['schema']!r}, this is {SCHEMA}",
            hint="a newer belljar may read it",
        )
    unknown = _text(data, "unknown", base.unknown)
    if unknown not in ("allow", "deny"):
        raise InvalidOption(f"unknown = {unknown!r} in a policy", hint='write "allow" or "deny"')
    return Document(
        name=_text(data, "name", base.name),
        version=_text(data, "version", base.version),
        description=_text(data, "description", base.description),
        unknown=unknown,
        imports=_lists(data, "imports", base.imports),
        names=_lists(data, "names", base.names),
        paths=_paths(data, base.paths),
        rules={**base.rules, **_rules(_section(data, "rules"))},
        messages={**base.messages, **_messages(_section(data, "messages"))},
        limits=_limits(_section(data, "limits"), base.limits),
    )


def _known(kind: str, data: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in data:
        if key not in known:
            raise unknown_option(kind, str(key), known)


def _section(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    section = data.get(key, {})
    if not isinstance(section, Mapping):
        raise InvalidOption(f"[{key}] of a policy is a table, not {section!r}")
    return section


def _text(data: Mapping[str, Any], key: str, default: str) -> str:
    value = data.get(key, default)
    if isinstance(value, (int, float)) and key == "version" and not isinstance(value, bool):
        return str(value)  # `version = 1` is what people write
    if not isinstance(value, str):
        raise InvalidOption(f"{key} of a policy is text, not {value!r}")
    return value


def _words(where: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) for one in value):
        raise InvalidOption(f"{where} of a policy is a list of texts, not {value!r}")
    return tuple(value)


def _lists(data: Mapping[str, Any], key: str, base: ImportLists) -> ImportLists:
    """A list replaces the one of `base`: whoever reads the file sees all that is allowed. What
    extends a list is added to it, and taken off the other, where it would be a tie."""
    section = _section(data, key)
    _known(f"key of [{key}] in a policy", section, ("allow", "deny", "extend_allow", "extend_deny"))
    allow = _words(f"[{key}] allow", section.get("allow", base.allow))
    deny = _words(f"[{key}] deny", section.get("deny", base.deny))
    more = _words(f"[{key}] extend_allow", section.get("extend_allow", ()))
    less = _words(f"[{key}] extend_deny", section.get("extend_deny", ()))
    return ImportLists(
        allow=(*(word for word in allow if word not in less), *more),
        deny=(*(word for word in deny if word not in more), *less),
    )


def _paths(data: Mapping[str, Any], base: tuple[str, ...]) -> tuple[str, ...]:
    section = _section(data, "paths")
    _known("key of [paths] in a policy", section, ("allow", "extend_allow"))
    more = _words("[paths] extend_allow", section.get("extend_allow", ()))
    return (*_words("[paths] allow", section.get("allow", base)), *more)


def _rule_id(word: str) -> str:
    identity = BY_NAME.get(word, word)
    if identity not in RULES:
        raise unknown_option("rule", word, [*RULES, *BY_NAME])
    return identity


def _rules(section: Mapping[str, Any]) -> dict[str, Action]:
    found: dict[str, Action] = {}
    for word, action in section.items():
        identity = _rule_id(word)
        if action not in ACTIONS:
            raise unknown_option(f"action of rule {word}", str(action), ACTIONS)
        if RULES[identity].fixed and action != "deny":
            raise InvalidOption(
                f"rule {identity} ({RULES[identity].name}) always denies",
                hint="code that could not be read cannot be judged; see [limits]",
            )
        found[identity] = action
    return found


def _messages(section: Mapping[str, Any]) -> dict[str, str]:
    return {_rule_id(word): _text(section, word, "") for word in section}


def _limits(section: Mapping[str, Any], base: Caps) -> Caps:
    names = tuple(each.name for each in fields(Caps))
    _known("limit of a policy", section, names)
    values = {name: section.get(name, getattr(base, name)) for name in names}
    for name, value in values.items():
        right = (int, float) if name == "seconds" else (int,)
        if isinstance(value, bool) or not isinstance(value, right) or value <= 0:
            raise InvalidOption(f"limit {name} of a policy is a number above 0, not {value!r}")
    return Caps(**values)
