"""Columns of pandas: their buffers and their dtypes.

Nothing but pandas and numpy is needed, except for columns that are Arrow's own.
"""

import array
import math
import re
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import arrays, arrow, scalars
from .parcel import CannotTravel, Note, Packer, Unpacker, check_type
from .scalars import check_distinct, decode_texts, encode_lengths, encode_texts

_NUMBERS = re.compile(
    r"[<>|](b1|[iu][1248]|f(2|4|8|12|16)|c(8|16|24|32))|[<>][mM]8\[(s|ms|us|ns)\]"
)
_CODES = re.compile(r"[<|]i[1248]")
_MASKED = re.compile(r"[<|](b1|[iu][1248]|f[48])")
# In the spelling of pandas, which warns of others, and of periods of business days.
_NAME = r"((?!NS|US|MIN)[A-Z]{1,6}|h|bh|cbh|min|s|ms|us|ns)"
_FREQUENCY = re.compile(r"-?[0-9]{0,9}" + _NAME + "(-[A-Z0-9]{1,8})?")
_PERIOD = re.compile(r"[0-9]{0,9}(?!B$)" + _NAME + "(-[A-Z]{3})?")
_UNITS = ("s", "ms", "us", "ns")
_FEW = 64
_CLOSED = ("left", "right", "both", "neither")


def is_numbers(dtype: Any) -> bool:
    return _NUMBERS.fullmatch(getattr(dtype, "str", "")) is not None


def is_frequency(text: Any) -> bool:
    return type(text) is str and _FREQUENCY.fullmatch(text) is not None


def encode_period(packer: Packer, text: Any) -> str:
    if type(text) is not str or not _PERIOD.fullmatch(text):
        raise packer.refusal(f"has periods of {text}, which cannot travel; make them timestamps")
    return text


def encode_column(packer: Packer, pd: Any, column: Any) -> Dict[str, Any]:
    packer.count()
    np = sys.modules["numpy"]
    # pandas wraps a plain array and its dtype.
    is_plain = type(column).__name__ in ("NumpyExtensionArray", "PandasArray")
    dtype = getattr(column.dtype, "numpy_dtype", None) if is_plain else column.dtype
    if isinstance(dtype, np.dtype):
        raw = np.asarray(column)
        if dtype.kind == "O":
            return _encode_objects(packer, pd, raw)
        if not is_numbers(dtype):
            raise packer.refusal(f"has the dtype {dtype}, which cannot travel")
        return {"numbers": [dtype.str, packer.buffer(arrays.get_memory(np, raw))]}
    if isinstance(dtype, pd.SparseDtype):
        raise packer.refusal("is sparse; make it dense first, .sparse.to_dense()")
    encode_extension = _EXTENSIONS.get(type(dtype).__name__)
    if encode_extension is None or type(dtype).__module__.partition(".")[0] != "pandas":
        raise packer.refusal(f"has the dtype {dtype}, which cannot travel")
    return encode_extension(packer, pd, np, column)


def _encode_objects(packer: Packer, pd: Any, raw: Any) -> Dict[str, Any]:
    """Texts (and marks for missing ones) are fast; anything else is a list of values."""
    items = raw.tolist()
    texts = _encode_maybe_texts(packer, pd, items)
    return texts or {"objects": packer.encode(items)}


def _list_missing(pd: Any) -> Tuple[Any, ...]:
    return (None, math.nan, pd.NA, pd.NaT)


def _encode_maybe_texts(packer: Packer, pd: Any, items: List[Any]) -> Optional[Dict[str, Any]]:
    kinds = set(map(type, items))
    if len(items) < _FEW or not kinds <= {str, *map(type, _list_missing(pd))}:
        return None
    if kinds == {str}:
        return {"texts": encode_texts(packer, items)}
    stand_ins = {id(pd.NA): -3, id(pd.NaT): -4, id(None): -1}
    lengths = array.array("i")
    for item in items:
        if type(item) is str:
            lengths.append(len(item))
        elif type(item) is not float:
            lengths.append(stand_ins[id(item)])
        elif item != item:
            lengths.append(-2)
        else:
            return None
    texts = [item for item in items if type(item) is str]
    return {"texts": encode_lengths(packer, lengths, texts)}


def _encode_zoned(packer: Packer, pd: Any, np: Any, column: Any) -> Dict[str, Any]:
    zone = scalars.encode_zone(packer, column.dtype.tz)
    return {"zoned": [column.dtype.unit, zone, packer.buffer(arrays.get_memory(np, column.asi8))]}


def _encode_categories(packer: Packer, pd: Any, np: Any, column: Any) -> Dict[str, Any]:
    packer.enter(Note(".categories"))
    categories = packer.encode(column.categories)
    packer.leave()
    codes = np.asarray(column.codes)
    data = packer.buffer(arrays.get_memory(np, codes))
    return {"categories": [categories, bool(column.ordered), codes.dtype.str, data]}


def _encode_masked(packer: Packer, pd: Any, np: Any, column: Any) -> Dict[str, Any]:
    parts = [packer.buffer(arrays.get_memory(np, part)) for part in (column._data, column._mask)]
    return {"masked": [column._data.dtype.str, *parts]}


def _encode_strings(packer: Packer, pd: Any, np: Any, column: Any) -> Dict[str, Any]:
    storage = column.dtype.storage
    na = "NA" if getattr(column.dtype, "na_value", pd.NA) is pd.NA else "nan"
    # If pandas chose the storage itself, the other side chooses again.
    own = storage == _string_dtype(pd, np, "auto", na).storage
    kind = ["auto" if own else storage, na]
    if storage != "python" and len(column) >= _FEW:
        return {"strings": [*kind, _encode_arrow(packer, pd, np, column)["arrow"]]}
    return {"strings": [*kind, _encode_objects(packer, pd, column.to_numpy(dtype=object))]}


def _string_dtype(pd: Any, np: Any, storage: str, na: str) -> Any:
    given = () if storage == "auto" else (storage,)
    return pd.StringDtype(*given) if na == "NA" else pd.StringDtype(*given, na_value=np.nan)


def _encode_periods(packer: Packer, pd: Any, np: Any, column: Any) -> Dict[str, Any]:
    freq = encode_period(packer, column.freqstr)
    return {"periods": [freq, packer.buffer(arrays.get_memory(np, column.asi8))]}


def _encode_intervals(packer: Packer, pd: Any, np: Any, column: Any) -> Dict[str, Any]:
    bounds = [packer.encode(side) for side in (column.left, column.right)]
    return {"intervals": [*bounds, column.closed]}


def _encode_arrow(packer: Packer, pd: Any, np: Any, column: Any) -> Dict[str, Any]:
    pa = sys.modules["pyarrow"]
    return {"arrow": arrow.encode_chunks(packer, pa, column.__arrow_array__())}


_EXTENSIONS: Dict[str, Callable[[Packer, Any, Any, Any], Dict[str, Any]]] = {
    "DatetimeTZDtype": _encode_zoned,
    "CategoricalDtype": _encode_categories,
    "StringDtype": _encode_strings,
    "PeriodDtype": _encode_periods,
    "IntervalDtype": _encode_intervals,
    "ArrowDtype": _encode_arrow,
    "BooleanDtype": _encode_masked,
    "Float32Dtype": _encode_masked,
    "Float64Dtype": _encode_masked,
    **{f"{sign}Int{size}Dtype": _encode_masked for sign in ("", "U") for size in (8, 16, 32, 64)},
}


# --- decode ---------------------------------------------------------------------------------------


def decode_column(unpacker: Unpacker, pd: Any, spec: Any) -> Any:
    """An array of one dimension, of numpy or of pandas."""
    unpacker.count()
    np = unpacker.imported("numpy", "column of numbers")
    ((tag, body),) = spec.items()
    if tag == "texts":
        return np.array(decode_texts(unpacker, body, _list_missing(pd)), dtype=object)
    if tag == "objects":
        return _make_objects(np, check_type(list, unpacker.decode(body)))
    if tag == "arrow":
        pa = unpacker.imported("pyarrow", "column of Arrow")
        return pd.arrays.ArrowExtensionArray(arrow.decode_chunks(unpacker, pa, body))
    if tag == "numbers":
        return _decode_plain(unpacker, np, _NUMBERS, *body)
    return _DECODERS[tag](unpacker, pd, np, *body)


def _make_objects(np: Any, items: List[Any]) -> Any:
    made = np.empty(len(items), dtype=object)
    for index, item in enumerate(items):  # one by one: numpy would convert nested lists
        made[index] = item
    return made


def _decode_plain(
    unpacker: Unpacker, np: Any, allowed: "re.Pattern[str]", dtype: Any, data: Any
) -> Any:
    if not allowed.fullmatch(dtype):
        raise ValueError("not a dtype of a column")
    return arrays.decode_flat(unpacker, np, np.dtype(dtype), data)


def _decode_zoned(unpacker: Unpacker, pd: Any, np: Any, unit: Any, zone: Any, data: Any) -> Any:
    if unit not in _UNITS or zone is None:
        raise ValueError("not a time with a zone")
    dtype = pd.DatetimeTZDtype(unit, scalars.decode_zone_of_pandas(unpacker, pd, zone))
    return pd.array(_decode_plain(unpacker, np, _CODES, "<i8", data), dtype=dtype, copy=False)


def decode_codes(unpacker: Unpacker, np: Any, dtype: Any, data: Any, count: int) -> Any:
    """Places in a list of `count` items; -1 for none."""
    codes = _decode_plain(unpacker, np, _CODES, dtype, data)
    if len(codes) and not (codes.min() >= -1 and codes.max() < count):
        raise ValueError("a code out of range")
    return codes


def _decode_categories(
    unpacker: Unpacker, pd: Any, np: Any, categories: Any, ordered: Any, dtype: Any, data: Any
) -> Any:
    names = _decode_index(unpacker, pd, categories)
    codes = decode_codes(unpacker, np, dtype, data, len(names))
    check_distinct(unpacker, pd, names)
    kind = pd.CategoricalDtype(names, ordered=check_type(bool, ordered))
    return pd.Categorical.from_codes(codes, dtype=kind)


def _decode_masked(unpacker: Unpacker, pd: Any, np: Any, dtype: Any, data: Any, mask: Any) -> Any:
    numbers = _decode_plain(unpacker, np, _MASKED, dtype, data)
    missing = _decode_plain(unpacker, np, _MASKED, "|b1", mask)
    kinds = {"b": "BooleanArray", "f": "FloatingArray", "i": "IntegerArray", "u": "IntegerArray"}
    return getattr(pd.arrays, kinds[numbers.dtype.kind])(numbers, missing)


def _decode_strings(unpacker: Unpacker, pd: Any, np: Any, storage: Any, na: Any, data: Any) -> Any:
    if storage not in ("auto", "python", "pyarrow") or na not in ("NA", "nan"):
        raise ValueError("not a dtype of strings")
    try:
        pa = unpacker.imported("pyarrow", "column of strings")
    except CannotTravel:
        pa, storage = None, "python"  # as pandas itself does
    if "type" not in data:
        texts = decode_column(unpacker, pd, data)
        if texts.dtype != object or not all(map(_is_text(pd), texts)):
            raise TypeError("not strings")  # pandas would convert anything
    elif pa is None:
        texts = np.array(arrow.decode_texts(unpacker, data), dtype=object)
    else:
        texts = arrow.decode_chunks(unpacker, pa, data)
        if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
            raise TypeError("not strings")
    return _make_strings(pd, np, texts, storage, na)


def _is_text(pd: Any) -> Callable[[Any], bool]:
    missing = (type(None), type(pd.NA))
    return lambda item: type(item) is str or type(item) in missing or item != item


def _make_strings(pd: Any, np: Any, texts: Any, storage: str, na: str) -> Any:
    try:
        dtype = _string_dtype(pd, np, storage, na)
    except TypeError:
        dtype = None  # a pandas whose strings are objects
    if not isinstance(texts, np.ndarray) and (dtype is None or dtype.storage == "python"):
        texts = np.array(texts.to_pylist(), dtype=object)
    return texts if dtype is None else pd.array(texts, dtype=dtype, copy=False)


def _decode_periods(unpacker: Unpacker, pd: Any, np: Any, freq: Any, data: Any) -> Any:
    ordinals = _decode_plain(unpacker, np, _CODES, "<i8", data)
    return pd.arrays.PeriodArray(ordinals, dtype=pd.PeriodDtype(decode_period(freq)))


def decode_period(text: Any) -> str:
    if type(text) is not str or not _PERIOD.fullmatch(text):
        raise ValueError("not a frequency of periods")
    return text


def _decode_intervals(
    unpacker: Unpacker, pd: Any, np: Any, left: Any, right: Any, closed: Any
) -> Any:
    if closed not in _CLOSED:
        raise ValueError("neither open nor closed")
    bounds = [_decode_index(unpacker, pd, side) for side in (left, right)]
    return pd.arrays.IntervalArray.from_arrays(*bounds, closed=closed)


def _decode_index(unpacker: Unpacker, pd: Any, spec: Any) -> Any:
    made = unpacker.decode(spec)
    if not isinstance(made, pd.Index) or isinstance(made, pd.MultiIndex):
        raise TypeError("not an index")
    return made


_DECODERS: Dict[str, Callable[..., Any]] = {
    "zoned": _decode_zoned,
    "categories": _decode_categories,
    "masked": _decode_masked,
    "strings": _decode_strings,
    "periods": _decode_periods,
    "intervals": _decode_intervals,
}
