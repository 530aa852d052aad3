"""Rich results: the formats that an object offers, by MIME type, as in a notebook. Frames of
pandas, polars and pyarrow are tables: HTML, data, CSV."""

import base64
import builtins
import contextlib
import importlib
import io
import json
import sys
from typing import Any, Callable, Dict, Iterable, Iterator, List, NoReturn, Optional, Tuple, Union

from ..protocol import messages, values, wire
from . import figures, libraries

# A part may also be a function that gets the room for it in bytes.
Part = Union[str, bytes, Callable[[int], Optional[bytes]]]
Bundle = Dict[str, Part]

_METHODS = (
    ("text/html", "_repr_html_"),
    ("text/markdown", "_repr_markdown_"),
    ("image/svg+xml", "_repr_svg_"),
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
    ("application/pdf", "_repr_pdf_"),
    ("text/latex", "_repr_latex_"),
    ("application/json", "_repr_json_"),
)
_BINARY = ("image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf")
_REFUSED = ("application/javascript", "text/javascript")  # code for the caller's browser

_show: "Optional[Callable[[Bundle, bool], object]]" = None
as_csv = False  # send tables as CSV, too; the worker sets it before each cell


def install(
    send: "Callable[[Bundle, bool], object]",
    show_figures: "Callable[[], None]",
    finish: "Callable[..., NoReturn]",
) -> None:
    global _show
    _show = send
    builtins.display = show  # type: ignore[attr-defined]
    libraries.install(show, show_figures, finish)


def send_bundle(bundle: Bundle) -> None:
    if _show is not None:
        _show(bundle, False)


@contextlib.contextmanager
def capture_bundles(captured: "List[Bundle]") -> "Iterator[None]":
    """Meanwhile, results go to this list instead of to the caller."""
    global _show
    before, _show = _show, lambda bundle, main: captured.append(bundle)
    try:
        yield
    finally:
        _show = before


class Handle:
    """What display() returns for a `display_id`. A result that was sent stays: an update is
    another result."""

    def __init__(self, display_id: Any) -> None:
        self.display_id = display_id

    def display(self, value: Any, **options: Any) -> None:
        show(value, **options)

    update = display


def show(
    *objects: Any,
    include: "Optional[Iterable[str]]" = None,
    exclude: "Optional[Iterable[str]]" = None,
    raw: bool = False,
    display_id: Any = None,
    **ignored: Any,  # metadata, transient, clear: a sandbox has no use for them
) -> "Optional[Handle]":
    """Send objects to the caller as results of this cell.

    This is `display` of the cells: pictures, tables and text that an object offers.
    With `raw`, the objects are dictionaries of MIME type and content.
    """
    if _show is None:
        raise RuntimeError("display() works in a cell only")
    for item in objects:
        made = _check_bundle(item) if raw else make_bundle(item)
        # An object that offers only refused formats, such as JavaScript, is sent as text.
        _show(_choose_formats(made, include, exclude) or {"text/plain": repr(item)}, False)
    return None if display_id is None else Handle(display_id)


def make_bundle(value: Any) -> Bundle:
    """All formats that `value` offers. A method that fails loses its own format only."""
    if figures.is_figure(value):
        return dict(figures.bundle_figure(value))
    data: Bundle = {"text/plain": repr(value)}
    if isinstance(value, type):
        return data  # the methods of a class are for its instances
    offered = _call_method(value, "_repr_mimebundle_", include=None, exclude=None)
    for mime, content in _check_bundle(offered if isinstance(offered, dict) else {}).items():
        data.setdefault(mime, content)
    for mime, method in _METHODS:
        part = None if mime in data else _convert_part(mime, _call_method(value, method))
        if part is not None:
            data[mime] = part
    _add_table(value, data)
    _choose_picture(value, data)
    return data


def _add_table(value: Any, data: Bundle) -> None:
    if not is_table(value):
        return
    page = None if "text/html" in data else _try(lambda: render_table(value))
    if page is not None:
        data["text/html"] = page
    table = _try(lambda: encode_table(value))
    if table is not None:
        data[TABLE_MIME] = table
    text = _try(lambda: render_csv(value, wire.MAX_PAYLOAD)) if as_csv else None
    if text is not None:
        data["text/csv"] = text


def _choose_picture(value: Any, data: Bundle) -> None:
    """PIL offers an image as PNG and as JPEG if its colours allow it: PNG is enough."""
    image = sys.modules.get("PIL.Image")
    if image is None or not isinstance(value, image.Image):
        return
    # PNG does not have these colours. Modes of floats have no picture.
    if "image/png" not in data and value.mode in ("CMYK", "LAB", "HSV", "YCbCr"):
        picture = _try(lambda: value.convert("RGB")._repr_png_())
        if isinstance(picture, bytes):
            data["image/png"] = picture
    if "image/png" in data:
        data.pop("image/jpeg", None)


def _call_method(value: Any, method: str, **options: Any) -> Any:
    """The result of a method of its class, without metadata."""
    offer = getattr(type(value), method, None)
    if offer is None:
        return None
    made = _try(lambda: offer(value, **options))
    return made[0] if isinstance(made, tuple) and len(made) == 2 else made


def _try(make: "Callable[[], Any]") -> Any:
    try:
        return make()
    except Exception:
        return None  # a broken _repr_*_ must not hide the text; a time-out is not an Exception


def _check_bundle(offered: Any) -> Bundle:
    """A MIME bundle of a library or of the code, without what cannot be sent."""
    if not isinstance(offered, dict):
        raise TypeError("display(raw=True) takes dictionaries of MIME type and content")
    data: Bundle = {}
    for mime, content in offered.items():
        if isinstance(mime, str) and 0 < len(mime) <= messages.MAX_NAME and mime not in _REFUSED:
            part = _convert_part(mime, content)
            if part is not None:
                data[mime] = part
    return data


def _convert_part(mime: str, content: Any) -> "Union[str, bytes, None]":
    """The content as text or bytes, as its MIME type needs it; None if it is neither."""
    made = content
    if mime in _BINARY and isinstance(content, str):  # base64, as in the files of notebooks
        made = _try(lambda: base64.b64decode("".join(content.split()), validate=True))
    elif mime.endswith(("/json", "+json", ".json")) and isinstance(content, (dict, list)):
        made = _try(lambda: json.dumps(content, allow_nan=False))
    elif isinstance(content, (bytes, bytearray, memoryview)):
        textual = mime.startswith("text/") or mime.endswith("+xml")
        made = _try(lambda: bytes(content).decode("utf-8")) if textual else bytes(content)
    return made if isinstance(made, (str, bytes)) else None


def _choose_formats(
    data: Bundle, include: "Optional[Iterable[str]]", exclude: "Optional[Iterable[str]]"
) -> Bundle:
    wanted = None if include is None else set(include)
    unwanted = set(exclude or ())
    return {
        mime: content
        for mime, content in data.items()
        if mime not in unwanted and (wanted is None or mime in wanted)
    }


def pack_bundle(data: Bundle, main: bool, text: int, limit: int) -> "Tuple[Dict[str, Any], bytes]":
    """One result as header and payload, in which its parts follow each other. `dropped` names parts
    that do not fit into `limit`, and charts without some of their points. Plain text is cut at
    `text` instead."""
    cut = False
    parts: List[Dict[str, Any]] = []
    chunks: List[bytes] = []
    dropped: List[str] = []
    room = limit
    for mime, content in data.items():
        if len(parts) == messages.MAX_PARTS:
            dropped.append(mime)
            continue
        raw = _to_bytes(content, room)
        most = _limit_part(mime, isinstance(content, str), text, limit, room)
        if raw is None or len(raw) > most:
            if raw is None or mime != "text/plain":
                dropped.append(mime)
                continue
            cut = True
            raw = raw[: max(most - 3, 0)].decode("utf-8", "ignore").encode() + b"\xe2\x80\xa6"
        elif isinstance(content, figures.PartialChart):
            dropped.append(mime)
        parts.append({"mime": mime, "size": len(raw), "text": isinstance(content, str)})
        chunks.append(raw)
        room -= len(raw)
    header = {"parts": parts, "main": main, "dropped": dropped, "cut": cut}
    return header, b"".join(chunks)


def _limit_part(mime: str, is_text: bool, text: int, limit: int, room: int) -> int:
    """How many bytes a part may take. HTML gets half of them, so a picture has room."""
    if mime == "text/plain":
        return min(room, text)
    return min(room, limit // 2) if is_text else room


def _to_bytes(content: Part, room: int) -> Optional[bytes]:
    if isinstance(content, bytes):
        return content
    return content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content(room)


def cap_text(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + "\u2026"


# -- tables ---------------------------------------------------------------------------------------

TABLE_MIME = "application/vnd.belljar.table"


def is_table(value: Any) -> bool:
    """True for a table that the codec knows. Nothing is imported to find out."""
    kinds = {
        "pandas": ("DataFrame", "Series"),
        "polars": ("DataFrame", "Series"),
        "pyarrow": ("Table", "RecordBatch"),
    }
    return any(
        isinstance(value, getattr(sys.modules.get(library), name, None) or ())
        for library, names in kinds.items()
        for name in names
    )


def encode_table(value: Any) -> "Optional[Callable[[int], Optional[bytes]]]":
    """A function of the room that gives the table in the codec's bytes, or None if it is too large.
    None instead of a function if the table cannot travel."""
    if _estimate_size(value) > wire.MAX_PAYLOAD:
        return lambda room: None  # encoding could take its size in memory again
    try:
        encoded = values.encode(value, 4 * wire.MAX_PAYLOAD)
    except values.CannotTravel:
        return None
    return lambda room: encoded.join() if encoded.size <= room else None


def render_table(value: Any) -> Optional[str]:
    """HTML for a pandas Series, which offers none: the table of its one column."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(value, pandas.Series):
        return None
    made = value.to_frame()._repr_html_()
    return made if isinstance(made, str) else None


def render_csv(value: Any, most: int) -> Optional[bytes]:
    """The table as CSV; None if it takes more than `most` bytes. Raises for nested columns."""
    file = _BoundedFile(most)
    try:
        _write_csv(value, file)
    except Exception:
        if file.overflowed:
            return None
        raise
    return file.getvalue()


def _write_csv(value: Any, file: "_BoundedFile") -> None:
    if hasattr(value, "to_csv"):
        text = io.TextIOWrapper(file, "utf-8", "backslashreplace", newline="", write_through=True)
        value.to_csv(text)
        text.detach()
    elif hasattr(value, "write_csv") or hasattr(value, "to_frame"):
        (value if hasattr(value, "write_csv") else value.to_frame()).write_csv(file)
    else:
        importlib.import_module("pyarrow.csv").write_csv(value, file)


class _BoundedFile(io.BytesIO):
    """A file of limited size that knows if more was written."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self.overflowed = False

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self._most:
            self.overflowed = True
            raise OSError("the table is too large")
        return super().write(data)


def _estimate_size(value: Any) -> int:
    """A lower bound of its size in bytes, found without reading the data."""
    if hasattr(value, "memory_usage"):
        used = value.memory_usage()
        return int(used.sum() if hasattr(used, "sum") else used) // 2
    if hasattr(value, "estimated_size"):
        return int(value.estimated_size()) // 2
    return int(getattr(value, "nbytes", 0)) // 2
