"""Runs and tables for a terminal, drawn by rich. What the guest wrote is text, never markup."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from belljar.errors import SandboxError
from belljar.results.result import frame_errors
from belljar.text import one_line, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from belljar.results.execution import Execution
    from belljar.results.result import Result

MAX_ROWS = 20
MAX_COLUMNS = 12
MAX_WIDTH = 40  # characters of one cell
MAX_ITEMS = 15  # of a list in a cell: written with brackets and commas, they are wider than it
MAX_DEPTH = 3  # lists in lists
MAX_TEXT = 64 * 1024  # characters of one text: rich takes long for long lines


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
    columns: list[Iterable[object]]
    if library == "pandas":
        part = frame.iloc[:MAX_ROWS, :MAX_COLUMNS]
        names = ["", *part.columns]
        columns = [_of_pandas(part.index)]
        columns += [_of_pandas(part.iloc[:, index]) for index in range(len(names) - 1)]
    elif library == "polars":
        part = frame[:, :MAX_COLUMNS].head(MAX_ROWS)
        names = list(part.columns)
        columns = [_of_polars(part.to_series(index)) for index in range(len(names))]
    else:
        part = frame.slice(0, MAX_ROWS)
        names = list(part.schema.names)[:MAX_COLUMNS]
        columns = [map(_of_arrow, part.column(index)) for index in range(len(names))]
    return names, [list(row) for row in zip(*columns, strict=True)], height, width


# A small table may stand for a huge one: the same long text in each row, by its number, or a list
# of a million nothings. So each cell is made and cut by itself, and of a list only its beginning.


def _of_pandas(column: Any) -> Iterator[object]:
    if hasattr(column.dtype, "pyarrow_dtype"):
        yield from map(_of_arrow, column.array.__arrow_array__())
    else:
        for index in range(len(column)):
            yield _cut(column[index : index + 1].tolist()[0])


def _of_polars(column: Any) -> Iterator[object]:
    if column.dtype.is_nested():
        yield from map(_of_arrow, column.to_arrow())
    else:
        for index in range(len(column)):
            yield _cut(column[index])


def _of_arrow(scalar: Any, depth: int = MAX_DEPTH) -> object:
    if not scalar.is_valid:
        return None
    kind = type(scalar).__name__
    if kind == "DictionaryScalar":
        return _of_arrow(scalar.value, depth)
    if kind == "StructScalar":
        names = list(scalar)[:MAX_ITEMS]
        return {name: _of_arrow(scalar[name], depth - 1) for name in names} if depth else "…"
    if kind == "MapScalar" or kind.endswith(("ListScalar", "ListViewScalar")):
        items = scalar.values.slice(0, MAX_ITEMS)
        return [_of_arrow(item, depth - 1) for item in items] if depth else "…"
    return _cut(scalar.as_py())


def _cut(value: object) -> object:
    return value[: MAX_WIDTH + 1] if isinstance(value, str | bytes) else value


def _cell(value: object) -> Text:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return Text(one_line(text, MAX_WIDTH))


def _text(text: str, style: str = "") -> Text:
    shown = printable(text.removesuffix("\n")[:MAX_TEXT])
    left = len(text) - MAX_TEXT
    return Text(shown if left <= 0 else f"{shown}…\n[{left} characters more]", style=style)
