"""What code imports, evaluates and opens: import statements and calls, eval and exec, files."""

from __future__ import annotations

import ast
import fnmatch
import functools
import posixpath
import re
from typing import TYPE_CHECKING

from belljar.policy.document import ImportLists
from belljar.policy.values import Const, Place, Ref, first_argument

if TYPE_CHECKING:
    from belljar.policy.analyser import Analyser

FILE_RULES = {"BJ401", "BJ402", "BJ403", "BJ404", "BJ405"}
_DECODING = re.compile(
    r"^(base64|binascii|codecs|zlib|gzip|bz2|lzma|marshal|urllib|requests|httpx|socket|pickle)\b"
    r"|^builtins\.(bytes|bytearray|input)\b"
)
_DECODERS = ("decode", "decompress")
_TAKES_A_NAME = (
    *("__import__", "import_module", "run_module", "run_path", "resolve_name", "locate"),
    *("safeimport", "import_string", "load_source", "find_loader"),
)


def check_import_call(
    analyser: Analyser, node: ast.AST, path: str, call: ast.Call | None, at: Place
) -> None:
    """`__import__(name)`: a constant name is checked like that of a statement."""
    analyser.report("BJ105", node, path)
    if call is None:
        return
    argument = first_argument(call, "name", "mod_name", "path_name")
    if argument is None or path.rpartition(".")[2] not in _TAKES_A_NAME:
        return
    for text in dict.fromkeys(analyser.texts(argument, at)):
        if text is None:
            analyser.report("BJ106", call, path)
        elif path in ("__import__", "importlib.import_module", "runpy.run_module"):
            judge_import(analyser, call, text)


def check_evaluation(
    analyser: Analyser, node: ast.AST, path: str, call: ast.Call | None, at: Place
) -> None:
    """`eval` and `exec`: check where the code comes from, and the code itself if it is constant."""
    argument = first_argument(call, "source") if call is not None else None
    if call is None or argument is None:
        analyser.report("BJ201", node, path)
        return
    rule = "BJ203" if is_disguised(analyser, argument, at) else "BJ201"
    analyser.report(rule, node, path)
    for value in analyser.resolver.values(argument, at):
        if isinstance(value, Const) and isinstance(value.value, (str, bytes)):
            code = value.value
            text = code.decode("utf-8", "replace") if isinstance(code, bytes) else code
            analyser.nested(text, call)


def is_disguised(analyser: Analyser, argument: ast.expr, at: Place) -> bool:
    """True if the code was decoded or received, or is built of pieces that hide it."""
    resolver = analyser.resolver
    if any(map(_DECODING.search, resolver.paths(argument, at))):
        return True
    for inner in ast.walk(argument):
        if isinstance(inner, ast.Call):
            paths = resolver.paths(inner.func, at)
            if any(_DECODING.search(path) or path == "builtins.chr" for path in paths):
                return True
            if isinstance(inner.func, ast.Attribute) and inner.func.attr in _DECODERS:
                return True
    if not isinstance(argument, ast.Name):
        return False
    # `code = base64.b64decode(...)` some lines before, folded or not.
    bindings, _ = resolver.bindings_of(argument.id, at)
    bound = [(each.expression, each.at) for each in bindings if each.expression is not None]
    return any(
        is_disguised(analyser, expression, place)
        for expression, place in bound[:4]
        if not isinstance(expression, ast.Name)
    )


def takes_code(analyser: Analyser, call: ast.Call | None, at: Place) -> bool:
    """False for timeit.timeit(function); True for timeit.timeit("..."), which runs the text."""
    if call is None:
        return True
    argument = first_argument(call, "stmt", "statement", "expression")
    if argument is None:
        return any(each.arg is None for each in call.keywords)  # `**options` may have it
    if isinstance(argument, ast.Lambda) or _is_local_function(analyser, argument, at):
        return False
    values = analyser.resolver.values(argument, at)
    return any(
        value is None or (isinstance(value, Const) and isinstance(value.value, str))
        for value in values
    )


def _is_local_function(analyser: Analyser, argument: ast.expr, at: Place) -> bool:
    if not isinstance(argument, ast.Name):
        return False
    bindings, free = analyser.resolver.bindings_of(argument.id, at)
    return (
        bool(bindings)
        and not free
        and all(each.expression is None and each.dotted is None for each in bindings)
    )


def _get_keyword(call: ast.Call, name: str) -> list[ast.expr]:
    return [each.value for each in call.keywords if each.arg == name]


def unpickles(path: str, call: ast.Call | None) -> bool:
    """numpy.load(path, allow_pickle=True)"""
    if call is None or path != "numpy.load":
        return False
    given = _get_keyword(call, "allow_pickle") + call.args[2:3]
    return any(not (isinstance(each, ast.Constant) and not each.value) for each in given)


def loads_plain_yaml(analyser: Analyser, path: str, call: ast.Call | None, at: Place) -> bool:
    """yaml.load(text, Loader=yaml.SafeLoader)"""
    if call is None or not path.endswith(("yaml.load", "yaml.load_all")):
        return False
    given = _get_keyword(call, "Loader") + call.args[1:2]
    return any(
        path.endswith(("SafeLoader", "BaseLoader"))
        for loader in given
        for path in analyser.resolver.paths(loader, at)
    )


def look_up(lists: ImportLists, name: str) -> str:
    """Return "allow", "deny" or "unlisted": the longest matching entry decides, deny wins a tie."""
    entries = _entries(lists)
    while name:
        if answer := entries.get(name):
            return answer
        name = name.rpartition(".")[0]
    return "unlisted"


@functools.lru_cache(maxsize=64)
def _entries(lists: ImportLists) -> dict[str, str]:
    found = {entry.removesuffix(".*"): "allow" for entry in lists.allow}
    return found | {entry.removesuffix(".*"): "deny" for entry in lists.deny}


def judge_import(analyser: Analyser, node: ast.AST, name: str) -> None:
    """Check one module by its full name."""
    lists = analyser.policy.document.imports
    canonical = analyser.known.canonical(name)
    answers = {look_up(lists, name), look_up(lists, canonical)}
    if "deny" in answers:
        analyser.report("BJ101", node, name)
    elif "allow" not in answers:
        analyser.report("BJ102", node, name)


def check_import(analyser: Analyser, node: ast.Import | ast.ImportFrom) -> None:
    if isinstance(node, ast.Import):
        for alias in node.names:
            judge_import(analyser, alias, alias.name)
        return
    module = node.module or ""
    if node.level:
        analyser.report("BJ104", node, "." * node.level + module)
        return
    # `from os import path` may be allowed where os is not.
    dotted = {alias: f"{module}.{alias.name}" for alias in node.names}
    lists = analyser.policy.document.imports
    listed = (*lists.allow, *lists.deny)
    targets = (name if name in listed else module for name in dotted.values())
    for target in dict.fromkeys(targets):
        judge_import(analyser, node, target)
    for alias, name in dotted.items():
        _check_imported_name(analyser, alias, module, name)


def _check_imported_name(analyser: Analyser, alias: ast.alias, module: str, dotted: str) -> None:
    """Check the imported name itself."""
    known = analyser.known
    if alias.name == "*":
        analyser.report("BJ103", alias, module)
    elif known.power(module, alias.name):
        analyser.report("BJ107", alias, dotted)
    elif alias.name in known.watched and alias.name.startswith("__"):
        analyser.report("BJ302", alias, dotted)
    else:
        name = known.canonical(dotted)
        rule = analyser.rule_of(name)
        # If the rule depends on arguments, the calls are checked instead.
        if rule and "." in name and rule not in FILE_RULES | {"BJ205", "BJ702"}:
            analyser.report(rule, alias, name.removeprefix("builtins."))


_PATH_NAMES = (
    *("path_or_buf", "filepath_or_buffer", "path", "file", "fname", "filename", "io", "buf"),
    *("excel_writer", "source", "name", "database", "path_or_buffer", "fid", "con", "pathname"),
)
_BUFFERS = ("io.StringIO()", "io.BytesIO()", "builtins.open()", "pathlib.Path().open()")


def check_file(
    analyser: Analyser,
    rule: str,
    node: ast.AST,
    path: str,
    known_path: str | None,
    call: ast.Call | None,
    at: Place,
) -> None:
    """Check the path of a file that is opened, read or written."""
    allowed = analyser.policy.document.paths
    texts: list[str | None] = [known_path] if path.startswith("pathlib.Path()") else []
    if not texts and call is not None:
        argument = _path_argument(path, call)
        if argument is None and any(each.arg is None for each in call.keywords):
            texts = [None]  # `**options` may have it
        elif argument is None:
            if rule == "BJ404" or path == "logging.basicConfig":
                return  # `frame.to_csv()` returns the text
        else:
            values = analyser.resolver.values(argument, at)
            if all(_is_memory(value, rule) for value in values):
                return
            texts = [_as_path(value) for value in values if not _is_memory(value, rule)]
    if path.startswith("pathlib.Path") and path.endswith((".home", ".cwd")):
        texts = []
    for text in texts:
        if text is not None and is_url(text):
            analyser.report("BJ502", node, show_text(text))
            return
    if not allowed:
        analyser.report(rule, node, path)
    elif outside := [text for text in texts if text and not path_allowed(allowed, text)]:
        analyser.report("BJ406", node, f"{show_text(outside[0])} in {path}")
    elif not texts or None in texts:
        analyser.report("BJ407", node, path)


def _path_argument(path: str, call: ast.Call) -> ast.expr | None:
    if path == "logging.basicConfig":
        return next(iter(_get_keyword(call, "filename")), None)
    if "sql" in path:  # the first one is the query
        return next(iter(call.args[1:2] + _get_keyword(call, "con")), None)
    return first_argument(call, *_PATH_NAMES)


def _is_memory(value: object, rule: str) -> bool:
    """True for a buffer, and for None where that means: return the text."""
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


def show_text(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_url(text: str) -> bool:
    return _URL.match(text) is not None and not text.lower().startswith("file:")


def path_allowed(patterns: tuple[str, ...], text: str) -> bool:
    """True if the path stays inside of the allowed ones.

    >>> path_allowed(("./**",), "data/sales.csv"), path_allowed(("./**",), "../secret")
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
    return any(_path_matches(path, pattern) for pattern in patterns)


def _path_matches(path: str, pattern: str) -> bool:
    if pattern.endswith("/**"):
        top = pattern.removesuffix("/**")
        return path == top or path.startswith(f"{top}/")
    parts, wanted = path.split("/"), pattern.split("/")  # a `*` does not reach over a slash
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))
