"""`belljar top`: live sandboxes and what they use, again and again, in a terminal."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from typing import TYPE_CHECKING

from belljar.cli import exit_codes
from belljar.errors import InvalidOption, SandboxError

if TYPE_CHECKING:
    from belljar.cli.top_screen import Screen
    from belljar.observe.live_sandboxes import LiveSandboxes

SUMMARY = "watch live sandboxes"
KEYS = ("cpu", "memory", "age", "processes")

_DESCRIPTION = """\
Watch the live sandboxes of this user (as root: of all users), the busiest first.
"""
_EPILOG = """\
keys:
  up, down           choose a sandbox
  c m a p            sort by cpu, memory, age, processes
  k, Delete          kill the chosen sandbox (asks first; its owner sees it as lost)
  + -                look more often, or less often
  space              look now
  q, Escape, Ctrl-C  quit
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="between looks (default: 1)"
    )
    parser.add_argument("--sort", choices=KEYS, default="cpu", help="by what (default: cpu)")
    parser.add_argument("--once", action="store_true", help="one table on stdout, for scripts")


def run(args: argparse.Namespace) -> int:
    from belljar.observe.live_sandboxes import LiveSandboxes

    if not 0.1 <= args.interval <= 3600:
        raise InvalidOption("--interval is 0.1 to 3600 seconds")
    with LiveSandboxes() as sightings:
        if args.once:
            return _once(sightings, args)
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise InvalidOption(
                "belljar top needs a terminal", hint="--once prints one table; see also belljar ps"
            )
        return _watch(sightings, args)


def _once(sightings: LiveSandboxes, args: argparse.Namespace) -> int:
    from belljar.cli import sandbox_table, terminal
    from belljar.cli.ps import BETWEEN

    if sightings.look():
        time.sleep(BETWEEN)
    seen = sightings.look()
    print(sandbox_table.summary(seen))
    rows = [
        sandbox_table.row(each)
        for each in sandbox_table.ordered((each for each in seen if each.live), args.sort)
    ]
    if rows:
        terminal.table(rows, (*sandbox_table.HEADER, *sandbox_table.OWNER))
    return exit_codes.OK


def _watch(sightings: LiveSandboxes, args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.live import Live

    from belljar.cli.top_screen import Screen

    screen = Screen(sort=args.sort, interval=args.interval)
    console = Console(highlight=False)
    with (
        _keys() as descriptor,
        Live(console=console, screen=True, auto_refresh=False, transient=True) as live,
    ):
        due = 0.0
        while not screen.done:
            if time.monotonic() >= due:
                screen.seen(sightings.look())
                due = time.monotonic() + screen.interval
            live.update(screen.draw(console.size.height, console.size.width), refresh=True)
            for key in _pressed(descriptor, max(due - time.monotonic(), 0.0)):
                screen.press(key)
            if screen.wants_look or screen.to_kill is not None:
                due = 0.0
                _kill(screen)
    return exit_codes.OK


def _kill(screen: Screen) -> None:
    from belljar.observe.live_sandboxes import kill

    screen.wants_look = False
    note, screen.to_kill = screen.to_kill, None
    if note is None:
        return
    try:
        kill(note)
        screen.message = f"killed {note.id}"
    except SandboxError as error:
        screen.message = error.message


# -- keys ---------------------------------------------------------------------------------------

_NAMED = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[3~": "delete",
    b"\x1b": "escape",
    b"\x03": "q",
    b"\x04": "q",
}


@contextlib.contextmanager
def _keys() -> Iterator[int]:
    """The terminal gives each key at once, and does not show it; as it was before, afterwards."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _pressed(descriptor: int, timeout: float) -> list[str]:
    """The keys that were pressed, after waiting for the first one at most so long."""
    ready, _, _ = select.select([descriptor], [], [], timeout)
    if not ready:
        return []
    data = os.read(descriptor, 1024)
    if not data:
        return ["q"]  # the terminal has gone
    return list(split(data))


def split(data: bytes) -> Iterator[str]:
    """Names of keys, out of what a terminal sends.

    >>> list(split(b"m\\x1b[Bq"))
    ['m', 'down', 'q']
    """
    while data:
        for length in (4, 3):
            if data[:length] in _NAMED and len(data) >= length:
                break
        else:
            length = 1
            if data[:1] == b"\x1b" and len(data) > 1:
                # A key that is not known, not the key Escape.
                return
        yield _NAMED.get(data[:length], data[:length].decode("ascii", "replace"))
        data = data[length:]
