"""`belljar check FILE…` applies a policy to code without running it. `belljar learn FILE…` runs
code and prints the smallest policy that allows it."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from belljar.cli import exit_codes, sandbox_options, terminal, transfer
from belljar.errors import InvalidOption, SandboxError

if TYPE_CHECKING:
    from belljar.policy import Policy, Report
    from belljar.policy.learning import Observed


DEFAULT_POLICY = "data-science"

_DESCRIPTION = """\
Parse Python code, without running it, and report what a policy denies. This is advice: the sandbox,
not the policy, confines code that passes or deceives the check.
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
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="*",
        help="the code; `-` is standard input, a directory means every *.py below it",
    )
    parser.add_argument("-c", dest="code", metavar="CODE", help="check this text")
    add_policy(parser, None, "the policy", f"the configured one, else {DEFAULT_POLICY}")
    parser.add_argument(
        "--format", choices=("text", "json", "sarif"), default="text", help="(default: text)"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print only files with findings")
    parser.add_argument("--list-rules", action="store_true", help="list the rules and exit")
    parser.add_argument(
        "--show-policy", action="store_true", help="print the policy as TOML and exit"
    )


def add_policy(
    parser: argparse.ArgumentParser, default: str | None, meaning: str, without: str = ""
) -> None:
    """`without`: the default in words, if it is decided later."""
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
    sources = _sources(args.files)
    if args.code is not None:
        sources.append(("<code>", args.code))
    if not sources:
        raise InvalidOption("there is nothing to check", hint="name a file, or give code with -c")
    reports = {name: policy.check(code) for name, code in sources}
    _show(reports, policy, args)
    denied = any(not report.allowed for report in reports.values())
    return exit_codes.ERROR if denied else exit_codes.OK


def _configured() -> Policy | None:
    """The file of the current directory does not count, as for `belljar run`."""
    from belljar import config
    from belljar.policy import Policy

    found = config.load(project=False)["policy"]
    assert found is None or isinstance(found, Policy)
    return found


def _sources(names: list[str]) -> list[tuple[str, str]]:
    found = []
    for name in names:
        if name != "-" and Path(name).is_dir():
            below = sorted(path for path in Path(name).rglob("*.py") if path.is_file())
            if not below:
                raise InvalidOption(f"there is no *.py below {name!r}")
            found += [read_source(str(path)) for path in below]
        else:
            found.append(read_source(name))
    return found


def read_source(name: str) -> tuple[str, str]:
    """The name to show, and the text as Python would read it. A text that does not decode is
    checked and denied: its bad bytes become characters that no source may have."""
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise InvalidOption(f"cannot read {name!r}: {error.strerror}") from error
    try:
        text = importlib.util.decode_source(raw)
    except (SyntaxError, UnicodeDecodeError):
        text = raw.decode("utf-8", "surrogateescape")
    return "<stdin>" if name == "-" else name, text


def _show(reports: dict[str, Report], policy: Policy, args: argparse.Namespace) -> None:
    if args.format == "json":
        document = {
            "policy": f"{policy.name}@{policy.version}",
            "digest": policy.digest,
            "allowed": all(report.allowed for report in reports.values()),
            "files": {name: report.to_dict() for name, report in reports.items()},
        }
        terminal.print_json(document)
    elif args.format == "sarif":
        from belljar.policy.report import make_sarif

        terminal.print_json(make_sarif(reports, policy))
    else:
        from belljar.policy.report import render

        shown = [
            render(name, report)
            for name, report in reports.items()
            if report.findings or not args.quiet
        ]
        if shown:
            print("\n\n".join(shown))


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
        terminal.print_json(rows)
        return

    terminal.table(
        [
            [rule.id, rule.name, policy.actions[rule.id], rule.message.replace("{name}", "…")]
            for rule in RULES.values()
        ],
        ("RULE", "NAME", policy.name.upper(), "SAYS"),
    )


_LEARN_DESCRIPTION = """\
Run each file in a new sandbox under the policy `permissive`, and print the smallest policy that
allows all of them: it allows exactly their imports, and the other things that --policy would deny.
The exit code says whether the printed policy allows the code.

Imports are found in two ways: in the code, and from what the code imported while it ran (which also
finds names that are computed at run time). The guest reports the second, and code can deceive it:
read the policy before you use it.
"""
_LEARN_EPILOG = """\
exit codes:
  0     the printed policy allows the code
  1     it does not; for instance, the code cannot be parsed
  2     wrong usage, or a file that cannot be read
  120   a sandbox could not be started or used
"""
_TIMEOUT = 30.0  # seconds, for cells of Belljar's own that take a millisecond


def add_learn_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _LEARN_DESCRIPTION
    parser.epilog = _LEARN_EPILOG
    parser.add_argument("files", metavar="FILE", nargs="+", help="the code; `-` is standard input")
    add_policy(parser, "strict", "the policy to start from")
    parser.add_argument("--format", choices=("toml", "json"), default="toml")
    transfer.add_put(parser)
    sandbox_options.add_files(parser)
    sandbox_options.add_all(parser)


def run_learn(args: argparse.Namespace) -> int:
    from belljar.policy import Policy
    from belljar.policy.learning import Learned, learn

    base = Policy.coerce(args.policy)
    puts = transfer.load_all(args.put)
    codes = [read_source(name) for name in args.files]
    learned: Learned = learn([observe(args, name, code, puts) for name, code in codes], base)
    printed = learned.to_toml()
    if args.format == "json":
        report = {
            "policy": learned.policy.to_dict(),
            "imports": learned.imports,
            "rules": learned.rules,
            "notes": learned.notes,
        }
        terminal.print_json(report)
    else:
        print(printed, end="")
    # Check the printed text, because that is what the user will save and load.
    policy = Policy.from_dict(tomllib.loads(printed))
    allowed = all(policy.check(code).allowed for _, code in codes)
    return exit_codes.OK if allowed else exit_codes.ERROR


def observe(args: argparse.Namespace, name: str, code: str, puts: Mapping[str, bytes]) -> Observed:
    """Run it and record its imports. Its output goes to stderr; stdout is for the policy."""
    from belljar.files.script import Script
    from belljar.policy import Policy
    from belljar.policy.learning import TELL, WATCH, Observed, parse_told

    report = Policy.preset("permissive").check(code)
    if not report.allowed:
        return Observed(name=name, code=code, outcome=f"not run ({report.summary()})", imported=())
    args.record = None
    with sandbox_options.make(args) as sandbox:
        for path, content in puts.items():
            sandbox.files.write(path, content)
        sandbox.run_code(WATCH, timeout=_TIMEOUT).raise_for_outcome()
        file = None if name == "<stdin>" else Path(name).name
        script = Script(code=code, name=file, argv=None if file is None else (file,))
        execution = sandbox.run_code(script, on_stdout=_to_stderr, on_stderr=_to_stderr)
        imported = None
        try:
            told = sandbox.run_code(TELL, timeout=_TIMEOUT)
            imported = parse_told(told.stdout) if told.ok else None
        except SandboxError as error:
            print(f"belljar: {name}: {error.message}", file=sys.stderr)
    return Observed(name=name, code=code, outcome=execution.outcome.value, imported=imported)


def _to_stderr(text: str) -> None:
    from belljar.text import printable

    sys.stderr.write(printable(text))
