"""Where output goes: rich for a person at a terminal, plain text for everything else.

What comes from the guest never reaches a terminal as it is: it could clear the screen, fake a
prompt or write to the clipboard. In a pipe it passes unchanged, as a program expects.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from belljar.text import printable

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {
    "enforced": "green",
    "ok": "green",
    "best-effort": "yellow",
    "absent": "red",
    "no": "red",
}


class Writer:
    """The guest's text, as it comes, to one of our streams."""

    def __init__(self, stream: TextIO, *, raw: bool = False) -> None:
        self._stream = stream
        self._escape = stream.isatty() and not raw
        self._line_is_open = False

    def write(self, text: str) -> None:
        if text:
            self._stream.write(printable(text) if self._escape else text)
            self._stream.flush()
            self._line_is_open = not text.endswith("\n")

    def write_lines(self, text: str) -> None:
        """On lines of its own, whatever was written before."""
        self.write("\n" * self._line_is_open + text + "\n" * (not text.endswith("\n")))


def say(text: str) -> None:
    """One of our own sentences, to stderr; it may quote the guest."""
    sys.stdout.flush()
    print(f"belljar: {printable(text)}", file=sys.stderr, flush=True)


def size(bytes_: int) -> str:
    """For people: `format_size` is exact, and so often unreadable."""
    number, unit = float(bytes_), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if number < 1000:
            break
        number, unit = number / 1024, larger
    return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"


def seconds(duration: float) -> str:
    return f"{duration * 1000:.1f} ms" if duration < 1 else f"{duration:.2f} s"


def one_line(text: str) -> str:
    """For a cell of a table, or a name out of the guest."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def heading(text: str) -> None:
    if sys.stdout.isatty():
        from rich.text import Text

        _console().print(Text(text, style="bold"))
    else:
        print(text)


def table(rows: Sequence[Sequence[str]], header: Sequence[str] | None = None) -> None:
    """Columns on stdout: coloured on a terminal (unless NO_COLOR), aligned text elsewhere."""
    shown = [[one_line(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _rich_table(shown, header)
        return
    everything = [*([header] if header else []), *shown]
    widths = [max(map(len, column)) for column in zip(*everything, strict=True)]
    for row in everything:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print(f"  {'  '.join(cells)}".rstrip())


def _rich_table(rows: Sequence[Sequence[str]], header: Sequence[str] | None) -> None:
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, show_header=header is not None, header_style="bold", padding=(0, 2))
    for index in range(len(rows[0]) if rows else len(header or ())):
        drawn.add_column(header[index] if header else "", overflow="fold")
    for row in rows:
        # Text, not str: nothing in a cell is markup.
        drawn.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    _console().print(drawn)


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False)
