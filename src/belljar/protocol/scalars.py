"""Dates and times, many texts, and a check that labels differ.

Dates, times and time zones are JSON; a zone travels by its name or as a fixed offset. Many texts
are two buffers: their letters one after another, and their lengths. A negative length stands for a
value that is not a text (None, nan, …).

check_distinct() finds out if all labels of an index differ, at a cost that a hostile guest cannot
raise by its choice of labels. Numbers, times and tuples with equal hashes are easy to make, and so
are texts for the hash tables of pandas; such a table takes quadratic time, and the whole process
waits. So numbers are sorted, and other labels are compared as texts, whose hashes Python
randomises in each process. Equal numbers of different types are one label, as in pandas; a Decimal
or a part of a tuple is compared by its encoded bytes.
"""

import array
import datetime as dt
import functools
import operator
import re
from itertools import accumulate
from typing import Any, Callable, Dict, List, Optional, Sequence

from .parcel import Packer, Unpacker, check_type

# Names of the time zone database, never a path: no dots, no leading slash.
_ZONE = re.compile(r"[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,3}")
_MICROSECOND = dt.timedelta(microseconds=1)


def encode_time(packer: Packer, value: Any) -> Optional[Dict[str, Any]]:
    kind = type(value)
    if kind is dt.datetime:
        return {"datetime": _encode_datetime(packer, value)}
    if kind is dt.date:
        return {"date": value.isoformat()}
    if kind is dt.time:
        zone = encode_zone(packer, value.tzinfo)
        return {"time": [value.replace(tzinfo=None).isoformat(), value.fold, zone]}
    if kind is dt.timedelta:
        return {"timedelta": value // _MICROSECOND}
    return None


def _encode_datetime(packer: Packer, value: dt.datetime) -> Any:
    zone = encode_zone(packer, value.tzinfo)
    if zone is not None and zone[0] == "zone" and not _is_zoneinfo(value.tzinfo):
        # A pytz zone object stands for one offset: let the named zone compute it.
        from zoneinfo import ZoneInfo

        value = value.astimezone(ZoneInfo(zone[1]))
    return [value.replace(tzinfo=None).isoformat(), value.fold, zone]


def _is_zoneinfo(zone: Any) -> bool:
    return type(zone).__module__ == "zoneinfo" and type(zone).__name__ == "ZoneInfo"


def encode_zone(packer: Packer, zone: Any) -> Any:
    """None, ["offset", microseconds, name] or ["zone", name]."""
    if zone is None:
        return None
    if type(zone) is dt.timezone:
        offset = zone.utcoffset(None)
        plain = dt.timezone(offset).tzname(None)
        name = zone.tzname(None)
        return ["offset", offset // _MICROSECOND, None if name == plain else name]
    # zoneinfo has the name in `key`, pytz in `zone`.
    named = getattr(zone, "key", None) if _is_zoneinfo(zone) else getattr(zone, "zone", None)
    if type(named) is str and _ZONE.fullmatch(named):
        return ["zone", named]
    kind = type(zone)
    raise packer.refusal(
        f"has the time zone {kind.__module__}.{kind.__qualname__}; "
        "only datetime.timezone and named zones of zoneinfo can travel"
    )


def decode_zone(unpacker: Unpacker, spec: Any) -> Optional[dt.tzinfo]:
    if spec is None:
        return None
    kind, value, *name = spec
    if kind == "zone" and type(value) is str:
        if value not in unpacker.zones:
            unpacker.zones[value] = _decode_named(unpacker, value)
        found: dt.tzinfo = unpacker.zones[value]
        return found
    if kind == "offset" and type(value) is int:
        offset = dt.timedelta(microseconds=value)
        if name in ([], [None]):
            return dt.timezone(offset)
        if len(name) == 1 and type(name[0]) is str:
            return dt.timezone(offset, name[0])
    raise ValueError("not a time zone")


def decode_zone_of_pandas(unpacker: Unpacker, pd: Any, spec: Any) -> Optional[dt.tzinfo]:
    """The zone in the class that this pandas chooses for its name: pytz in pandas 2, zoneinfo in
    pandas 3. To pandas, the two are different zones, and frames in them are not equal."""
    zone = decode_zone(unpacker, spec)
    if zone is None or not _is_zoneinfo(zone):
        return zone
    name = ("pandas", spec[1])
    if name not in unpacker.zones:
        # zoneinfo knows the name, so it is not a path that pandas would open.
        try:
            unpacker.zones[name] = pd.DatetimeTZDtype("ns", spec[1]).tz
        except KeyError:  # newer than the tables of pytz; pandas 2 accepts zoneinfo, too
            unpacker.zones[name] = zone
    chosen: dt.tzinfo = unpacker.zones[name]
    return chosen


def _decode_named(unpacker: Unpacker, name: str) -> dt.tzinfo:
    if not _ZONE.fullmatch(name):
        raise ValueError("not a time zone")
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except Exception:  # a directory, an unreadable file, no database
        raise unpacker.refusal(
            f"is in the time zone {name}, which is not known here; install tzdata"
        ) from None


def _decode_time(kind: Any, unpacker: Unpacker, body: Any) -> Any:
    text, fold, zone = body
    return kind.fromisoformat(text).replace(fold=fold, tzinfo=decode_zone(unpacker, zone))


def _decode_timedelta(unpacker: Unpacker, body: Any) -> dt.timedelta:
    days, rest = divmod(check_type(int, body), 86_400_000_000)
    return dt.timedelta(days=days, microseconds=rest)


DECODERS: Dict[str, Callable[[Unpacker, Any], Any]] = {
    "datetime": functools.partial(_decode_time, dt.datetime),
    "date": lambda unpacker, body: dt.date.fromisoformat(body),
    "time": functools.partial(_decode_time, dt.time),
    "timedelta": _decode_timedelta,
}


# -- many texts -----------------------------------------------------------------------------------


def encode_texts(packer: Packer, texts: Sequence[Any]) -> Dict[str, Any]:
    return encode_lengths(packer, array.array("i", map(len, texts)), texts)


def encode_lengths(packer: Packer, lengths: Any, texts: Sequence[Any]) -> Dict[str, Any]:
    """`lengths` includes missing texts, `texts` does not."""
    letters = "".join(texts).encode("utf-8", "surrogatepass")
    return {"lengths": packer.buffer(lengths), "text": packer.buffer(letters)}


def decode_texts(unpacker: Unpacker, body: Any, missing: Sequence[Any] = ()) -> List[Any]:
    lengths = unpacker.buffer(body["lengths"]).cast("i")
    text = str(unpacker.buffer(body["text"]), "utf-8", "surrogatepass")
    found: List[Any] = []
    end = 0
    if min(lengths, default=0) >= 0:
        bounds = zip(accumulate(lengths, initial=0), accumulate(lengths))
        found = [text[start:end] for start, end in bounds]
        end = sum(lengths)
    else:
        for length in lengths:
            if length >= 0:
                found.append(text[end : end + length])
                end += length
            else:
                found.append(missing[-1 - length])  # IndexError if it is out of range
    if end != len(text):
        raise ValueError("lengths do not add up")
    return found


# -- labels ---------------------------------------------------------------------------------------

_EXACT_BITS = 53  # integers of so many bits are exact as floats
_FLOAT_BITS = 1024
_TWICE = "a label is there twice"
_ARROW_TEXTS = ("string", "large_string", "binary", "large_binary", "boolean")


def check_distinct(unpacker: Unpacker, pd: Any, index: Any) -> None:
    """ValueError if a label is there twice; TypeError if labels cannot be compared."""
    np = unpacker.imported("numpy", "pandas Index")
    with np.errstate(all="ignore"):  # numpy warns of some kinds of nan
        if not isinstance(index.dtype, np.dtype):
            _CHECKS.get(type(index.dtype).__name__, _check_masked)(unpacker, np, index.array)
        elif index.dtype.kind == "O":
            _check_objects(unpacker, np, np.asarray(index))
        elif not isinstance(index, pd.RangeIndex):
            _check_numbers(np, np.asarray(index))
    # pandas makes no hash table for what it has in its cache.
    index._cache["is_unique"] = True


def _check_numbers(np: Any, numbers: Any) -> None:
    """Without np.unique, which has a hash table, too."""
    if numbers.dtype.kind in "mM":
        numbers = numbers.view("i8" if numbers.dtype.isnative else numbers.dtype.str[0] + "i8")
    if (numbers[1:] > numbers[:-1]).all():
        return
    if np.count_nonzero(numbers != numbers) > 1:
        raise ValueError(_TWICE)
    numbers = np.sort(numbers)
    if (numbers[1:] == numbers[:-1]).any():
        raise ValueError(_TWICE)


def _check_masked(unpacker: Unpacker, np: Any, column: Any) -> None:
    if np.count_nonzero(column._mask) > 1:
        raise ValueError(_TWICE)
    _check_numbers(np, column._data[~column._mask])


def _check_intervals(unpacker: Unpacker, np: Any, column: Any) -> None:
    left, right = (getattr(side, "asi8", side) for side in (column.left, column.right))
    left, right = np.asarray(left), np.asarray(right)
    if left.dtype.kind not in "iuf" or right.dtype.kind not in "iuf":
        raise TypeError("these intervals cannot be compared")
    order = np.lexsort((right, left))
    left, right = left[order], right[order]
    alike = (left[1:] == left[:-1]) & (right[1:] == right[:-1])
    if alike.any() or np.count_nonzero(left != left) > 1:
        raise ValueError(_TWICE)


def _check_strings(unpacker: Unpacker, np: Any, column: Any) -> None:
    if column.dtype.storage != "python":
        return _check_arrow(unpacker, np, column)
    _check_objects(unpacker, np, column.to_numpy(dtype=object))


def _check_arrow(unpacker: Unpacker, np: Any, column: Any) -> None:
    pa = unpacker.imported("pyarrow", "column of Arrow")
    labels = column.__arrow_array__()  # an array, or a chunked one
    if labels.null_count > 1:
        raise ValueError(_TWICE)
    kind, types = labels.type, pa.types
    if any(getattr(types, f"is_{name}")(kind) for name in _ARROW_TEXTS):
        compute = unpacker.imported("pyarrow.compute", "column of Arrow")
        before, after = labels.slice(0, max(0, len(labels) - 1)), labels.slice(1)
        if labels.null_count or not compute.all(compute.less(before, after)).as_py():
            _check_keys(labels.to_pylist())
        return
    if types.is_nested(kind) or types.is_dictionary(kind) or types.is_null(kind):
        raise TypeError(f"items of the Arrow type {kind} cannot be compared")
    if len(labels):
        array = pa.concat_arrays(getattr(labels, "chunks", [labels])).drop_null()
        _check_numbers(np, _view_fixed_width(np, types, array))


def _view_fixed_width(np: Any, types: Any, array: Any) -> Any:
    """Items of one width, as floats or as their bytes."""
    width, start, end = array.type.bit_width // 8, array.offset, array.offset + len(array)
    if not width:
        return np.zeros(len(array), dtype="u1")
    letter = "f" if types.is_floating(array.type) else "u" if width in (1, 2, 4, 8) else "S"
    return np.frombuffer(array.buffers()[1], dtype=f"{letter}{width}", count=end)[start:]


def _check_objects(unpacker: Unpacker, np: Any, items: Any) -> None:
    items = items.tolist()
    if set(map(type, items)) <= {str}:
        if not all(map(operator.lt, items, items[1:])):
            _check_keys(items)
        return

    def key(item: Any) -> Any:
        hash(item)  # TypeError if it cannot be a label
        if isinstance(item, np.generic) and item.dtype.char in "?bBhHiIlLqQefd":
            item = item.item()
        return _number_key(item) if type(item) in (bool, int, float) else unpacker.spelling(item)

    _check_keys(list(map(key, items)))


def _check_keys(keys: List[Any]) -> None:
    """`keys` are texts or bytes."""
    if len(set(keys)) != len(keys):
        raise ValueError(_TWICE)


def _number_key(number: Any) -> bytes:
    """A short key, the same for 1, 1.0 and True."""
    bits = number.bit_length() if type(number) is not float else 0
    if bits > _EXACT_BITS:
        # It is a float if all bits below those of a float are zero.
        is_float = bits < _FLOAT_BITS and not number & ((1 << (bits - _EXACT_BITS)) - 1)
        return (repr(float(number)) if is_float else hex(number)).encode()
    if type(number) is not float or (number.is_integer() and abs(number) < 1 << _EXACT_BITS):
        return b"%d" % int(number)
    return repr(number).encode()


_CHECKS: Dict[str, Callable[[Unpacker, Any, Any], None]] = {
    "DatetimeTZDtype": lambda unpacker, np, column: _check_numbers(np, column.asi8),
    "PeriodDtype": lambda unpacker, np, column: _check_numbers(np, column.asi8),
    "CategoricalDtype": lambda unpacker, np, column: _check_numbers(np, np.asarray(column.codes)),
    "StringDtype": _check_strings,
    "IntervalDtype": _check_intervals,
    "ArrowDtype": _check_arrow,
}
