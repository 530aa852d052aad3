"""Policies in files: TOML, YAML and JSON are read; TOML is written."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from belljar.errors import InvalidOption, unknown_option

SUFFIXES = (".toml", ".yaml", ".yml", ".json")
_LARGEST = 1_000_000  # bytes


def read(path: str | os.PathLike[str]) -> Mapping[str, Any]:
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
    if suffix == ".toml":
        return parse_toml(text, name)
    data = _parse_json(text, name) if suffix == ".json" else _parse_yaml(text, name)
    if not isinstance(data, Mapping):
        raise InvalidOption(f"the policy {name!r} is not a table of settings")
    return data


def parse_toml(text: str, name: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidOption(f"the policy {name!r} is not TOML: {error}") from error


def _parse_json(text: str, name: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidOption(f"the policy {name!r} is not JSON: {error}") from error


def _parse_yaml(text: str, name: str) -> object:
    try:
        import yaml
    except ImportError as error:
        raise InvalidOption(
            f"the policy {name!r} is YAML, and nothing here reads YAML",
            hint="pip install pyyaml, or write it as TOML or JSON",
        ) from error
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise InvalidOption(f"the policy {name!r} is not YAML: {error}") from error


def to_toml(data: Mapping[str, Any]) -> str:
    """What a policy consists of: texts, numbers, lists of texts, and tables of these."""
    lines = [f"{key} = {_value(each)}" for key, each in data.items() if not _is_table(each)]
    for key, each in data.items():
        if _is_table(each) and any(content != [] for content in each.values()):
            lines += ["", f"[{key}]"]
            lines += [f"{name} = {_value(one)}" for name, one in each.items() if one != []]
    return "\n".join(lines) + "\n"


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping)


def _value(value: object) -> str:
    if isinstance(value, list):
        items = [_value(one) for one in value]
        short = f"[{', '.join(items)}]"
        return short if len(short) < 80 else "[\n" + "".join(f"    {one},\n" for one in items) + "]"
    # JSON's texts and numbers are TOML's; TOML wants DEL escaped too.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
