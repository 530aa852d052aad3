"""`belljar config show|check`: show the settings and their sources, and find mistakes."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from belljar.cli import terminal

if TYPE_CHECKING:
    from belljar.cli.entry import Parser
    from belljar.config import Config


def add_commands(parser: Parser) -> None:
    parser.description = (
        "The configuration. The first source that has a value wins: environment variables "
        "(BELLJAR_...), the file that BELLJAR_CONFIG names, ./belljar.toml (or .yaml), the user's "
        "belljar/config.toml, the defaults."
    )
    showing = parser.add_command("show", show, help="print every value and its source")
    showing.add_argument("--json", action="store_true", help="print JSON")
    showing.add_argument("--changed", action="store_true", help="only values that are not defaults")
    showing.add_argument("--config", metavar="FILE", help="use FILE instead of BELLJAR_CONFIG")
    checking = parser.add_command("check", check, help="report every mistake")
    checking.add_argument(
        "file", metavar="FILE", nargs="?", help="check only FILE (default: every file in use)"
    )


def show(args: argparse.Namespace) -> None:
    from belljar import config
    from belljar.config.loading import DEFAULT
    from belljar.config.schema import format_value

    loaded = config.load(args.config)
    keys = [key for key in loaded.values if not args.changed or loaded.sources[key] != DEFAULT]
    if args.json:
        terminal.print_json({key: _describe(loaded, key) for key in keys}, default=_plain)
        return
    rows = [[key, format_value(key, _hide(loaded, key)), loaded.sources[key]] for key in keys]
    terminal.table(rows, ("KEY", "VALUE", "FROM"))


def _hide(loaded: Config, key: str) -> object:
    """The value, without texts that may be secret."""
    from belljar.config import schema

    value = loaded.values[key]
    if schema()[key].secret and isinstance(value, Mapping):
        return dict.fromkeys(value, "(hidden)")
    return value


def _describe(loaded: Config, key: str) -> dict[str, object]:
    from belljar.config import schema

    setting = schema()[key]
    return {
        "value": _hide(loaded, key),
        "from": loaded.sources[key],
        "default": setting.default,
        "variable": setting.variable,
        "meaning": setting.meaning,
    }


def _plain(value: object) -> object:
    """What JSON holds of a value that it does not know."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    if callable(to_dict := getattr(value, "to_dict", None)):  # a Policy
        return to_dict()
    return vars(value)  # an Environment, a Mount


def check(args: argparse.Namespace) -> None:
    from belljar import config
    from belljar.config.loading import DEFAULT

    others = args.file is None
    loaded = config.load(args.file, project=others, user=others)
    count = sum(source != DEFAULT for source in loaded.sources.values())
    terminal.say(f"the configuration is valid: {count} of {len(loaded.values)} values are set")
