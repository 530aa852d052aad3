"""What the worker says, reduced to what it may say.

Hostile code can write anything on the worker's socket. init passes on only these fields, made
anew, so that nothing of the guest's shape (depth, size, names) travels further; anything else is
forgery, and costs the worker its life.
"""

from typing import Any, Dict

from . import wire

MAX_PARTS = 32
MAX_NAME = 100
MAX_REASON = 250
MAX_ERROR = 512 * 1024  # bytes of JSON: name, message and traceback at their longest


def result(header: wire.Header) -> Dict[str, Any]:
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


def done(header: wire.Header, payload: bytes, most: int) -> Dict[str, Any]:
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


def call(header: wire.Header) -> Dict[str, Any]:
    name = header.get("function")
    if not isinstance(name, str) or len(name) > MAX_NAME:
        raise wire.WireError("a malformed call")
    return {"function": name, **_size(header)}


def part(header: wire.Header) -> Dict[str, Any]:
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
