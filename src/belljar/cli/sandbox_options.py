"""The options that every command with a sandbox has, and the Sandbox they describe."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from belljar.errors import InvalidOption
from belljar.limits import RULES, Rule, format_size

if TYPE_CHECKING:
    from belljar.blocking import Sandbox


def add_environment(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--env",
        "--environment",
        "-e",
        dest="environment",
        metavar="NAME",
        default=default,
        help=f"the packages the code has: python, data, or one of `belljar env build` "
        f"(default: {default})",
    )


def add_all(parser: argparse.ArgumentParser) -> None:
    add_environment(parser, "data")
    parser.add_argument(
        "--set-env",
        dest="variables",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="set an environment variable for the code (repeatable; --env is something else)",
    )
    parser.add_argument("--backend", default="auto", help="auto or native (default: auto)")
    parser.add_argument(
        "--best-effort",
        action="store_true",
        help="start even if this host cannot enforce a limit given here (see `belljar doctor`)",
    )
    limits = parser.add_argument_group("limits", "sizes are written like 64k, 512m, 1.5g")
    for name, rule in RULES.items():
        limits.add_argument(
            f"--{name.replace('_', '-')}",
            dest=f"limit_{name}",
            metavar="SIZE" if rule.kind == "size" else rule.unit.upper(),
            help=f"{rule.meaning}: {rule.range.replace('None', 'none')} "
            f"(default: {_default(rule)})",
        )


def _default(rule: Rule) -> str:
    if rule.default is None:
        return "none"
    return format_size(int(rule.default)) if rule.kind == "size" else f"{rule.default:g}"


def make(args: argparse.Namespace) -> Sandbox:
    """The sandbox that was asked for, not started yet."""
    from belljar.blocking import Sandbox
    from belljar.cli import saved_environments

    return Sandbox(
        backend=args.backend,
        environment=saved_environments.resolve(args.environment),
        limits=limits(args),
        env=variables(args.variables),
        strict=False if args.best_effort else None,
    )


def limits(args: argparse.Namespace) -> dict[str, object]:
    """Only what was given: a limit somebody asked for must be enforced, a default need not."""
    given = {name: getattr(args, f"limit_{name}") for name in RULES}
    return {
        name: _value(name, RULES[name], text) for name, text in given.items() if text is not None
    }


def _value(name: str, rule: Rule, text: str) -> object:
    if rule.optional and text.lower() == "none":
        return None
    if rule.kind == "size":
        return text
    try:
        return int(text) if rule.kind == "count" else float(text)
    except ValueError:
        return text  # the Rule says what is wrong with it


def variables(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidOption(
                f"--set-env {text!r} has no value", hint="write --set-env KEY=VALUE"
            )
        found[name] = value
    return found
