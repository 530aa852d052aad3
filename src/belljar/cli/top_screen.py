"""What `belljar top` shows, and what its keys do: no terminal is read here, and no sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

from belljar.cli import sandbox_table, terminal
from belljar.observe.live_sandboxes import LiveSandbox
from belljar.observe.presence_file import Note

if TYPE_CHECKING:
    from rich.console import RenderableType

_SORTS = {"c": "cpu", "m": "memory", "a": "age", "p": "processes"}
_STATE_STYLES = {"busy": "green", "ended": "red", "orphan": "red", "unknown": "yellow"}
_NUMBERS = range(4, 10)  # columns that are aligned to the right
_HELP = "c m a p sort · ↑↓ choose · k kill · + - interval · space look · q quit"
_GAP = 2  # characters between two columns
_LINES = 4  # that are not rows: title, header, message, help


class Screen:
    def __init__(self, *, sort: str, interval: float) -> None:
        self.sort = sort
        self.interval = interval
        self.done = False
        self.message = ""
        self.wants_look = False
        self.to_kill: Note | None = None  # confirmed
        self._asked: Note | None = None  # to be confirmed
        self._all: list[LiveSandbox] = []
        self._rows: list[LiveSandbox] = []
        self._chosen: str | None = None  # its id: rows move

    def seen(self, sightings: list[LiveSandbox]) -> None:
        self._all = sightings
        self._arrange()

    def _arrange(self) -> None:
        live = (each for each in self._all if each.live)
        self._rows = sandbox_table.ordered(live, self.sort)
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
            self.wants_look = True
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

        title = f"belljar top · {sandbox_table.summary(self._all)} · "
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
        header = (*sandbox_table.HEADER, *sandbox_table.OWNER)
        # The chosen one is in sight, whatever its place.
        first = max(self._index - rows + 1, 0)
        shown = self._rows[first : first + rows]
        texts = [[terminal.one_line(cell) for cell in sandbox_table.row(each)] for each in shown]
        kept = sandbox_table.fitting(texts, width, gap=_GAP)
        for number in kept:
            name = header[number]
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
                    Text(cells[number][:room], style=state if number == 1 else "")
                    for number, room in kept.items()
                ),
                style=style,
            )
        return drawn


_COLUMNS = {"cpu": "CPU", "memory": "MEMORY", "age": "AGE", "processes": "PROCS"}
