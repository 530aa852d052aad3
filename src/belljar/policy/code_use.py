"""Code and modules by a text: imports by call, eval and exec, and those who call them for you."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from belljar.policy import imports
from belljar.policy.scopes import Scope
from belljar.policy.values import Const, Ref, first_argument

if TYPE_CHECKING:
    from belljar.policy.analyser import Analyser

_DECODING = re.compile(
    r"^(base64|binascii|codecs|zlib|gzip|bz2|lzma|marshal|urllib|requests|httpx|socket|pickle)\b"
    r"|^builtins\.(bytes|bytearray|input)\b"
)
_TAKES_A_NAME = (
    *("__import__", "import_module", "run_module", "run_path", "resolve_name", "locate"),
    *("safeimport", "import_string", "load_source", "find_loader"),
)


def import_call(
    analyser: Analyser,
    node: ast.AST,
    path: str,
    call: ast.Call | None,
    scope: Scope,
    order: int,
) -> None:
    """`__import__(name)`: the name is judged like that of a statement, if it can be told."""
    analyser.report("BJ105", node, path)
    if call is None:
        return
    argument = first_argument(call, "name", "mod_name", "path_name")
    if argument is None or path.rpartition(".")[2] not in _TAKES_A_NAME:
        return
    for text in dict.fromkeys(analyser.texts(argument, scope, order)):
        if text is None:
            analyser.report("BJ106", call, path)
        elif path in ("__import__", "importlib.import_module", "runpy.run_module"):
            imports.judge(analyser, call, text)


def evaluation(
    analyser: Analyser,
    node: ast.AST,
    path: str,
    call: ast.Call | None,
    scope: Scope,
    order: int,
) -> None:
    """`eval` and `exec`: where does the code come from?"""
    argument = first_argument(call, "source") if call is not None else None
    if argument is not None and is_disguised(analyser, argument, scope, order):
        analyser.report("BJ203", node, path)
    else:
        analyser.report("BJ201", node, path)
    if call is not None and argument is not None:
        for value in analyser.resolver.values(argument, scope, order):
            if isinstance(value, Const) and isinstance(value.value, (str, bytes)):
                code = value.value
                text = code.decode("utf-8", "replace") if isinstance(code, bytes) else code
                analyser.nested(text, call)


def is_disguised(analyser: Analyser, argument: ast.expr, scope: Scope, order: int) -> bool:
    """It was decoded or received; or put together out of pieces that hide what they make."""
    for value in analyser.resolver.values(argument, scope, order):
        if isinstance(value, Ref) and _DECODING.search(value.path):
            return True
    for inner in ast.walk(argument):
        if isinstance(inner, ast.Call):
            for value in analyser.resolver.values(inner.func, scope, order):
                if isinstance(value, Ref) and (
                    _DECODING.search(value.path) or value.path == "builtins.chr"
                ):
                    return True
            if isinstance(inner.func, ast.Attribute) and inner.func.attr in (
                "decode",
                "decompress",
            ):
                return True
    return _was_decoded(analyser, argument, scope, order)


def _was_decoded(analyser: Analyser, argument: ast.expr, scope: Scope, order: int) -> bool:
    """`code = base64.b64decode(...)` some lines before, folded or not."""
    if not isinstance(argument, ast.Name):
        return False
    bindings, _ = analyser.resolver.bindings_of(argument.id, scope, order)
    expressions = [each for each in bindings if each.expression is not None][:4]
    for binding in expressions:
        expression = binding.expression
        if expression is None or isinstance(expression, ast.Name):
            continue
        if is_disguised(analyser, expression, binding.scope, binding.order):
            return True
    return False


def takes_code(analyser: Analyser, call: ast.Call | None, scope: Scope, order: int) -> bool:
    """timeit.timeit(function) is fine; timeit.timeit("...") runs the text."""
    if call is None:
        return True
    argument = first_argument(call, "stmt", "statement", "expression")
    if argument is None:
        return any(each.arg is None for each in call.keywords)  # `**options` may have it
    if isinstance(argument, ast.Lambda) or _is_local_function(analyser, argument, scope, order):
        return False
    values = analyser.resolver.values(argument, scope, order)
    return any(
        value is None or (isinstance(value, Const) and isinstance(value.value, str))
        for value in values
    )


def _is_local_function(analyser: Analyser, argument: ast.expr, scope: Scope, order: int) -> bool:
    if not isinstance(argument, ast.Name):
        return False
    bindings, free = analyser.resolver.bindings_of(argument.id, scope, order)
    return (
        bool(bindings)
        and not free
        and all(each.expression is None and each.dotted is None for each in bindings)
    )


def unpickles(analyser: Analyser, path: str, call: ast.Call | None) -> bool:
    """numpy.load(path, allow_pickle=True)"""
    if call is None or path != "numpy.load":
        return False
    given = [each.value for each in call.keywords if each.arg == "allow_pickle"] + call.args[2:3]
    return any(not (isinstance(each, ast.Constant) and not each.value) for each in given)


def loads_plainly(
    analyser: Analyser, path: str, call: ast.Call | None, scope: Scope, order: int
) -> bool:
    """yaml.load(text, Loader=yaml.SafeLoader)"""
    if call is None or not path.endswith(("yaml.load", "yaml.load_all")):
        return False
    given = [each.value for each in call.keywords if each.arg == "Loader"] + call.args[1:2]
    for loader in given:
        for value in analyser.resolver.values(loader, scope, order):
            if isinstance(value, Ref) and value.path.endswith(("SafeLoader", "BaseLoader")):
                return True
    return False
