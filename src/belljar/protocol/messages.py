"""What the worker says, reduced to what it may say.

Hostile code can write anything on the worker's socket. init passes on only these fields, made
anew, so that nothing of the guest's shape (depth, size, names) travels further; anything else is
forgery, and costs the worker its life.
"""

import ast
import inspect
import re
import struct
import warnings
from typing import Any, Dict, Optional

from . import wire

MAX_FILES = 16384  # descriptors of init: the most that the code can get, too

# Files and trees
MAX_LIST = 10_000  # entries of a directory that is listed
LIST_PAGE = 500  # entries of one answer to `list`
SCAN_PAGE = 2000  # entries of one answer to `scan`
MAX_NAMES = 100_000  # entries of a directory that is scanned
MAX_PART = 4 * 1024 * 1024  # bytes of one answer to `gather`
MAX_ROWS = 500  # of one request about a tree
FRESH = 11_000_000  # ns; kernels stamp files by a clock that may tick only every ten ms
LENGTH = struct.Struct("!I")  # of the rows that precede the data of `scatter`

# Results and errors
MAX_PARTS = 32
MAX_NAME = 100
MAX_REASON = 250
MAX_ERROR = 512 * 1024  # bytes of JSON: name, message and traceback at their longest


def check_result(header: wire.Header) -> Dict[str, Any]:
    parts = header.get("parts")
    if not isinstance(parts, list) or len(parts) > MAX_PARTS:
        raise wire.WireError("a result without parts")
    return {
        "parts": [_part(part) for part in parts],
        "main": header.get("main") is True,
        "dropped": bool(header.get("dropped")),
        "cut": header.get("cut") is True,
    }


def _part(part: Any) -> Dict[str, Any]:
    if not isinstance(part, dict):
        raise wire.WireError("a malformed result")
    mime, size = part.get("mime"), part.get("size")
    if not isinstance(mime, str) or len(mime) > MAX_NAME or type(size) is not int:
        raise wire.WireError("a malformed result")
    if not 0 <= size <= wire.MAX_PAYLOAD:
        raise wire.WireError("a malformed result")
    return {"mime": mime, "size": size, "text": part.get("text") is True}


def check_done(header: wire.Header, payload: bytes, most: int) -> Dict[str, Any]:
    status, code = header.get("status"), header.get("exit_code")
    if status not in ("ok", "error", "exit"):
        raise wire.WireError("an unknown status")
    if len(payload) > (MAX_ERROR if status == "error" else max(most, wire.INLINE)):
        raise wire.WireError("more than an error or a value may take")
    if code is not None and (type(code) is not int or not -(2**31) <= code < 2**32):
        raise wire.WireError("a malformed exit code")
    unplain = header.get("unplain")
    if not isinstance(unplain, (str, type(None))) or len(unplain or "") > MAX_REASON:
        raise wire.WireError("a malformed reason")
    said: Dict[str, Any] = {"status": status, **_size(header)}
    if code is not None:
        said["exit_code"] = code
    if unplain is not None:
        said["unplain"] = unplain
    if header.get("shown") is True:
        said["shown"] = True
    return said


def check_call(header: wire.Header) -> Dict[str, Any]:
    name = header.get("function")
    if not isinstance(name, str) or len(name) > MAX_NAME:
        raise wire.WireError("a malformed call")
    return {"function": name, **_size(header)}


def check_part(header: wire.Header) -> Dict[str, Any]:
    key, size = header.get("key"), header.get("size")
    if type(key) is not int or type(size) is not int or not (0 <= key < 2**32 and 0 < size < 2**48):
        raise wire.WireError("a malformed part")
    return {"key": key, "size": size}


def _size(header: wire.Header) -> Dict[str, Any]:
    """Of a value that is not in the payload."""
    sizes: Dict[str, Any] = {name: header[name] for name in ("shared", "parts") if name in header}
    if len(sizes) > 1 or any(type(n) is not int or not 0 < n < 2**48 for n in sizes.values()):
        raise wire.WireError("a malformed size")
    return sizes


# -- source text --------------------------------------------------------------------------------


class SourceText:
    """Stands for an object of the host in a signature: all that is known is how it reads."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def build_signature(spec: Dict[str, Any]) -> inspect.Signature:
    """The signature that a spec tells of; printed, it is Python again.

    >>> parameter = {"name": "a", "kind": "KEYWORD_ONLY", "annotation": "int", "default": "3"}
    >>> signature({"parameters": [parameter], "returns": "list[int]"})
    <Signature (*, a: int = 3) -> list[int]>
    """
    return inspect.Signature(
        [
            inspect.Parameter(
                parameter["name"],
                getattr(inspect.Parameter, parameter["kind"]),
                annotation=_source_text(parameter["annotation"]),
                default=_source_text(parameter["default"]),
            )
            for parameter in spec["parameters"]
        ],
        return_annotation=_source_text(spec["returns"]),
    )


def _source_text(text: Any) -> Any:
    return inspect.Signature.empty if text is None else SourceText(text)


_IDLE = re.compile(r"([ \t]*)%(?:matplotlib|config|load_ext|reload_ext|autoreload)\b")


def drop_magics(code: str) -> str:
    """The code without magics that have no effect here, such as `%matplotlib inline`; every other
    line keeps its number. For code that does not compile: in what does, `%` means something."""
    lines = code.split("\n")
    number = failing_line(code)
    while number is not None and number <= len(lines):
        idle = _IDLE.match(lines[number - 1])
        if idle is None:
            break
        # It may be all there is in its block.
        lines[number - 1] = f"{idle[1]}pass" if idle[1] else ""
        number = failing_line("\n".join(lines))
    return "\n".join(lines)


def failing_line(code: str) -> Optional[int]:
    """Where it does not compile. A magic in a string is no error, and a `%` in brackets neither."""
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # who runs it will see them
        try:
            compile(code, "<cell>", "exec", flags, dont_inherit=True)
        except SyntaxError as error:
            return error.lineno
    return None
