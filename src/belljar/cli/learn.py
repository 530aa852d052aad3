"""`belljar learn FILE…`: run code in a sandbox, and print the smallest policy that allows it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from belljar.cli import exit_codes, sandbox_options, transfer
from belljar.cli.check import add_policy, read_source
from belljar.errors import SandboxError

if TYPE_CHECKING:
    from belljar.policy.learning import Observed

SUMMARY = "run code and print the smallest policy that would allow it"

_DESCRIPTION = """\
Run each file in a sandbox of its own, under no policy but `permissive`, and print the smallest
policy that would have let them all pass: exactly their imports, and what else --policy would have
denied. The result is checked against the code before it is printed.

Imports are seen twice: by reading, and by what the code asked for while it ran (so names that are
made at run time are known, as far as this run went). The second is told by the guest itself, which
code can deceive: read the policy before you use it.
"""
_EPILOG = """\
exit codes:
  0     the policy printed allows the code
  1     it does not: the code cannot be parsed, for instance
  2     wrong usage, or a file that cannot be read
  120   a sandbox could not be started or used
"""
_INTRODUCTION = 30.0  # seconds, for what takes a millisecond


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument("files", metavar="FILE", nargs="+", help="the code; `-` is standard input")
    add_policy(parser, "strict", "what the learned policy starts from")
    parser.add_argument("--format", choices=("toml", "json"), default="toml")
    transfer.add_put(parser)
    sandbox_options.add_files(parser)
    sandbox_options.add_all(parser)


def run(args: argparse.Namespace) -> int:
    from belljar.policy import Policy, document
    from belljar.policy.learning import Learned, learn

    base = Policy.coerce(args.policy)
    puts = [(put.target, transfer.load(put)) for put in map(transfer.parse_put, args.put)]
    codes = [("<stdin>" if name == "-" else name, read_source(name)) for name in args.files]
    learned: Learned = learn([observe(args, name, code, puts) for name, code in codes], base)
    printed = learned.to_toml()
    if args.format == "json":
        told = {
            "policy": learned.policy.to_dict(),
            "imports": learned.imports,
            "rules": learned.rules,
            "notes": learned.notes,
        }
        print(json.dumps(told, indent=2))
    else:
        print(printed, end="")
    # What counts is the text that somebody will save and load.
    policy = Policy.from_dict(document.parse_toml(printed, "learned"))
    allowed = all(policy.check(code).allowed for _, code in codes)
    return exit_codes.OK if allowed else exit_codes.ERROR


def observe(
    args: argparse.Namespace, name: str, code: str, puts: Sequence[tuple[str, bytes]]
) -> Observed:
    """Run it, watched. What it prints goes to stderr: stdout is the policy."""
    from belljar.files.script import Script
    from belljar.policy import Policy
    from belljar.policy.learning import TELL, WATCH, Observed, parse_told

    report = Policy.preset("permissive").check(code)
    if not report.allowed:
        return Observed(name=name, code=code, outcome=f"not run ({report.summary()})", imported=())
    args.record = None
    with sandbox_options.make(args) as sandbox:
        for path, content in puts:
            sandbox.files.write(path, content)
        sandbox.run_code(WATCH, timeout=_INTRODUCTION).raise_for_outcome()
        file = None if name == "<stdin>" else Path(name).name
        script = Script(code=code, name=file, argv=None if file is None else (file,))
        execution = sandbox.run_code(script, on_stdout=_to_stderr, on_stderr=_to_stderr)
        imported = None
        try:
            told = sandbox.run_code(TELL, timeout=_INTRODUCTION)
            imported = parse_told(told.stdout) if told.ok else None
        except SandboxError as error:
            print(f"belljar: {name}: {error.message}", file=sys.stderr)
    return Observed(name=name, code=code, outcome=execution.outcome.value, imported=imported)


def _to_stderr(text: str) -> None:
    from belljar.text import printable

    sys.stderr.write(printable(text))
