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


def done(header: wire.Header, payload: bytes, output: int) -> Dict[str, Any]:
    status, code = header.get("status"), header.get("exit_code")
    if status not in ("ok", "error", "exit"):
        raise wire.WireError("an unknown status")
    if len(payload) > (MAX_ERROR if status == "error" else output):
        raise wire.WireError("more than an error or a value may take")
    if code is not None and (type(code) is not int or not -(2**31) <= code < 2**32):
        raise wire.WireError("a malformed exit code")
    unplain = header.get("unplain")
    if not isinstance(unplain, (str, type(None))) or len(unplain or "") > MAX_REASON:
        raise wire.WireError("a malformed reason")
    return {"status": status, "exit_code": code, "unplain": unplain}
