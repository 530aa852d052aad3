"""Frames out of a stranger's lists and dicts: their cells are counted before pandas makes them.

A few bytes can ask for many cells: a scalar is repeated for every row, and each row of a list of
dicts gets all keys of the others. What came as a frame has been paid for, and needs none of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

MAX_CELLS = 10_000_000
MAX_COLUMNS = 20_000  # as of frames that travel


def frame_of(value: object) -> pd.DataFrame:
    """The frame that pandas makes of rows or columns. Raises ValueError if it is none, or large."""
    if isinstance(value, np.ndarray) and value.ndim <= 2:
        _count(len(value) if value.ndim else 1, value.shape[1] if value.ndim == 2 else 1)
    elif isinstance(value, list):
        _count(len(value), _width(value))
    elif isinstance(value, dict):
        value, index = _columns(value)
        return _made(value, index=index)
    else:
        raise ValueError(f"it is a {type(value).__name__}")
    return _made(value)


def split(columns: object, rows: object, index: object) -> pd.DataFrame:
    """A frame out of its parts, which have to fit together."""
    parts = (columns, rows, index)
    if not all(isinstance(part, list) for part in parts):
        raise ValueError("columns, data and index are no lists")
    assert isinstance(columns, list)
    assert isinstance(rows, list)
    assert isinstance(index, list)
    _count(len(rows), len(columns))
    if len(index) != len(rows) or any(
        not isinstance(row, list) or len(row) != len(columns) for row in rows
    ):
        raise ValueError("columns, data and index do not fit together")
    return _made(rows, index=index, columns=columns)


def _count(rows: int, columns: int) -> None:
    if columns > MAX_COLUMNS:
        raise ValueError(f"it has {columns} columns, more than {MAX_COLUMNS}")
    if rows * columns > MAX_CELLS:
        raise ValueError(f"it has {rows * columns} cells, more than {MAX_CELLS}")


def _width(rows: Sequence[object]) -> int:
    """How many columns pandas makes of these rows, at most."""
    keys: set[str] = set()
    widest = 1
    for row in rows:
        if isinstance(row, dict):
            keys.update(row)
        elif isinstance(row, (list, tuple)) or (isinstance(row, np.ndarray) and row.ndim == 1):
            widest = max(widest, len(row))
        elif isinstance(row, (pd.DataFrame, pd.Series, pd.Index, np.ndarray)):
            raise ValueError(f"one of its rows is a {type(row).__name__}")
        if len(keys) > MAX_COLUMNS:
            break
    return max(widest, len(keys))


def _columns(value: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """The columns, and the index that they have in common, if they have one."""
    if value and all(isinstance(column, dict) for column in value.values()):
        _count(len(set().union(*value.values())), len(value))
        return value, None
    index, lengths = None, set()
    columns = dict(value)
    for name, column in value.items():
        if isinstance(column, pd.Series):
            # Of different indices pandas makes one, in a time that a stranger can make long.
            if index is not None and not column.index.equals(index):
                raise ValueError("its Series have different indices")
            index = column.index
            columns[name] = column.array
        elif isinstance(column, (dict, pd.DataFrame)):
            raise ValueError(f"its column {name[:100]!r} is a {type(column).__name__}")
        elif isinstance(column, np.ndarray) and column.ndim != 1:
            raise ValueError(f"its column {name[:100]!r} has {column.ndim} dimensions")
        if isinstance(column, (list, tuple, np.ndarray, pd.Series, pd.Index)):
            lengths.add(len(column))
    if len(lengths) > 1:
        raise ValueError("its columns have different lengths")
    _count(max(lengths, default=1), len(columns))
    return columns, index


def _made(data: Any, **options: Any) -> pd.DataFrame:
    try:
        return pd.DataFrame(data, **options)
    except Exception as error:  # pandas has many kinds for what it cannot use
        raise ValueError(str(error)[:200]) from error
