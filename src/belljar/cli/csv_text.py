"""A guest's table as CSV, bounded: a small table may stand for a huge text.

A category, a level of an index, an entry of a dictionary is there once, and written in each row
that names it by its number. So rows are written a few at a time, by how long they can be, and what
comes is counted.
"""

from __future__ import annotations

import importlib
import io
from typing import Any

from belljar.errors import SandboxError
from belljar.limits import format_size
from belljar.result import frame_errors

MAX_TABLE = 64 * 1024 * 1024  # bytes of one table
AT_ONCE = 4 * 1024 * 1024  # bytes that are made before they are counted, about
MAX_ROWS = 10_000  # the same in rows


class TooLong(SandboxError):
    """A table of which the text would be too long."""


class _Bounded(io.BytesIO):
    """A file that can take so much, and knows whether it was given more."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self.overflowed = False

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self._most:
            self.overflowed = True
            raise OSError("it is full")
        return super().write(data)


def of(frame: Any, most: int) -> bytes:
    """By the library that the frame belongs to, and that is here because it could be decoded."""
    file = _Bounded(min(most, MAX_TABLE))
    try:
        with frame_errors("written as CSV"):  # nested columns, mostly, of which CSV knows nothing
            if hasattr(frame, "to_csv"):
                _pandas(frame, file)
            elif hasattr(frame, "write_csv") or hasattr(frame, "to_frame"):
                _polars(frame if hasattr(frame, "write_csv") else frame.to_frame(), file)
            else:
                _arrow(frame, file)
    except SandboxError:
        if file.overflowed:
            raise _too_long() from None
        raise
    return file.getvalue()


def _too_long() -> TooLong:
    return TooLong(f"it would take more than {format_size(MAX_TABLE)}, or all of them too much")


def _rows(longest: int) -> int:
    """How many to write at once, of which each may have this many bytes."""
    return max(min(AT_ONCE // max(longest, 1), MAX_ROWS), 1)


def _pandas(frame: Any, file: _Bounded) -> None:
    frame = frame if hasattr(frame, "columns") else frame.to_frame()
    heading = _in_pandas(frame.columns)
    if heading * frame.shape[1] > MAX_TABLE:
        raise _too_long()
    columns = (frame.iloc[:, index] for index in range(frame.shape[1]))
    longest = _in_pandas(frame.index) + sum(map(_in_pandas, columns))
    text = io.TextIOWrapper(file, "utf-8", "backslashreplace", newline="", write_through=True)
    frame.to_csv(text, chunksize=_rows(longest))
    text.detach()


def _in_pandas(column: Any) -> int:
    """Bytes that one of its items can have beyond those that are there for it alone."""
    if hasattr(column, "levels"):
        return sum(_longest(level) for level in column.levels)
    if hasattr(column.dtype, "categories"):
        return _longest(column.dtype.categories)
    kind = getattr(column.dtype, "pyarrow_dtype", None)
    if kind is None:
        return 0
    if kind.num_fields:
        raise SandboxError("it has lists in it, of which CSV knows nothing")
    return _in_arrow(column.array.__arrow_array__())


def _longest(items: Any) -> int:
    return max((len(str(item)) for item in items), default=0)


def _polars(frame: Any, file: _Bounded) -> None:
    longest = 0
    for column in frame.iter_columns():
        if type(column.dtype).__name__ in ("Categorical", "Enum"):
            longest += _longest(column.unique())
    frame.write_csv(file, batch_size=_rows(longest))


def _arrow(table: Any, file: _Bounded) -> None:
    csv = importlib.import_module("pyarrow.csv")
    rows = _rows(sum(map(_in_arrow, table.columns)))
    csv.write_csv(table, file, csv.WriteOptions(batch_size=rows))


def _in_arrow(column: Any) -> int:
    chunks = (chunk for chunk in column.chunks if hasattr(chunk, "dictionary"))
    return max((chunk.dictionary.nbytes for chunk in chunks), default=0)
