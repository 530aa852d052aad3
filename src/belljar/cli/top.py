"""`belljar top`: watch live sandboxes and what they use, in a terminal.

`Screen` decides what is shown and what a key does; it reads no terminal and no sandbox.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from typing import TYPE_CHECKING

from belljar.cli import ps, terminal
from belljar.errors import InvalidOption, SandboxError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from belljar.observe.live_sandboxes import LiveSandbox, LiveSandboxes
    from belljar.observe.presence_file import Note

_DESCRIPTION = """\
Watch the live sandboxes of this user (as root: of all users), the busiest first.
"""
_EPILOG = """\
keys:
  up, down           choose a sandbox
  c m a p            sort by cpu, memory, age, processes
  k, Delete          kill the chosen sandbox (asks first; its owner sees it as lost)
  + -                refresh more often, or less often
  space              refresh now
  q, Escape, Ctrl-C  quit
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument(
        "--interval",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="time between two refreshes (default: 1)",
    )
    parser.add_argument("--sort", choices=ps.SORT_KEYS, default="cpu", help="(default: cpu)")
    parser.add_argument("--once", action="store_true", help="print one table, for scripts")


def run(args: argparse.Namespace) -> None:
    from belljar.observe.live_sandboxes import LiveSandboxes

    if not 0.1 <= args.interval <= 3600:
        raise InvalidOption("--interval takes 0.1 to 3600 seconds")
    with LiveSandboxes() as sightings:
        if args.once:
            _once(sightings, args)
        elif sys.stdin.isatty() and sys.stdout.isatty():
            _watch(sightings, args)
        else:
            raise InvalidOption(
                "`belljar top` needs a terminal", hint="use `belljar top --once` or `belljar ps`"
            )


def _once(sightings: LiveSandboxes, args: argparse.Namespace) -> None:
    seen = ps.look_twice(sightings)
    print(ps.summarize(seen))
    live = ps.sort_live(seen, args.sort)
    if live:
        terminal.table([ps.format_row(each) for each in live], ps.HEADER)


def _watch(sightings: LiveSandboxes, args: argparse.Namespace) -> None:
    from rich.live import Live

    screen = Screen(sort=args.sort, interval=args.interval)
    console = terminal.make_console()
    with (
        _keys() as descriptor,
        Live(console=console, screen=True, auto_refresh=False, transient=True) as live,
    ):
        while not screen.done:
            if time.monotonic() >= screen.due:
                screen.seen(sightings.look())
                screen.due = time.monotonic() + screen.interval
            live.update(screen.draw(console.size.height, console.size.width), refresh=True)
            for key in _pressed(descriptor, max(screen.due - time.monotonic(), 0.0)):
                screen.press(key)
            if screen.to_kill is not None:
                screen.message = _kill(screen.to_kill)
                screen.to_kill, screen.due = None, 0.0


def _kill(note: Note) -> str:
    """Returns what to say about it."""
    from belljar.observe.live_sandboxes import kill

    try:
        kill(note)
        return f"killed {note.id}"
    except SandboxError as error:
        return error.message


# -- keys ---------------------------------------------------------------------------------------

# A control sequence, another key with Escape before it, or one character.
_KEY = re.compile(rb"\x1b\[[0-?]*[@-~]|\x1bO?.|.", re.DOTALL)
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
    """Switch the terminal to send each key at once without showing it; restore it afterwards."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _pressed(descriptor: int, timeout: float) -> list[str]:
    """The keys that were pressed, after waiting at most `timeout` for the first one."""
    ready, _, _ = select.select([descriptor], [], [], timeout)
    if not ready:
        return []
    data = os.read(descriptor, 1024)
    return list(split_keys(data)) if data else ["q"]  # the terminal is gone


def split_keys(data: bytes) -> Iterator[str]:
    """The names of the keys in what a terminal sends.

    >>> list(split_keys(b"m\\x1b[Bq"))
    ['m', 'down', 'q']
    """
    for key in _KEY.findall(data):
        if key in _NAMED:
            yield _NAMED[key]
        elif len(key) == 1:  # a longer one is a key without a meaning here
            yield key.decode("ascii", "replace")


_SORTS = {"c": "cpu", "m": "memory", "a": "age", "p": "processes"}
_STATE_STYLES = {"busy": "green", "ended": "red", "orphan": "red", "unknown": "yellow"}
_NUMBERS = range(4, 10)  # columns that are aligned to the right
_COLUMNS = {"cpu": "CPU", "memory": "MEMORY", "age": "AGE", "processes": "PROCS"}
_HELP = "c m a p sort · ↑↓ choose · k kill · + - interval · space refresh · q quit"
_GAP = 2  # characters between two columns
_LINES = 4  # lines that are not rows: title, header, message, help


class Screen:
    def __init__(self, *, sort: str, interval: float) -> None:
        self.sort = sort
        self.interval = interval
        self.done = False
        self.message = ""
        self.due = 0.0  # when to look again, as time.monotonic()
        self.to_kill: Note | None = None  # confirmed
        self._asked: Note | None = None  # to be confirmed
        self._all: list[LiveSandbox] = []
        self._rows: list[LiveSandbox] = []
        self._chosen: str | None = None  # an id, because rows move

    def seen(self, sightings: list[LiveSandbox]) -> None:
        self._all = sightings
        self._arrange()

    def _arrange(self) -> None:
        self._rows = ps.sort_live(self._all, self.sort)
        if self._rows and self._chosen not in {each.note.id for each in self._rows}:
            self._chosen = self._rows[0].note.id

    @property
    def _index(self) -> int:
        ids = [each.note.id for each in self._rows]
        return ids.index(self._chosen) if self._chosen in ids else 0

    # -- keys -------------------------------------------------------------------------------

    def press(self, key: str) -> None:
        if self._asked is not None:
            self._answer(key)
            return
        self.message = ""
        if key in ("q", "escape"):
            self.done = True
        elif key in _SORTS:
            self.sort = _SORTS[key]
            self._arrange()
        elif key == "up":
            self._choose(-1)
        elif key == "down":
            self._choose(+1)
        elif key == "+":
            self.interval = max(self.interval / 2, 0.1)
        elif key == "-":
            self.interval = min(self.interval * 2, 3600.0)
        elif key == " ":
            self.due = 0.0
        elif key in ("k", "delete") and self._rows:
            self._asked = self._rows[self._index].note

    def _answer(self, key: str) -> None:
        note, self._asked = self._asked, None
        if key == "y":
            self.to_kill = note
        else:
            self.message = "nothing was killed"

    def _choose(self, step: int) -> None:
        if self._rows:
            at = min(max(self._index + step, 0), len(self._rows) - 1)
            self._chosen = self._rows[at].note.id

    # -- what is shown ----------------------------------------------------------------------

    def draw(self, height: int, width: int) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        title = f"belljar top · {ps.summarize(self._all)} · "
        title += f"every {self.interval:g} s · by {self.sort}"
        return Group(
            Text(terminal.one_line(title), style="bold", no_wrap=True, overflow="ellipsis"),
            self._table(max(height - _LINES, 1), width),
            Text(terminal.one_line(self._said()), style="yellow", no_wrap=True),
            Text(_HELP, style="dim", no_wrap=True, overflow="ellipsis"),
        )

    def _said(self) -> str:
        if self._asked is not None:
            note = self._asked
            return f"kill {note.id} ({note.environment}, owner {note.owner.pid})? y: yes"
        return self.message or ("" if self._rows else "no sandboxes")

    def _table(self, rows: int, width: int) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        drawn = Table(box=None, header_style="bold", padding=(0, 1), expand=True)
        first = max(self._index - rows + 1, 0)  # so that the chosen row is visible
        shown = self._rows[first : first + rows]
        texts = [[terminal.one_line(cell) for cell in ps.format_row(each)] for each in shown]
        kept = ps.fit_columns(texts, width, gap=_GAP)
        for number in kept:
            name = ps.HEADER[number]
            sorted_by = name.startswith(_COLUMNS[self.sort])
            drawn.add_column(
                f"{name}▼" if sorted_by else name,
                justify="right" if number in _NUMBERS else "left",
                no_wrap=True,
                overflow="ellipsis",
                min_width=kept[number],
            )
        for each, cells in zip(shown, texts, strict=True):
            style = "reverse" if each.note.id == self._chosen else ""
            state = _STATE_STYLES.get(each.state, "")
            drawn.add_row(
                *(
                    Text(cells[number][:space], style=state if number == 1 else "")
                    for number, space in kept.items()
                ),
                style=style,
            )
        return drawn
