"""Computes constants that code builds from others, without running any of its code.

Each operation is one of a short list, on texts, bytes and small numbers, and its result is capped.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import html
import operator
import posixpath
import threading
import urllib.parse
from collections.abc import Callable
from typing import Any

LONGEST = 100_000  # characters or bytes of a constant; an element counts as ten
ALL = 5_000_000  # of all constants of a check together
_PLAIN = (str, bytes, int, float, bool, type(None))


class CannotFold(Exception):
    """It is not a constant, or too large."""


_room = threading.local()


def begin() -> None:
    """Set the budget for all constants. Called when a check begins."""
    _room.left = ALL


def _spend(size: int) -> None:
    _room.left -= size
    if _room.left < 0:
        raise CannotFold


def _check_size(value: object) -> Any:
    """The value, if it is small enough. All elements of nested lists count: a few characters of
    code make lists of lists of any size."""
    size, todo = 0, [value]
    while todo:
        each = todo.pop()
        if isinstance(each, (str, bytes)):
            size += len(each)
        elif isinstance(each, int) and not isinstance(each, bool) and each.bit_length() > 1024:
            raise CannotFold
        elif isinstance(each, (list, tuple)):
            size += len(each) * 10
            if size <= LONGEST:
                todo += each
        elif not isinstance(each, _PLAIN):
            raise CannotFold
        if size > LONGEST:
            raise CannotFold
    _spend(size + 10)
    return _lists(value)


def _lists(value: Any) -> Any:
    """Tuples as lists; the size has been checked. No deeper than code is."""
    return [_lists(each) for each in value] if isinstance(value, (list, tuple)) else value


def binary(name: str, left: Any, right: Any) -> Any:
    """`+`, `*`, `%` and the like of two constants."""
    try:
        return _check_size(_BINARY[name](left, right))
    except (KeyError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise CannotFold from error


def _times(left: Any, right: Any) -> Any:
    texts = [each for each in (left, right) if isinstance(each, (str, bytes, list))]
    numbers = [each for each in (left, right) if isinstance(each, int)]
    if texts and numbers and len(texts[0]) * max(numbers[0], 0) > LONGEST:
        raise CannotFold
    if texts:
        _spend(len(texts[0]))
    return left * right


def _percent(left: Any, right: Any) -> Any:
    if isinstance(left, (str, bytes)):
        text = left if isinstance(left, str) else left.decode("latin-1")
        if len(text) > 1000 or set(text) & set("*0123456789"):
            raise CannotFold  # a width could make it large
        return left % (tuple(right) if isinstance(right, list) else right)
    return left % right


def _plus(left: Any, right: Any) -> Any:
    if isinstance(left, (str, bytes, list)) and len(left) + len(right) > LONGEST:
        raise CannotFold
    return left + right


def _shift(left: int, right: int) -> int:
    if right > 64:
        raise CannotFold
    return left << right


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": _plus,
    "Sub": operator.sub,
    "Mult": _times,
    "Mod": _percent,
    "FloorDiv": operator.floordiv,
    "BitXor": operator.xor,
    "BitOr": operator.or_,
    "BitAnd": operator.and_,
    "LShift": _shift,
    "RShift": operator.rshift,
}

_TEXT_METHODS = {
    *("lower", "upper", "title", "capitalize", "swapcase", "casefold", "strip", "lstrip", "rstrip"),
    *("replace", "removeprefix", "removesuffix", "split", "rsplit", "splitlines", "join", "encode"),
    *("decode", "translate", "format", "hex", "partition", "rpartition", "__add__", "__getitem__"),
    "reverse",
}


def method(value: Any, name: str, arguments: list[Any]) -> Any:
    """Call a method of a constant text, bytes or list."""
    if name not in _TEXT_METHODS or not isinstance(value, (str, bytes, list)):
        raise CannotFold
    try:
        if name in _GROWING:
            return _GROWING[name](value, *arguments)
        if name in ("decode", "encode") and arguments and arguments[0] not in _CODECS:
            raise CannotFold
        _spend(len(value))
        return _check_size(getattr(value, name)(*arguments))
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise CannotFold from error


def _replace(value: Any, old: Any, new: Any, *rest: Any) -> Any:
    if len(value) * (len(new) + 1) > LONGEST * 10:
        raise CannotFold
    _spend(len(value))
    return _check_size(value.replace(old, new, *rest))


def _join(value: Any, parts: Any) -> Any:
    texts = list(parts)
    if sum(len(each) + len(value) for each in texts) > LONGEST:
        raise CannotFold
    return value.join(texts)


def _format(value: Any, *arguments: Any) -> Any:
    if not isinstance(value, str) or set(value) & set(".[:"):  # no walks, no widths
        raise CannotFold
    if len(value) * (1 + sum(len(str(each)) for each in arguments)) > LONGEST:
        raise CannotFold
    return value.format(*arguments)


_GROWING: dict[str, Callable[..., Any]] = {"replace": _replace, "join": _join, "format": _format}

_CODECS = ("utf-8", "utf8", "ascii", "latin-1", "latin1", "utf-16", "utf-32", "cp437", "utf_8")


def _codec(value: Any, encoding: Any = "utf-8", *rest: Any) -> Any:
    name = str(encoding).lower().replace("-", "_")
    if name in ("rot13", "rot_13"):
        return codecs.decode(value, "rot13")
    if name in ("hex", "hex_codec"):
        return binascii.unhexlify(value)
    if name in ("base64", "base64_codec"):
        return binascii.a2b_base64(value)
    if name.replace("_", "-") in _CODECS:
        return value.decode(name)
    raise CannotFold


def _bytes(value: Any, encoding: Any = None) -> bytes:
    if isinstance(value, list):
        return bytes(value)
    if isinstance(value, str) and encoding in _CODECS:
        return value.encode(encoding)
    if isinstance(value, bytes):
        return value
    raise CannotFold


def _text(value: Any, encoding: Any = None, *rest: Any) -> str:
    if isinstance(value, bytes) and encoding in _CODECS:
        return value.decode(encoding)
    if isinstance(value, (str, int)):
        return str(value)
    raise CannotFold


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "builtins.chr": chr,
    "builtins.ord": ord,
    "builtins.str": _text,
    "builtins.int": lambda value, base=10: int(value[:300], base),
    "builtins.bytes": _bytes,
    "builtins.bytearray": _bytes,
    "builtins.list": list,
    "builtins.tuple": list,
    "builtins.reversed": lambda value: list(reversed(value)),
    "builtins.sorted": sorted,
    "builtins.range": lambda *bounds: list(range(*bounds)[:10_000]),
    "builtins.bytes.fromhex": bytes.fromhex,
    "builtins.bytearray.fromhex": bytes.fromhex,
    "base64.b64decode": lambda value, *rest: base64.b64decode(value),
    "base64.standard_b64decode": base64.standard_b64decode,
    "base64.urlsafe_b64decode": base64.urlsafe_b64decode,
    "base64.b32decode": lambda value, *rest: base64.b32decode(value),
    "base64.b16decode": lambda value, *rest: base64.b16decode(value),
    "base64.b85decode": base64.b85decode,
    "base64.a85decode": base64.a85decode,
    "base64.decodebytes": base64.decodebytes,
    "binascii.unhexlify": binascii.unhexlify,
    "binascii.a2b_hex": binascii.unhexlify,
    "binascii.a2b_base64": binascii.a2b_base64,
    "codecs.decode": _codec,
    "codecs.encode": lambda value, encoding="": (
        codecs.encode(value, "rot13") if "rot" in str(encoding) else _codec(value, encoding)
    ),
    "html.unescape": html.unescape,
    "urllib.parse.unquote": urllib.parse.unquote,
    "os.path.join": posixpath.join,
    "builtins.str.join": _join,
    "builtins.str.lower": lambda value: value.lower(),
    "builtins.str.replace": _replace,
    "operator.add": _plus,
    "operator.concat": _plus,
}
FOLDING = frozenset(_FUNCTIONS)


def call(path: str, arguments: list[Any]) -> Any:
    """Call a function of the table with constants."""
    try:
        _spend(sum(len(each) for each in arguments if isinstance(each, (str, bytes, list))))
        return _check_size(_FUNCTIONS[path](*arguments))
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
        raise CannotFold from error


def item(value: Any, index: Any) -> Any:
    """An element or a slice of a constant."""
    try:
        return _check_size(value[index])
    except (TypeError, ValueError, LookupError) as error:
        raise CannotFold from error
