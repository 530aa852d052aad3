"""What frames contain: limits that both sides know, and what the worker may say.

Hostile code can write anything to the worker's socket. init passes on only the fields below, in
new dictionaries, so that nothing of the guest's shape (depth, size, names) travels further. Any
other content is forged, and init kills the worker for it.
"""

import ast
import inspect
import re
import struct
import warnings
from typing import Any, Dict, Optional, Set

from . import wire

MAX_MAPS = 4 * 1024 * 1024  # bytes of /proc/*/maps that are read at once
MAX_FILES = 16384  # open files of init, and the most that the code can get

# Files and trees
MAX_LIST = 10_000  # entries of a directory that is listed
LIST_PAGE = 500  # entries of one answer to `list`
SCAN_PAGE = 2000  # entries of one answer to `scan`
MAX_WATCHED = 2000  # entries of a directory that is watched
MAX_TABLE = 2 * 1024 * 1024  # bytes of JSON that describe processes
MAX_NAMES = 100_000  # entries of a directory that is scanned
MAX_PART = 4 * 1024 * 1024  # bytes of one answer to `gather`
MAX_ROWS = 500  # rows of one request about a tree
FRESH = 11_000_000  # ns; kernels stamp files by a clock that may tick only every ten ms
LENGTH = struct.Struct("!I")  # length of the rows that precede the data of `scatter`

# Results and errors
MAX_PARTS = 32
MAX_NAME = 100
MAX_REASON = 250
MAX_NOTES = 10  # about values that came in
FINAL = "application/vnd.belljar.final"  # the value with which the code ends its cell
MAX_ERROR = 512 * 1024  # bytes of JSON: name, message and traceback at their longest


def check_result(header: wire.Header) -> Dict[str, Any]:
    parts = header.get("parts")
    if not isinstance(parts, list) or len(parts) > MAX_PARTS:
        raise wire.WireError("a result has no list of parts, or too many")
    return {
        "parts": [_check_result_part(part) for part in parts],
        "main": header.get("main") is True,
        "dropped": bool(header.get("dropped")),
        "cut": header.get("cut") is True,
    }


def _check_result_part(part: Any) -> Dict[str, Any]:
    if not isinstance(part, dict):
        raise wire.WireError("a part of a result is malformed")
    mime, size = part.get("mime"), part.get("size")
    named = isinstance(mime, str) and len(mime) <= MAX_NAME
    if not named or type(size) is not int or not 0 <= size <= wire.MAX_PAYLOAD:
        raise wire.WireError("a part of a result is malformed")
    return {"mime": mime, "size": size, "text": part.get("text") is True}


_SHARED = re.compile(rb"^\S+ .w.s \S+ \S+ ([1-9]\d*) ", re.MULTILINE)


def find_shared(maps: bytes) -> "Set[int]":
    """Inodes of files that a process has mapped for writing, in a text of /proc/PID/maps."""
    return {int(number) for number in _SHARED.findall(maps)}


def check_done(header: wire.Header, payload: bytes, most: int) -> Dict[str, Any]:
    status, code = header.get("status"), header.get("exit_code")
    if status not in ("ok", "error", "exit"):
        raise wire.WireError("a cell ended with an unknown status")
    if len(payload) > (MAX_ERROR if status == "error" else max(most, wire.INLINE)):
        raise wire.WireError("the error or value of a cell is larger than allowed")
    if code is not None and (type(code) is not int or not -(2**31) <= code < 2**32):
        raise wire.WireError("an exit code is malformed")
    value_error = header.get("value_error")
    if not isinstance(value_error, (str, type(None))) or len(value_error or "") > MAX_REASON:
        raise wire.WireError("the reason why a value did not come is malformed")
    checked: Dict[str, Any] = {"status": status, **_check_size(header)}
    if code is not None:
        checked["exit_code"] = code
    if value_error is not None:
        checked["value_error"] = value_error
    notes = header.get("notes", [])
    if not isinstance(notes, list) or len(notes) > MAX_NOTES:
        raise wire.WireError("the notes of a cell are malformed")
    if not all(isinstance(note, str) and len(note) <= MAX_REASON for note in notes):
        raise wire.WireError("a note of a cell is malformed")
    if notes:
        checked["notes"] = list(notes)
    for flag in ("shown", "final"):
        if header.get(flag) is True:
            checked[flag] = True
    return checked


def check_call(header: wire.Header) -> Dict[str, Any]:
    name = header.get("function")
    if not isinstance(name, str) or len(name) > MAX_NAME:
        raise wire.WireError("a call of a host function is malformed")
    return {"function": name, **_check_size(header)}


def check_part(header: wire.Header) -> Dict[str, Any]:
    key, size = header.get("key"), header.get("size")
    if type(key) is not int or type(size) is not int or not (0 <= key < 2**32 and 0 < size < 2**48):
        raise wire.WireError("a part of a value is malformed")
    return {"key": key, "size": size}


def _check_size(header: wire.Header) -> Dict[str, Any]:
    """The size of a value that is not in the payload."""
    sizes: Dict[str, Any] = {name: header[name] for name in ("shared", "parts") if name in header}
    if len(sizes) > 1 or any(type(n) is not int or not 0 < n < 2**48 for n in sizes.values()):
        raise wire.WireError("the size of a value is malformed")
    return sizes


# -- source text --------------------------------------------------------------------------------


class SourceText:
    """An object of the host in a signature, of which only the source text is known."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def build_signature(spec: Dict[str, Any]) -> inspect.Signature:
    """The signature that a spec describes; its str() is Python source.

    >>> parameter = {"name": "a", "kind": "KEYWORD_ONLY", "annotation": "int", "default": "3"}
    >>> build_signature({"parameters": [parameter], "returns": "list[int]"})
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
    """Remove magics that have no effect here, such as `%matplotlib inline`; line numbers stay.

    Only for code that does not compile: in other code `%` is Python.
    """
    lines = code.split("\n")
    number = find_syntax_error(code)
    while number is not None and number <= len(lines):
        idle = _IDLE.match(lines[number - 1])
        if idle is None:
            break
        # `pass`, because a block must not become empty.
        lines[number - 1] = f"{idle[1]}pass" if idle[1] else ""
        number = find_syntax_error("\n".join(lines))
    return "\n".join(lines)


def find_syntax_error(code: str) -> Optional[int]:
    """The number of the line that does not compile; None if all of them do."""
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # shown when the code runs
        try:
            compile(code, "<cell>", "exec", flags, dont_inherit=True)
        except SyntaxError as error:
            return error.lineno
    return None
