"""The frame in which a notebook shows HTML of the guest, as high as what is in it.

A frame without scripts and origin cannot tell how high it is, so its height is computed. That works
because cleaned HTML has no sizes of its own (`results.sanitize`): the style below decides, and the
numbers beside it agree with it. Rows of tables are exact; wrapped text and pictures are estimated.
"""

from __future__ import annotations

import re
from html import escape, unescape

MAX_HEIGHT = 520  # pixels; what is higher is scrolled in the frame
_LINE = 20  # pixels of a line of text
_ROW = 25  # pixels of a row of a table
_GAP = 6  # above the page and between two blocks
_BAR = 12  # below the page: the scroll bar of a wide table, if there is one
_COLUMNS = 120  # characters in the longest line of text, about
_PICTURE = 240
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

_TABLE = re.compile(r"<table\b.*?</table>", re.DOTALL)
_BLOCK = re.compile(
    r"<(br|div|li|d[dt]|figcaption|blockquote|dl|figure|h[1-6r]|ol|p|pre|table|ul)\b[^>]*>"
)
_WITHOUT_GAP = {"", "br", "div", "li", "dd", "dt", "figcaption"}


def frame(html: str) -> str:
    """Show HTML that was cleaned. Nothing in the frame runs, has an origin, or is loaded."""
    inner = escape(_POLICY + _STYLE + html, quote=True)
    style = f"display:block;width:100%;height:{height(html)}px;border:0;background:#fff"
    return f'<iframe sandbox="" srcdoc="{inner}" style="{style};resize:vertical"></iframe>'


def height(html: str) -> int:
    """Pixels of the frame of some cleaned HTML."""
    rows = html.count("<tr") + html.count("<caption")
    pixels = _GAP + rows * _ROW + html.count("<img") * _PICTURE + _BAR
    first, *rest = _BLOCK.split(_TABLE.sub("<table>", html))
    is_first = True
    for tag, content in zip(("", *rest[::2]), (first, *rest[1::2]), strict=True):
        lines = _count_lines(unescape(re.sub("<[^>]*>", "", content)), keep=tag == "pre")
        if lines or tag == "table":
            pixels += lines * _LINE + (0 if is_first or tag in _WITHOUT_GAP else _GAP)
            is_first = False
    return min(pixels, MAX_HEIGHT)


def _count_lines(text: str, *, keep: bool) -> int:
    """`keep`: a line end in the text is one on the page."""
    if keep:
        return text.strip("\n").count("\n") + 1
    return -(-len(" ".join(text.split())) // _COLUMNS)
