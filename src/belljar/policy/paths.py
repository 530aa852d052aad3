"""Paths in code, against the list of those a policy allows."""

from __future__ import annotations

import fnmatch
import posixpath
import re

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_url(text: str) -> bool:
    return _URL.match(text) is not None and not text.lower().startswith("file:")


def allows(patterns: tuple[str, ...], text: str) -> bool:
    """Whether a path that is written like this stays inside.

    >>> allows(("./**",), "data/sales.csv"), allows(("./**",), "../secret")
    (True, False)
    """
    if "\0" in text or text.startswith(("~", "|")) or _URL.match(text) or "$" in text:
        return False
    path = posixpath.normpath(text)
    if path.startswith("//"):
        path = path[1:]
    if not path.startswith("/"):
        path = f"./{path}" if path != "." else path
    if path.startswith("./../") or path == "./..":
        return False
    return any(_fits(path, pattern) for pattern in patterns)


def _fits(path: str, pattern: str) -> bool:
    if pattern.endswith("/**"):
        top = pattern.removesuffix("/**")
        return path == top or path.startswith(f"{top}/")
    parts, wanted = path.split("/"), pattern.split("/")  # a `*` does not reach over a slash
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))
