"""A policy as data: read from TOML, YAML or JSON, checked once, written as TOML.

extends = "strict"             # start from a preset; the rest changes it
name = "reports"
version = "1"
unknown = "deny"               # what the verdict "unknown" means: "allow" or "deny"
[imports]                      # the longest matching entry decides; "os" covers "os.path"
allow = ["numpy", "pandas"]    # replaces the preset's list
extend_allow = ["sqlite3"]     # is added to it, and removed from deny; also extend_deny
deny = ["os"]
[names]                        # dotted names, with "*" at the end for all below
allow = ["os.path.*"]
deny = ["pandas.read_clipboard"]
[paths]                        # globs; relative paths are below the working directory
allow = ["./**", "/tmp/**"]
[rules]                        # id or name = "deny" | "unknown" | "note" | "off"
BJ201 = "note"
[messages]                     # id or name = the message; {name} is what was found
[limits]                       # bytes, lines, depth, nodes, seconds
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from belljar.errors import InvalidOption, unknown_option
from belljar.policy.rules import ACTIONS, BY_NAME, RULES, Action
from belljar.text import UnsafeYAML, check_yaml

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
    """What a check may cost; code that needs more is denied unchecked."""

    bytes: int = 1_000_000
    lines: int = 50_000
    depth: int = 500
    nodes: int = 500_000
    seconds: float = 5.0  # of CPU time, so that a busy machine does not deny code


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
            **{key: getattr(self, key) for key in ("name", "version", "description", "unknown")},
            "imports": {"allow": list(self.imports.allow), "deny": list(self.imports.deny)},
            "names": {"allow": list(self.names.allow), "deny": list(self.names.deny)},
            "paths": {"allow": list(self.paths)},
            "rules": dict(self.rules),
            "messages": dict(self.messages),
            "limits": {each.name: getattr(self.limits, each.name) for each in fields(Caps)},
        }


def parse_document(data: Mapping[str, Any], base: Document) -> Document:
    """The document of `data`, on top of `base`, the preset that `extends` names."""
    _check_keys("key of a policy", data, _KEYS)
    if data.get("schema", SCHEMA) != SCHEMA:
        raise InvalidOption(
            f"the policy has schema {data['schema']!r}; this belljar reads schema {SCHEMA}",
            hint="update belljar",
        )
    unknown = _get_text(data, "unknown", base.unknown)
    if unknown not in ("allow", "deny"):
        raise InvalidOption(f"unknown = {unknown!r} in a policy", hint='write "allow" or "deny"')
    messages = _get_section(data, "messages")
    return Document(
        name=_get_text(data, "name", base.name),
        version=_get_text(data, "version", base.version),
        description=_get_text(data, "description", base.description),
        unknown=unknown,
        imports=_parse_lists(data, "imports", base.imports),
        names=_parse_lists(data, "names", base.names),
        paths=_parse_lists(data, "paths", ImportLists(allow=base.paths), kinds=("allow",)).allow,
        rules={**base.rules, **_parse_rules(_get_section(data, "rules"))},
        messages={
            **base.messages,
            **{_rule_id(word): _get_text(messages, word, "") for word in messages},
        },
        limits=_parse_limits(_get_section(data, "limits"), base.limits),
    )


def _check_keys(kind: str, data: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in data:
        if key not in known:
            raise unknown_option(kind, str(key), known)


def _get_section(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    section = data.get(key, {})
    if not isinstance(section, Mapping):
        raise InvalidOption(f"[{key}] of a policy is a table, not {section!r}")
    return section


def _get_text(data: Mapping[str, Any], key: str, default: str) -> str:
    value = data.get(key, default)
    if isinstance(value, (int, float)) and key == "version" and not isinstance(value, bool):
        return str(value)  # people write `version = 1`
    if not isinstance(value, str):
        raise InvalidOption(f"{key} of a policy is text, not {value!r}")
    return value


def _parse_words(where: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) for one in value):
        raise InvalidOption(f"{where} of a policy is a list of texts, not {value!r}")
    return tuple(value)


def _parse_lists(
    data: Mapping[str, Any],
    key: str,
    base: ImportLists,
    kinds: tuple[str, ...] = ("allow", "deny"),
) -> ImportLists:
    """A list replaces that of `base`, so that the file shows all that is allowed. An extension is
    added to its list, and removed from the other one."""
    section = _get_section(data, key)
    keys = (*kinds, *(f"extend_{kind}" for kind in kinds))
    _check_keys(f"key of [{key}] in a policy", section, keys)
    allow = _parse_words(f"[{key}] allow", section.get("allow", base.allow))
    deny = _parse_words(f"[{key}] deny", section.get("deny", base.deny))
    more = _parse_words(f"[{key}] extend_allow", section.get("extend_allow", ()))
    less = _parse_words(f"[{key}] extend_deny", section.get("extend_deny", ()))
    return ImportLists(
        allow=(*(word for word in allow if word not in less), *more),
        deny=(*(word for word in deny if word not in more), *less),
    )


def _rule_id(word: str) -> str:
    identity = BY_NAME.get(word, word)
    if identity not in RULES:
        raise unknown_option("rule", word, [*RULES, *BY_NAME])
    return identity


def _parse_rules(section: Mapping[str, Any]) -> dict[str, Action]:
    found: dict[str, Action] = {}
    for word, action in section.items():
        identity = _rule_id(word)
        if action not in ACTIONS:
            raise unknown_option(f"action of rule {word}", str(action), ACTIONS)
        if RULES[identity].fixed and action != "deny":
            raise InvalidOption(
                f"rule {identity} ({RULES[identity].name}) always denies",
                hint="it is about code that could not be checked; see [limits]",
            )
        found[identity] = action
    return found


def _parse_limits(section: Mapping[str, Any], base: Caps) -> Caps:
    names = tuple(each.name for each in fields(Caps))
    _check_keys("limit of a policy", section, names)
    values = {name: section.get(name, getattr(base, name)) for name in names}
    for name, value in values.items():
        right = (int, float) if name == "seconds" else (int,)
        if isinstance(value, bool) or not isinstance(value, right) or value <= 0:
            raise InvalidOption(f"limit {name} of a policy is a number above 0, not {value!r}")
    return Caps(**values)


SUFFIXES = (".toml", ".yaml", ".yml", ".json")
_LARGEST = 1_000_000  # bytes


def read_file(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    name, suffix = os.fspath(path), Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise unknown_option("kind of policy file", suffix or name, SUFFIXES)
    try:
        with open(path, "rb") as file:
            raw = file.read(_LARGEST + 1)
    except OSError as error:
        raise InvalidOption(f"cannot read the policy {name!r}: {error.strerror}") from error
    if len(raw) > _LARGEST:
        raise InvalidOption(f"the policy {name!r} is larger than {_LARGEST} bytes")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidOption(f"the policy {name!r} is not UTF-8: {error}") from error
    try:
        data = _PARSERS.get(suffix, _parse_yaml)(text)
    except ImportError as error:
        raise InvalidOption(
            f"the policy {name!r} is YAML, which needs PyYAML",
            hint="pip install pyyaml, or write it as TOML or JSON",
        ) from error
    except UnsafeYAML as error:
        raise InvalidOption(f"the policy {name!r}, line {error.line}: {error}") from None
    # Also for numbers with too many digits, and tags of YAML that do not fit.
    except (ValueError, RecursionError, AttributeError, LookupError, TypeError) as error:
        kind = "YAML" if suffix == ".yml" else suffix[1:].upper()
        raise InvalidOption(f"the policy {name!r} is not {kind}: {error}") from error
    if not isinstance(data, Mapping):
        raise InvalidOption(f"the policy {name!r} is not a table of settings")
    return data


def _parse_yaml(text: str) -> object:
    import yaml

    try:
        check_yaml(text)
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


_PARSERS: Mapping[str, Callable[[str], object]] = {".toml": tomllib.loads, ".json": json.loads}


def to_toml(data: Mapping[str, Any]) -> str:
    """TOML of what a policy consists of: texts, numbers, lists of texts, and tables of these."""
    lines: list[str] = []
    tables: list[str] = []
    for key, each in data.items():
        if not isinstance(each, Mapping):
            lines.append(f"{key} = {_format_toml(each)}")
        elif rows := [f"{name} = {_format_toml(one)}" for name, one in each.items() if one != []]:
            tables += ["", f"[{key}]", *rows]
    return "\n".join(lines + tables) + "\n"


def _format_toml(value: object) -> str:
    if isinstance(value, list):
        items = [_format_toml(one) for one in value]
        short = f"[{', '.join(items)}]"
        return short if len(short) < 80 else "[\n" + "".join(f"    {one},\n" for one in items) + "]"
    # Texts and numbers are written as in JSON; TOML wants DEL escaped too.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
