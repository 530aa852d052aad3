"""Policy: versioned data that says what code may do, and the check of code against it."""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from belljar.errors import InvalidOption, unknown_option
from belljar.policy import document
from belljar.policy.document import Document
from belljar.policy.report import Report
from belljar.policy.rules import RULES, Action

PRESETS = ("permissive", "data-science", "strict", "strategy")


class Policy:
    """What code may do, as far as its text shows. Made by preset(), load(), from_dict().

    >>> Policy.preset("strict").check("import os").allowed
    False
    """

    def __init__(self, content: Document) -> None:
        self.document = content
        self.name = content.name
        self.version = content.version
        self.actions: Mapping[str, Action] = {
            identity: content.rules.get(identity, rule.action) for identity, rule in RULES.items()
        }

    @classmethod
    def preset(cls, name: str) -> Policy:
        """A policy that comes with Belljar."""
        if name not in PRESETS:
            raise unknown_option("policy", name, PRESETS)
        return _preset(name)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """Read a file: .toml, .yaml, .yml or .json."""
        data = document.read_file(path)
        try:
            return cls.from_dict({"name": Path(path).stem, **data})
        except InvalidOption as error:
            raise InvalidOption(f"{os.fspath(path)}: {error.message}", hint=error.hint) from None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Policy:
        if not isinstance(data, Mapping):
            raise InvalidOption(f"a policy is a table of settings, not {type(data).__name__}")
        extends = data.get("extends")
        if extends is not None and not isinstance(extends, str):
            raise InvalidOption("extends of a policy is the name of a preset")
        base = Document() if extends is None else cls.preset(extends).document
        if extends is not None and set(data) - {"schema", "extends", "name", "version"}:
            data = {"name": f"{extends} (changed)", **data}  # reports must not name the preset
        return cls(document.parse_document(data, base))

    @classmethod
    def coerce(cls, given: str | os.PathLike[str] | Mapping[str, Any] | Policy) -> Policy:
        """Accepts the name of a preset, a path, data, or a Policy."""
        if isinstance(given, Policy):
            return given
        if isinstance(given, Mapping):
            return cls.from_dict(given)
        if isinstance(given, os.PathLike):
            return cls.load(given)
        if not isinstance(given, str):
            raise InvalidOption(
                f"a policy is a name, a path, data or a Policy, not {type(given).__name__}"
            )
        if given in PRESETS:
            return cls.preset(given)
        if os.sep in given or given.endswith(document.SUFFIXES):
            return cls.load(given)
        raise unknown_option("policy", given, PRESETS)

    def to_dict(self) -> dict[str, object]:
        """All settings, with `extends` and defaults resolved; from_dict() makes the same policy."""
        return self.document.to_dict() | {"rules": dict(self.actions)}

    def to_toml(self) -> str:
        return document.to_toml(self.to_dict())

    @property
    def digest(self) -> str:
        """A hash of the content: two policies with the same digest give the same verdicts."""
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def check(self, code: str) -> Report:
        """Parse the code, never run it, and report what this policy finds.

        Never raises: code that cannot be parsed is denied, with a finding.
        """
        from belljar.policy.check import check

        return check(self, code)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Policy) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<Policy {self.name}@{self.version}>"


@functools.cache
def _preset(name: str) -> Policy:
    text = importlib.resources.files("belljar.policy") / "presets" / f"{name}.toml"
    return Policy.from_dict(tomllib.loads(text.read_text("utf-8")))
