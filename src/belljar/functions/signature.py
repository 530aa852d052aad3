"""Signatures of host functions as texts: what a guest may know of the types and defaults in them.

Objects become names (`pandas.DataFrame`) or literals; whatever would print an address, a path of
the host, or pages of text becomes `...`, or is left out.
"""

from __future__ import annotations

import ast
import collections.abc
import functools
import inspect
import math
import sys
import types
import typing
from collections.abc import Callable

from belljar.functions.disclosure import scrub

MAX_TEXT = 500  # characters of an annotation
MAX_DEFAULT = 200
MAX_DEPTH = 8
UNKNOWN = "..."
# Their names are known to every reader; `typing.` before each would only be noise.
_PLAIN_MODULES = ("builtins", "typing", "typing_extensions", "collections.abc", "__main__")
_EXPRESSIONS = (ast.Name, ast.Attribute, ast.Subscript, ast.BinOp, ast.Constant)
_LITERALS = (type(None), bool, int, float, str, bytes)


def bound(function: object) -> frozenset[str]:
    """The keywords that a partial has bound: a key, a permission. They are neither told to a guest
    nor its to choose."""
    names = frozenset[str]()
    while isinstance(function, functools.partial):
        names |= function.keywords.keys()
        function = function.func
    return names


def read(function: Callable[..., object]) -> inspect.Signature | None:
    """What a caller may give; None if the callable does not tell, as some builtins do not."""
    whole, taken = _read(function), bound(function)
    if whole is None or not taken:
        return whole
    left = [each for name, each in whole.parameters.items() if name not in taken]
    return whole.replace(parameters=left)


def _read(function: Callable[..., object]) -> inspect.Signature | None:
    try:
        if sys.version_info >= (3, 14):
            # Names that exist for type checkers only would be errors otherwise.
            from annotationlib import Format

            return inspect.signature(function, annotation_format=Format.FORWARDREF)
        return inspect.signature(function)
    except (ValueError, TypeError):
        return None


def parameters(signature: inspect.Signature | None) -> list[dict[str, str | None]]:
    if signature is None:
        return [
            {"name": name, "kind": kind, "annotation": None, "default": None}
            for name, kind in (("args", "VAR_POSITIONAL"), ("kwargs", "VAR_KEYWORD"))
        ]
    return [
        {
            "name": parameter.name,
            "kind": parameter.kind.name,
            "annotation": annotation(parameter.annotation),
            "default": None if parameter.default is parameter.empty else default(parameter.default),
        }
        for parameter in signature.parameters.values()
    ]


# -- defaults ---------------------------------------------------------------------------------


def default(value: object) -> str:
    """The text of a plain literal; of anything else, `...`.

    >>> default({"a": [1, None]}), default(object())
    ("{'a': [1, None]}", '...')
    """
    if not _is_literal(value, MAX_DEPTH):
        return UNKNOWN
    text = repr(value)
    return text if len(text) <= MAX_DEFAULT and scrub(text) == text else UNKNOWN


def _is_literal(value: object, depth: int) -> bool:
    kind = type(value)
    if kind is float:
        return math.isfinite(typing.cast(float, value))
    if kind in _LITERALS:
        return True
    if depth == 0:
        return False
    if kind is dict:
        pairs = typing.cast("dict[object, object]", value).items()
        return all(_is_literal(part, depth - 1) for pair in pairs for part in pair)
    if kind in (list, tuple):
        return all(_is_literal(part, depth - 1) for part in typing.cast("list[object]", value))
    return False


# -- annotations ------------------------------------------------------------------------------


def annotation(given: object) -> str | None:
    """An annotation as one would write it; None if there is none, or no text stands for it.

    >>> annotation(dict[str, "Row | None"])
    'dict[str, Row | None]'
    """
    if given is inspect.Signature.empty:
        return None
    text = _text(given, MAX_DEPTH)
    return text if text is not None and len(text) <= MAX_TEXT else None


def _text(given: object, depth: int) -> str | None:
    if isinstance(given, str):
        return _expression(given)
    if isinstance(given, typing.ForwardRef):
        return _expression(given.__forward_arg__)
    if given is None or given is type(None):
        return "None"
    if given is Ellipsis:
        return "..."
    if depth == 0:
        return None
    origin, inner = typing.get_origin(given), typing.get_args(given)
    if origin is not None:
        return _generic(origin, inner, depth)
    if isinstance(given, list):  # the parameters of a Callable
        parts = [_text(part, depth - 1) for part in given]
        return None if None in parts else f"[{', '.join(map(str, parts))}]"
    return _name(given)


def _expression(text: str) -> str | None:
    """A text that was given as annotation: as written, if it is a type; quoted, if it is not."""
    text = " ".join(text.split())
    if len(text) > MAX_TEXT:
        return None
    try:
        # In brackets and on a line of its own: nothing in it can end the expression early.
        expression = ast.parse(f"({text}\n)", mode="eval").body
        if isinstance(expression, _EXPRESSIONS):
            return ast.unparse(expression)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return repr(text)
    return repr(text)


def _generic(origin: object, inner: tuple[object, ...], depth: int) -> str | None:
    if origin is typing.Annotated:
        return _text(inner[0], depth - 1)
    if origin is typing.Literal:
        values = [UNKNOWN if not _is_literal(v, 1) else repr(v) for v in inner]
        return f"Literal[{', '.join(values)}]"
    if origin is collections.abc.Callable and len(inner) == 2:
        inner = (list(inner[0]) if isinstance(inner[0], (list, tuple)) else inner[0], inner[1])
    parts = [_text(part, depth - 1) for part in inner]
    if None in parts:
        return None
    if origin is typing.Union or origin is types.UnionType:
        return " | ".join(map(str, parts))
    name = _name(origin)
    empty = "()" if origin is tuple else None  # tuple[()], the type of the empty tuple
    return name and f"{name}[{', '.join(map(str, parts)) or empty}]"


def _name(given: object) -> str | None:
    """`module.Name`, by the shortest module that knows it; None for what has no name."""
    name = getattr(given, "__qualname__", None) or getattr(given, "__name__", None)
    name = name or getattr(given, "_name", None)  # special forms of typing before 3.14
    if not isinstance(name, str):
        return None
    name = name.rpartition("<locals>.")[2]
    if not all(part.isidentifier() for part in name.split(".")):
        return None
    module = _public_module(given, name)
    return f"{module}.{name}" if module else name


def _public_module(given: object, name: str) -> str | None:
    """pandas, where the class itself says pandas.core.frame."""
    module = getattr(given, "__module__", None)
    if not isinstance(module, str) or module in _PLAIN_MODULES:
        return None
    if isinstance(given, (typing.TypeVar, typing.ParamSpec, typing.TypeVarTuple)):
        return None
    if not all(part.isidentifier() for part in module.split(".")):
        return None
    parts = module.split(".")
    for count in range(1, len(parts)):
        outer = ".".join(parts[:count])
        if getattr(sys.modules.get(outer), name, None) is given:
            return outer
    return module
