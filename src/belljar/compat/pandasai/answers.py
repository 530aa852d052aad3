"""What generated code calls `result`, as PandasAI takes it: {"type": ..., "value": ...}, checked.

The guest has said it, so nothing is taken for granted. What its serializer once lost on the way
(numbers of numpy, a Series, an array) is made what PandasAI expects.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd

from belljar.compat.pandasai import charts
from belljar.compat.pandasai.errors import BadResult

DATA_URL = "data:image/png;base64,"
_ASKED = "Please return the result in dictionary format: result = {'type': ..., 'value': ...}"


def checked(result: object, save_chart: Callable[[str], str]) -> dict[str, Any]:
    """The answer for PandasAI; `save_chart` makes a path of the host of one of the guest.

    Raises BadResult with words for the model that wrote the code.
    """
    if not isinstance(result, dict) or not {"type", "value"} <= result.keys():
        raise BadResult(f"result is not a dictionary of type and value. {_ASKED}")
    kind, value = result["type"], result["value"]
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
        value = int(value) if value == value.to_integral_value() else float(value)
    if not isinstance(value, (int, float)):
        raise BadResult(f"result['type'] is 'number', and its value is {_short(value)}")
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
    try:
        if isinstance(value, (dict, list)) or (isinstance(value, np.ndarray) and value.ndim <= 2):
            return pd.DataFrame(value)
    except (ValueError, TypeError) as error:
        raise BadResult(f"no DataFrame can be made of result['value']: {error}") from error
    raise BadResult(f"result['type'] is 'dataframe', and its value is {_short(value)}")


def _plot(value: object, save_chart: Callable[[str], str]) -> object:
    if isinstance(value, dict):  # the description of a chart, which PandasAI passes on
        return value
    if not isinstance(value, str):
        raise BadResult(f"result['type'] is 'plot', and its value is {_short(value)}, not a path")
    if not value.startswith(DATA_URL):
        return save_chart(value)
    try:
        charts.check_png(base64.b64decode(value.removeprefix(DATA_URL), validate=True))
    except (binascii.Error, ValueError) as error:
        raise BadResult(f"result['value'] is no picture: {error}") from error
    return value


def _short(value: object) -> str:
    return f"a {type(value).__name__}" if not isinstance(value, str) else repr(value[:100])
