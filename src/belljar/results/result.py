"""One rich result of a cell, in the formats that the guest offered.

The guest wrote all of it, so a format is decoded only when the caller reads it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from belljar.errors import SandboxError, suggests
from belljar.text import format_bytes, parse_json

if TYPE_CHECKING:
    from belljar.results.chart import Chart

TABLE = "application/vnd.belljar.table"
CHART = "application/vnd.belljar.chart+json"

_MIME_TYPES = {
    "text": "text/plain",
    "html": "text/html",
    "markdown": "text/markdown",
    "svg": "image/svg+xml",
    "latex": "text/latex",
    "json": "application/json",
    "png": "image/png",
    "jpeg": "image/jpeg",
    "pdf": "application/pdf",
    "data": TABLE,
    "chart": CHART,
}
_SHORT_NAMES = {mime: name for name, mime in _MIME_TYPES.items()}


@suggests
@dataclass(frozen=True, kw_only=True)
class Result:
    """One thing that a cell displayed, in one or more formats.

    HTML, SVG and Markdown come from the guest: sanitise them before a browser shows them. A
    notebook shows a Result so that its content cannot run code or load anything.

    >>> result = Result(raw={"text/plain": "<Figure>", "image/png": b"..."}, is_main_result=True)
    >>> result.text, result.html, result.formats()
    ('<Figure>', None, ['text', 'png'])
    """

    raw: Mapping[str, str | bytes]  # by MIME type
    is_main_result: bool  # the value of the last expression, not a display()

    def formats(self) -> list[str]:
        """The formats it has: short names where this class has one, else the MIME type."""
        return [_SHORT_NAMES.get(mime, mime) for mime in self.raw]

    @property
    def text(self) -> str | None:
        return self._text("text")

    @property
    def html(self) -> str | None:
        return self._text("html")

    @property
    def markdown(self) -> str | None:
        return self._text("markdown")

    @property
    def svg(self) -> str | None:
        return self._text("svg")

    @property
    def latex(self) -> str | None:
        return self._text("latex")

    @property
    def png(self) -> bytes | None:
        return self._bytes("png")

    @property
    def jpeg(self) -> bytes | None:
        return self._bytes("jpeg")

    @property
    def pdf(self) -> bytes | None:
        return self._bytes("pdf")

    @property
    def json(self) -> object:
        """The parsed application/json, or None; raises SandboxError if it is not valid JSON."""
        text = self._text("json")
        if text is None:
            return None
        try:
            return parse_json(text)
        except (ValueError, RecursionError) as error:
            raise SandboxError(
                f"the guest's application/json cannot be parsed: {error}",
                hint="what it sent is in raw['application/json']",
            ) from error

    @cached_property
    def data(self) -> object:
        """The table, as a frame of the library it had in the guest (pandas, polars, pyarrow), or
        None. Raises SandboxError if this Python lacks that library or the data are not valid."""
        from belljar.protocol import values

        content = self._bytes("data")
        if content is None:
            return None
        try:
            table: object = values.decode(content, reception=values.Reception(lenient=True))
        except values.CannotTravel as error:
            raise SandboxError(
                f"the guest's table cannot be read: {error}",
                hint=f"what it sent is in raw[{TABLE!r}]; text and html show the table too",
            ) from error
        return table

    @cached_property
    def chart(self) -> Chart | None:
        """What a matplotlib figure shows, as data; None without one, or if it is not valid."""
        from belljar.results.chart import parse_chart

        text = self._text("chart")
        return None if text is None else parse_chart(text)

    def to_dict(self) -> dict[str, object]:
        """Give plain data; "base64" lists the MIME types whose content is in base64."""
        return {
            "raw": {
                mime: content if isinstance(content, str) else base64.b64encode(content).decode()
                for mime, content in self.raw.items()
            },
            "base64": [mime for mime, content in self.raw.items() if isinstance(content, bytes)],
            "is_main_result": self.is_main_result,
        }

    def __repr__(self) -> str:
        main = " main" if self.is_main_result else ""
        return f"<Result{main} {', '.join(map(repr, self.formats())) or 'empty'}>"

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> dict[str, object]:
        """Show it in a notebook of the host, where code in the guest's HTML must not run."""
        from belljar.results import display

        return display.mime_bundle(self)

    def _text(self, name: str) -> str | None:
        content = self.raw.get(_MIME_TYPES[name])
        return content if isinstance(content, str) else None

    def _bytes(self, name: str) -> bytes | None:
        content = self.raw.get(_MIME_TYPES[name])
        return content if isinstance(content, bytes) else None


def describe_results(results: Iterable[Result]) -> Iterator[str]:
    """What a model should read of each: its text, and the number of its picture."""
    from belljar.results.sanitize import find_picture

    pictures = 0
    for result in results:
        if text := result.text or result.markdown or result.latex:
            yield text
        if picture := find_picture(result):
            pictures += 1
            kind, size = picture[0].removeprefix("image/"), format_bytes(len(picture[1]))
            yield f"[picture {pictures}: {kind}, {size}]"
        elif not text:
            yield f"[displayed: {', '.join(result.formats())}]"
