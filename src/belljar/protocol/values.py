"""Values as data: JSON for what is small, raw buffers for what is large. No code, no pickle.

    None, bool, int, float, complex, str, bytes, list, tuple, dict with str keys,
    datetime, date, time, timedelta, Decimal, UUID,
    numpy scalars and arrays, pandas and polars tables, pyarrow tables

Both sides use this module. What it reads, a hostile guest may have written: `decode` gives a
value made of the types above or raises CannotTravel, and takes a small multiple of the memory
that the bytes take, and a time that grows with them as that of sorting does: no hash table is
made of keys that a stranger can make collide, only of texts and bytes (see distinct.py). What
remains is the caller's: his first `.loc` on an index, `.unique()` of a column (even of texts,
for pandas has hashes of its own) or a set of the numbers in a list makes such a table, and may
take a time that is quadratic in its length.

Bare JSON numbers, strings and lists stand for themselves; all else is an object with one key,
the tag.
"""

import array
import base64
import collections
import decimal
import enum
import uuid
from typing import Any, Callable, Dict, List, Optional

from . import arrays, arrow, moments, polars_tables, tables, texts
from .parcel import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_TEXT,
    Buffer,
    CannotTravel,
    Encoded,
    Packer,
    Unpacker,
    text_of,
)

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "MAX_TEXT",
    "CannotTravel",
    "Encoded",
    "NotPlain",
    "decode",
    "encode",
    "needs_thread",
]

NotPlain = CannotTravel

_LIBRARIES = (moments, arrays, tables, arrow, polars_tables)

# Python refuses to convert longer decimal texts; hexadecimal has no such limit and is linear.
_DECIMAL_BITS = 64
_LONG_LIST = 64
_LONG_BYTES = 1024
_LONG_TEXT = 4096
_SHORT_WORK = 64 * 1024
_UUID_NUMBER = uuid.UUID.__dict__["int"]


def encode(value: Any, limit: int = MAX_BYTES, text_limit: int = MAX_TEXT) -> Encoded:
    packer = Packer(_lower, limit, text_limit)
    try:
        return packer.seal(packer.lower(value))
    except CannotTravel:
        raise
    except Exception as error:  # of a library, of an object that is not what it seems
        raise packer.refusal(f"cannot be read ({_words(error)})") from None


def decode(blob: Buffer, limit: int = MAX_BYTES, text_limit: int = MAX_TEXT) -> Any:
    """Arrays lie in `blob` itself if it can be written to; they are copies if it cannot."""
    unpacker = None
    try:
        unpacker = Unpacker(_raise_up, _lower, blob, limit, text_limit)
        value = unpacker.raise_up(unpacker.skeleton)
        unpacker.finish()
        return value
    except CannotTravel:
        raise
    except Exception as error:
        place = unpacker.where() if unpacker else "value"
        raise CannotTravel(f"{place} is malformed ({_words(error)})") from None


def needs_thread(blob: Buffer) -> bool:
    """Whether decoding may take long or import a library; a look at the text tells."""
    if memoryview(blob).nbytes > _SHORT_WORK:
        return True
    text = bytes(text_of(blob))
    # An escaped letter could hide a tag.
    return b"\\" in text or any(b'"%s":' % tag.encode() in text for tag in _LIBRARY_TAGS)


def _words(error: Exception) -> str:
    text = str(error).split("\n")[0][:200]
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__


# --- down -------------------------------------------------------------------------------------


def _lower(packer: Packer, value: Any) -> Any:
    packer.spend(1)
    if value is None or value is True or value is False:
        return value
    make = _LOWER.get(type(value))
    if make is not None:
        return make(packer, value)
    for module in _LIBRARIES:
        lowered = module.lower(packer, value)
        if lowered is not None:
            return lowered
    for base, make in _LOWER.items():
        if issubclass(type(value), base):
            return make(packer, value)  # through methods of `base`: no foreign code runs
    raise packer.refusal(_what(value))


def _lower_int(packer: Packer, value: Any) -> Any:
    plain = int.__int__(value)
    if plain.bit_length() <= _DECIMAL_BITS:
        return plain
    packer.spend(plain.bit_length() // 4)
    return {"int": hex(plain)}


def _lower_str(packer: Packer, value: Any) -> Any:
    plain = str.__str__(value)
    if len(plain) < _LONG_TEXT:
        packer.spend(len(plain))
        if _is_json(plain):
            return plain
        raw = plain.encode("utf-8", "surrogatepass")
        return {"str": base64.b64encode(raw).decode("ascii")}
    return {"str": packer.buffer(plain.encode("utf-8", "surrogatepass"))}


def _is_json(text: str) -> bool:
    """JSON joins two lone surrogates that follow each other, so those travel as bytes."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _lower_bytes(packer: Packer, value: Any) -> Any:
    base = bytes if issubclass(type(value), bytes) else bytearray
    plain = value if type(value) is base else base.__getitem__(value, slice(None))
    if len(plain) >= _LONG_BYTES:
        return {"bytes": packer.buffer(plain)}
    return {"bytes": base64.b64encode(plain).decode("ascii")}


def _lower_list(packer: Packer, value: Any) -> Any:
    plain = value if type(value) is list else list.copy(value)
    if len(plain) >= _LONG_LIST:
        packed = _pack_list(packer, plain)
        if packed is not None:
            return packed
    return _lower_items(packer, plain)


def _lower_tuple(packer: Packer, value: Any) -> Any:
    return {"tuple": _lower_list(packer, list(tuple.__iter__(value)))}


def _lower_items(packer: Packer, items: List[Any]) -> List[Any]:
    packer.enter()
    lowered = []
    for index, item in enumerate(items):
        packer.at(index)
        lowered.append(_lower(packer, item))
    packer.leave()
    return lowered


def _pack_list(packer: Packer, value: List[Any]) -> Optional[Dict[str, Any]]:
    """A buffer for many items of one type; None if they are not."""
    kinds = set(map(type, value))
    if kinds == {float}:
        return {"floats": packer.buffer(array.array("d", value))}
    if kinds == {str}:
        return {"strs": texts.lower_texts(packer, value)}
    if kinds == {int}:
        try:
            return {"ints": packer.buffer(array.array("q", value))}
        except OverflowError:
            return None
    return None


def _lower_dict(packer: Packer, value: Any) -> Any:
    # The order of an OrderedDict is its own.
    ordered = issubclass(type(value), collections.OrderedDict)
    items = collections.OrderedDict.items(value) if ordered else dict.items(value)
    lowered: Dict[str, Any] = {}
    plain = True
    packer.enter()
    for key, item in items:
        if not issubclass(type(key), str):
            packer.leave()
            raise packer.refusal(
                f"has a key of type {type(key).__name__}; only str can travel: "
                "make it a list of pairs, list(value.items())"
            )
        key = str.__str__(key)
        packer.at(key)
        packer.spend(len(key))
        plain = plain and _is_json(key)
        lowered[key] = _lower(packer, item)
    packer.leave()
    if plain:
        return {"dict": lowered}
    return {"items": [[_lower_str(packer, key), item] for key, item in lowered.items()]}


def _lower_complex(packer: Packer, value: Any) -> Any:
    return {"complex": [complex.real.__get__(value), complex.imag.__get__(value)]}


def _lower_decimal(packer: Packer, value: Any) -> Any:
    text = decimal.Decimal.__str__(value)
    packer.spend(len(text))
    return {"decimal": text}


# Subclasses are looked up in this order.
_LOWER: Dict[type, Callable[[Packer, Any], Any]] = {
    int: _lower_int,
    float: lambda packer, value: float.__float__(value),
    str: _lower_str,
    list: _lower_list,
    dict: _lower_dict,
    tuple: _lower_tuple,
    bytes: _lower_bytes,
    bytearray: _lower_bytes,
    complex: _lower_complex,
    decimal.Decimal: _lower_decimal,
    uuid.UUID: lambda packer, value: {"uuid": f"{_UUID_NUMBER.__get__(value):032x}"},
}


def _what(value: Any) -> str:
    kind = type(value)
    name = kind.__qualname__
    said = f"is a {name if kind.__module__ == 'builtins' else f'{kind.__module__}.{name}'}"
    if issubclass(kind, (set, frozenset, range)) or hasattr(kind, "__next__"):
        return f"{said}; make it a list first, list(...)"
    if issubclass(kind, enum.Enum):
        return f"{said}; send its .value"
    if hasattr(kind, "__dataclass_fields__"):
        return f"{said}; make it a dict first, dataclasses.asdict(...)"
    if issubclass(kind, (memoryview, array.array)):
        return f"{said}; make it bytes first, bytes(...)"
    for method in ("to_numpy", "numpy", "toarray"):
        if callable(getattr(kind, method, None)):
            return f"{said}; make it an array first, .{method}()"
    return said


# --- up ---------------------------------------------------------------------------------------


def _raise_up(unpacker: Unpacker, data: Any) -> Any:
    if type(data) is list:
        unpacker.enter()
        for index, item in enumerate(data):
            if type(item) is list or type(item) is dict:
                unpacker.at(index)
                data[index] = _raise_up(unpacker, item)  # in place: half the memory
        unpacker.leave()
        return data
    if type(data) is not dict:
        return data
    ((tag, body),) = data.items()
    return _RAISE[tag](unpacker, body)


def _raise_tuple(unpacker: Unpacker, body: Any) -> Any:
    return tuple(_checked(_raise_up(unpacker, body), list))


def _raise_dict(unpacker: Unpacker, body: Any) -> Any:
    unpacker.enter()
    for key, item in _checked(body, dict).items():
        if type(item) is list or type(item) is dict:
            unpacker.at(key)
            body[key] = _raise_up(unpacker, item)
    unpacker.leave()
    return body


def _raise_items(unpacker: Unpacker, body: Any) -> Any:
    unpacker.enter()
    made = {}
    for pair in _checked(body, list):
        key, item = _checked(pair, list)
        key = _checked(_raise_up(unpacker, key), str)
        unpacker.at(key)
        made[key] = _raise_up(unpacker, item)
    unpacker.leave()
    return made


def _raise_bytes(unpacker: Unpacker, body: Any) -> bytes:
    if type(body) is str:
        return base64.b64decode(body, validate=True)
    return bytes(unpacker.buffer(body))


def _raise_str(unpacker: Unpacker, body: Any) -> str:
    return str(_raise_bytes(unpacker, body), "utf-8", "surrogatepass")


def _raise_texts(unpacker: Unpacker, body: Any) -> List[Any]:
    return texts.raise_texts(unpacker, body)


def _raise_complex(unpacker: Unpacker, body: Any) -> complex:
    real, imaginary = _checked(body, list)
    return complex(_checked(real, float), _checked(imaginary, float))


def _raise_uuid(unpacker: Unpacker, body: Any) -> uuid.UUID:
    return uuid.UUID(int=int(_checked(body, str), 16))


def _raise_decimal(unpacker: Unpacker, body: Any) -> decimal.Decimal:
    # A context of its own: the caller's may trap or round.
    return decimal.Decimal(_checked(body, str), decimal.Context(traps=[decimal.InvalidOperation]))


_RAISE: Dict[str, Callable[[Unpacker, Any], Any]] = {
    "int": lambda unpacker, body: int(_checked(body, str), 16),
    "str": _raise_str,
    "bytes": _raise_bytes,
    "tuple": _raise_tuple,
    "dict": _raise_dict,
    "items": _raise_items,
    "floats": lambda unpacker, body: unpacker.buffer(body).cast("d").tolist(),
    "ints": lambda unpacker, body: unpacker.buffer(body).cast("q").tolist(),
    "strs": _raise_texts,
    "complex": _raise_complex,
    "decimal": _raise_decimal,
    "uuid": _raise_uuid,
}
for _module in _LIBRARIES:
    _RAISE.update(_module.RAISE)
_LIBRARY_TAGS = tuple(tag for module in _LIBRARIES[1:] for tag in module.RAISE)


def _checked(body: Any, kind: type) -> Any:
    if type(body) is not kind:
        raise TypeError("wrong body")
    return body
