"""pandas tables: frames, series and indexes, and the scalars in them.

A `freq` does not travel if it has no short name, is unknown here, or belongs to an index that takes
long to check. Decoding looks up no label, so pandas makes no hash table of labels that a hostile
guest has chosen; the caller's first look-up does.
"""

import datetime
import functools
import re
import sys
from typing import Any, Callable, Dict, List, Optional

from . import arrays, scalars
from .columns import (
    decode_codes,
    decode_column,
    decode_period,
    encode_column,
    encode_period,
    is_frequency,
    is_numbers,
)
from .parcel import Note, Packer, Unpacker, check_type
from .scalars import check_distinct

_MOMENT = re.compile(r"<[mM]8\[(s|ms|us|ns)\]")
_UTC = datetime.timezone.utc
_MANY_COLUMNS = 100  # pandas complains about more blocks than this


def encode_table(packer: Packer, value: Any) -> Optional[Dict[str, Any]]:
    pd = sys.modules.get("pandas")
    if pd is None or not hasattr(pd, "NaT"):
        return None
    kind = type(value)
    if value is pd.NA or value is pd.NaT:
        return {"missing": "NA" if value is pd.NA else "NaT"}
    if kind is pd.DataFrame:
        return {"frame": _encode_frame(packer, pd, value)}
    if kind is pd.Series:
        return {"series": _encode_series(packer, pd, value)}
    if issubclass(kind, pd.Index):
        return {"index": _encode_index(packer, pd, value)}
    if issubclass(kind, pd.api.extensions.ExtensionArray):
        return {"column": encode_column(packer, pd, value)}
    if issubclass(kind, (pd.DataFrame, pd.Series)):
        name = "DataFrame" if issubclass(kind, pd.DataFrame) else "Series"
        raise packer.refusal(f"is a {kind.__module__}.{kind.__qualname__}; make it a plain {name}")
    return _encode_scalar(packer, pd, value)


def _encode_scalar(packer: Packer, pd: Any, value: Any) -> Optional[Dict[str, Any]]:
    kind = type(value)
    if kind is pd.Timestamp:
        plain = value.tz_convert(None) if value.tzinfo is not None else value
        moment = plain.to_datetime64()
        zone = scalars.encode_zone(packer, value.tzinfo)
        return {"timestamp": [str(moment.dtype.str), int(moment.view("i8")), zone]}
    if kind is pd.Timedelta:
        span = value.to_timedelta64()
        return {"span": [str(span.dtype.str), int(span.view("i8"))]}
    if kind is pd.Period:
        return {"period": [value.ordinal, encode_period(packer, value.freqstr)]}
    if kind is pd.Interval:
        packer.enter(Note(" bounds"))
        bounds = [packer.encode(value.left), packer.encode(value.right)]
        packer.leave()
        return {"interval": [*bounds, value.closed]}
    return None


def _encode_frame(packer: Packer, pd: Any, frame: Any) -> Dict[str, Any]:
    packer.enter()
    columns = _encode_matrix(packer, frame) or _encode_columns(packer, pd, frame)
    packer.at(Note(".columns"))
    names = _encode_index(packer, pd, frame.columns)
    packer.at(Note(".index"))
    index = _encode_index(packer, pd, frame.index, paid=bool(columns))
    packer.at(Note(".attrs"))
    attrs = packer.encode(frame.attrs) if frame.attrs else None
    packer.leave()
    return {"data": columns, "columns": names, "index": index, "attrs": attrs}


def _encode_columns(packer: Packer, pd: Any, frame: Any) -> List[Any]:
    columns = []
    for number, (_, column) in enumerate(frame.items()):
        packer.at(Note(" column", frame.columns, number))
        columns.append(encode_column(packer, pd, column.array))
    return columns


def _encode_matrix(packer: Packer, frame: Any) -> Optional[Dict[str, Any]]:
    """Many columns of one kind of number travel as one array."""
    if frame.shape[1] <= _MANY_COLUMNS:
        return None
    first, *others = frame.dtypes
    if not is_numbers(first) or any(dtype != first for dtype in others):
        return None
    packer.at(Note(" data"))
    return packer.encode(frame.to_numpy())  # type: ignore[no-any-return]


def _encode_series(packer: Packer, pd: Any, series: Any) -> Dict[str, Any]:
    column = encode_column(packer, pd, series.array)
    packer.enter(Note(".index"))
    index = _encode_index(packer, pd, series.index, paid=True)
    packer.at(Note(".name"))
    name = packer.encode(series.name)
    packer.at(Note(".attrs"))
    attrs = packer.encode(series.attrs) if series.attrs else None
    packer.leave()
    return {"data": column, "index": index, "name": name, "attrs": attrs}


def _encode_index(packer: Packer, pd: Any, index: Any, paid: bool = False) -> Dict[str, Any]:
    if issubclass(type(index), pd.MultiIndex):
        return _encode_levels(packer, pd, index)
    packer.enter(Note(".name"))
    encoded = {"name": packer.encode(index.name)}
    packer.leave()
    if issubclass(type(index), pd.RangeIndex):
        packer.free_rows(0 if paid else len(index))
        return {**encoded, "range": [index.start, index.stop, index.step]}
    encoded["data"] = encode_column(packer, pd, index.array)
    if issubclass(type(index), (pd.DatetimeIndex, pd.TimedeltaIndex)) and index.freq is not None:
        name = index.freq.freqstr
        even = _is_even(pd, index.freq, index)
        if is_frequency(name) and (even or packer.calendar_rows(len(index))):
            encoded["freq"] = name
    return encoded


def _encode_levels(packer: Packer, pd: Any, index: Any) -> Dict[str, Any]:
    np = sys.modules["numpy"]
    levels = []
    packer.enter()
    for number, (level, codes) in enumerate(zip(index.levels, index.codes)):
        packer.at(Note(f" level {number}"))
        raw = np.asarray(codes)
        data = packer.buffer(arrays.get_memory(np, raw))
        levels.append([_encode_index(packer, pd, level), raw.dtype.str, data])
    packer.leave()
    return {"levels": levels, "names": packer.encode(list(index.names))}


def _is_even(pd: Any, freq: Any, times: Any) -> bool:
    """True if it can be checked fast: in a time zone, a day may have 23 hours."""
    if isinstance(freq, pd.offsets.Day):
        return getattr(times, "tz", None) is None
    return isinstance(freq, pd.offsets.Tick)


# --- decode ---------------------------------------------------------------------------------------


def _decode_frame(unpacker: Unpacker, pd: Any, body: Any) -> Any:
    specs = body["data"]
    unpacker.enter()
    unpacker.at(Note(".columns"))
    names = _decode_index(unpacker, pd, body["columns"])
    if type(specs) is dict:
        unpacker.at(Note(" data"))
        frame = _decode_matrix(unpacker, pd, specs, names, body["index"])
    else:
        if type(specs) is not list or len(specs) != len(names):
            raise ValueError("the number of columns and of names differ")
        columns = []
        for number, spec in enumerate(specs):
            unpacker.at(Note(" column", names, number))
            columns.append(decode_column(unpacker, pd, spec))
        frame = _make_frame(unpacker, pd, columns, names, body["index"])
    unpacker.at(Note(".attrs"))
    _decode_attrs(unpacker, frame, body["attrs"])
    unpacker.leave()
    return frame


def _make_frame(unpacker: Unpacker, pd: Any, columns: List[Any], names: Any, index: Any) -> Any:
    unpacker.at(Note(".index"))
    rows = len(columns[0]) if columns else 0
    index = _decode_index(unpacker, pd, index, paid=rows)
    # With their dtype, because pandas would infer strings from objects.
    series = {
        number: pd.Series(column, index=index, dtype=column.dtype, copy=False)
        for number, column in enumerate(columns)
    }
    frame = pd.DataFrame(series, index=index, copy=False)
    frame.columns = names
    # A copy joins the columns of one dtype; without it pandas warns at the next change.
    return frame.copy() if len(columns) > _MANY_COLUMNS else frame


def _decode_matrix(unpacker: Unpacker, pd: Any, spec: Any, names: Any, index: Any) -> Any:
    data = unpacker.decode(spec)
    if type(data).__name__ != "ndarray" or data.ndim != 2 or not is_numbers(data.dtype):
        raise TypeError("not a matrix")
    index = _decode_index(unpacker, pd, index, paid=len(data))
    return pd.DataFrame(data, index=index, columns=names, copy=False)


def _decode_series(unpacker: Unpacker, pd: Any, body: Any) -> Any:
    column = decode_column(unpacker, pd, body["data"])
    index = _decode_index(unpacker, pd, body["index"], paid=len(column))
    name = unpacker.decode(body["name"])
    series = pd.Series(column, index=index, dtype=column.dtype, name=name, copy=False)
    _decode_attrs(unpacker, series, body["attrs"])
    return series


def _decode_attrs(unpacker: Unpacker, table: Any, spec: Any) -> None:
    if spec is not None:
        table.attrs = check_type(dict, unpacker.decode(spec))


def _decode_index(unpacker: Unpacker, pd: Any, body: Any, paid: int = 0) -> Any:
    unpacker.count()
    if "levels" in body:
        return _decode_levels(unpacker, pd, body)
    name = unpacker.decode(body["name"])
    if "range" in body:
        start, stop, step = (_int64(number) for number in body["range"])
        made = pd.RangeIndex(start, stop, step, name=name)
        unpacker.free_rows(max(0, len(made) - paid))
        return made
    column = decode_column(unpacker, pd, body["data"])
    if "freq" in body:
        return _add_freq(unpacker, pd, column, body["freq"], name)
    return pd.Index(column, dtype=column.dtype, name=name, copy=False, tupleize_cols=False)


def _add_freq(unpacker: Unpacker, pd: Any, column: Any, text: Any, name: Any) -> Any:
    if not is_frequency(text) or column.dtype.kind not in "mM":
        raise ValueError("not a frequency, or not of times")
    kind = pd.TimedeltaIndex if column.dtype.kind == "m" else pd.DatetimeIndex
    try:
        freq = pd.tseries.frequencies.to_offset(text)
    except ValueError:  # this pandas has other names
        return kind(column, name=name, copy=False)
    if not _is_even(pd, freq, column) and not unpacker.calendar_rows(len(column)):
        raise ValueError("a freq takes too long to check")
    if not len(column):
        return kind(column, freq=freq, name=name, copy=False)
    # pandas would infer the freq to check it, with a hash table of the steps.
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


def _decode_levels(unpacker: Unpacker, pd: Any, body: Any) -> Any:
    np = unpacker.imported("numpy", "pandas MultiIndex")
    levels, codes = [], []
    for level, dtype, data in body["levels"]:
        index = _decode_index(unpacker, pd, level)
        if isinstance(index, pd.MultiIndex):
            raise TypeError("a level of an index has levels")
        check_distinct(unpacker, pd, index)
        levels.append(index)
        codes.append(decode_codes(unpacker, np, dtype, data, len(index)))
    names = unpacker.decode(body["names"])
    return pd.MultiIndex(levels=levels, codes=codes, names=names, verify_integrity=True)


def _decode_array(unpacker: Unpacker, pd: Any, body: Any) -> Any:
    column = decode_column(unpacker, pd, body)
    if isinstance(column, pd.api.extensions.ExtensionArray):
        return column
    return pd.Series(column, dtype=column.dtype, copy=False).array


def _decode_missing(unpacker: Unpacker, body: Any) -> Any:
    if body not in ("NA", "NaT"):
        raise ValueError("unknown kind of missing value")
    return getattr(unpacker.imported("pandas", f"pandas {body}"), body)


def _decode_timestamp(unpacker: Unpacker, pd: Any, body: Any) -> Any:
    moment = _decode_moment(unpacker, "datetime64", *body[:2])
    zone = scalars.decode_zone_of_pandas(unpacker, pd, body[2])
    return pd.Timestamp(moment) if zone is None else pd.Timestamp(moment, tz=_UTC).tz_convert(zone)


def _decode_span(unpacker: Unpacker, pd: Any, body: Any) -> Any:
    return pd.Timedelta(_decode_moment(unpacker, "timedelta64", *body))


def _decode_moment(unpacker: Unpacker, name: str, dtype: Any, number: Any) -> Any:
    unit = _MOMENT.fullmatch(dtype)
    if unit is None:
        raise ValueError("not a moment")
    kind = getattr(unpacker.imported("numpy", "moment of numpy"), name)
    return kind(_int64(number), unit.group(1))


def _decode_period(unpacker: Unpacker, pd: Any, body: Any) -> Any:
    return pd.Period(ordinal=_int64(body[0]), freq=_make_period_freq(pd, decode_period(body[1])))


@functools.lru_cache(maxsize=64)
def _make_period_freq(pd: Any, text: str) -> Any:
    return pd.PeriodDtype(text).freq


def _decode_interval(unpacker: Unpacker, pd: Any, body: Any) -> Any:
    left, right, closed = body
    return pd.Interval(unpacker.decode(left), unpacker.decode(right), closed=closed)


def _with_pandas(
    what: str, decode: "Callable[[Unpacker, Any, Any], Any]"
) -> "Callable[[Unpacker, Any], Any]":
    return lambda unpacker, body: decode(unpacker, unpacker.imported("pandas", what), body)


DECODERS = {
    "frame": _with_pandas("pandas DataFrame", _decode_frame),
    "series": _with_pandas("pandas Series", _decode_series),
    "index": _with_pandas("pandas Index", _decode_index),
    "column": _with_pandas("pandas array", _decode_array),
    "missing": _decode_missing,
    "timestamp": _with_pandas("pandas Timestamp", _decode_timestamp),
    "span": _with_pandas("pandas Timedelta", _decode_span),
    "period": _with_pandas("pandas Period", _decode_period),
    "interval": _with_pandas("pandas Interval", _decode_interval),
}
