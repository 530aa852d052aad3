"""HTML of a stranger's, without what reaches out: links, frames, scripts, whatever is loaded.

Shown in a frame that may run and load nothing anyhow. But some elements let a browser look up a
name or open a connection before its policy is asked, so they go. What is kept is what tables and
text are made of.
"""

from __future__ import annotations

import re
from html import escape
from html.parser import HTMLParser

# With all that is in them.
_WHOLE = frozenset(
    [
        "script",
        "iframe",
        "object",
        "embed",
        "portal",
        "frameset",
        "noscript",
        "template",
        "fencedframe",
    ]
)
_ALONE = frozenset(["link", "meta", "base", "frame", "form", "input", "button", "source", "track"])
_VOID = frozenset(["area", "br", "col", "embed", "hr", "img", "wbr"])
# Their values are addresses.
_ADDRESSES = frozenset(
    [
        "href",
        "src",
        "srcset",
        "poster",
        "background",
        "action",
        "formaction",
        "ping",
        "data",
        "cite",
        "longdesc",
        "manifest",
        "xlink:href",
        "srcdoc",
        "imagesrcset",
        "codebase",
        "archive",
    ]
)
_NAME = re.compile(r"[a-z0-9:_-]+", re.ASCII)
MAX_NESTED = 500


def clean(html: str) -> str:
    """The same, without what could reach out."""
    cleaner = _Cleaner()
    cleaner.feed(html)
    cleaner.close()
    return "".join(cleaner.parts)


class _Cleaner(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.parts: list[str] = []
        self._inside: list[str] = []  # elements that go with all that is in them
        self._style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _WHOLE:
            if tag != "embed" and len(self._inside) < MAX_NESTED:
                self._inside.append(tag)
        elif not self._inside and tag not in _ALONE and _NAME.fullmatch(tag):
            self._style = tag == "style"
            kept = "".join(_attribute(name, value) for name, value in attrs)
            self.parts.append(f"<{tag}{kept}>")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _WHOLE:
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if self._inside:
            if tag == self._inside[-1]:
                self._inside.pop()
        elif tag not in _ALONE | _WHOLE | _VOID and _NAME.fullmatch(tag):
            self._style = False
            self.parts.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        if not self._inside:
            # In a style sheet nothing is escaped; that it ends with </style> the parser has seen.
            self.parts.append(data if self._style else escape(data, quote=False))

    def handle_entityref(self, name: str) -> None:
        if not self._inside:
            self.parts.append(f"&{name};")

    def handle_charref(self, name: str) -> None:
        if not self._inside:
            self.parts.append(f"&#{name};")


def _attribute(name: str, value: str | None) -> str:
    if (
        name.startswith("on")
        or not name.replace("-", "").replace(":", "").replace("_", "").isalnum()
    ):
        return ""
    if name in _ADDRESSES and not _is_harmless(value or ""):
        return ""
    return f" {name}" if value is None else f' {name}="{escape(value, quote=True)}"'


def _is_harmless(address: str) -> bool:
    """A place in the same page, or a picture that is all there."""
    return address.startswith("#") or address.lower().startswith("data:image/")
