"""HTML of a stranger's, made anew out of what tables, text and simple drawings are made of.

Shown in a frame that may run and load nothing anyhow. But a browser looks up names and opens
connections before it asks its policy, and a notebook file has no frame: so nothing is let through
that could reach out. What comes out are known elements with harmless attributes, and escaped text;
whatever is read wrongly here is therefore shown wrongly at worst. Takes time in proportion to
its length.
"""

from __future__ import annotations

import re
from html import escape, unescape

_TEXT = """
    a abbr address article aside b bdi bdo big blockquote br caption center cite code col colgroup
    dd del details dfn div dl dt em figcaption figure font footer h1 h2 h3 h4 h5 h6 header hr i img
    ins kbd label li main mark meter nav ol p pre progress q rp rt ruby s samp section small span
    strike strong sub summary sup table tbody td tfoot th thead time tr tt u ul var wbr
"""
_DRAWING = """
    svg g path line rect circle ellipse polygon polyline text tspan defs marker lineargradient
    radialgradient stop clippath
"""
# With all that is in them: what runs, and what changes how a browser reads what follows.
_LEFT_OUT = """
    applet audio canvas fencedframe frameset iframe math noembed noframes noscript object plaintext
    portal script select template textarea title video xmp
"""
_WITH_ADDRESSES = """
    action archive background cite classid codebase data dynsrc formaction href imagesrcset longdesc
    lowsrc manifest ping poster profile src srcdoc srcset xlink:href
"""
_ELEMENTS = frozenset((_TEXT + _DRAWING).split())
_VOID = frozenset(["br", "col", "hr", "img", "wbr"])
_WHOLE = frozenset(_LEFT_OUT.split())
_ADDRESSES = frozenset(_WITH_ADDRESSES.split())

# No "<" within a tag, not even in quotes: what is no tag is so up to the next one, and never
# looked at again. (*+ and ++ give nothing back.)
_TAG = re.compile(r"""<(/?)([A-Za-z][\w:-]*+)((?:[^<>"']++|"[^"<]*+"|'[^'<]*+')*+)>""", re.ASCII)
_ATTRIBUTE = re.compile(
    r"""([^\s"'<>/=]++)(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s"'<>]++)))?""", re.ASCII
)
_END_OF_STYLE = re.compile(r"</style(?=[\s/>])[^<>]*+>", re.I | re.ASCII)
_ATTRIBUTE_NAME = re.compile(r"(?!on)[a-z][a-z0-9:_-]*", re.ASCII)
_LONE_AMPERSAND = re.compile(
    r"&(?!(?:[A-Za-z][A-Za-z0-9]{0,31}|#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6});)"
)
_REACHES_OUT = re.compile(
    r"\\|url\s*\(|src\s*\(|image(-set)?\s*\(|element\s*\(|expression\s*\(|"
    r"@\s*(import|namespace|font-face)",
    re.I,
)
_PLACE_IN_THE_PAGE = re.compile(r"url\(#[\w-]+\)", re.ASCII)
MAX_NESTED = 500


def clean(html: str) -> str:
    """The same, without what could reach out."""
    return _Cleaner(html).made()


class _Cleaner:
    def __init__(self, html: str) -> None:
        self._html = html
        self._parts: list[str] = []
        self._inside: list[str] = []  # elements that go with all that is in them
        self._endless: set[str] = set()  # what is not found any more, from here to the end

    def made(self) -> str:
        html, at = self._html, 0
        while at < len(html):
            start = html.find("<", at)
            if start < 0:
                self._text(html[at:])
                break
            self._text(html[at:start])
            at = self._markup(start)
        return "".join(self._parts)

    def _text(self, text: str) -> None:
        if text and not self._inside:
            text = _LONE_AMPERSAND.sub("&amp;", text)
            self._parts.append(text.replace("<", "&lt;").replace(">", "&gt;"))

    def _markup(self, start: int) -> int:
        """What begins with "<"; where it ends."""
        tag = _TAG.match(self._html, start)
        if tag is not None:
            return self._tag(tag)
        for opening, closing in (("<!--", "-->"), ("<!", ">"), ("<?", ">")):
            if self._html.startswith(opening, start):
                end = self._find(closing, start + len(opening))
                if end >= 0:
                    return end
        self._text("<")
        return start + 1

    def _find(self, words: str, at: int) -> int:
        """The end of the next such words; -1, also every later time, if there are no more."""
        if words in self._endless:
            return -1
        found = self._html.find(words, at)
        if found < 0:
            self._endless.add(words)
            return -1
        return found + len(words)

    def _tag(self, tag: re.Match[str]) -> int:
        closes, name, attributes = tag[1] == "/", tag[2].lower(), tag[3]
        if name in _WHOLE:
            self._whole(name, closes)
        elif self._inside:
            pass
        elif name == "style" and not closes:
            return self._style(tag.end())
        elif name in _ELEMENTS and closes:
            if name not in _VOID:
                self._parts.append(f"</{name}>")
        elif name in _ELEMENTS:
            self._parts.append(f"<{name}{_attributes(attributes)}>")
        return tag.end()

    def _whole(self, name: str, closes: bool) -> None:
        if closes:
            if self._inside and self._inside[-1] == name:
                self._inside.pop()
        elif len(self._inside) < MAX_NESTED:
            self._inside.append(name)

    def _style(self, start: int) -> int:
        """A style sheet, if it is nothing else to any reader; where it ends."""
        end = _END_OF_STYLE.search(self._html, start)
        if end is None:
            return len(self._html)
        sheet = self._html[start : end.start()]
        if "<" not in sheet and "&" not in sheet and not _REACHES_OUT.search(sheet):
            self._parts.append(f"<style>{sheet}</style>")
        return end.end()


def _attributes(text: str) -> str:
    kept = []
    for found in _ATTRIBUTE.finditer(text):
        name = found[1].lower()
        value = next((group for group in found.groups()[1:] if group is not None), None)
        if not _ATTRIBUTE_NAME.fullmatch(name):
            continue
        if value is None:
            kept.append(f" {name}")
        elif _is_harmless(name, value := unescape(value)):
            kept.append(f' {name}="{escape(value, quote=True)}"')
    return "".join(kept)


def _is_harmless(name: str, value: str) -> bool:
    """An address is a place in the same page, or of a picture that is all there."""
    if name in _ADDRESSES:
        picture = name == "src" and value.lower().startswith("data:image/")
        return not value or value.startswith("#") or picture
    return not _REACHES_OUT.search(value) or bool(_PLACE_IN_THE_PAGE.fullmatch(value))
