"""`belljar ps` lists live sandboxes; `belljar gc` removes what killed processes left behind."""

from __future__ import annotations

import argparse
import dataclasses
import pwd
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from belljar.cli import exit_codes, terminal
from belljar.observe.orphans import BACKENDS, Collected, collect_orphans
from belljar.text import format_bytes

if TYPE_CHECKING:
    from belljar.observe.live_sandboxes import LiveSandbox, LiveSandboxes

INTERVAL = 0.25  # seconds between the two samples that give the processor usage

_DESCRIPTION = """\
List the live sandboxes of this user (as root: of all users): who owns each, how much of its limits
it uses, and whether it is busy. The kernel and the engine are asked, not the owning process.
"""
_EPILOG = """\
states:
  busy      it uses more than 1 % of a processor
  idle      it waits for code, or its code waits
  unknown   it runs on an engine that this host cannot ask
  ended     (-a) it was killed or lost, and its owner has not closed it yet
  orphan    (-a) its owner is dead; `belljar gc` removes what is left
"""

HEADER: tuple[str, ...] = (
    *("ID", "STATE", "BACKEND", "ENV", "CPU %", "MEMORY", "LIMIT", "MEM %", "PROCS", "AGE"),
    *("USER", "PID", "OWNER"),
)
# On a narrow terminal these columns are left out, in this order.
DROPPED = ("USER", "LIMIT", "OWNER", "PID", "ENV", "BACKEND", "PROCS", "MEM %", "AGE", "STATE")
SHORTEST_OWNER = 12  # characters of the owner's command that are worth a column

# How `top` may sort: largest first.
SORT_KEYS: dict[str, Callable[[LiveSandbox], float]] = {
    "cpu": lambda each: each.cpu_percent or 0.0,
    "memory": lambda each: each.memory or 0,
    "age": lambda each: each.age,
    "processes": lambda each: each.processes or 0,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument(
        "-a", "--all", action="store_true", help="also sandboxes that ended or lost their owner"
    )
    parser.add_argument("--json", action="store_true", help="print everything known as JSON")


def run(args: argparse.Namespace) -> None:
    from belljar.observe.live_sandboxes import LiveSandboxes

    with LiveSandboxes() as sightings:
        found = [each for each in look_twice(sightings) if each.live or args.all]
    if args.json:
        terminal.print_json([each.to_dict() for each in found])
    elif found:
        rows, header = [format_row(each) for each in found], HEADER
        if sys.stdout.isatty():  # a pipe gets all columns
            kept = fit_columns(rows, shutil.get_terminal_size().columns, gap=4)
            rows = [[row[number][:width] for number, width in kept.items()] for row in rows]
            header = tuple(header[number] for number in kept)
        terminal.table(rows, header)
    else:
        print("no sandboxes")


def look_twice(sightings: LiveSandboxes) -> list[LiveSandbox]:
    """Processor usage is known only after a second look."""
    if sightings.look():
        time.sleep(INTERVAL)
    return sightings.look()


# -- the table, also for `top` --------------------------------------------------------------------


def format_row(each: LiveSandbox) -> list[str]:
    note = each.note
    limit = note.limits.get("memory")
    return [
        note.id,
        each.state,
        note.backend,
        note.environment,
        "-" if each.cpu_percent is None else f"{each.cpu_percent:.1f}",
        "-" if each.memory is None else format_bytes(each.memory),
        "-" if limit is None else format_bytes(int(limit)),
        "-" if each.memory is None or not limit else f"{each.memory / limit:.1%}",
        "-" if each.processes is None else str(each.processes),
        format_age(each.age),
        _user_name(note.uid),
        str(note.owner.pid),
        note.command[:60],
    ]


def fit_columns(rows: Sequence[Sequence[str]], width: int, *, gap: int) -> dict[int, int]:
    """The columns that fit into a terminal, by number, with their widths. Only the owner's command
    is shortened; any other column is shown whole or left out."""
    needed = {
        name: max(len(name) + 1, *(len(row[number]) for row in rows), 0) + gap
        for number, name in enumerate(HEADER)
    }
    whole = needed["OWNER"]
    needed["OWNER"] = min(whole, SHORTEST_OWNER + gap)
    kept = list(HEADER)
    for name in DROPPED:
        if sum(needed[each] for each in kept) <= width:
            break
        kept.remove(name)
    spare = max(width - sum(needed[each] for each in kept), 0)
    needed["OWNER"] = min(whole, needed["OWNER"] + spare)
    return {number: needed[name] - gap for number, name in enumerate(HEADER) if name in kept}


def sort_live(sightings: Iterable[LiveSandbox], key: str) -> list[LiveSandbox]:
    live = (each for each in sightings if each.live)
    return sorted(live, key=SORT_KEYS[key], reverse=True)


def format_age(seconds: float) -> str:
    """Short, as `ps` writes it.

    >>> format_age(5), format_age(125), format_age(7300), format_age(200000)
    ('5s', '2m05s', '2h01m', '2d07h')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    days, hours_left = divmod(hours, 24)
    if days:
        return f"{days}d{hours_left:02d}h"
    if hours:
        return f"{hours}h{minutes_left:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def summarize(sightings: Sequence[LiveSandbox]) -> str:
    live = [each for each in sightings if each.live]
    busy = sum(each.state == "busy" for each in live)
    memory = sum(each.memory or 0 for each in live)
    cpu = sum(each.cpu_percent or 0.0 for each in live)
    orphans = sum(each.state == "orphan" for each in sightings)
    text = f"{len(live)} sandboxes, {busy} busy, {cpu:.0f} % cpu, {format_bytes(memory)}"
    return f"{text}, {orphans} orphans (belljar gc)" if orphans else text


# -- gc -------------------------------------------------------------------------------------------

_GC_DESCRIPTION = """\
Remove what is left of sandboxes whose process is dead: control groups and the processes in them,
half-built environments, containers, and the files by which `belljar ps` finds sandboxes. Each
process does the same when it starts its first sandbox. Objects of a live process, of another host
or of another program are not touched.
"""
_GC_EPILOG = """\
exit codes:
  0     nothing is left over (with --dry-run: or it was listed)
  1     something could not be removed; it is listed with the reason
  120   --backend docker, and no engine was found
"""


def add_gc_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _GC_DESCRIPTION
    parser.epilog = _GC_EPILOG
    parser.add_argument("--dry-run", action="store_true", help="only list what would be removed")
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        default="all",
        help="only leftovers of this backend (default: all)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_gc(args: argparse.Namespace) -> int:
    collected = collect_orphans(args.backend, dry_run=args.dry_run)
    if args.json:
        terminal.print_json(dataclasses.asdict(collected) | {"dry_run": args.dry_run})
    else:
        _show_leftovers(collected, dry_run=args.dry_run)
    failed = any(each.problem for each in collected.leftovers)
    return exit_codes.ERROR if failed else exit_codes.OK


def _show_leftovers(collected: Collected, *, dry_run: bool) -> None:
    rows = [
        [
            each.kind,
            each.name,
            "-" if each.owner is None else str(each.owner),
            f"not removed: {each.problem}" if each.problem else "removed",
        ]
        for each in collected.leftovers
    ]
    if rows:
        terminal.table(rows, ("WHAT", "NAME", "OWNER", "WOULD BE" if dry_run else "WAS"))
    else:
        print("nothing is left over")
    for backend, why in collected.skipped.items():
        terminal.say(f"{backend} was left out: {why}")
