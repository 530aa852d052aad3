"""What PandasAI gets back: the checked `result` of generated code, or an exception that its loop
knows.

    CodeExecutionError (PandasAI's: `Agent.chat` answers with an ErrorResponse after its retries)
    ├── CodeFailed             also a RuntimeError, as pandasai_docker raises
    │   ├── CodeTimedOut       also a TimeoutError
    │   ├── CodeOutOfMemory    also a MemoryError
    │   ├── NoResult           also PandasAI's NoResultFoundError
    │   └── BadResult          also PandasAI's InvalidOutputValueMismatch
    └── BadSyntax              also a SyntaxError

PandasAI hands every exception to the model and tries again; of those that are left at the end it
turns only CodeExecutionError into an answer.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandasai.exceptions import CodeExecutionError, InvalidOutputValueMismatch, NoResultFoundError

from belljar.errors import InvalidOption
from belljar.results.execution import Execution, Outcome, describe_end
from belljar.text import printable

DATA_URL = "data:image/png;base64,"
MAX_BITS = 14_000  # of a whole number: PandasAI prints it, and Python prints about 4,300 digits
MAX_DIGITS = 4_000  # before the point
MAX_PATH = 4096
_ASKED = "Please return the result in dictionary format: result = {'type': ..., 'value': ...}"


def check_answer(result: object, save_chart: Callable[[str], str]) -> dict[str, Any]:
    """Check a `result`, {"type": ..., "value": ...}, which comes from the guest and may be
    anything. Numbers of numpy, a Series and an array become what PandasAI expects.

    `save_chart` maps a path of the guest to one of the host. Raises BadResult with a message for
    the model that wrote the code.
    """
    if not isinstance(result, dict) or not {"type", "value"} <= result.keys():
        raise BadResult(f"result is not a dictionary of type and value. {_ASKED}")
    kind, value = result["type"], result["value"]
    if not isinstance(kind, str):
        raise BadResult(f"result['type'] is {_short(kind)}, not a text. {_ASKED}")
    checks: dict[str, Callable[[object], object]] = {
        "number": _number,
        "string": _string,
        "dataframe": _frame,
        "plot": partial(_plot, save_chart=save_chart),
    }
    if kind not in checks:
        raise BadResult(f"result['type'] is {_short(kind)}, not one of {', '.join(checks)}")
    return {**result, "value": checks[kind](value)}


def _number(value: object) -> int | float:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Decimal) and value.is_finite():
        if value and value.adjusted() > MAX_DIGITS:  # int() would write out 1E+30000000
            raise BadResult(f"the number has more than {MAX_DIGITS} digits")
        value = int(value) if value == value.to_integral_value() else float(value)
    if not isinstance(value, (int, float)):
        raise BadResult(f"result['type'] is 'number', and its value is {_short(value)}")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise BadResult(f"the number has {value.bit_length()} bits, more than {MAX_BITS}")
    return value


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise BadResult(f"result['type'] is 'string', and its value is {_short(value)}")
    return str(value)


def _frame(value: object) -> pd.DataFrame:
    if isinstance(value, pd.DataFrame):
        return value
    if isinstance(value, (pd.Series, pd.Index)):
        return value.to_frame()
    if not isinstance(value, (dict, list, np.ndarray)):
        raise BadResult(f"result['type'] is 'dataframe', and its value is {_short(value)}")
    try:
        return make_frame(value)
    except ValueError as error:
        raise BadResult(f"no DataFrame can be made of result['value']: {error}") from error


def _plot(value: object, save_chart: Callable[[str], str]) -> object:
    if isinstance(value, dict):  # the description of a chart, which PandasAI passes on
        return value
    if not isinstance(value, str):
        raise BadResult(f"result['type'] is 'plot', and its value is {_short(value)}, not a path")
    if not value.startswith(DATA_URL):
        if len(value) > MAX_PATH:
            raise BadResult(f"result['value'] has {len(value)} characters, too many for a path")
        return save_chart(value)
    if len(value) > MAX_PNG_BYTES * 3 // 2:  # base64 takes four letters for three bytes
        raise BadResult(f"result['value'] is a picture of more than {MAX_PNG_BYTES} bytes")
    try:
        check_png(base64.b64decode(value.removeprefix(DATA_URL), validate=True))
    except (binascii.Error, ValueError) as error:
        raise BadResult(f"result['value'] is not a picture: {error}") from error
    return value


def _short(value: object) -> str:
    return f"a {type(value).__name__}" if not isinstance(value, str) else repr(value[:100])


MAX_SHOWN = 4000  # characters of what the code wrote; a model reads it, and pays for it
NOT_RUNNING = "Container is not running."
NO_SQL = "execute_sql_query function is not defined in the environment."


class CodeFailed(CodeExecutionError, RuntimeError):
    """The generated code failed; `execution` has all details."""

    execution: Execution | None = None


class CodeTimedOut(CodeFailed, TimeoutError):
    """The generated code exceeded its time limit."""


class CodeOutOfMemory(CodeFailed, MemoryError):
    """The generated code exceeded its memory limit."""


class NoResult(CodeFailed, NoResultFoundError):
    """The generated code did not set the variable `result`."""


class BadResult(CodeFailed, InvalidOutputValueMismatch):
    """`result` is not what PandasAI asks for."""


class BadSyntax(CodeExecutionError, SyntaxError):
    """The generated code is not Python."""


_CLASSES = {Outcome.timeout: CodeTimedOut, Outcome.out_of_memory: CodeOutOfMemory}


def make_failure(execution: Execution, remark: str = "") -> CodeFailed:
    """The exception for failed code, with the traceback that the model needs."""
    told = execution.error.traceback if execution.error else ""
    if not told or execution.outcome is not Outcome.error:
        told = f"{describe_end(execution, 'the code')}\n{told}".strip()
    error = _CLASSES.get(execution.outcome, CodeFailed)(
        f"Error executing code: {printable(told[-MAX_SHOWN:])}{remark}"
    )
    error.execution = execution
    return error


MAX_CELLS = 10_000_000
MAX_COLUMNS = 20_000  # as of frames that travel


def make_frame(value: object) -> pd.DataFrame:
    """Make a frame of rows or columns from the guest. Raises ValueError.

    Its cells are counted first, as a few bytes can ask for many: pandas repeats a scalar for every
    row, and gives each row of a list of dicts all keys of the others.
    """
    index = None
    if isinstance(value, np.ndarray) and value.ndim <= 2:
        _check_cells(len(value) if value.ndim else 1, value.shape[1] if value.ndim == 2 else 1)
    elif isinstance(value, list):
        _check_cells(len(value), _width(value))
    elif isinstance(value, dict):
        value, index = _columns(value)
    else:
        raise ValueError(f"it is a {type(value).__name__}")
    return _make(value, index=index)


def join_split(columns: object, rows: object, index: object) -> pd.DataFrame:
    """Make a frame of its columns, rows and index. Raises ValueError if they do not match."""
    if not (isinstance(columns, list) and isinstance(rows, list) and isinstance(index, list)):
        raise ValueError("columns, data and index must be lists")
    _check_cells(len(rows), len(columns))
    if len(index) != len(rows) or any(
        not isinstance(row, list) or len(row) != len(columns) for row in rows
    ):
        raise ValueError("columns, data and index have different lengths")
    return _make(rows, index=index, columns=columns)


def _check_cells(rows: int, columns: int) -> None:
    if columns > MAX_COLUMNS:
        raise ValueError(f"it has {columns} columns, more than {MAX_COLUMNS}")
    if rows * columns > MAX_CELLS:
        raise ValueError(f"it has {rows * columns} cells, more than {MAX_CELLS}")


def _width(rows: Sequence[object]) -> int:
    """The number of columns that pandas makes of these rows, at most."""
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
        _check_cells(len(set().union(*value.values())), len(value))
        return value, None
    index, lengths = None, set()
    columns = dict(value)
    for name, column in value.items():
        if isinstance(column, pd.Series):
            # pandas aligns different indices, which can take long.
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
    _check_cells(max(lengths, default=1), len(columns))
    return columns, index


def _make(data: Any, **options: Any) -> pd.DataFrame:
    try:
        return pd.DataFrame(data, **options)
    except Exception as error:  # pandas raises many kinds
        raise ValueError(str(error)[:200]) from error


MAX_PNG_BYTES = 16 * 2**20
MAX_PARTS = 20_000  # chunks of a PNG; they have kilobytes each
MAX_PIXELS = 64_000_000  # below that at which PIL warns of a decompression bomb
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHART_NAME = re.compile(r"[\w-][\w.-]{0,99}", re.ASCII)
# The paths of plots that PandasAI accepts (core/response/parser.py).
_CHART_PATH = re.compile(r"(/[\w.-]+)+|[^\s/]+(/[\w.-]+)*")


def chart_directory(path: str | os.PathLike[str]) -> Path:
    """The directory for charts; raises InvalidOption if PandasAI would refuse its charts."""
    if not _CHART_PATH.fullmatch(os.fspath(path)):
        raise InvalidOption(
            f"charts={os.fspath(path)!r}: PandasAI refuses plots in this directory",
            hint="use a path of letters, digits, '_', '.' and '-' only",
        )
    return Path(path)


def check_png(data: bytes) -> None:
    """Raise ValueError unless it is a whole PNG of a sane size. No pixel is decoded."""
    if len(data) > MAX_PNG_BYTES:
        raise ValueError(f"the picture has {len(data)} bytes, more than {MAX_PNG_BYTES}")
    if not data.startswith(_SIGNATURE):
        raise ValueError("the picture is not a PNG")
    at, kinds = len(_SIGNATURE), []
    while at < len(data):
        if len(data) - at < 12:
            raise ValueError("the PNG is cut off")
        size, kind = struct.unpack_from(">I4s", data, at)
        end = at + 8 + size
        if end + 4 > len(data) or zlib.crc32(data[at + 4 : end]) != _png_number(data, end):
            raise ValueError("the PNG is damaged")
        kinds.append(kind)
        if len(kinds) > MAX_PARTS:
            raise ValueError(f"the PNG has more than {MAX_PARTS} parts")
        at = end + 4
    if kinds[:1] != [b"IHDR"] or kinds[-1:] != [b"IEND"] or b"IDAT" not in kinds:
        raise ValueError("the PNG lacks a part")
    width, height = _png_number(data, 16), _png_number(data, 20)
    if not 0 < width * height <= MAX_PIXELS:
        raise ValueError(f"the picture is {width} by {height}, more than {MAX_PIXELS} pixels")


def _png_number(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "big")


def save_chart(data: bytes, proposed: str, folder: Path) -> Path:
    """Write a picture that `check_png` has passed into `folder`, under a name that is free there.

    The guest proposes the name, and nothing else: the last part of `proposed` is used if it is a
    plain file name. No existing file is changed.
    """
    name = proposed.replace("\\", "/").rpartition("/")[2].removesuffix(".png")
    if not _CHART_NAME.fullmatch(name):
        name = "chart"
    folder.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        path = folder / (f"{name}.png" if number == 1 else f"{name}-{number}.png")
        try:
            with path.open("xb") as file:  # "x": follows no link, replaces nothing
                file.write(data)
        except FileExistsError:
            continue
        return path
    raise AssertionError("count() has no end")
