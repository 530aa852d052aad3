"""Shows a replay as it goes: one line for each cell, and below it what differs."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from belljar.cli import terminal
from belljar.text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from belljar.record.comparison import Difference
    from belljar.sandbox.replay import Replay, ReplayedCell

_SAME, _DIFFERS = "green", "red"
_DIFF = {"-": "red", "+": "green", "@": "cyan"}
Piece = tuple[str, str]  # a text of one line, and its style


class View:
    def __init__(
        self,
        total: int,
        *,
        silent: bool,  # nothing at all: the caller prints JSON
        quiet: bool,  # only what differs
        times: bool,
    ) -> None:
        self._total = total
        self._silent = silent
        self._quiet = quiet
        self._times = times
        self._done = 0
        self._console: Console | None = None
        self._status: Status | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """For a person who waits, a line says how far it is; it is gone at the end."""
        if not self._silent and sys.stdout.isatty():
            from rich.console import Console

            # The line is drawn by the same Console as the rest, which so keeps them apart.
            self._console = Console(highlight=False)
            self._status = self._stack.enter_context(self._console.status(self._progress()))
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _progress(self) -> str:
        return f"cell {min(self._done + 1, self._total)} of {self._total}"

    def cell(self, cell: ReplayedCell) -> None:
        """Called after each one."""
        first = cell.recorded.code.strip().partition("\n")[0]
        times = ""
        if self._times and cell.replayed is not None:
            before, after = cell.recorded.execution.usage.wall, cell.replayed.usage.wall
            times = f"{terminal.seconds(before)} -> {terminal.seconds(after)}"
        self._show(f"cell {cell.recorded.number}", cell.differences, first, times)
        self._done += 1
        if self._status is not None:
            self._status.update(self._progress())

    def rest(self, replay: Replay) -> None:
        """Called once, at the end."""
        for command in replay.commands:
            words = command.command
            text = words if isinstance(words, str) else " ".join(words)
            self._show(f"command, line {command.line}", command.differences, text)
        if not self._quiet:
            found = [cell.differences for cell in replay.cells]
            found += [command.differences for command in replay.commands]
            differ = sum(map(bool, found))
            verdict = (
                f"{differ} of {len(found)} differ" if differ else f"all {len(found)} as recorded"
            )
            self._print((verdict, "bold"))

    def _show(
        self, label: str, differences: tuple[Difference, ...], code: str, times: str = ""
    ) -> None:
        if self._quiet and not differences:
            return
        what = ", ".join(each.what for each in differences)
        pieces: list[Piece] = [(label, "")]
        pieces.append((f"differs: {what}", _DIFFERS) if differences else ("same", _SAME))
        pieces += [(times, "dim")] if times else []
        self._print(*pieces, (code[:60], "dim"))
        for each in differences:
            self._difference(each)

    def _difference(self, difference: Difference) -> None:
        diff = difference.diff()
        if not diff:
            self._print(("  ", ""), (str(difference), ""))
            return
        self._print(("  ", ""), (difference.what, "bold"))
        for line in diff.split("\n"):
            self._print(("  ", ""), (line, _DIFF.get(line[:1], "")))

    def _print(self, *pieces: Piece) -> None:
        """One line; whatever the guest had its hand in is escaped here."""
        if self._silent:
            return
        shown = [(printable(text).replace("\n", "\\n"), style) for text, style in pieces if text]
        if self._console is None:
            print("  ".join(text for text, _ in shown), flush=True)
            return
        from rich.text import Text

        line = Text("  ").join(Text(text, style=style) for text, style in shown)
        self._console.print(line, no_wrap=True, overflow="ellipsis")
