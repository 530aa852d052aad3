"""One result on the page: the format that tells a person most."""

from __future__ import annotations

import base64
import html

from belljar.record.export import words
from belljar.results import sanitize
from belljar.results.execution import Result

_ROW = 26  # pixels of a row of a table, about
_LOWEST, _HIGHEST = 60, 480  # pixels of a frame
# The frame has its own document, so that it needs its own style; it cannot see ours.
_FRAME_STYLE = """
:root{color-scheme:light dark}
body{font:14px/1.45 system-ui,sans-serif;margin:4px}
table{border-collapse:collapse;border:0;font-variant-numeric:tabular-nums}
th,td{padding:3px 10px;border:0;border-bottom:1px solid #8884;text-align:right}
"""


def shown(result: Result, most: int) -> str:
    """HTML for it; at most `most` characters of a text."""
    inner = _picture(result) or _document(result) or _frame(result) or _text(result, most)
    kind = "result main" if result.is_main_result else "result"
    return f'<div class="{kind}">{inner}</div>'


def _picture(result: Result) -> str:
    text = html.escape(words.plain(result.text or "picture")[:500])
    for mime, raw in (
        ("image/png", result.png),
        ("image/jpeg", result.jpeg),
        ("image/svg+xml", result.svg and result.svg.encode("utf-8", "replace")),
    ):
        if raw:
            return f'<img alt="{text}" src="{_data(mime, raw)}">'
    if {"image/png", "image/jpeg"} & set(result.raw):
        return '<p class="note">The picture was too large for the record.</p>'
    return ""


def _document(result: Result) -> str:
    if not result.pdf:
        return ""
    link = f'<a download="result.pdf" href="{_data("application/pdf", result.pdf)}">PDF</a>'
    return f"<p>{link}, {words.size(len(result.pdf))}</p>"


def _frame(result: Result) -> str:
    shown = sanitize.to_html(result)
    if not shown:
        return ""
    rows = shown.count("<tr") or shown.count("\n") + 1
    height = max(_LOWEST, min(_HIGHEST, (rows + 1) * _ROW))
    document = html.escape(
        f"<!doctype html><meta charset='utf-8'><style>{_FRAME_STYLE}</style>{shown}"
    )
    return (
        f'<iframe sandbox="" title="HTML that the code showed" loading="lazy" '
        f'style="height:{height}px" srcdoc="{document}"></iframe>'
    )


def _text(result: Result, most: int) -> str:
    text = result.text or result.markdown or result.latex
    if text is None:
        texts = (content for content in result.raw.values() if isinstance(content, str))
        text = next(texts, f"[{', '.join(result.formats())}]")
    clean = words.plain(text).removesuffix("\n")
    more = f"\n… {len(clean) - most:,} more characters" if len(clean) > most else ""
    return f"<pre>{html.escape(clean[:most])}{more}</pre>"


def _data(mime: str, raw: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(raw).decode('ascii')}"
