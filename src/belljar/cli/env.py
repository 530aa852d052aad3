"""`belljar env list|build|remove`: environments, the packages that the code has."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from belljar.cli import terminal
from belljar.errors import InvalidOption, unknown_option
from belljar.text import format_bytes

if TYPE_CHECKING:
    from belljar.cli.entry import Parser
    from belljar.environment.environment import Environment

_SHOWN = 5  # packages of one environment in the table; --json has all of them


def add_commands(parser: Parser) -> None:
    parser.description = "Environments: which Python and which packages the code in a sandbox has."
    listing = parser.add_command("list", show, help="list environments")
    listing.add_argument("--json", action="store_true", help="print JSON")
    building = parser.add_command(
        "build",
        build,
        help="build an environment now, instead of at its first use",
        description="Build an environment. With --extends, --packages, --python or --preload this "
        "is a new one, which `--env` and Sandbox(environment=...) then know by its name.",
        epilog="examples:\n"
        "  belljar env build geo --extends data --packages geopandas\n"
        "  belljar env build text --packages 'spacy>=3' numpy --preload spacy",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    building.add_argument("name", metavar="NAME")
    add_description(building, 'a version such as "3.12", or the path of a python', "on this host")
    building.add_argument("--json", action="store_true", help="print what was built as JSON")
    removing = parser.add_command("remove", remove, help="remove from the cache")
    removing.add_argument("names", metavar="NAME", nargs="+", help="a name or a key from the list")


def add_description(parser: argparse.ArgumentParser, python: str, where: str) -> None:
    """The options that describe a new environment; `image build` has them too."""
    for option, metavar, meaning in (
        ("--packages", "PACKAGE", "requirements as for pip, or wheels"),
        ("--preload", "MODULE", "import it once, before any sandbox starts"),
    ):
        parser.add_argument(
            option, metavar=metavar, nargs="+", action="extend", default=[], help=meaning
        )
    parser.add_argument("--extends", metavar="NAME", help="the environment to add to")
    parser.add_argument("--python", help=python)
    parser.add_argument(
        "--allow-builds",
        action="store_true",
        help=f"allow packages without a wheel; building them runs their code {where}",
    )


def show(args: argparse.Namespace) -> None:
    from belljar.environment import environment
    from belljar.environment.store import list_built

    built = list_built()
    named = environment.known_names()
    missing = [name for name in named if name not in {each.name for each in built}]
    if args.json:
        # named: `run --env NAME` knows it
        found: list[dict[str, object]] = [
            {**dataclasses.asdict(each), "built": True, "named": each.name in named}
            for each in built
        ]
        found += [{"name": name, "built": False, "named": True} for name in missing]
        terminal.print_json(found)
        return
    rows = [
        [
            each.name if each.name in named else f"{each.name} (made in Python)",
            each.key,
            each.python,
            _few(each.packages),
            format_bytes(each.size),
            terminal.format_time(each.last_used),
        ]
        for each in built
    ]
    rows += [[name, "-", "-", "-", "-", "not built"] for name in missing]
    terminal.table(rows, ("NAME", "KEY", "PYTHON", "PACKAGES", "SIZE", "LAST USED"))


def build(args: argparse.Namespace) -> None:
    from belljar.environment import environment

    new = described(args)
    built = environment.build(new or args.name)
    if new is not None:
        environment.save(new)  # only after it was built
    python = ".".join(map(str, built.interpreter.version))
    if args.json:
        facts = {"name": args.name, "key": built.key, "path": str(built.path), "python": python}
        terminal.print_json(facts)
    else:
        print(terminal.one_line(f"{args.name}  {built.key}  Python {python}  {built.path}"))


def described(args: argparse.Namespace) -> Environment | None:
    """The new environment that the options describe; None without such options."""
    from belljar.environment.environment import BUILTIN, Environment

    if not (args.extends or args.packages or args.python or args.preload):
        return None
    if args.name in BUILTIN:
        raise InvalidOption(
            f"the environment {args.name!r} comes with Belljar and cannot be changed",
            hint=f"choose another name; --extends {args.name} adds to it",
        )
    return Environment(
        args.name,
        packages=args.packages,
        python=args.python,
        preload=args.preload,
        allow_builds=args.allow_builds,
        extends=args.extends,
    )


def _few(packages: Sequence[str]) -> str:
    if len(packages) <= _SHOWN:
        return " ".join(packages) or "-"
    return f"{' '.join(packages[:_SHOWN])} and {len(packages) - _SHOWN} more"


def remove(args: argparse.Namespace) -> None:
    from belljar.environment import environment, store

    for name in args.names:
        removed = environment.remove(name)
        forgotten = store.remove_saved(name)
        if not removed and not forgotten:
            known = {each.name for each in store.list_built()}
            raise unknown_option("environment", name, sorted(known | {*environment.known_names()}))
        terminal.say(f"removed {name}")
