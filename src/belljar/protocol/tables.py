"""pandas tables: frames, series and indexes, and the scalars in them.

Left behind are a `freq` that has no short name or is unknown here, and one of an index so long
that checking it would take long. Nothing is looked up in what came, so no hash table of pandas is
made of a stranger's labels: that is left to the first look-up of the caller.
"""

import datetime
import functools
import re
import sys
from typing import Any, Callable, Dict, List, Optional

from . import arrays, moments
from .columns import (
    check_codes,
    is_frequency,
    is_numbers,
    lower_column,
    lower_period,
    raise_column,
    raise_period,
)
from .distinct import check_distinct
from .parcel import Note, Packer, Unpacker

_CODES = re.compile(r"[<|]i[1248]")
_MOMENT = re.compile(r"<[mM]8\[(s|ms|us|ns)\]")
_UTC = datetime.timezone.utc
_MANY_COLUMNS = 100  # pandas complains about more blocks than this


def lower(packer: Packer, value: Any) -> Optional[Dict[str, Any]]:
    pd = sys.modules.get("pandas")
    if pd is None or not hasattr(pd, "NaT"):
        return None
    kind = type(value)
    if value is pd.NA or value is pd.NaT:
        return {"missing": "NA" if value is pd.NA else "NaT"}
    if kind is pd.DataFrame:
        return {"frame": _lower_frame(packer, pd, value)}
    if kind is pd.Series:
        return {"series": _lower_series(packer, pd, value)}
    if issubclass(kind, pd.Index):
        return {"index": _lower_index(packer, pd, value)}
    if issubclass(kind, pd.api.extensions.ExtensionArray):
        return {"column": lower_column(packer, pd, value)}
    if issubclass(kind, (pd.DataFrame, pd.Series)):
        name = "DataFrame" if issubclass(kind, pd.DataFrame) else "Series"
        raise packer.refusal(f"is a {kind.__module__}.{kind.__qualname__}; make it a plain {name}")
    return _lower_scalar(packer, pd, value)


def _lower_scalar(packer: Packer, pd: Any, value: Any) -> Optional[Dict[str, Any]]:
    kind = type(value)
    if kind is pd.Timestamp:
        plain = value.tz_convert(None) if value.tzinfo is not None else value
        moment = plain.to_datetime64()
        zone = moments.lower_zone(packer, value.tzinfo)
        return {"timestamp": [str(moment.dtype.str), int(moment.view("i8")), zone]}
    if kind is pd.Timedelta:
        span = value.to_timedelta64()
        return {"span": [str(span.dtype.str), int(span.view("i8"))]}
    if kind is pd.Period:
        return {"period": [value.ordinal, lower_period(packer, value.freqstr)]}
    if kind is pd.Interval:
        packer.enter(Note(" bounds"))
        bounds = [packer.lower(value.left), packer.lower(value.right)]
        packer.leave()
        return {"interval": [*bounds, value.closed]}
    return None


def _lower_frame(packer: Packer, pd: Any, frame: Any) -> Dict[str, Any]:
    packer.enter()
    columns = _lower_matrix(packer, frame) or _lower_columns(packer, pd, frame)
    packer.at(Note(".columns"))
    names = _lower_index(packer, pd, frame.columns)
    packer.at(Note(".index"))
    index = _lower_index(packer, pd, frame.index, paid=bool(columns))
    packer.at(Note(".attrs"))
    attrs = packer.lower(frame.attrs) if frame.attrs else None
    packer.leave()
    return {"data": columns, "columns": names, "index": index, "attrs": attrs}


def _lower_columns(packer: Packer, pd: Any, frame: Any) -> List[Any]:
    columns = []
    for number, (_, column) in enumerate(frame.items()):
        packer.at(Note(" column", frame.columns, number))
        columns.append(lower_column(packer, pd, column.array))
    return columns


def _lower_matrix(packer: Packer, frame: Any) -> Optional[Dict[str, Any]]:
    """Many columns of one kind of number travel as one array."""
    if frame.shape[1] <= _MANY_COLUMNS:
        return None
    first, *others = frame.dtypes
    if not is_numbers(first) or any(dtype != first for dtype in others):
        return None
    packer.at(Note(" data"))
    return packer.lower(frame.to_numpy())  # type: ignore[no-any-return]


def _lower_series(packer: Packer, pd: Any, series: Any) -> Dict[str, Any]:
    column = lower_column(packer, pd, series.array)
    packer.enter(Note(".index"))
    index = _lower_index(packer, pd, series.index, paid=True)
    packer.at(Note(".name"))
    name = packer.lower(series.name)
    packer.at(Note(".attrs"))
    attrs = packer.lower(series.attrs) if series.attrs else None
    packer.leave()
    return {"data": column, "index": index, "name": name, "attrs": attrs}


def _lower_index(packer: Packer, pd: Any, index: Any, paid: bool = False) -> Dict[str, Any]:
    if issubclass(type(index), pd.MultiIndex):
        return _lower_levels(packer, pd, index)
    packer.enter(Note(".name"))
    lowered = {"name": packer.lower(index.name)}
    packer.leave()
    if issubclass(type(index), pd.RangeIndex):
        packer.free_rows(0 if paid else len(index))
        return {**lowered, "range": [index.start, index.stop, index.step]}
    lowered["data"] = lower_column(packer, pd, index.array)
    if issubclass(type(index), (pd.DatetimeIndex, pd.TimedeltaIndex)) and index.freq is not None:
        name = index.freq.freqstr
        even = _is_even(pd, index.freq, index)
        if is_frequency(name) and (even or packer.calendar_rows(len(index))):
            lowered["freq"] = name
    return lowered


def _lower_levels(packer: Packer, pd: Any, index: Any) -> Dict[str, Any]:
    np = sys.modules["numpy"]
    levels = []
    packer.enter()
    for number, (level, codes) in enumerate(zip(index.levels, index.codes)):
        packer.at(Note(f" level {number}"))
        raw = np.asarray(codes)
        data = packer.buffer(arrays.memory(np, raw))
        levels.append([_lower_index(packer, pd, level), raw.dtype.str, data])
    packer.leave()
    return {"levels": levels, "names": packer.lower(list(index.names))}


def _is_even(pd: Any, freq: Any, times: Any) -> bool:
    """Whether it is checked fast: a day of a zone may have 23 hours."""
    if isinstance(freq, pd.offsets.Day):
        return getattr(times, "tz", None) is None
    return isinstance(freq, pd.offsets.Tick)


# --- up ---------------------------------------------------------------------------------------


def _raise_frame(unpacker: Unpacker, body: Any) -> Any:
    pd = unpacker.imported("pandas", "pandas DataFrame")
    specs = body["data"]
    unpacker.enter()
    unpacker.at(Note(".columns"))
    names = _raise_index(unpacker, pd, body["columns"])
    if type(specs) is dict:
        unpacker.at(Note(" data"))
        frame = _raise_matrix(unpacker, pd, specs, names, body["index"])
    else:
        if type(specs) is not list or len(specs) != len(names):
            raise ValueError("as many columns as names")
        columns = []
        for number, spec in enumerate(specs):
            unpacker.at(Note(" column", names, number))
            columns.append(raise_column(unpacker, pd, spec))
        frame = _make_frame(unpacker, pd, columns, names, body["index"])
    unpacker.at(Note(".attrs"))
    _raise_attrs(unpacker, frame, body["attrs"])
    unpacker.leave()
    return frame


def _make_frame(unpacker: Unpacker, pd: Any, columns: List[Any], names: Any, index: Any) -> Any:
    unpacker.at(Note(".index"))
    rows = len(columns[0]) if columns else 0
    index = _raise_index(unpacker, pd, index, paid=rows)
    # With their dtype, or pandas would look into objects and find strings.
    series = {
        number: pd.Series(column, index=index, dtype=column.dtype, copy=False)
        for number, column in enumerate(columns)
    }
    frame = pd.DataFrame(series, index=index, copy=False)
    frame.columns = names
    # A copy joins the columns of one dtype; without it pandas warns at the next change.
    return frame.copy() if len(columns) > _MANY_COLUMNS else frame


def _raise_matrix(unpacker: Unpacker, pd: Any, spec: Any, names: Any, index: Any) -> Any:
    data = unpacker.raise_up(spec)
    if type(data).__name__ != "ndarray" or data.ndim != 2 or not is_numbers(data.dtype):
        raise TypeError("not a matrix")
    index = _raise_index(unpacker, pd, index, paid=len(data))
    return pd.DataFrame(data, index=index, columns=names, copy=False)


def _raise_series(unpacker: Unpacker, body: Any) -> Any:
    pd = unpacker.imported("pandas", "pandas Series")
    column = raise_column(unpacker, pd, body["data"])
    index = _raise_index(unpacker, pd, body["index"], paid=len(column))
    name = unpacker.raise_up(body["name"])
    series = pd.Series(column, index=index, dtype=column.dtype, name=name, copy=False)
    _raise_attrs(unpacker, series, body["attrs"])
    return series


def _raise_attrs(unpacker: Unpacker, table: Any, spec: Any) -> None:
    if spec is not None:
        attrs = unpacker.raise_up(spec)
        if type(attrs) is not dict:
            raise TypeError("not attrs")
        table.attrs = attrs


def _raise_index(unpacker: Unpacker, pd: Any, body: Any, paid: int = 0) -> Any:
    unpacker.count()
    if "levels" in body:
        return _raise_levels(unpacker, pd, body)
    name = unpacker.raise_up(body["name"])
    if "range" in body:
        start, stop, step = (_int64(number) for number in body["range"])
        made = pd.RangeIndex(start, stop, step, name=name)
        unpacker.free_rows(max(0, len(made) - paid))
        return made
    column = raise_column(unpacker, pd, body["data"])
    if "freq" in body:
        return _with_freq(unpacker, pd, column, body["freq"], name)
    return pd.Index(column, dtype=column.dtype, name=name, copy=False, tupleize_cols=False)


def _with_freq(unpacker: Unpacker, pd: Any, column: Any, text: Any, name: Any) -> Any:
    if not is_frequency(text) or column.dtype.kind not in "mM":
        raise ValueError("not a frequency, or not of times")
    kind = pd.TimedeltaIndex if column.dtype.kind == "m" else pd.DatetimeIndex
    try:
        freq = pd.tseries.frequencies.to_offset(text)
    except ValueError:  # another pandas has other names
        return kind(column, name=name, copy=False)
    if not _is_even(pd, freq, column):
        unpacker.calendar_rows(len(column))
    if not len(column):
        return kind(column, freq=freq, name=name, copy=False)
    # To check it pandas would guess the freq, with a hash table of the steps.
    made = kind(column, copy=False)
    make = pd.timedelta_range if kind is pd.TimedeltaIndex else pd.date_range
    ideal = make(made[0], periods=len(made), freq=freq, name=name, unit=made.unit)
    if ideal.dtype != made.dtype or not (ideal.asi8 == made.asi8).all():
        raise ValueError("not of its freq")
    return ideal


def _int64(number: Any) -> int:
    if type(number) is not int or not -(1 << 63) <= number < 1 << 63:
        raise ValueError("not a bound")
    return number


def _raise_levels(unpacker: Unpacker, pd: Any, body: Any) -> Any:
    np = unpacker.imported("numpy", "pandas MultiIndex")
    levels, codes = [], []
    for level, dtype, data in body["levels"]:
        if not _CODES.fullmatch(dtype):
            raise ValueError("not codes")
        levels.append(_raise_level(unpacker, pd, level))
        codes.append(arrays.raise_flat(unpacker, np, np.dtype(dtype), data))
        check_codes(codes[-1], len(levels[-1]))
    names = unpacker.raise_up(body["names"])
    return pd.MultiIndex(levels=levels, codes=codes, names=names, verify_integrity=True)


def _raise_level(unpacker: Unpacker, pd: Any, body: Any) -> Any:
    level = _raise_index(unpacker, pd, body)
    if isinstance(level, pd.MultiIndex):
        raise TypeError("levels in a level")
    check_distinct(unpacker, pd, level)
    return level


def _raise_any_index(unpacker: Unpacker, body: Any) -> Any:
    return _raise_index(unpacker, unpacker.imported("pandas", "pandas Index"), body)


def _raise_array(unpacker: Unpacker, body: Any) -> Any:
    pd = unpacker.imported("pandas", "pandas array")
    column = raise_column(unpacker, pd, body)
    if isinstance(column, pd.api.extensions.ExtensionArray):
        return column
    return pd.Series(column, dtype=column.dtype, copy=False).array


def _raise_missing(unpacker: Unpacker, body: Any) -> Any:
    if body not in ("NA", "NaT"):
        raise ValueError("missing what")
    return getattr(unpacker.imported("pandas", f"pandas {body}"), body)


def _raise_timestamp(unpacker: Unpacker, body: Any) -> Any:
    pd = unpacker.imported("pandas", "pandas Timestamp")
    moment = _moment(unpacker, "datetime64", *body[:2])
    zone = moments.raise_zone_of_pandas(unpacker, pd, body[2])
    return pd.Timestamp(moment) if zone is None else pd.Timestamp(moment, tz=_UTC).tz_convert(zone)


def _raise_span(unpacker: Unpacker, body: Any) -> Any:
    pd = unpacker.imported("pandas", "pandas Timedelta")
    return pd.Timedelta(_moment(unpacker, "timedelta64", *body))


def _moment(unpacker: Unpacker, name: str, dtype: Any, number: Any) -> Any:
    unit = _MOMENT.fullmatch(dtype)
    if unit is None:
        raise ValueError("not a moment")
    kind = getattr(unpacker.imported("numpy", "moment of numpy"), name)
    return kind(_int64(number), unit.group(1))


def _raise_period(unpacker: Unpacker, body: Any) -> Any:
    pd = unpacker.imported("pandas", "pandas Period")
    return pd.Period(ordinal=_int64(body[0]), freq=_period_freq(pd, raise_period(body[1])))


@functools.lru_cache(maxsize=64)
def _period_freq(pd: Any, text: str) -> Any:
    return pd.PeriodDtype(text).freq


def _raise_interval(unpacker: Unpacker, body: Any) -> Any:
    pd = unpacker.imported("pandas", "pandas Interval")
    left, right, closed = body
    return pd.Interval(unpacker.raise_up(left), unpacker.raise_up(right), closed=closed)


RAISE: Dict[str, Callable[[Unpacker, Any], Any]] = {
    "frame": _raise_frame,
    "series": _raise_series,
    "index": _raise_any_index,
    "column": _raise_array,
    "missing": _raise_missing,
    "timestamp": _raise_timestamp,
    "span": _raise_span,
    "period": _raise_period,
    "interval": _raise_interval,
}
