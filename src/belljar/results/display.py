"""Runs, results and isolation as HTML, for the notebook in which belljar itself is used.

The guest's words are escaped. Its HTML is put into a frame without scripts, forms or an origin,
whose policy lets it load nothing: code in a sandbox without a network must not get one through
the browser of the person who looks at what it made.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from belljar.results import html_frame, sanitize
from belljar.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from belljar.backends.isolation import Isolation, Layer
    from belljar.results.execution import Execution
    from belljar.results.result import Result

MAX_PAGE = 16 * 1024 * 1024  # characters of all that one Execution shows
MAX_TEXT = 256 * 1024  # characters of one text

# On whatever background the notebook has. Frameworks give <pre> a font, a frame and colours.
_TEXT = (
    "margin:0;padding:0;border:0;background:none;color:inherit;white-space:pre-wrap;"
    "overflow-wrap:anywhere;font-family:Menlo,Consolas,'DejaVu Sans Mono',monospace;"
    "font-size:inherit;line-height:1.3"
)
_STDERR = "background:#fdd;color:#400"
_TRACEBACK = "color:#d33"
_REMARK = "opacity:0.7"
_TABLE = "border:0;border-collapse:collapse;margin:0;font-size:inherit"
_CAPTION = "caption-side:top;color:inherit;padding:2px 8px;text-align:left;font-weight:bold"
_CELL = (
    "border:0;border-bottom:1px solid #8886;padding:2px 8px;text-align:left;vertical-align:top;"
    "white-space:normal;overflow-wrap:break-word;max-width:32em"
)
_SIGNS = {"enforced": "✓", "best-effort": "~", "absent": "✗"}
_STATES = {"enforced": "", "best-effort": "color:#b36b00", "absent": "color:#d33"}


def mime_bundle(result: Result) -> dict[str, object]:
    """Give what a notebook may render itself: a picture, our own HTML, and text."""
    bundle: dict[str, object] = {"text/plain": _cut(result.text or repr(result))}
    if result.png is not None:
        bundle["image/png"] = result.png
    elif result.jpeg is not None:
        bundle["image/jpeg"] = result.jpeg
    elif framed := _framed(result):
        bundle["text/html"] = framed
    return bundle


def page(execution: Execution, remarks: Iterable[str]) -> str:
    """Show output, results, traceback and remarks, in the order of a notebook."""
    kept, room = [], MAX_PAGE
    for part in _parts(execution, remarks):
        if len(part) > room:
            part = _pre("[too large to be shown here; see results]", _REMARK)
        room -= len(part)
        kept.append(part)
    shown = "".join(kept) or _pre(repr(execution), _REMARK)
    return f'<div class="belljar">{shown}</div>'


def isolation_table(isolation: Isolation) -> str:
    """Show layers and limits, one in a row; a word and a sign tell its state, not colour alone."""
    groups = (("layer", isolation.layers), ("limit", isolation.limits))
    has_remedy = any(layer.remedy for _, layers in groups for layer in layers)
    rows = []
    for kind, layers in groups:
        heads = (kind, "state", "detail", *(["remedy"] if has_remedy else []))
        cells = [f'<th scope="col" style="{_CELL}">{head}</th>' for head in heads]
        rows += [cells] if layers else []
        rows += [_isolation_cells(layer, has_remedy) for layer in layers]
    caption = escape(_cut(repr(isolation)[1:-1]))
    shown = "".join(f'<tr style="background:none">{"".join(cells)}</tr>' for cells in rows)
    return (
        f'<table style="{_TABLE}"><caption style="{_CAPTION}">{caption}</caption>'
        f"<tbody>{shown}</tbody></table>"
    )


def _isolation_cells(layer: Layer, has_remedy: bool) -> list[str]:
    state = f"{_SIGNS[layer.state]} {layer.state}"
    texts = [layer.name, state, layer.detail, *([layer.remedy or ""] if has_remedy else [])]
    styles = [_CELL, f"{_CELL};white-space:nowrap;{_STATES[layer.state]}", _CELL, _CELL]
    return [
        f'<td style="{style}">{escape(_cut(text))}</td>'
        for text, style in zip(texts, styles, strict=False)
    ]


def _parts(execution: Execution, remarks: Iterable[str]) -> Iterator[str]:
    yield _pre(execution.stdout)
    yield _pre(execution.stderr, _STDERR)
    for result in execution.results:
        yield _shown(result)
    if execution.error is not None:
        yield _pre(execution.error.traceback, _TRACEBACK)
    for remark in remarks:
        yield _pre(f"[{remark}]", _REMARK)
    if not sanitize.is_available() and any(r.html or r.markdown for r in execution.results):
        yield _pre(f"[{sanitize.MISSING}]", _REMARK)


def _shown(result: Result) -> str:
    for mime, content in (("image/png", result.png), ("image/jpeg", result.jpeg)):
        if content is not None:
            return _image(mime, content)
    return _framed(result) or _pre(result.text or result.markdown or result.latex or repr(result))


def _framed(result: Result) -> str:
    """HTML or SVG, held; empty if there is neither, or nothing of it may be shown."""
    if result.svg is not None:
        return _image("image/svg+xml", result.svg.encode("utf-8", "replace"))
    shown = sanitize.to_html(result)
    return html_frame.frame(shown) if shown else ""


def _image(mime: str, content: bytes) -> str:
    return f"<div>{sanitize.image(mime, content)}</div>"


def _pre(text: str, style: str = "") -> str:
    """Show a text; nothing at all if there is nothing in it to be seen."""
    if not text.strip():
        return ""
    return f'<pre style="{_TEXT};{style}">{escape(_cut(text))}</pre>'


def _cut(text: str) -> str:
    kept = printable(text[:MAX_TEXT])
    left = len(text) - MAX_TEXT
    return kept if left <= 0 else f"{kept}…\n[{left} characters more]"
