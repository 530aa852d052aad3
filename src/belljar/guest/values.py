"""Plain data as JSON, with tags for what JSON lacks. Nothing here can execute anything.

    None, bool, str, int, float (nan and infinities too), bytes, list, tuple, dict with str keys

`encode` runs in the guest, `decode` on the host, on bytes that a hostile guest may have made.
"""

import base64
import json
from typing import Any, List

MAX_DEPTH = 100
MAX_BYTES = 8 * 1024 * 1024
# Python refuses to convert longer decimal texts; hexadecimal has no such limit and is linear.
_DECIMAL_BITS = 64


class NotPlain(Exception):
    """This value cannot travel as plain data; the message names the path inside it."""


def encode(value: Any, limit: int = MAX_BYTES) -> bytes:
    room = [limit]
    text = json.dumps(_lower(value, "value", MAX_DEPTH, room), ensure_ascii=True).encode("ascii")
    if len(text) > limit:
        raise NotPlain(f"value takes {len(text)} bytes, more than {limit}")
    return text


def decode(data: bytes, limit: int = MAX_BYTES) -> Any:
    """Objects take some thirty times the bytes they are made of: keep the limit small."""
    if len(data) > limit:
        raise NotPlain(f"value takes {len(data)} bytes, more than {limit}")
    try:
        return _raise_up(json.loads(data), MAX_DEPTH + 1)
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise NotPlain(f"malformed value: {type(error).__name__}") from None


def _lower(value: Any, path: str, depth: int, room: List[int]) -> Any:
    """`room` shrinks by at least what each part will take, so that a huge value stops early."""
    if depth < 0:
        raise NotPlain(f"{path} is nested more than {MAX_DEPTH} deep")
    kind = type(value)
    room[0] -= len(value) if kind in (str, bytes, bytearray) else 1
    if room[0] < 0:
        raise NotPlain(f"value is too large (at {path})")
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if value.bit_length() <= _DECIMAL_BITS else {"int": hex(value)}
    if kind is float:
        return value if value - value == 0 else {"float": repr(value)}
    if kind is bytes or kind is bytearray:
        return {"bytes": base64.b64encode(value).decode("ascii")}
    if kind is list or kind is tuple:
        items = [_lower(v, f"{path}[{i}]", depth - 1, room) for i, v in enumerate(value)]
        return {"list" if kind is list else "tuple": items}
    if kind is dict:
        return {"dict": _lower_dict(value, path, depth, room)}
    return _lower(_unwrap(value, path), path, depth - 1, room)


def _lower_dict(value: Any, path: str, depth: int, room: List[int]) -> Any:
    lowered = {}
    for key, item in value.items():
        if type(key) is not str:
            raise NotPlain(f"{path} has a key of type {type(key).__name__}; only str can travel")
        lowered[key] = _lower(item, f"{path}[{key!r}]", depth - 1, room)
    return lowered


def _unwrap(value: Any, path: str) -> Any:
    """A numpy scalar is the number in it; anything else stays where it is."""
    kind = type(value)
    if (
        kind.__module__ == "numpy"
        and getattr(value, "shape", None) == ()
        and hasattr(value, "item")
    ):
        plain = value.item()
        if type(plain) in (bool, int, float, str, bytes):
            return plain
    raise NotPlain(f"{path} is a {kind.__module__}.{kind.__qualname__}")


def _raise_up(data: Any, depth: int) -> Any:
    if depth < 0:
        raise ValueError("too deep")
    if not isinstance(data, dict):
        if isinstance(data, list):
            raise ValueError("a bare list")
        return data
    ((tag, body),) = data.items()
    if tag == "list" or tag == "tuple":
        items = [_raise_up(item, depth - 1) for item in _checked(body, list)]
        return items if tag == "list" else tuple(items)
    if tag == "dict":
        return {key: _raise_up(item, depth - 1) for key, item in _checked(body, dict).items()}
    if tag == "bytes":
        return base64.b64decode(_checked(body, str), validate=True)
    if tag == "int":
        return int(_checked(body, str), 16)
    if tag == "float":
        if body not in ("nan", "inf", "-inf"):
            raise ValueError("not a special float")
        return float(body)
    raise ValueError("unknown tag")


def _checked(body: Any, kind: type) -> Any:
    if type(body) is not kind:
        raise TypeError("wrong body")
    return body
