"""What generated code calls `result`, as PandasAI takes it: {"type": ..., "value": ...}, checked.

The guest has said it, so nothing is taken for granted, and nothing is done with it that takes long.
What its serializer once lost on the way (numbers of numpy, a Series, an array) is made what
PandasAI expects.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd

from belljar.compat.pandasai import charts, tabular
from belljar.compat.pandasai.errors import BadResult

DATA_URL = "data:image/png;base64,"
MAX_BITS = 14_000  # of a whole number: Python writes out about 4,300 digits, and PandasAI has to
MAX_DIGITS = 4_000  # before the point
MAX_PATH = 4096
_ASKED = "Please return the result in dictionary format: result = {'type': ..., 'value': ...}"


def checked(result: object, save_chart: Callable[[str], str]) -> dict[str, Any]:
    """The answer for PandasAI; `save_chart` makes a path of the host of one of the guest.

    Raises BadResult with words for the model that wrote the code.
    """
    if not isinstance(result, dict) or not {"type", "value"} <= result.keys():
        raise BadResult(f"result is not a dictionary of type and value. {_ASKED}")
    kind, value = result["type"], result["value"]
    if not isinstance(kind, str):
        raise BadResult(f"result['type'] is {_short(kind)}, not a text. {_ASKED}")
    if kind == "number":
        value = _number(value)
    elif kind == "string":
        value = _string(value)
    elif kind == "dataframe":
        value = _frame(value)
    elif kind == "plot":
        value = _plot(value, save_chart)
    else:
        raise BadResult(
            f"result['type'] is {_short(kind)}, not one of number, string, dataframe, plot"
        )
    return {**result, "value": value}


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
        return tabular.frame_of(value)
    except ValueError as error:
        raise BadResult(f"no DataFrame can be made of result['value']: {error}") from error


def _plot(value: object, save_chart: Callable[[str], str]) -> object:
    if isinstance(value, dict):  # the description of a chart, which PandasAI passes on
        return value
    if not isinstance(value, str):
        raise BadResult(f"result['type'] is 'plot', and its value is {_short(value)}, not a path")
    if not value.startswith(DATA_URL):
        if len(value) > MAX_PATH:
            raise BadResult(f"result['value'] has {len(value)} characters, and is no path")
        return save_chart(value)
    if len(value) > charts.MAX_BYTES * 3 // 2:  # base64 takes four letters for three bytes
        raise BadResult(f"result['value'] is a picture of more than {charts.MAX_BYTES} bytes")
    try:
        charts.check_png(base64.b64decode(value.removeprefix(DATA_URL), validate=True))
    except (binascii.Error, ValueError) as error:
        raise BadResult(f"result['value'] is no picture: {error}") from error
    return value


def _short(value: object) -> str:
    return f"a {type(value).__name__}" if not isinstance(value, str) else repr(value[:100])
