"""What a guest may know of a host function: its signature, and the errors it raises.

Objects in a signature become names (`pandas.DataFrame`) or literals; what would print an address, a
path of the host or pages of text becomes `...` or is left out.

Of an error the guest gets its class name and its message, no more. Messages are written for people
on the host: they name files, users, memory addresses, and databases with their passwords. The guest
must not learn these from them. So text that looks like an absolute path is reduced to its last
part, and `//user:password@host` to the host. This goes by the look of the text: a function that
must keep a secret should not put it into an error.
"""

from __future__ import annotations

import ast
import collections.abc
import contextlib
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
# Names from these modules are written without the module: `Any`, not `typing.Any`.
_PLAIN_MODULES = ("builtins", "typing", "typing_extensions", "collections.abc", "__main__")
_EXPRESSIONS = (ast.Name, ast.Attribute, ast.Subscript, ast.BinOp, ast.Constant)
_LITERALS = (type(None), bool, int, float, str, bytes)


def is_async(function: Callable[..., object]) -> bool:
    """If this misses an async function, a thread makes its coroutine, which is awaited as well."""
    if inspect.iscoroutinefunction(function):
        return True
    call = None if isinstance(function, type) else getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(call)


def bound_keywords(function: object) -> frozenset[str]:
    """The keywords that a partial has bound, such as a key: the guest cannot see or set them."""
    names = frozenset[str]()
    while isinstance(function, functools.partial):
        names |= function.keywords.keys()
        function = function.func
    return names


def read_signature(function: Callable[..., object]) -> inspect.Signature | None:
    """The signature without bound keywords; None if the callable has none, as some builtins."""
    whole, taken = _inspect(function), bound_keywords(function)
    if whole is None or not taken:
        return whole
    left = [each for name, each in whole.parameters.items() if name not in taken]
    return whole.replace(parameters=left)


def _inspect(function: Callable[..., object]) -> inspect.Signature | None:
    try:
        if sys.version_info >= (3, 14):
            # Otherwise names that exist only for type checkers would be errors.
            from annotationlib import Format

            return inspect.signature(function, annotation_format=Format.FORWARDREF)
        return inspect.signature(function)
    except (ValueError, TypeError):
        return None


def read_annotations(function: object) -> list[object]:
    """The types of the parameters; without those that cannot be read."""
    if isinstance(function, functools.partial):
        return read_annotations(function.func)
    if not inspect.isroutine(function) and not isinstance(function, type):
        function = getattr(function, "__call__", None)  # noqa: B004
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # names that exist only for type checkers, a builtin
        return []
    return [hint for name, hint in hints.items() if name != "return"]


def find_classes(*annotations: object) -> dict[str, type | None]:
    """The classes in annotations, and in those of their fields, by their last name. None for a name
    that two of them have.

    >>> find_classes(list[Path], dict[str, int | None])["Path"]
    <class 'pathlib.Path'>
    """
    found: dict[str, type | None] = {}
    waiting = list(annotations)
    seen: list[object] = []
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.append(each)
        waiting += typing.get_args(each)
        if isinstance(each, type) and typing.get_origin(each) is None:
            found[each.__name__] = None if each.__name__ in found else each
            if hasattr(each, "__dataclass_fields__") or hasattr(each, "_fields"):
                waiting += read_annotations(each)
    return found


def class_name(named: str) -> str:
    """The last part of the name that a guest has for a class, "module:Outer.Class"."""
    return named.rpartition(":")[2].rpartition(".")[2]


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
    """The text of a plain literal, or `...` for anything else.

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
    """An annotation as source code; None without one, or if it has no text.

    >>> format_annotation(dict[str, "Row | None"])
    'dict[str, Row | None]'
    """
    if given is inspect.Signature.empty:
        return None
    text = _format_type(given, MAX_DEPTH)
    return text if text is not None and len(text) <= MAX_TEXT else None


def _format_type(given: object, depth: int) -> str | None:
    if isinstance(given, str | typing.ForwardRef):
        return _format_expression(given if isinstance(given, str) else given.__forward_arg__)
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
    """An annotation that is a text: as written if it looks like a type, else quoted."""
    text = " ".join(text.split())
    if len(text) > MAX_TEXT:
        return None
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        # In brackets that close on the next line, so that nothing in it ends the expression early.
        expression = ast.parse(f"({text}\n)", mode="eval").body
        if isinstance(expression, _EXPRESSIONS):
            return ast.unparse(expression)
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
    """`module.Name`, with the shortest module that exports it; None for what has no name."""
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
    """For example pandas, where the class itself says pandas.core.frame."""
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
# The part of an address before its "@". It may contain characters that a valid address would
# escape, so it extends to the last "@" of the word, unless a host follows the slashes.
_CREDENTIALS = re.compile(
    r"""//
    (?! (?: [\w.-]* | \[[0-9A-Fa-f:.]+\] ) (?: :\d+ )? (?: [/?#,;)\]}>'"`\s] | $ ) )
    \S{0,1000}@
    """,
    re.VERBOSE,
)
_ADDRESS = re.compile(r"\sat 0x[0-9a-fA-F]+|(?<=\b0x)[0-9a-fA-F]{9,}\b")


def describe_error(error: BaseException) -> tuple[str, str]:
    """Class name and message for the guest, without traceback, cause, paths, passwords, addresses.

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
    # Only strerror, because str() adds file names; but a class with its own __str__ is used as is.
    if isinstance(error, OSError) and type(error).__str__ is OSError.__str__ and error.strerror:
        text = str(error.strerror)
    # Cut before, because the search takes time, and after, because replacing may add characters.
    return cut(remove_host_details(text[: 4 * MAX_MESSAGE]), MAX_MESSAGE)


def cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + CUT


def remove_host_details(text: str) -> str:
    """Reduce paths of the host to their last part; remove memory addresses and credentials in URLs.

    >>> remove_host_details("<Job at 0x7f3a2b1c4d50> read '/srv/my data/x.csv' of https://a.org/b/c")
    "<Job> read '…/x.csv' of https://a.org/b/c"
    >>> remove_host_details("cannot connect to postgresql://me:hunter2@db:5432/sales")
    'cannot connect to postgresql://…@db:5432/sales'
    """
    text = _CREDENTIALS.sub(f"//{CUT}@", text)
    text = _QUOTED.sub(lambda m: f"{m['quote']}{_last_part(m['path'])}{m['quote']}", text)
    text = _BARE.sub(lambda m: _last_part(m[0]), text)
    for root in _host_directories():  # paths after other text, as in -I/usr/local/include
        text = re.sub(rf"{re.escape(root)}(?![\w-])", CUT, text)
    return _ADDRESS.sub(lambda m: "" if "at" in m[0] else CUT, text)


def _last_part(path: str) -> str:
    parts = [part for part in re.split(r"[\\/]+", path) if part]
    return f"{CUT}/{parts[-1]}" if parts else path


def _host_directories() -> list[str]:
    """Directories that messages often name, longest first; "/x" alone is too common."""
    found = {sys.prefix, sys.base_prefix}
    for directory in (Path.cwd, Path.home):
        try:
            found.add(str(directory()))
        except (OSError, RuntimeError):  # removed; or a user without a home
            continue
    return sorted((root for root in found if root.strip("/").count("/")), key=len, reverse=True)
