"""`belljar check FILE…`: what a policy says about code, without running it."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from belljar.cli import exit_codes
from belljar.errors import InvalidOption

if TYPE_CHECKING:
    from belljar.policy import Policy, Report

SUMMARY = "say what a policy thinks of code, without running it"
DEFAULT_POLICY = "data-science"

_DESCRIPTION = """\
Read Python (it is parsed, never run) and say what a policy thinks of it. This is advice, not the
boundary: what holds code that passes, or that lies, is the sandbox.
"""
_EPILOG = """\
examples:
  belljar check strategy.py --policy strategy
  belljar check src --policy ./reports.toml --format sarif > belljar.sarif
  belljar check -c 'import os'
  belljar check --show-policy --policy strict > mine.toml

exit codes:
  0     allowed
  1     denied: at least one of the files
  2     wrong usage, or a file that cannot be read
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="*",
        help="the code; `-` is standard input, of a directory every *.py below it",
    )
    parser.add_argument("-c", dest="code", metavar="CODE", help="check this text")
    add_policy(parser, None, "the policy", f"the configured one, else {DEFAULT_POLICY}")
    parser.add_argument(
        "--format", choices=("text", "json", "sarif"), default="text", help="(default: text)"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing of what passes")
    parser.add_argument("--list-rules", action="store_true", help="list the rules, and end")
    parser.add_argument(
        "--show-policy", action="store_true", help="print the policy as TOML, and end"
    )


def add_policy(
    parser: argparse.ArgumentParser, default: str | None, meaning: str, without: str = ""
) -> None:
    """`without`: what it means to give none, if there is no default here."""
    parser.add_argument(
        "--policy",
        metavar="NAME|PATH",
        default=default,
        help=f"{meaning}: permissive, data-science, strict, strategy, or a file (.toml, .yaml, "
        f".json) (default: {default or without})",
    )


def run(args: argparse.Namespace) -> int:
    from belljar.policy import Policy

    policy = Policy.coerce(args.policy or _configured() or DEFAULT_POLICY)
    if args.list_rules:
        _list_rules(policy, as_json=args.format == "json")
        return exit_codes.OK
    if args.show_policy:
        print(policy.to_toml(), end="")
        return exit_codes.OK
    sources = list(_sources(args.files))
    if args.code is not None:
        sources.append(("<code>", args.code))
    if not sources:
        raise InvalidOption("nothing to check", hint="name a file, or give code with -c")
    reports = {name: policy.check(code) for name, code in sources}
    _show(reports, policy, args)
    denied = any(not report.allowed for report in reports.values())
    return exit_codes.ERROR if denied else exit_codes.OK


def _configured() -> Policy | None:
    """Not by the file of the current directory, as for `belljar run`."""
    from belljar import config
    from belljar.policy import Policy

    found = config.load(project=False)["policy"]
    assert found is None or isinstance(found, (str, os.PathLike, Mapping, Policy))
    return None if found is None else Policy.coerce(found)


def _sources(names: list[str]) -> list[tuple[str, str]]:
    found = []
    for name in names:
        if name != "-" and Path(name).is_dir():
            below = sorted(Path(name).rglob("*.py"))
            if not below:
                raise InvalidOption(f"there is no *.py below {name!r}")
            found += [(str(each), read_source(str(each))) for each in below if each.is_file()]
        else:
            found.append(("<stdin>" if name == "-" else name, read_source(name)))
    return found


def read_source(name: str) -> str:
    """The text as Python would read it. What does not decode is checked all the same, and denied:
    its undecodable bytes become characters that no source may have."""
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise InvalidOption(f"cannot read {name!r}: {error.strerror}") from error
    try:
        return importlib.util.decode_source(raw)
    except (SyntaxError, UnicodeDecodeError):
        return raw.decode("utf-8", "surrogateescape")


def _show(reports: dict[str, Report], policy: Policy, args: argparse.Namespace) -> None:
    if args.format == "json":
        told = {
            "policy": f"{policy.name}@{policy.version}",
            "digest": policy.digest,
            "allowed": all(report.allowed for report in reports.values()),
            "files": {name: report.to_dict() for name, report in reports.items()},
        }
        print(json.dumps(told, indent=2))
    elif args.format == "sarif":
        from belljar.policy.report import make_sarif

        print(json.dumps(make_sarif(reports, policy), indent=2))
    else:
        from belljar.policy.report import render

        shown = [
            render(name, report)
            for name, report in reports.items()
            if report.findings or not args.quiet
        ]
        print("\n\n".join(shown) if shown else "", end="\n" if shown else "")


def _list_rules(policy: Policy, *, as_json: bool) -> None:
    from belljar.policy import RULES

    if as_json:
        rows = [
            {
                "id": rule.id,
                "name": rule.name,
                "action": policy.actions[rule.id],
                "message": rule.message,
                "remedy": rule.remedy,
            }
            for rule in RULES.values()
        ]
        print(json.dumps(rows, indent=2))
        return
    from belljar.cli import terminal

    terminal.table(
        [
            [rule.id, rule.name, policy.actions[rule.id], rule.message.replace("{name}", "…")]
            for rule in RULES.values()
        ],
        ("RULE", "NAME", policy.name.upper(), "SAYS"),
    )
