"""The frame in which a notebook shows HTML of the guest, as high as what is in it.

A frame without scripts and origin cannot tell how high it is, so its height is computed. That works
because cleaned HTML has no sizes of its own (`belljar.sanitize`): the style below decides, and the
numbers beside it have to agree with it. Lines that a browser wraps and pictures are estimated.
"""

from __future__ import annotations

import base64
import binascii
import unicodedata
from dataclasses import dataclass
from html import escape
from html.parser import HTMLParser

MAX_HEIGHT = 520  # pixels; what is higher is scrolled in the frame
_LINE = 20  # pixels of a line of text
_ROW = 5  # and those that a row of a table has besides: padding and border
_GAP = 6  # above the page and between two blocks
_BAR = 12  # below the page: the scroll bar of a wide table, if there is one
_WIDTH = 720  # pixels of the longest line of text
_COLUMNS = 120  # characters in it, about
_PIECE = 8192  # characters that are read at once: most of a long table does not matter
_PICTURE = 240  # pixels of a picture whose size is not known
_POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "img-src data:; font-src data:; style-src 'unsafe-inline'\">"
    '<meta http-equiv="x-dns-prefetch-control" content="off">'
)
# Margins are above blocks only, so that the first one falls together with that of the body. Boxes
# in a line are lower than the line, or another font would make it higher.
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

# The gap is above these.
_APART = {"blockquote", "dl", "figure", "hr", "ol", "p", "pre", "table", "ul"} | {
    f"h{level}" for level in range(1, 7)
}
_BLOCKS = _APART | {"dd", "div", "dt", "figcaption", "li"}
_CELLS = {"caption", "td", "th"}
_VOID = {"br", "col", "hr", "img", "wbr"}  # they have no end tag


def frame(html: str) -> str:
    """Show HTML that was cleaned. Nothing in the frame runs, has an origin, or is loaded."""
    inner = escape(_POLICY + _STYLE + html, quote=True)
    style = f"display:block;width:100%;height:{height(html)}px;border:0;background:#fff"
    return f'<iframe sandbox="" srcdoc="{inner}" style="{style};resize:vertical"></iframe>'


def height(html: str) -> int:
    """Pixels of the frame of some cleaned HTML."""
    layout = _Layout()
    for start in range(0, len(html), _PIECE):
        layout.feed(html[start : start + _PIECE])
        if layout.height() > MAX_HEIGHT:
            return MAX_HEIGHT
    layout.close()
    return min(_GAP + layout.height() + _BAR, MAX_HEIGHT)


@dataclass
class _Flow:
    """Lines and boxes one below the other: of the page, or of a cell, which has no gaps."""

    is_cell: bool = False
    height: int = 0
    columns: int = 0  # of the line that is not at its end
    line: int = 0  # its height; 0 if nothing is in it
    apart: bool = False  # a gap comes before what is next

    def end_line(self) -> None:
        if self.line:
            wrapped = 1 if self.is_cell else max(1, -(-self.columns // _COLUMNS))
            self.add_box(self.line + _LINE * (wrapped - 1))
        self.line = self.columns = 0

    def break_line(self) -> None:
        self.line = self.line or _LINE
        self.end_line()

    def add_text(self, text: str) -> None:
        if text:
            self.line = self.line or _LINE
            wide = sum(unicodedata.east_asian_width(each) in "WF" for each in text)
            self.columns += len(text) + wide

    def add_box(self, height: int) -> None:
        if self.apart and self.height and not self.is_cell:
            self.height += _GAP
        self.height += height
        self.apart = False


@dataclass
class _Table:
    height: int = 0
    row: int = 0  # the highest cell of the row so far


@dataclass
class _Element:
    name: str
    keeps_lines: bool  # a line end in its text is one on the page
    spans_rows: bool


class _Layout(HTMLParser):
    """Adds up what the style gives to each element.

    nh3 closes all elements. If something should be left open or closed twice, the height is wrong,
    and nothing else.
    """

    def __init__(self) -> None:
        super().__init__()
        self._flows = [_Flow()]
        self._tables: list[_Table] = []
        self._elements: list[_Element] = []
        self._at_pre = False  # right behind <pre>, where a line end is not shown

    def close(self) -> None:
        super().close()
        self._flows[0].end_line()

    def height(self) -> int:
        """Pixels of what has ended so far."""
        return self._flows[0].height + sum(table.height for table in self._tables)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        flow = self._flows[-1]
        self._at_pre = tag == "pre"
        if tag in _BLOCKS:
            flow.end_line()
            flow.apart = flow.apart or tag in _APART
        if tag == "br":
            flow.break_line()
        elif tag == "hr":
            flow.add_box(1)
        elif tag == "img":
            flow.line = max(flow.line, _LINE, _picture_height(given))
        elif tag == "table":
            self._tables.append(_Table())
        elif tag in _CELLS:
            self._flows.append(_Flow(is_cell=True))
        if tag not in _VOID:
            outer = bool(self._elements) and self._elements[-1].keeps_lines
            keeps_lines = outer or tag == "pre" or "white-space: pre" in given.get("style", "")
            spans_rows = given.get("rowspan", "1") != "1"
            self._elements.append(_Element(tag, keeps_lines, spans_rows))

    def handle_data(self, data: str) -> None:
        flow = self._flows[-1]
        if self._elements and self._elements[-1].keeps_lines:
            first, *rest = data.removeprefix("\n" if self._at_pre else "").split("\n")
            flow.add_text(first)
            for line in rest:
                flow.break_line()
                flow.add_text(line)
        else:
            flow.add_text(" ".join(data.split()))
        self._at_pre = False

    def handle_endtag(self, tag: str) -> None:
        if not self._elements or self._elements[-1].name != tag:
            return
        element = self._elements.pop()
        self._at_pre = False
        if tag in _BLOCKS:
            self._flows[-1].end_line()
        if tag in _CELLS and len(self._flows) > 1 and self._tables:
            cell, table = self._flows.pop(), self._tables[-1]
            cell.end_line()
            table.row = max(table.row, _LINE, 0 if element.spans_rows else cell.height)
        if tag in ("caption", "tr") and self._tables:
            table = self._tables[-1]
            table.height += table.row + _ROW if table.row else 0
            table.row = 0
        elif tag == "table" and self._tables:
            self._flows[-1].add_box(self._tables.pop().height)


def _picture_height(given: dict[str, str]) -> int:
    """Pixels of an <img>: as it is told to be, or as its PNG says."""
    if given.get("height", "").isdecimal():
        return int(given["height"])
    try:
        head = base64.b64decode(given.get("src", "").partition(",")[2][:32])
    except binascii.Error:
        return _PICTURE
    width, height = (int.from_bytes(head[at : at + 4], "big") for at in (16, 20))
    if not head.startswith(b"\x89PNG") or not width:
        return _PICTURE
    wanted = int(given["width"]) if given.get("width", "").isdecimal() else width
    return round(height * min(wanted, _WIDTH) / width)
