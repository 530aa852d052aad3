"""Runs and results as HTML, for the notebook in which belljar itself is used.

The guest's words are escaped. Its HTML is put into a frame without scripts, forms or an origin,
whose policy lets it load nothing: code in a sandbox without a network must not get one through
the browser of the person who looks at what it made.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from belljar import sanitize
from belljar.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from belljar.execution import Execution
    from belljar.result import Result

MAX_PAGE = 16 * 1024 * 1024  # characters of all that one Execution shows
MAX_TEXT = 256 * 1024  # characters of one text

_POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "img-src data:; font-src data:; style-src 'unsafe-inline'\">"
    '<meta http-equiv="x-dns-prefetch-control" content="off">'
)
# As notebooks show tables; the guest's own style, if it sent one, comes after it.
_STYLE = (
    "<style>body{font:13px sans-serif;margin:4px}table{border-collapse:collapse}"
    "th,td{padding:2px 8px;text-align:right;border-bottom:1px solid #ddd}</style>"
)


def mime_bundle(result: Result) -> dict[str, object]:
    """Give what a notebook may render itself: a picture, our own HTML, and text."""
    bundle: dict[str, object] = {"text/plain": _cut(result.text or repr(result))}
    if result.png is not None:
        bundle["image/png"] = result.png
    elif result.jpeg is not None:
        bundle["image/jpeg"] = result.jpeg
    elif _framed(result):
        bundle["text/html"] = _framed(result)
    return bundle


def page(execution: Execution, remarks: Iterable[str]) -> str:
    """Show output, results, traceback and remarks, in the order of a notebook."""
    kept, room = [], MAX_PAGE
    for part in _parts(execution, remarks):
        if len(part) > room:
            part = _pre("[too large to be shown here; see results]", "color:#666")
        room -= len(part)
        kept.append(part)
    return f'<div class="belljar">{"".join(kept)}</div>'


def _parts(execution: Execution, remarks: Iterable[str]) -> Iterator[str]:
    yield _pre(execution.stdout)
    yield _pre(execution.stderr, "background:#fdd")
    for result in execution.results:
        yield _shown(result)
    if execution.error is not None:
        yield _pre(execution.error.traceback, "color:#a00")
    for remark in remarks:
        yield _pre(f"[{remark}]", "color:#666")
    if not sanitize.is_available() and any(r.html or r.markdown for r in execution.results):
        yield _pre(f"[{sanitize.MISSING}]", "color:#666")


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
    if not shown:
        return ""
    inner = escape(_POLICY + _STYLE + shown, quote=True)
    height = min(max(60 + 26 * shown.count("<tr"), 120), 520)
    style = f"width:100%;height:{height}px;border:0;background:white;resize:vertical"
    return f'<iframe sandbox="" srcdoc="{inner}" style="{style}"></iframe>'


def _image(mime: str, content: bytes) -> str:
    return f"<div>{sanitize.image(mime, content)}</div>"


def _pre(text: str, style: str = "") -> str:
    if not text:
        return ""
    return f'<pre style="margin:0;white-space:pre-wrap;{style}">{escape(_cut(text))}</pre>'


def _cut(text: str) -> str:
    kept = printable(text[:MAX_TEXT])
    left = len(text) - MAX_TEXT
    return kept if left <= 0 else f"{kept}…\n[{left} characters more]"
