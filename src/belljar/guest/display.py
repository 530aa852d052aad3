"""Rich results: what an object offers of itself, by MIME type, as in a notebook."""

import builtins
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

from . import figures

Bundle = Dict[str, Union[str, bytes]]

_METHODS = (
    ("text/html", "_repr_html_"),
    ("text/markdown", "_repr_markdown_"),
    ("image/svg+xml", "_repr_svg_"),
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
    ("application/pdf", "_repr_pdf_"),
    ("text/latex", "_repr_latex_"),
)

_show: "Optional[Callable[[Bundle, bool], None]]" = None


def install(show: "Callable[[Bundle, bool], None]") -> None:
    global _show
    _show = show
    builtins.display = globals()["show"]  # type: ignore[attr-defined]


def show(*objects: Any) -> None:
    """Send objects to the caller as results of this cell.

    This is `display` of the cells: pictures, tables and text that an object offers of itself.
    """
    if _show is None:
        raise RuntimeError("display() works in a cell only")
    for item in objects:
        _show(bundle(item), False)


def bundle(value: Any) -> Bundle:
    """Everything `value` offers. A method that fails costs its own format, never the result."""
    data: Bundle = {}
    picture = figures.png(value)
    if picture is not None:
        return {"image/png": picture, "text/plain": repr(value)}
    for mime, method in _METHODS:
        if isinstance(value, type):
            break
        offer = getattr(type(value), method, None)
        if offer is None:
            continue
        try:
            made = offer(value)
        except Exception:
            continue  # a broken _repr_*_ must not hide the text below
        if isinstance(made, (str, bytes)):
            data[mime] = made
    data["text/plain"] = repr(value)
    return data


def flatten(data: Bundle, main: bool, text: int, limit: int) -> "Tuple[Dict[str, Any], bytes]":
    """One result as header and payload: its parts follow each other in the payload. A part that
    does not fit into `limit` is left out, and named; plain text is cut at `text` instead."""
    parts: List[Dict[str, Any]] = []
    chunks: List[bytes] = []
    dropped: List[str] = []
    room = limit
    for mime, content in data.items():
        raw = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
        most = min(room, text) if mime == "text/plain" else room
        if len(raw) > most:
            dropped.append(mime)
            if mime != "text/plain":
                continue
            raw = raw[:most]
        parts.append({"mime": mime, "size": len(raw), "text": isinstance(content, str)})
        chunks.append(raw)
        room -= len(raw)
    return {"parts": parts, "main": main, "dropped": dropped}, b"".join(chunks)


def cap_text(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + "\u2026"
