"""pandasai_docker's JSON for results, for code that uses it. Belljar's own answers travel as typed
values."""

from __future__ import annotations

import base64
import binascii
import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from belljar.compat.pandasai import answers


class ResponseSerializer:
    """Converts a result to JSON, and back."""

    @staticmethod
    def serialize_dataframe(df: pd.DataFrame) -> dict[str, Any]:
        """Columns, index and rows; a frame without rows keeps its columns."""
        split: dict[str, Any] = df.to_dict(orient="split")
        return {"columns": split["columns"], "data": split["data"], "index": split["index"]}

    @staticmethod
    def serialize(result: dict[str, Any]) -> str:
        """JSON of a result, with the picture of a plot; `result` itself does not change."""
        value = result["value"]
        if result["type"] == "dataframe":
            frame = value.to_frame() if isinstance(value, pd.Series) else value
            value = ResponseSerializer.serialize_dataframe(frame)
        elif result["type"] == "plot" and isinstance(value, str):
            value = base64.b64encode(Path(value).read_bytes()).decode()
        return json.dumps({**result, "value": value}, cls=CustomEncoder)

    @staticmethod
    def deserialize(response: str, chart_path: str | None = None) -> dict[str, Any]:
        """The result of the JSON. A plot is written to `chart_path`, if it is a PNG."""
        result: dict[str, Any] = json.loads(response)
        value = result["value"]
        if result["type"] == "dataframe":
            result["value"] = answers.join_split(value["columns"], value["data"], value["index"])
        elif result["type"] == "plot" and chart_path:
            try:
                picture = base64.b64decode(value, validate=True)
            except binascii.Error as error:
                raise ValueError(f"the plot is not base64: {error}") from error
            answers.check_png(picture)
            Path(chart_path).write_bytes(picture)
            result["value"] = chart_path
        return result


class CustomEncoder(json.JSONEncoder):
    """JSON of the values in frames: numpy's numbers and arrays, dates, times, periods, frames."""

    def default(self, obj: object) -> object:
        if isinstance(obj, pd.DataFrame):
            return ResponseSerializer.serialize_dataframe(obj)
        if isinstance(obj, pd.Series):
            return ResponseSerializer.serialize_dataframe(obj.to_frame())
        if obj is pd.NaT or obj is pd.NA:
            return None
        if isinstance(obj, (datetime.datetime, datetime.date, datetime.time)):
            return obj.isoformat()
        if isinstance(
            obj, (pd.Period, pd.Interval, datetime.timedelta, np.datetime64, np.timedelta64)
        ):
            return str(obj)
        if isinstance(obj, np.ndarray):
            return obj.tolist()
        if isinstance(obj, np.generic):
            return obj.item()
        return super().default(obj)


parser = ResponseSerializer()
