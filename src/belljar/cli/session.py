"""`belljar session list|path|remove`: workspaces that are kept under a name."""

from __future__ import annotations

import argparse
import json
import time

from belljar.cli import terminal

SUMMARY = "list and remove sessions (workspaces kept by name)"


def add_commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    parser.description = (
        "Sessions: `belljar run --session NAME` keeps the files of /workspace under a name; the "
        "next run with that name gets them back."
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    listing = commands.add_parser("list", help="list sessions", allow_abbrev=False)
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(command=show)

    finding = commands.add_parser("path", help="print where its files are", allow_abbrev=False)
    finding.add_argument("name", metavar="NAME")
    finding.set_defaults(command=path)

    removing = commands.add_parser(
        "remove", help="remove a session and its files", allow_abbrev=False
    )
    removing.add_argument("names", metavar="NAME", nargs="+")
    removing.set_defaults(command=remove)
    return {"list": listing, "path": finding, "remove": removing}


def show(args: argparse.Namespace) -> int:
    from belljar.files import sessions

    found = sessions.listing()
    if args.json:
        described = [
            {
                "name": each.name,
                "path": str(each.path),
                "size": each.size,
                "files": each.files,
                "last_used": each.last_used,
                "in_use": each.in_use,
            }
            for each in found
        ]
        print(json.dumps(described, indent=2))
        return 0
    rows = [
        [
            each.name,
            terminal.size(each.size),
            str(each.files),
            "now" if each.in_use else _date(each.last_used),
        ]
        for each in found
    ]
    terminal.table(rows, ("NAME", "SIZE", "FILES", "LAST USED"))
    return 0


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def path(args: argparse.Namespace) -> int:
    from belljar.files import sessions

    print(sessions.find(args.name))
    return 0


def remove(args: argparse.Namespace) -> int:
    from belljar.files import sessions

    for name in args.names:
        sessions.remove(name)
        terminal.say(f"removed {name}")
    return 0
