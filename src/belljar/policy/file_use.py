"""Files that code opens, reads or writes: which ones, and whether the policy lets it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from belljar.policy import paths
from belljar.policy.scopes import Scope
from belljar.policy.values import Const, Ref, first_argument

if TYPE_CHECKING:
    from belljar.policy.analyser import Analyser

FILE_RULES = {"BJ401", "BJ402", "BJ403", "BJ404", "BJ405"}
_PATH_NAMES = (
    *("path_or_buf", "filepath_or_buffer", "path", "file", "fname", "filename", "io", "buf"),
    *("excel_writer", "source", "name", "database", "path_or_buffer", "fid", "con", "pathname"),
)
_BUFFERS = ("io.StringIO()", "io.BytesIO()", "builtins.open()", "pathlib.Path().open()")


def file_use(
    analyser: Analyser,
    rule: str,
    node: ast.AST,
    path: str,
    known_path: str | None,
    call: ast.Call | None,
    scope: Scope,
    order: int,
) -> None:
    """A file is opened, read, written: which one, and may it be?"""
    allowed = analyser.policy.document.paths
    texts: list[str | None] = [known_path] if path.startswith("pathlib.Path()") else []
    if not texts and call is not None:
        argument = _path_argument(path, call)
        if argument is None and any(each.arg is None for each in call.keywords):
            texts = [None]  # `**options` may have it
        elif argument is None:
            if rule == "BJ404" or path == "logging.basicConfig":
                return  # `frame.to_csv()` gives the text
        else:
            values = analyser.resolver.values(argument, scope, order)
            if all(_is_memory(value, rule) for value in values):
                return
            texts = [_as_path(value) for value in values if not _is_memory(value, rule)]
    if path.startswith("pathlib.Path") and path.endswith((".home", ".cwd")):
        texts = []
    for text in texts:
        if text is not None and paths.is_url(text):
            analyser.report("BJ502", node, shown(text))
            return
    if not allowed:
        analyser.report(rule, node, path)
    elif outside := [text for text in texts if text and not paths.allows(allowed, text)]:
        analyser.report("BJ406", node, f"{shown(outside[0])} in {path}")
    elif not texts or None in texts:
        analyser.report("BJ407", node, path)


def _path_argument(path: str, call: ast.Call) -> ast.expr | None:
    if path == "logging.basicConfig":
        return next((each.value for each in call.keywords if each.arg == "filename"), None)
    if "sql" in path:  # the first one is the query
        named = [each.value for each in call.keywords if each.arg == "con"]
        return [*call.args[1:2], *named, None][0]
    return first_argument(call, *_PATH_NAMES)


def _is_memory(value: object, rule: str) -> bool:
    """A buffer, or None where that means: give me the text."""
    if isinstance(value, Ref):
        return value.path.startswith(_BUFFERS)
    return rule == "BJ404" and isinstance(value, Const) and value.value is None


def _as_path(value: object) -> str | None:
    if isinstance(value, Const):
        if isinstance(value.value, bytes):
            return value.value.decode("utf-8", "replace")
        return value.value if isinstance(value.value, str) else f"/dev/fd/{value.value}"
    if isinstance(value, Ref) and value.path == "pathlib.Path()":
        return value.text
    return None


def shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
