"""Values as data: JSON for what is small, raw buffers for what is large. No code, no pickle.

    None, bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, range,
    datetime, date, time, timedelta, Decimal, UUID, Path, PIL images,
    numpy scalars and arrays, pandas and polars tables, pyarrow tables,
    and objects of classes that the reader has (objects.py)

Both sides use this module. A hostile guest may have written what it decodes: `decode` returns a
value of the types above or raises CannotTravel. It takes a small multiple of the memory of the
bytes, and no more time than sorting them. Hash tables of keys that can be made to collide are made
for sets and dicts only, with a limit to their time (keyed.py); labels of tables are sorted instead
(scalars.py). The caller may still make one: the first `.loc` on an index, `.unique()` of a column
(even of texts, because pandas has its own hashes) or a set of the numbers in a list may take
quadratic time.

JSON numbers, strings and lists stand for themselves; anything else is an object with one key, the
tag.
"""

import array
import base64
import collections
import decimal
import enum
import json
import re
import sys
import uuid
from typing import Any, Callable, Dict, List, Optional

from . import arrays, arrow, images, keyed, objects, polars_tables, scalars, tables
from .parcel import (
    JSON,
    MAX_BYTES,
    MAX_DEPTH,
    MAX_TEXT,
    STRICT,
    Buffer,
    CannotTravel,
    Describe,
    Encoded,
    Packer,
    Reception,
    Unpacker,
    check_type,
    open_parcel,
)

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "MAX_TEXT",
    "STRICT",
    "CannotTravel",
    "Encoded",
    "NotPlain",
    "Reception",
    "decode",
    "encode",
    "needs_thread",
]

NotPlain = CannotTravel

_LIBRARIES = (
    (scalars.encode_time, scalars.DECODERS),
    (arrays.encode_numpy, arrays.DECODERS),
    (tables.encode_table, tables.DECODERS),
    (arrow.encode_arrow, arrow.DECODERS),
    (polars_tables.encode_polars, polars_tables.DECODERS),
    (images.encode_image, images.DECODERS),
    (objects.encode_object, objects.DECODERS),
)

# Python does not convert long decimal texts; hexadecimal has no limit and takes linear time.
_DECIMAL_BITS = 64
_LONG_LIST = 64
_LONG_BYTES = 1024
_LONG_TEXT = 4096
_SHORT_WORK = 64 * 1024
_SHORT_TABLE = 8 * 1024  # bytes, of what libraries decode: a few milliseconds at most
_FEW_TAGS = 8
_SCALARS = frozenset((bool, int, float, type(None)))  # that JSON has
_SCALAR_SIZE = 64  # bytes that a parcel of one scalar takes at most
_UUID_NUMBER = uuid.UUID.__dict__["int"]


def encode(
    value: Any,
    limit: int = MAX_BYTES,
    text_limit: int = MAX_TEXT,
    describe: Optional[Describe] = None,
) -> Encoded:
    """With `describe`, objects that cannot travel become plain data, or the text that it gives."""
    kind = type(value)
    is_short = kind is not int or value.bit_length() <= _DECIMAL_BITS
    if kind in _SCALARS and is_short and min(limit, text_limit) > _SCALAR_SIZE:
        return Encoded(JSON.encode(value).encode("ascii"), [])
    packer = Packer(_encode_value, limit, text_limit, describe)
    try:
        return packer.seal(_encode_value(packer, value))
    except CannotTravel:
        raise
    except Exception as error:  # of a library, or of an object that pretends to be another
        raise packer.refusal(f"cannot be read ({_describe(error)})") from None


def decode(
    blob: Buffer,
    limit: int = MAX_BYTES,
    text_limit: int = MAX_TEXT,
    reception: Reception = STRICT,
) -> Any:
    """Arrays use the memory of `blob` if it is writable; otherwise they are copies."""
    unpacker = None
    try:
        view = memoryview(blob).cast("B")
        if len(view) > limit:
            raise CannotTravel(f"value takes {len(view)} bytes, more than {limit}")
        text, spans = open_parcel(view, text_limit)
        skeleton = json.loads(str(text, "ascii"))
        if not spans and type(skeleton) in _SCALARS:
            return skeleton
        unpacker = Unpacker(_decode_value, _encode_value, view, spans, reception)
        value = _decode_value(unpacker, skeleton)
        unpacker.finish()
        return value
    except CannotTravel:
        raise
    except Exception as error:
        place = unpacker.where() if unpacker else "value"
        raise CannotTravel(f"{place} is malformed ({_describe(error)})") from None


def needs_thread(blob: Buffer) -> bool:
    """True if decoding may take long or import a library."""
    view = memoryview(blob).cast("B")
    if len(view) > _SHORT_WORK:
        return True
    if b"{" not in bytes(view):
        return False  # without a tag
    try:
        text = bytes(open_parcel(view, MAX_TEXT)[0])
    except (ValueError, CannotTravel):
        return False  # malformed: decoding fails at once
    # An escaped letter could hide a tag.
    if b"\\" in text:
        return True
    tags = _TAG.findall(text)
    if len(view) > _SHORT_TABLE and not _KEYED_TAGS.isdisjoint(tags):
        return True
    found = [_LIBRARY_TAGS[tag] for tag in tags if tag in _LIBRARY_TAGS]
    few = len(view) <= _SHORT_TABLE and len(found) <= _FEW_TAGS
    if few and all(_IMPORTED[library] <= sys.modules.keys() for library in found):
        return False
    return bool(found)


def _describe(error: Exception) -> str:
    text = str(error).split("\n")[0][:200]
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__


# --- encode -------------------------------------------------------------------------------------


def _encode_value(packer: Packer, value: Any) -> Any:
    packer.spend(1)
    if value is None or value is True or value is False:
        return value
    make = _ENCODERS.get(type(value))
    if make is not None:
        return make(packer, value)
    for encode_library, _ in _LIBRARIES:
        encoded = encode_library(packer, value)
        if encoded is not None:
            return encoded
    for base, make in _ENCODERS.items():
        if issubclass(type(value), base):
            return make(packer, value)  # by methods of `base`: no code of the subclass runs
    reason = _describe_type(value)
    softened = objects.soften(packer, value, reason)
    if softened is None:
        raise packer.refusal(reason)
    return softened


def _encode_int(packer: Packer, value: Any) -> Any:
    plain = int.__int__(value)
    if plain.bit_length() <= _DECIMAL_BITS:
        return plain
    packer.spend(plain.bit_length() // 4)
    return {"int": hex(plain)}


def _encode_str(packer: Packer, value: Any) -> Any:
    plain = str.__str__(value)
    if len(plain) < _LONG_TEXT:
        packer.spend(len(plain))
        if _is_json(plain):
            return plain
        raw = plain.encode("utf-8", "surrogatepass")
        return {"str": base64.b64encode(raw).decode("ascii")}
    return {"str": packer.buffer(plain.encode("utf-8", "surrogatepass"))}


def _is_json(text: str) -> bool:
    """False for lone surrogates, which travel as bytes: JSON would join two neighbours."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _encode_bytes(packer: Packer, value: Any) -> Any:
    base = bytes if issubclass(type(value), bytes) else bytearray
    plain = value if type(value) is base else base.__getitem__(value, slice(None))
    if len(plain) >= _LONG_BYTES:
        return {"bytes": packer.buffer(plain)}
    return {"bytes": base64.b64encode(plain).decode("ascii")}


def _encode_list(packer: Packer, value: Any) -> Any:
    plain = value if type(value) is list else list.copy(value)
    if len(plain) >= _LONG_LIST:
        packed = _pack_list(packer, plain)
        if packed is not None:
            return packed
    return _encode_items(packer, plain)


def _encode_items(packer: Packer, items: List[Any]) -> List[Any]:
    packer.enter()
    encoded = []
    for index, item in enumerate(items):
        packer.at(index)
        encoded.append(_encode_value(packer, item))
    packer.leave()
    return encoded


def _pack_list(packer: Packer, value: List[Any]) -> Optional[Dict[str, Any]]:
    """A buffer for many items of one type; None if types differ."""
    kinds = set(map(type, value))
    if kinds == {float}:
        return {"floats": packer.buffer(array.array("d", value))}
    if kinds == {str}:
        return {"strs": scalars.encode_texts(packer, value)}
    if kinds == {int}:
        try:
            return {"ints": packer.buffer(array.array("q", value))}
        except OverflowError:
            return None
    return None


def _encode_dict(packer: Packer, value: Any) -> Any:
    # An OrderedDict keeps its order apart from dict.
    ordered = issubclass(type(value), collections.OrderedDict)
    items = collections.OrderedDict.items(value) if ordered else dict.items(value)
    encoded: Dict[str, Any] = {}
    plain = True
    packer.enter()
    for key, item in items:
        if type(key) is not str:
            if not issubclass(type(key), str) or issubclass(type(key), enum.Enum):
                packer.leave()
                return keyed.encode_map(packer, list(items), list(encoded.values()))
            key = str.__str__(key)
        packer.at(key)
        packer.spend(len(key))
        plain = plain and _is_json(key)
        encoded[key] = _encode_value(packer, item)
    packer.leave()
    if plain:
        return {"dict": encoded}
    return {"map": [[_encode_str(packer, key) for key in encoded], list(encoded.values())]}


def _encode_complex(packer: Packer, value: Any) -> Any:
    return {"complex": [complex.real.__get__(value), complex.imag.__get__(value)]}


def _encode_decimal(packer: Packer, value: Any) -> Any:
    text = decimal.Decimal.__str__(value)
    packer.spend(len(text))
    return {"decimal": text}


# Subclasses are looked up in this order.
_ENCODERS: Dict[type, Callable[[Packer, Any], Any]] = {
    int: _encode_int,
    float: lambda packer, value: float.__float__(value),
    str: _encode_str,
    list: _encode_list,
    dict: _encode_dict,
    tuple: lambda packer, value: {"tuple": _encode_list(packer, list(tuple.__iter__(value)))},
    bytes: _encode_bytes,
    bytearray: _encode_bytes,
    complex: _encode_complex,
    decimal.Decimal: _encode_decimal,
    uuid.UUID: lambda packer, value: {"uuid": f"{_UUID_NUMBER.__get__(value):032x}"},
    set: keyed.encode_set,
    frozenset: keyed.encode_set,
    range: keyed.encode_range,
}


def _describe_type(value: Any) -> str:
    kind = type(value)
    name = kind.__qualname__
    said = f"is a {name if kind.__module__ == 'builtins' else f'{kind.__module__}.{name}'}"
    if hasattr(kind, "__next__"):
        return f"{said}; make it a list first, list(...)"
    if issubclass(kind, (memoryview, array.array)):
        return f"{said}; make it bytes first, bytes(...)"
    for method in ("to_numpy", "numpy", "toarray"):
        if callable(getattr(kind, method, None)):
            return f"{said}; make it an array first, .{method}()"
    return said


# --- decode ---------------------------------------------------------------------------------------


def _decode_value(unpacker: Unpacker, data: Any) -> Any:
    if type(data) is list:
        unpacker.enter()
        for index, item in enumerate(data):
            if type(item) is list or type(item) is dict:
                unpacker.at(index)
                data[index] = _decode_value(unpacker, item)  # in place: half the memory
        unpacker.leave()
        return data
    if type(data) is not dict:
        return data
    ((tag, body),) = data.items()
    return _DECODERS[tag](unpacker, body)


def _decode_dict(unpacker: Unpacker, body: Any) -> Any:
    unpacker.enter()
    for key, item in check_type(dict, body).items():
        if type(item) is list or type(item) is dict:
            unpacker.at(key)
            body[key] = _decode_value(unpacker, item)
    unpacker.leave()
    return body


def _decode_bytes(unpacker: Unpacker, body: Any) -> bytes:
    if type(body) is str:
        return base64.b64decode(body, validate=True)
    return bytes(unpacker.buffer(body))


def _decode_str(unpacker: Unpacker, body: Any) -> str:
    return str(_decode_bytes(unpacker, body), "utf-8", "surrogatepass")


def _decode_complex(unpacker: Unpacker, body: Any) -> complex:
    real, imaginary = check_type(list, body)
    return complex(check_type(float, real), check_type(float, imaginary))


def _decode_decimal(unpacker: Unpacker, body: Any) -> decimal.Decimal:
    # In a new context: that of the caller may trap or round.
    return decimal.Decimal(check_type(str, body), decimal.Context(traps=[decimal.InvalidOperation]))


_DECODERS: Dict[str, Callable[[Unpacker, Any], Any]] = {
    "int": lambda unpacker, body: int(check_type(str, body), 16),
    "str": _decode_str,
    "bytes": _decode_bytes,
    "tuple": lambda unpacker, body: tuple(check_type(list, _decode_value(unpacker, body))),
    "dict": _decode_dict,
    **keyed.DECODERS,
    "floats": lambda unpacker, body: unpacker.buffer(body).cast("d").tolist(),
    "ints": lambda unpacker, body: unpacker.buffer(body).cast("q").tolist(),
    "strs": scalars.decode_texts,
    "complex": _decode_complex,
    "decimal": _decode_decimal,
    "uuid": lambda unpacker, body: uuid.UUID(int=int(check_type(str, body), 16)),
}
for _, _decoders in _LIBRARIES:
    _DECODERS.update(_decoders)
_IMPORTED = {  # what each would import
    arrays: frozenset(("numpy",)),
    tables: frozenset(("numpy", "pandas", "pyarrow", "pyarrow.compute")),
    arrow: frozenset(("pyarrow",)),
    polars_tables: frozenset(("polars", "pyarrow")),
    images: frozenset(("PIL.Image",)),
}
_LIBRARY_TAGS = {tag.encode(): library for library in _IMPORTED for tag in library.DECODERS}
_KEYED_TAGS = frozenset((b"set", b"frozenset", b"map"))
_TAG = re.compile(rb'\{\s*"(\w+)"\s*:')  # the first key of an object: a tag is the only one
