"""`belljar map FILE.jsonl|DIR|-`: many snippets, each in a sandbox of its own."""

from __future__ import annotations

import argparse
import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from belljar.cli import exit_codes, map_input, map_output, sandbox_options
from belljar.cli.map_input import Common, Entry
from belljar.cli.map_output import Done

SUMMARY = "run many snippets, each in a sandbox of its own"

_DESCRIPTION = """\
Run many snippets, each in a fresh sandbox out of a warm pool. They come from a file of JSON lines
(`-`: standard input) or are the *.py of a directory. A line is a text of code, or an object:

  {"code": "...", "id": "a1", "then": "tests", "variables": {}, "files": {}, "env": {},
   "timeout": 5, "metadata": ...}

Only "code" must be there. "then" runs after code that went well, in the same sandbox, and what
comes of it counts. Without "id", a line has its number, a file its name; no two have the same.
"metadata" is your own, and comes back. Results are lines of JSON in the order of the input, each as
soon as it is there: {"id": ..., "outcome": ..., "text": ..., "stdout": ..., ...}. "input" is a
digest of the snippet, by which --resume knows whether it is still the same. A snippet that cannot
be run (too large, a file with an impossible name) has the outcome "error" and "execution_count" 0.
"""
_EPILOG = """\
examples:
  belljar map submissions.jsonl --timeout 5 --out results.jsonl
  belljar map submissions.jsonl --timeout 5 --out results.jsonl --resume
  belljar map solutions/ --env python --concurrency 8
  belljar map solutions/ --then tests.py --put cases.json
  generate | belljar map - --json | jq .outcome

exit codes:
  0     every snippet ran to its end, those of earlier runs (--resume) included
  1     at least one did not
  2     wrong usage, or an input that cannot be read
  120   sandboxes could not be started or used
  130   interrupted (Ctrl-C); what --out has by then, --resume leaves out
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument(
        "input", metavar="FILE", help="JSON lines; `-` is standard input; a directory: its *.py"
    )
    parser.add_argument(
        "--concurrency",
        "-j",
        metavar="N",
        type=_count,
        help="how many run at once (default: twice the number of processors)",
    )
    parser.add_argument("--out", metavar="FILE", help="write the results to FILE")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="leave out what --out has a result of, and append the rest to it",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="write --out anew, though there is something in it"
    )
    parser.add_argument(
        "--then", metavar="FILE", help='code to run after each snippet that has no "then" itself'
    )
    parser.add_argument(
        "--put",
        metavar="FILE[:PATH]",
        action="append",
        default=[],
        help="copy a file of this host into every sandbox, below /workspace (repeatable)",
    )
    parser.add_argument("--json", action="store_true", help="write the results to standard output")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress, no summary")
    parser.set_defaults(record=None, workspace=None, session=None, mounts=[])
    sandbox_options.add_policy(parser)
    sandbox_options.add_all(parser)


def run(args: argparse.Namespace) -> int:
    map_output.check(args)
    with sandbox_options.watching(args):
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    from belljar.pool.blocking import Pool

    options = sandbox_options.options(args)
    common = _common(args)
    done = map_output.done(Path(args.out)) if args.resume else map_output.Done()
    streamed = map_input.comes_by_and_by(args.input)
    # What is wrong with a file is said before anything of it runs.
    total = None if streamed else sum(1 for _ in _entries(args.input, common, done))
    counts: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        write = map_output.writer(args, stack)
        show = map_output.progress(args, stack, total)
        most = args.concurrency
        pool = stack.enter_context(Pool(min_ready=0, max_total=max(32, 2 * (most or 1)), **options))
        snippets = ({**e.parts, "metadata": e} for e in _entries(args.input, common, done))
        results = pool.map(snippets, concurrency=most, read_in_thread=streamed)
        for item, execution in stack.enter_context(results).pairs():
            assert isinstance(item, dict)
            counts[execution.outcome.value] += 1
            write(item["metadata"], execution)
            show(counts)
    if not args.quiet:
        map_output.summary(counts, done.counts)
    return exit_codes.OK if {*counts, *done.counts} <= {"ok", "unknown"} else exit_codes.ERROR


def _entries(name: str, common: Common, done: Done) -> Iterator[Entry]:
    """Those that have no result yet."""
    return (entry for entry in map_input.read(name, common) if not done.has(entry))


def _common(args: argparse.Namespace) -> Common:
    from belljar.cli import run, transfer

    puts = map(transfer.parse_put, args.put)
    return Common(
        then=None if args.then is None else run.read_code(args.then),
        files={put.target: transfer.load(put) for put in puts},
    )


def _count(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"a number, 1 or more, not {text!r}")
    return int(text)
