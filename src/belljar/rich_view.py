"""Runs and tables for a terminal, drawn by rich. What the guest wrote is text, never markup."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from belljar.errors import SandboxError
from belljar.printable import one_line, printable
from belljar.result import frame_errors

if TYPE_CHECKING:
    from rich.console import RenderableType

    from belljar.execution import Execution
    from belljar.result import Result

MAX_ROWS = 20
MAX_COLUMNS = 12
MAX_WIDTH = 40  # characters of one cell


def execution(run: Execution, remarks: Iterable[str]) -> Iterator[RenderableType]:
    """Show output, results, traceback and remarks."""
    for written, style in ((run.stdout, ""), (run.stderr, "yellow")):
        if written:
            yield _text(written, style)
    for each in run.results:
        yield result(each)
    if run.error is not None:
        yield _text(run.error.traceback, "red")
    for remark in remarks:
        yield _text(f"[{remark}]", "dim")


def result(each: Result) -> RenderableType:
    """Show the table if it has one, else its text."""
    return table(each) or _text(each.text if each.text is not None else repr(each))


def table(each: Result) -> Table | None:
    """Draw the beginning of the data; None if there are none, or none that can be read here."""
    try:
        with frame_errors("shown"):
            grid = _grid(each.data)
            return None if grid is None else _draw(grid)
    except SandboxError:
        return None  # the text is there to be shown


def _draw(grid: Grid) -> Table:
    names, rows, height, width = grid
    left_out = [f"{MAX_ROWS} of {height} rows"] if height > MAX_ROWS else []
    left_out += [f"{MAX_COLUMNS} of {width} columns"] if width > MAX_COLUMNS else []
    caption = ", ".join(left_out)
    drawn = Table(box=box.SIMPLE_HEAD, caption=caption or None, min_width=len(caption) or None)
    for index, name in enumerate(names):
        numbers = all(isinstance(row[index], int | float) for row in rows)
        drawn.add_column(_cell(name), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*map(_cell, row))
    return drawn


Grid = tuple[list[object], list[list[object]], int, int]


def _grid(frame: Any) -> Grid | None:
    """Names, first rows, height and width of whatever kind of frame it is."""
    kind = f"{type(frame).__module__.split('.')[0]}.{type(frame).__name__}"
    if kind in ("pandas.Series", "polars.Series"):
        frame = frame.to_frame()
    library = kind.partition(".")[0]
    if library not in ("pandas", "polars", "pyarrow") or len(getattr(frame, "shape", ())) != 2:
        return None
    height, width = frame.shape
    if library == "pandas":
        part = frame.iloc[:MAX_ROWS, :MAX_COLUMNS]
        names = ["", *part.columns]
        rows = [list(row) for row in part.itertuples(index=True, name=None)]
    elif library == "polars":
        part = frame[:, :MAX_COLUMNS].head(MAX_ROWS)
        names, rows = list(part.columns), [list(row) for row in part.rows()]
    else:
        part = frame.slice(0, MAX_ROWS)
        names = list(part.schema.names)[:MAX_COLUMNS]
        columns = [part.column(index).to_pylist() for index in range(len(names))]
        rows = [list(row) for row in zip(*columns, strict=True)]
    return names, rows, height, width


def _cell(value: object) -> Text:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return Text(one_line(text, MAX_WIDTH))


def _text(text: str, style: str = "") -> Text:
    return Text(printable(text.removesuffix("\n")), style=style)
