"""The catalogue of dotted names (catalogue.toml), and the questions the analyser asks it."""

from __future__ import annotations

import functools
import importlib.resources
import tomllib
from dataclasses import dataclass


@dataclass(frozen=True)
class Catalogue:
    same: dict[str, str]
    usual: dict[str, str]  # names that an earlier cell may have bound
    names: dict[str, str]  # dotted name → rule
    methods: dict[str, str]
    powers: frozenset[str]
    guessed: frozenset[str]  # powers that are recognised by the name of an attribute alone
    fine: frozenset[str]
    far: frozenset[str]
    walked: frozenset[str]  # attributes of which two make a walk
    passing: frozenset[str]
    frames: frozenset[str]
    roots: frozenset[str]  # the first parts of all dotted names
    builtins: frozenset[str]  # those that have a rule
    watched: frozenset[str]  # attributes that matter whatever the object is

    def canonical(self, path: str) -> str:
        """The usual name of a thing with several names."""
        return self.same.get(path, path)

    def rule(self, path: str) -> str | None:
        """The rule of the name or of one of its parents; not of the result of a call."""
        while path:
            if rule := self.names.get(path):
                return rule
            path, _, last = path.rpartition(".")
            if last.endswith(("()", "]")):
                return None
        return None

    def rule_behind(self, path: str) -> str | None:
        """The rule of a module that is reached through others: `json.codecs.open` is
        `codecs.open`."""
        parts = path.split(".")
        if len(parts) < 3 or parts[0] in ("?", "") or "(" in path or "[" in path:
            return None
        for start in range(1, len(parts) - 1):
            name = parts[start].lstrip("_")
            if name in self.roots:
                for end in range(start + 2, len(parts) + 1):
                    behind = self.canonical(".".join([name, *parts[start + 1 : end]]))
                    if rule := self.names.get(behind):
                        return rule
        return None

    def power(self, base: str, attribute: str) -> str | None:
        """The powerful module that `base.attribute` really is; None if it is not one."""
        name = attribute.strip("_")
        if name not in self.powers or f"{base}.{attribute}" in self.fine:
            return None
        if base.rpartition(".")[2] == name:  # socket.socket
            return None
        return self.canonical(name)


@functools.cache
def catalogue() -> Catalogue:
    text = (importlib.resources.files("belljar.policy") / "catalogue.toml").read_text("utf-8")
    data = tomllib.loads(text)
    walkers = {name: frozenset(words) for name, words in data["walkers"].items()}
    names = {name: rule for rule, listed in data["names"].items() for name in listed}
    powers = frozenset(data["powers"]["modules"])
    roots = {name.partition(".")[0] for name in (*names, *data["same"])}
    return Catalogue(
        same=data["same"],
        usual={name: data["same"].get(name, name) for name in roots | powers} | data["usual"],
        names=names,
        methods={name: rule for rule, listed in data["methods"].items() for name in listed},
        powers=powers,
        guessed=powers - frozenset(data["powers"]["chance"]),
        fine=frozenset(data["powers"]["fine"]),
        roots=frozenset(roots) | powers,
        builtins=frozenset(
            name.removeprefix("builtins.")
            for name in names
            if name.startswith("builtins.") and name.count(".") == 1
        ),
        watched=walkers["near"] | walkers["far"] | walkers["frames"],
        walked=(walkers["near"] | walkers["far"]) - walkers["idle"],
        **{name: walkers[name] for name in ("far", "passing", "frames")},
    )
