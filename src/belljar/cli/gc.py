"""`belljar gc`: remove what processes left behind that were killed before they could clean up."""

from __future__ import annotations

import argparse
import dataclasses
import json

from belljar.cli import exit_codes
from belljar.observe.orphans import BACKENDS, Collected, Leftover, collect_orphans

SUMMARY = "remove what killed processes left behind"

_DESCRIPTION = """\
Remove what is left of sandboxes whose process is dead: control groups and the processes in them,
half-built environments, containers, and the files by which `belljar ps` knew of them. Each process
does the same when it starts its first sandbox. What belongs to a living process, to another host,
or to somebody else is never touched.
"""
_EPILOG = """\
exit codes:
  0     nothing is left over (with --dry-run: or it was listed)
  1     something could not be removed; it is listed with the reason
  120   --backend docker, and there is no engine
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument("--dry-run", action="store_true", help="only list it")
    parser.add_argument(
        "--backend", choices=BACKENDS, default="all", help="whose leftovers (default: all)"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    collected = collect_orphans(args.backend, dry_run=args.dry_run)
    if args.json:
        print(json.dumps(dataclasses.asdict(collected) | {"dry_run": args.dry_run}, indent=2))
    else:
        _show(collected, dry_run=args.dry_run)
    failed = any(each.problem for each in collected.leftovers)
    return exit_codes.ERROR if failed else exit_codes.OK


def _show(collected: Collected, *, dry_run: bool) -> None:
    from belljar.cli import terminal

    rows = [
        [each.kind, each.name, "-" if each.owner is None else str(each.owner), _became(each)]
        for each in collected.leftovers
    ]
    if rows:
        terminal.table(rows, ("WHAT", "NAME", "OWNER", "WOULD BE" if dry_run else "WAS"))
    else:
        print("nothing is left over")
    for backend, why in collected.skipped.items():
        terminal.say(f"{backend} was left out: {why}")


def _became(leftover: Leftover) -> str:
    return f"not removed: {leftover.problem}" if leftover.problem else "removed"
