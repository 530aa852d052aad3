"""Tables: frames of pandas, polars and pyarrow as HTML that fits, and as data."""

import importlib
import io
import sys
from typing import Any, Callable, Optional

from ..protocol import values, wire

MIME = "application/vnd.belljar.table"


def is_frame(value: Any) -> bool:
    """Whether it is a table whose data can travel. Nothing is imported to find out."""
    kinds = (
        ("pandas", ("DataFrame", "Series")),
        ("polars", ("DataFrame", "Series")),
        ("pyarrow", ("Table", "RecordBatch")),
    )
    for library, names in kinds:
        module = sys.modules.get(library)
        classes = tuple(filter(None, (getattr(module, name, None) for name in names)))
        if isinstance(value, classes):
            return True
    return False


def data(value: Any) -> "Optional[Callable[[int], Optional[bytes]]]":
    """Gives the table as the codec's bytes once it is known how many there may be, and None if
    it is too large. There is no table if something in it cannot travel."""
    if _least(value) > wire.MAX_PAYLOAD:
        return lambda room: None  # not even tried: that could take its size in memory once more
    try:
        encoded = values.encode(value, 4 * wire.MAX_PAYLOAD)
    except values.CannotTravel:
        return None
    return lambda room: encoded.join() if encoded.size <= room else None


def html(value: Any) -> Optional[str]:
    """A page for what offers none of itself: a pandas Series, as the table of its one column."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(value, pandas.Series):
        return None
    made = value.to_frame()._repr_html_()
    return made if isinstance(made, str) else None


def csv(value: Any, most: int) -> Optional[bytes]:
    """The table as CSV; None if it takes more than `most` bytes. Raises for nested columns."""
    file = _Bounded(most)
    try:
        _write_csv(value, file)
    except Exception:
        if file.overflowed:
            return None
        raise
    return file.getvalue()


def _write_csv(value: Any, file: "_Bounded") -> None:
    if hasattr(value, "to_csv"):
        text = io.TextIOWrapper(file, "utf-8", "backslashreplace", newline="", write_through=True)
        value.to_csv(text)
        text.detach()
    elif hasattr(value, "write_csv") or hasattr(value, "to_frame"):
        (value if hasattr(value, "write_csv") else value.to_frame()).write_csv(file)
    else:
        importlib.import_module("pyarrow.csv").write_csv(value, file)


class _Bounded(io.BytesIO):
    """A file that takes so much, and knows whether it was given more."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self.overflowed = False

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self._most:
            self.overflowed = True
            raise OSError("it is full")
        return super().write(data)


def _least(value: Any) -> int:
    """A bound from below for the bytes it takes, found without looking at the data."""
    if hasattr(value, "memory_usage"):
        used = value.memory_usage()
        return int(used.sum() if hasattr(used, "sum") else used) // 2
    if hasattr(value, "estimated_size"):
        return int(value.estimated_size()) // 2
    return int(getattr(value, "nbytes", 0)) // 2
