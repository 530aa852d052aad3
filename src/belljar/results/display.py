"""Executions and results for people: as HTML in a notebook of the host, as text in a terminal.

The guest's text is escaped; it is never markup. The guest's HTML goes into an iframe without
scripts, forms or an origin, whose policy forbids it to load anything: code in a sandbox without a
network must not reach one through the browser that shows its output.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html import escape, unescape
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from belljar.results import sanitize
from belljar.text import one_line, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from belljar.results.execution import Execution
    from belljar.results.result import Result

# -- notebook ---------------------------------------------------------------------------------

MAX_PAGE = 16 * 1024 * 1024  # characters of everything that one Execution shows
MAX_TEXT = 256 * 1024  # characters of one text

# It must look right on any background; notebook frameworks style <pre>, so all of it is set.
_TEXT = (
    "margin:0;padding:0;border:0;background:none;color:inherit;white-space:pre-wrap;"
    "overflow-wrap:anywhere;font-family:Menlo,Consolas,'DejaVu Sans Mono',monospace;"
    "font-size:inherit;line-height:1.3"
)
_STDERR = "background:#fdd;color:#400"
_TRACEBACK = "color:#d33"
_REMARK = "opacity:0.7"


def mime_bundle(result: Result) -> dict[str, object]:
    """The formats that a notebook may render itself: a picture, our own HTML, and text."""
    bundle: dict[str, object] = {"text/plain": _cut(result.text or repr(result))}
    if (picture := sanitize.find_picture(result)) and picture[0] != "image/svg+xml":
        bundle[picture[0]] = picture[1]
    elif held := _render_html(result):
        bundle["text/html"] = held
    return bundle


def render_page(execution: Execution, remarks: Iterable[str]) -> str:
    """HTML of output, results, traceback and remarks, in the order of a notebook."""
    kept, room = [], MAX_PAGE
    for part in _page_parts(execution, remarks):
        if len(part) > room:
            part = _pre("[too large to show here; see results]", _REMARK)
        room -= len(part)
        kept.append(part)
    shown = "".join(kept) or _pre(repr(execution), _REMARK)
    return f'<div class="belljar">{shown}</div>'


def _page_parts(execution: Execution, remarks: Iterable[str]) -> Iterator[str]:
    yield _pre(execution.stdout)
    yield _pre(execution.stderr, _STDERR)
    for result in execution.results:
        text = result.text or result.markdown or result.latex or repr(result)
        yield _render_html(result) or _pre(text)
    if execution.error is not None:
        yield _pre(execution.error.traceback, _TRACEBACK)
    for remark in remarks:
        yield _pre(f"[{remark}]", _REMARK)
    if not sanitize.is_available() and any(r.html or r.markdown for r in execution.results):
        yield _pre(f"[{sanitize.MISSING}]", _REMARK)


def _render_html(result: Result) -> str:
    """A picture, or HTML in a frame; empty if there is neither or cleaning leaves nothing."""
    if picture := sanitize.find_picture(result):
        return f"<div>{sanitize.image(*picture)}</div>"
    cleaned = sanitize.to_html(result)
    return html_frame(cleaned) if cleaned else ""


def _pre(text: str, style: str = "") -> str:
    """The text as HTML; empty if it is blank."""
    if not text.strip():
        return ""
    return f'<pre style="{_TEXT};{style}">{escape(_cut(text))}</pre>'


def _cut(text: str, limit: int = MAX_TEXT) -> str:
    kept = printable(text[:limit])
    left = len(text) - limit
    return kept if left <= 0 else f"{kept}…\n[{left} characters more]"


# -- the frame of cleaned HTML in a notebook --------------------------------------------------
# A frame without scripts and origin cannot report its height, so the height is computed. That works
# because cleaned HTML has no sizes: the style below decides them, and the numbers here agree with
# it. Rows of tables are exact; wrapped text and pictures are estimates.

MAX_HEIGHT = 520  # pixels; higher content scrolls in the frame
_LINE = 20  # pixels of a line of text
_ROW = 25  # pixels of a row of a table
_GAP = 6  # pixels above the page and between two blocks
_BAR = 12  # pixels below the page: the scroll bar of a wide table
_COLUMNS = 120  # characters of a full line, about
_PICTURE = 240
_POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "img-src data:; font-src data:; style-src 'unsafe-inline'\">"
    '<meta http-equiv="x-dns-prefetch-control" content="off">'
)
# Margins are only above blocks, so that the first one collapses with that of the body. Inline boxes
# are lower than the line: otherwise another font would make the line higher.
_STYLE = (
    "<style>html{background:#fff;color:#111;scrollbar-width:thin}"
    "body{font:13px/20px Arial,Helvetica,sans-serif;margin:6px 6px 0;max-width:720px}"
    "blockquote,dl,figure,h1,h2,h3,h4,h5,h6,hr,ol,p,pre,table,ul{margin:6px 0 0}"
    "h1{font-size:18px}h2{font-size:16px}h3,h4,h5,h6{font-size:14px}"
    "code,kbd,pre,samp,tt{font-family:Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:13px}"
    "code,kbd,mark,samp,small,tt{line-height:1}sub,sup{line-height:0}pre{white-space:pre}"
    "ol,ul,dd{margin-left:0;padding-left:24px}"
    "blockquote{border-left:3px solid #ccc;padding-left:9px}hr{border:0;border-top:1px solid #ccc}"
    "img,table{float:none}img{vertical-align:top;max-width:100%}"
    "table{border:0;border-spacing:0;font-variant-numeric:tabular-nums}"
    "caption,td,th{border:0;border-bottom:1px solid #ddd;height:20px;padding:2px 8px;"
    "text-align:right;white-space:nowrap}caption{text-align:left}"
    "caption *,td *,th *{margin:0}</style>"
)

_TABLES = re.compile(r"<table\b.*?</table>", re.DOTALL)
_BLOCK = re.compile(
    r"<(br|div|li|d[dt]|figcaption|blockquote|dl|figure|h[1-6r]|ol|p|pre|table|ul)\b[^>]*>"
)
_WITHOUT_GAP = {"", "br", "div", "li", "dd", "dt", "figcaption"}


def html_frame(html: str) -> str:
    """A frame around cleaned HTML, in which no script runs and which loads nothing."""
    inner = escape(_POLICY + _STYLE + html, quote=True)
    style = f"display:block;width:100%;height:{frame_height(html)}px;border:0;background:#fff"
    return f'<iframe sandbox="" srcdoc="{inner}" style="{style};resize:vertical"></iframe>'


def frame_height(html: str) -> int:
    """The height in pixels of the frame of some cleaned HTML."""
    rows = html.count("<tr") + html.count("<caption")
    pixels = _GAP + rows * _ROW + html.count("<img") * _PICTURE + _BAR
    first, *rest = _BLOCK.split(_TABLES.sub("<table>", html))
    is_first = True
    for tag, content in zip(("", *rest[::2]), (first, *rest[1::2]), strict=True):
        lines = _count_lines(unescape(re.sub("<[^>]*>", "", content)), keep=tag == "pre")
        if lines or tag == "table":
            pixels += lines * _LINE + (0 if is_first or tag in _WITHOUT_GAP else _GAP)
            is_first = False
    return min(pixels, MAX_HEIGHT)


def _count_lines(text: str, *, keep: bool) -> int:
    """`keep`: line ends in the text are line ends on the page."""
    if keep:
        return text.strip("\n").count("\n") + 1
    return -(-len(" ".join(text.split())) // _COLUMNS)


# -- terminal ---------------------------------------------------------------------------------

MAX_ROWS = 20
MAX_COLUMNS = 12
MAX_WIDTH = 40  # characters of one cell
MAX_ITEMS = 15  # of a list in a cell: with brackets and commas, more would not fit
MAX_DEPTH = 3  # lists in lists
MAX_TERMINAL_TEXT = 64 * 1024  # characters of one text: rich is slow for long lines
Grid = tuple[list[object], list[list[object]], int, int]  # names, first rows, height, width


def render_execution(run: Execution, remarks: Iterable[str]) -> Iterator[RenderableType]:
    """Output, results, traceback and remarks."""
    for written, style in ((run.stdout, ""), (run.stderr, "yellow")):
        if written:
            yield _terminal_text(written, style)
    for each in run.results:
        yield render_result(each)
    if run.error is not None:
        yield _terminal_text(run.error.traceback, "red")
    for remark in remarks:
        yield _terminal_text(f"[{remark}]", "dim")


def render_result(result: Result) -> RenderableType:
    """The table if it has one, else its text."""
    return render_table(result) or _terminal_text(
        result.text if result.text is not None else repr(result)
    )


def render_table(result: Result) -> Table | None:
    """The first rows and columns of a table; None without a table that this Python can read."""
    try:
        grid = _read_grid(result.data)
        return None if grid is None else _draw_table(grid)
    except BaseException as error:
        # A library may raise anything for a guest's table. Panics of polars are not Exceptions.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        return None  # callers show the text instead


def _draw_table(grid: Grid) -> Table:
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


def _read_grid(frame: Any) -> Grid | None:
    """The beginning of a frame of pandas, polars or pyarrow; None for anything else."""
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
        columns = [_pandas_cells(part.index)]
        columns += [_pandas_cells(part.iloc[:, index]) for index in range(len(names) - 1)]
    elif library == "polars":
        part = frame[:, :MAX_COLUMNS].head(MAX_ROWS)
        names = list(part.columns)
        columns = [_polars_cells(part.to_series(index)) for index in range(len(names))]
    else:
        part = frame.slice(0, MAX_ROWS)
        names = list(part.schema.names)[:MAX_COLUMNS]
        columns = [map(_arrow_cell, part.column(index)) for index in range(len(names))]
    return names, [list(row) for row in zip(*columns, strict=True)], height, width


# A few bytes can encode a huge table: one long text that every row refers to, or a list of a
# million nulls. So each cell is converted and cut by itself, and a list only up to MAX_ITEMS.


def _pandas_cells(column: Any) -> Iterator[object]:
    if hasattr(column.dtype, "pyarrow_dtype"):
        yield from map(_arrow_cell, column.array.__arrow_array__())
    else:
        for index in range(len(column)):
            yield _cut_value(column[index : index + 1].tolist()[0])


def _polars_cells(column: Any) -> Iterator[object]:
    if column.dtype.is_nested():
        yield from map(_arrow_cell, column.to_arrow())
    else:
        for index in range(len(column)):
            yield _cut_value(column[index])


def _arrow_cell(scalar: Any, depth: int = MAX_DEPTH) -> object:
    if not scalar.is_valid:
        return None
    kind = type(scalar).__name__
    if kind == "DictionaryScalar":
        return _arrow_cell(scalar.value, depth)
    if kind == "StructScalar":
        names = list(scalar)[:MAX_ITEMS]
        return {name: _arrow_cell(scalar[name], depth - 1) for name in names} if depth else "…"
    if kind == "MapScalar" or kind.endswith(("ListScalar", "ListViewScalar")):
        items = scalar.values.slice(0, MAX_ITEMS)
        return [_arrow_cell(item, depth - 1) for item in items] if depth else "…"
    return _cut_value(scalar.as_py())


def _cut_value(value: object) -> object:
    return value[: MAX_WIDTH + 1] if isinstance(value, str | bytes) else value


def _cell(value: object) -> Text:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return Text(one_line(text, MAX_WIDTH))


def _terminal_text(text: str, style: str = "") -> Text:
    return Text(_cut(text.removesuffix("\n"), MAX_TERMINAL_TEXT), style=style)
