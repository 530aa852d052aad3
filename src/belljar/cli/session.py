"""`belljar session list|path|remove`: workspaces that are kept under a name."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from belljar.cli import terminal
from belljar.text import format_bytes

if TYPE_CHECKING:
    from belljar.cli.entry import Parser


def add_commands(parser: Parser) -> None:
    parser.description = (
        "Sessions: `belljar run --session NAME` keeps the files of /workspace under a name; the "
        "next run with that name gets them back."
    )
    listing = parser.add_command("list", show, help="list sessions")
    listing.add_argument("--json", action="store_true", help="print JSON")
    finding = parser.add_command("path", path, help="print where its files are")
    finding.add_argument("name", metavar="NAME")
    removing = parser.add_command("remove", remove, help="remove a session and its files")
    removing.add_argument("names", metavar="NAME", nargs="+")


def show(args: argparse.Namespace) -> None:
    from belljar.files import sessions

    found = sessions.listing()
    if args.json:
        terminal.print_json([dataclasses.asdict(each) for each in found])
        return
    rows = [
        [
            each.name,
            format_bytes(each.size),
            str(each.files),
            "now" if each.in_use else terminal.format_time(each.last_used),
        ]
        for each in found
    ]
    terminal.table(rows, ("NAME", "SIZE", "FILES", "LAST USED"))


def path(args: argparse.Namespace) -> None:
    from belljar.files import sessions

    print(sessions.find(args.name))


def remove(args: argparse.Namespace) -> None:
    from belljar.files import sessions

    for name in args.names:
        sessions.remove(name)
        terminal.say(f"removed {name}")
