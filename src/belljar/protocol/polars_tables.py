"""polars frames and series, as Arrow arrays."""

import contextlib
import importlib
import sys
from typing import Any, Dict, Iterator, Optional, Union

from . import arrow
from .parcel import Packer, Unpacker, check_type

_MAX_NESTING = 16
_FOREIGN = ("string", "binary", "fixed_size_binary", "interval")


def encode_polars(packer: Packer, value: Any) -> Optional[Dict[str, Any]]:
    pl = sys.modules.get("polars")
    if pl is None or not hasattr(pl, "DataFrame"):
        return None
    kind = type(value)
    if issubclass(kind, pl.LazyFrame):
        raise packer.refusal("is a polars LazyFrame; make it a DataFrame first, .collect()")
    if issubclass(kind, pl.Series):
        return {"polars": {"series": _encode_series(packer, pl, value)}}
    if not issubclass(kind, pl.DataFrame):
        return None
    columns = packer.walk_columns(value.get_columns(), lambda column: column.name)
    return {"polars": {"columns": [_encode_series(packer, pl, column) for column in columns]}}


def _encode_series(packer: Packer, pl: Any, series: Any) -> Dict[str, Any]:
    try:
        pa = importlib.import_module("pyarrow")
    except ImportError:
        raise packer.refusal("is of polars, which needs pyarrow installed beside it") from None
    dtype = _encode_dtype(packer, pl, series.dtype, _MAX_NESTING)
    # Without its name, which Arrow would cut at a zero byte.
    with _no_panic(packer):
        array = series.alias("").to_arrow()
    encoded = arrow.encode_chunks(packer, pa, array)
    return {"name": packer.encode(series.name), "dtype": dtype, **encoded}


@contextlib.contextmanager
def _no_panic(walk: Union[Packer, Unpacker]) -> Iterator[None]:
    """polars raises PanicException, which is not an Exception, for ordinary errors."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise walk.refusal("cannot be handled by polars") from None


def _encode_dtype(packer: Packer, pl: Any, dtype: Any, nesting: int) -> Any:
    """The parts of the dtype that Arrow's type does not have; None if it has all."""
    refusal = packer.refusal(f"has the polars dtype {dtype}, which cannot travel; cast it first")
    large = [getattr(pl, name) for name in ("Int128", "UInt128") if hasattr(pl, name)]
    if nesting == 0 or dtype in (pl.Object, *large):
        raise refusal
    if isinstance(dtype, pl.Enum):
        return {"enum": packer.encode(dtype.categories.to_list())}
    if isinstance(dtype, (pl.List, pl.Array)):
        inner = _encode_dtype(packer, pl, dtype.inner, nesting - 1)
        if inner is not None and isinstance(dtype, pl.Array):
            raise refusal  # polars has no cast that makes an Array of Enums
        return None if inner is None else {"list": inner}
    if isinstance(dtype, pl.Struct):
        inner = [_encode_dtype(packer, pl, field.dtype, nesting - 1) for field in dtype.fields]
        return {"struct": inner} if any(inner) else None
    return None


# --- decode ---------------------------------------------------------------------------------------


def _decode_polars(unpacker: Unpacker, body: Any) -> Any:
    pl = unpacker.imported("polars", "polars table")
    pa = unpacker.imported("pyarrow", "polars table, which travels as Arrow")
    with _no_panic(unpacker):
        if "series" in body:
            return _decode_series(unpacker, pl, pa, body["series"])
        columns = unpacker.walk_columns(body["columns"], lambda column: column["name"])
        return pl.DataFrame([_decode_series(unpacker, pl, pa, column) for column in columns])


def _decode_series(unpacker: Unpacker, pl: Any, pa: Any, body: Any) -> Any:
    array = arrow.decode_chunks(unpacker, pa, body)
    _check_type(pa, array.type)
    series = pl.from_arrow(array).alias(check_type(str, unpacker.decode(body["name"])))
    wanted = _decode_dtype(unpacker, pl, body["dtype"], series.dtype)
    return series if wanted == series.dtype else series.cast(wanted)


def _check_type(pa: Any, kind: Any) -> None:
    """Accept only types that polars makes: it would convert others into something larger."""
    types = pa.types
    if types.is_dictionary(kind):
        if not types.is_large_string(kind.value_type):
            raise ValueError("not a type of polars")
    elif types.is_nested(kind):
        if types.is_map(kind) or types.is_list(kind):
            raise ValueError("not a type of polars")
        for index in range(kind.num_fields):
            if "\0" in kind.field(index).name:
                raise ValueError("not a name for polars")
            _check_type(pa, kind.field(index).type)
    elif types.is_decimal(kind):
        if kind.bit_width != 128:
            raise ValueError("not a type of polars")
    elif any(getattr(types, f"is_{name}")(kind) for name in _FOREIGN):
        raise ValueError("not a type of polars")


def _decode_dtype(unpacker: Unpacker, pl: Any, spec: Any, found: Any) -> Any:
    """The dtype that the series had, from the one that Arrow has."""
    if spec is None:
        return found
    ((tag, body),) = spec.items()
    if tag == "enum":
        categories = unpacker.decode(body)
        if not all(type(name) is str for name in categories):
            raise TypeError("not categories")
        return pl.Enum(categories)
    if tag == "list":
        return pl.List(_decode_dtype(unpacker, pl, body, found.inner))
    if tag == "struct":
        if len(body) != len(found.fields):
            raise ValueError("other fields")
        pairs = zip(body, found.fields)
        return pl.Struct(
            [pl.Field(f.name, _decode_dtype(unpacker, pl, inner, f.dtype)) for inner, f in pairs]
        )
    raise ValueError("unknown dtype")


DECODERS = {"polars": _decode_polars}
