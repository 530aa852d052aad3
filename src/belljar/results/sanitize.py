"""Which HTML of a guest may be shown: one allow-list for notebooks, pages and exported files.

HTML and Markdown become HTML of text and tables: known elements, few attributes, colours. Removed
is everything that runs, loads or links, and everything that selectors find (`id`, `name`, `class`,
`data-*`). nh3 parses HTML as browsers do. Without nh3 no HTML is shown, and callers show text.
"""

from __future__ import annotations

import base64
import importlib.util
import re
from html import escape
from typing import TYPE_CHECKING

from belljar.text import encodable

if TYPE_CHECKING:
    from belljar.results.result import Result

MISSING = "HTML and Markdown of the sandbox are shown as text: the package nh3 is not installed"

_ELEMENTS = """
    abbr b bdi blockquote br caption cite code col colgroup dd del dfn div dl dt em figcaption
    figure h1 h2 h3 h4 h5 h6 hr i img ins kbd li mark ol p pre q rp rt ruby s samp small span strong
    sub sup table tbody td tfoot th thead tr tt u ul var wbr
"""
# Removed with their content. Other unknown elements are removed, and their text is kept.
_REMOVED = """
    applet audio canvas fencedframe frameset iframe math noembed noframes noscript object plaintext
    portal script select style svg template textarea title video xmp
"""
_ATTRIBUTES = {
    "*": {"align", "dir", "style"},
    "col": {"span"},
    "colgroup": {"span"},
    "img": {"alt", "height", "src", "width"},
    "ol": {"start"},
    "table": {"border"},
    "td": {"colspan", "rowspan", "valign"},
    "th": {"colspan", "rowspan", "scope", "valign"},
    "tr": {"valign"},
}
_SMALL = re.compile(r"[0-9]{1,4}%?")
_WORD = re.compile(r"[a-z]{1,10}")
_VALUES = {
    "align": _WORD,
    "alt": re.compile(r"[^\0]{0,500}"),
    "border": _SMALL,
    "colspan": _SMALL,
    "dir": _WORD,
    "height": _SMALL,
    "rowspan": _SMALL,
    "scope": _WORD,
    "span": _SMALL,
    # Only data in the page itself, in formats without scripts.
    "src": re.compile(r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/\s]*={0,2}\s*"),
    "start": re.compile(r"-?[0-9]{1,6}"),
    "valign": _WORD,
    "width": _SMALL,
}
_STYLES = """
    background background-color color font-style font-weight text-align text-decoration
    vertical-align white-space
"""
_PROPERTIES = frozenset(_STYLES.split())
_PROPERTY = re.compile(
    r"(?:[\w#%., +!-]|\b(?:rgba?|hsla?|linear-gradient)\(|\))*", re.ASCII | re.IGNORECASE
)

# The parser takes quadratic time for deep nesting and for many attributes. It also repeats unclosed
# formatting elements such as <b> in every block that follows. These limits keep it to about a
# second.
MAX_HTML = 256 * 1024  # characters
MAX_TAGS = 30_000
MAX_REPEATED = 1_000_000  # tags times formatting tags
MAX_MARKDOWN = 64 * 1024  # characters
_REPEATED = re.compile(r"<(?:a|b|big|code|em|font|i|nobr|s|small|strike|strong|tt|u)\b", re.I)
MAX_RULE = 300  # characters of one rule of a style sheet

# Figures that a script would draw: without it their HTML is nearly empty, and their text says more.
_SCRIPTED = ("application/vnd.plotly.", "application/vnd.vega")


def is_available() -> bool:
    return importlib.util.find_spec("nh3") is not None


def to_html(result: Result) -> str:
    """The cleaned HTML of a result; empty if it has no HTML or cleaning leaves nothing."""
    if any(mime.startswith(_SCRIPTED) for mime in result.raw):
        return ""
    if result.html is not None:
        return clean(result.html)
    return clean_markdown(result.markdown) if result.markdown is not None else ""


def clean(html: str) -> str:
    """The allowed part of the HTML; empty if that shows nothing."""
    if not is_available() or not _is_affordable(html):
        return ""
    import nh3

    cleaned = nh3.clean(
        _with_inline_styles(encodable(html)),
        tags=set(_ELEMENTS.split()),
        clean_content_tags=set(_REMOVED.split()),
        attributes=_ATTRIBUTES,
        attribute_filter=_filter_attribute,
        url_schemes={"data"},
        link_rel=None,
    )
    shows = re.search(r'<img\b[^>]* src="', cleaned) or re.sub(r"<[^>]*>", "", cleaned).strip()
    return cleaned if shows else ""


def clean_markdown(text: str) -> str:
    """Markdown as cleaned HTML. HTML inside the Markdown stays text."""
    if not is_available() or len(text) > MAX_MARKDOWN:
        return ""
    from markdown_it import MarkdownIt

    reader = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    return clean(reader.render(encodable(text)))


def find_picture(result: Result) -> tuple[str, bytes] | None:
    """The MIME type and the content of its PNG, else JPEG, else SVG."""
    svg = (result.svg or "").encode("utf-8", "replace")
    for kind, content in (("png", result.png), ("jpeg", result.jpeg), ("svg+xml", svg)):
        if content:
            return f"image/{kind}", content
    return None


def image(mime: str, content: bytes, alt: str = "") -> str:
    """A picture as an <img>, in which scripts of an SVG do not run and which loads nothing."""
    data = base64.b64encode(content).decode("ascii")
    style = "display:block;max-width:100%"  # an inline picture has a gap below it
    return f'<img alt="{escape(alt)}" src="data:{mime};base64,{data}" style="{style}">'


def _is_affordable(html: str) -> bool:
    tags = html.count("<")
    repeated = tags * len(_REPEATED.findall(html)) if len(html) <= MAX_HTML else 0
    return len(html) <= MAX_HTML and tags <= MAX_TAGS and repeated <= MAX_REPEATED


def _filter_attribute(element: str, name: str, value: str) -> str | None:
    """The value to keep; None removes the attribute."""
    if name == "style":
        return _filter_style(value) or None
    allowed = _VALUES.get(name)  # nh3 asks about removed attributes too
    return value if allowed is not None and allowed.fullmatch(value) else None


def _filter_style(text: str) -> str:
    kept = []
    for declaration in text.split(";"):
        name, _, value = declaration.partition(":")
        name, value = name.strip().lower(), value.strip()
        if name in _PROPERTIES and value and _PROPERTY.fullmatch(value):
            kept.append(f"{name}: {value}")
    return "; ".join(kept)


_SHEET = re.compile(r"<style[^<>]*>([^<]*)</style>", re.I)
_NAMED = re.compile(r"""\sid="([\w-]{1,100})\"""", re.ASCII)
_BY_NAME = re.compile(r"\s*#([\w-]{1,100})\s*", re.ASCII)


def _with_inline_styles(html: str) -> str:
    """Copy the rules of style sheets for an `id` into that element's `style`.

    pandas colours cells of styled frames by `id`, and cleaning removes both sheet and `id`. The
    copied styles are cleaned afterwards like all others."""
    styles = {}
    for sheet in _SHEET.findall(html):
        for rule in sheet.split("}"):
            selectors, _, declarations = rule.rpartition("{")
            if len(declarations) <= MAX_RULE:
                for named in map(_BY_NAME.fullmatch, selectors.split(",")):
                    if named is not None:
                        styles[named[1]] = escape(declarations)
    if not styles:
        return html
    return _NAMED.sub(
        lambda named: f' style="{styles[named[1]]}"' if named[1] in styles else named[0], html
    )
