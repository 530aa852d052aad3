"""`belljar ps`: the live sandboxes of this user's processes; as root, of everybody's."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time

from belljar.cli import exit_codes

SUMMARY = "list live sandboxes"
BETWEEN = 0.25  # seconds between the two looks that tell how busy a processor is

_DESCRIPTION = """\
List the sandboxes that processes of this user (as root: of all users) have started and not ended:
who owns each, what it uses of its limits, and whether it is busy now. Read from the kernel and from
the engine, without asking the process that owns it.
"""
_EPILOG = """\
states:
  busy      it uses more than 1 % of a processor just now
  idle      it does not: it waits for code, or its code waits
  unknown   it is on an engine that cannot be asked from here
  ended     (-a) it was killed or lost, and its owner has not closed it yet
  orphan    (-a) its owner is dead; `belljar gc` removes what is left
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument(
        "-a", "--all", action="store_true", help="also those that ended or lost their owner"
    )
    parser.add_argument("--json", action="store_true", help="as JSON, with everything known")


def run(args: argparse.Namespace) -> int:
    from belljar.cli import sandbox_table, terminal
    from belljar.observe.live_sandboxes import LiveSandboxes

    with LiveSandboxes() as sightings:
        if sightings.look():
            time.sleep(BETWEEN)
        found = [each for each in sightings.look() if each.live or args.all]
    if args.json:
        print(json.dumps([each.to_dict() for each in found], indent=2))
    elif found:
        header: tuple[str, ...] = (*sandbox_table.HEADER, *sandbox_table.OWNER)
        rows = [sandbox_table.row(each) for each in found]
        if sys.stdout.isatty():  # who reads it otherwise, reads all of it
            kept = sandbox_table.fitting(rows, shutil.get_terminal_size().columns, gap=4)
            rows = [[row[number][:room] for number, room in kept.items()] for row in rows]
            header = tuple(header[number] for number in kept)
        terminal.table(rows, header)
    else:
        print("no sandboxes")
    return exit_codes.OK
