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
import re
import sys
import types
import typing
from collections.abc import Callable
from pathlib import Path

MAX_TEXT = 500  # characters of an annotation
MAX_DEFAULT = 200
MAX_DEPTH = 8
UNKNOWN = "..."
# Their names are known to every reader; `typing.` before each would only be noise.
_PLAIN_MODULES = ("builtins", "typing", "typing_extensions", "collections.abc", "__main__")
_EXPRESSIONS = (ast.Name, ast.Attribute, ast.Subscript, ast.BinOp, ast.Constant)
_LITERALS = (type(None), bool, int, float, str, bytes)


def bound_keywords(function: object) -> frozenset[str]:
    """The keywords that a partial has bound: a key, a permission. They are neither told to a guest
    nor its to choose."""
    names = frozenset[str]()
    while isinstance(function, functools.partial):
        names |= function.keywords.keys()
        function = function.func
    return names


def read_signature(function: Callable[..., object]) -> inspect.Signature | None:
    """What a caller may give; None if the callable does not tell, as some builtins do not."""
    whole, taken = _inspect(function), bound_keywords(function)
    if whole is None or not taken:
        return whole
    left = [each for name, each in whole.parameters.items() if name not in taken]
    return whole.replace(parameters=left)


def _inspect(function: Callable[..., object]) -> inspect.Signature | None:
    try:
        if sys.version_info >= (3, 14):
            # Names that exist for type checkers only would be errors otherwise.
            from annotationlib import Format

            return inspect.signature(function, annotation_format=Format.FORWARDREF)
        return inspect.signature(function)
    except (ValueError, TypeError):
        return None


def describe_parameters(signature: inspect.Signature | None) -> list[dict[str, str | None]]:
    if signature is None:
        return [
            {"name": name, "kind": kind, "annotation": None, "default": None}
            for name, kind in (("args", "VAR_POSITIONAL"), ("kwargs", "VAR_KEYWORD"))
        ]
    return [
        {
            "name": parameter.name,
            "kind": parameter.kind.name,
            "annotation": format_annotation(parameter.annotation),
            "default": None
            if parameter.default is parameter.empty
            else format_default(parameter.default),
        }
        for parameter in signature.parameters.values()
    ]


# -- defaults ---------------------------------------------------------------------------------


def format_default(value: object) -> str:
    """The text of a plain literal; of anything else, `...`.

    >>> format_default({"a": [1, None]}), format_default(object())
    ("{'a': [1, None]}", '...')
    """
    if not _is_literal(value, MAX_DEPTH):
        return UNKNOWN
    text = repr(value)
    return text if len(text) <= MAX_DEFAULT and remove_host_details(text) == text else UNKNOWN


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


def format_annotation(given: object) -> str | None:
    """An annotation as one would write it; None if there is none, or no text stands for it.

    >>> format_annotation(dict[str, "Row | None"])
    'dict[str, Row | None]'
    """
    if given is inspect.Signature.empty:
        return None
    text = _format_type(given, MAX_DEPTH)
    return text if text is not None and len(text) <= MAX_TEXT else None


def _format_type(given: object, depth: int) -> str | None:
    if isinstance(given, str):
        return _format_expression(given)
    if isinstance(given, typing.ForwardRef):
        return _format_expression(given.__forward_arg__)
    if given is None or given is type(None):
        return "None"
    if given is Ellipsis:
        return "..."
    if depth == 0:
        return None
    origin, inner = typing.get_origin(given), typing.get_args(given)
    if origin is not None:
        return _format_generic(origin, inner, depth)
    if isinstance(given, list):  # the parameters of a Callable
        parts = [_format_type(part, depth - 1) for part in given]
        return None if None in parts else f"[{', '.join(map(str, parts))}]"
    return _format_name(given)


def _format_expression(text: str) -> str | None:
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


def _format_generic(origin: object, inner: tuple[object, ...], depth: int) -> str | None:
    if origin is typing.Annotated:
        return _format_type(inner[0], depth - 1)
    if origin is typing.Literal:
        values = [UNKNOWN if not _is_literal(v, 1) else repr(v) for v in inner]
        return f"Literal[{', '.join(values)}]"
    if origin is collections.abc.Callable and len(inner) == 2:
        inner = (list(inner[0]) if isinstance(inner[0], (list, tuple)) else inner[0], inner[1])
    parts = [_format_type(part, depth - 1) for part in inner]
    if None in parts:
        return None
    if origin is typing.Union or origin is types.UnionType:
        return " | ".join(map(str, parts))
    name = _format_name(origin)
    empty = "()" if origin is tuple else None  # tuple[()], the type of the empty tuple
    return name and f"{name}[{', '.join(map(str, parts)) or empty}]"


def _format_name(given: object) -> str | None:
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


MAX_MESSAGE = 4 * 1024  # characters
MAX_NAME = 100
CUT = "…"
NO_MESSAGE = "<no message>"

_END = r"\s'\"`<>|;,:()\[\]{}"  # what ends a path that stands bare in a text
_QUOTED = re.compile(
    r"""(?P<quote>['"`])
    (?P<path>(?:[A-Za-z]:[\\/]|\\\\|~[\w.-]*/|/|file:/)(?:(?!(?P=quote))[^\n])+)
    (?P=quote)""",
    re.VERBOSE,
)
_BARE = re.compile(
    rf"""
      \bfile:/+[^{_END}]+                        # file:///home/a
    | \b[A-Za-z][\w+.-]{{0,20}}:/{{3,}}[^{_END}]+   # sqlite:////home/a.db
    | (?<!\w)[A-Za-z]:[\\/](?!/)[^{_END}]*       # C:\Users\a
    | (?<![\w\\])\\{{2,4}}[\w.$-]+\\[^{_END}]*   # \\server\share
    | (?<![\w~/])~[\w.-]*/[^{_END}]*             # ~user/a
    | (?<=<)/[^{_END}/]+/[^{_END}]*              # </home/a>, but not </b>
    | (?<=:)/(?![/{_END}])[^{_END}]*             # key:/home/a, but not https://
    | (?<![\w/\\.…<:~])/+[^{_END}/][^{_END}]*    # /home/a
    """,
    re.VERBOSE,
)
# What stands before the "@" of an address. It may hold any character, also those that a proper
# address would escape: so all up to the last "@" of the word, unless a host follows the slashes.
_CREDENTIALS = re.compile(
    r"""//
    (?! (?: [\w.-]* | \[[0-9A-Fa-f:.]+\] ) (?: :\d+ )? (?: [/?#,;)\]}>'"`\s] | $ ) )
    \S{0,1000}@
    """,
    re.VERBOSE,
)
_ADDRESS = re.compile(r"\sat 0x[0-9a-fA-F]+|(?<=\b0x)[0-9a-fA-F]{9,}\b")


def describe_error(error: BaseException) -> tuple[str, str]:
    """Name and message for the guest: no traceback, cause, path, password of a URL or address.

    >>> describe_error(FileNotFoundError(2, "No such file or directory", "/home/me/a.db"))
    ('FileNotFoundError', 'No such file or directory')
    >>> describe_error(ValueError("no table in /home/me/a.db"))
    ('ValueError', 'no table in …/a.db')
    """
    name = type(error).__name__
    if not name.isidentifier() or len(name) > MAX_NAME:
        name = "HostError"
    try:
        text = _error_message(error)
    except Exception:  # its own __str__, which may raise anything
        return name, NO_MESSAGE
    return name, text


def _error_message(error: BaseException) -> str:
    text = str(error)
    # The names of files come after it; a class with words of its own is taken by them.
    if isinstance(error, OSError) and type(error).__str__ is OSError.__str__ and error.strerror:
        text = str(error.strerror)
    # Cut twice: searching takes time, and what is found may get longer by a character.
    return cut(remove_host_details(text[: 4 * MAX_MESSAGE]), MAX_MESSAGE)


def cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + CUT


def remove_host_details(text: str) -> str:
    """Reduce what looks like a path of the host to its last part; take out addresses in memory,
    and users and passwords of URLs.

    >>> remove_host_details("<Job at 0x7f3a2b1c4d50> read '/srv/my data/x.csv' of https://a.org/b/c")
    "<Job> read '…/x.csv' of https://a.org/b/c"
    >>> remove_host_details("cannot connect to postgresql://me:hunter2@db:5432/sales")
    'cannot connect to postgresql://…@db:5432/sales'
    """
    text = _CREDENTIALS.sub(f"//{CUT}@", text)
    text = _QUOTED.sub(lambda m: f"{m['quote']}{_last_part(m['path'])}{m['quote']}", text)
    text = _BARE.sub(lambda m: _last_part(m[0]), text)
    for root in _host_directories():  # glued to something else, as in -I/usr/local/include
        text = re.sub(rf"{re.escape(root)}(?![\w-])", CUT, text)
    return _ADDRESS.sub(lambda m: "" if "at" in m[0] else CUT, text)


def _last_part(path: str) -> str:
    parts = [part for part in re.split(r"[\\/]+", path) if part]
    return f"{CUT}/{parts[-1]}" if parts else path


def _host_directories() -> list[str]:
    """Directories that a message may well name, longest first; one part alone is too common."""
    found = {sys.prefix, sys.base_prefix}
    for directory in (Path.cwd, Path.home):
        try:
            found.add(str(directory()))
        except (OSError, RuntimeError):  # removed; or a user without a home
            continue
    return sorted((root for root in found if root.strip("/").count("/")), key=len, reverse=True)
