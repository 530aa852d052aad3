"""Calls whose arguments decide: files, imports by name, evaluation, attributes by name, formats."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from belljar.policy import imports, paths
from belljar.policy.resolve import Const, Literal, Ref, first_argument
from belljar.policy.scopes import Scope

if TYPE_CHECKING:
    from belljar.policy.analyser import Analyser

FILE_RULES = {"BJ401", "BJ402", "BJ403", "BJ404", "BJ405"}
_PATH_NAMES = (
    *("path_or_buf", "filepath_or_buffer", "path", "file", "fname", "filename", "io", "buf"),
    *("excel_writer", "source", "name", "database", "path_or_buffer", "fid", "con", "pathname"),
)
_BUFFERS = ("io.StringIO()", "io.BytesIO()", "builtins.open()", "pathlib.Path().open()")
_DECODING = re.compile(
    r"^(base64|binascii|codecs|zlib|gzip|bz2|lzma|marshal|urllib|requests|httpx|socket|pickle)\b"
    r"|^builtins\.(bytes|bytearray|input)\b"
)
_WALK = re.compile(
    r"\{[^{}]*?[.\[](?:__\w|_*(?:os|sys|builtins|subprocess|modules|environ)\b|(?:f|gi|tb|cr|ag)_\w+)"
)
_FRAME_MAKERS = ("pandas.", "polars.", "geopandas.", "dask.")


# -- files ------------------------------------------------------------------------------------


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
        if argument is None:
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
            analyser.report("BJ502", node, _shown(text))
            return
    if not allowed:
        analyser.report(rule, node, path)
    elif outside := [text for text in texts if text and not paths.allows(allowed, text)]:
        analyser.report("BJ406", node, f"{_shown(outside[0])} in {path}")
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


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")


# -- imports and code by call -----------------------------------------------------------------


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
        return False
    if isinstance(argument, ast.Lambda):
        return False
    values = analyser.resolver.values(argument, scope, order)
    return (
        any(value is None or _is_text_constant(value) for value in values)
        and not isinstance(argument, ast.Lambda)
        and not _is_local_function(analyser, argument, scope, order)
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


# -- calls by what they are called ------------------------------------------------------------


def check(analyser: Analyser, call: ast.Call, scope: Scope, order: int, relevant: set[str]) -> None:
    function = call.func
    if isinstance(function, ast.Name):
        handler = _BY_NAME.get(function.id)
        if handler is not None and _is_builtin(analyser, function.id, scope, order):
            handler(analyser, call, scope, order)
        elif function.id in relevant and function.id not in _BY_NAME:
            _aliased(analyser, call, function, scope, order)
        return
    if isinstance(function, ast.Attribute):
        handler = _BY_METHOD.get(function.attr)
        if handler is not None:
            handler(analyser, call, scope, order)
        elif rule := analyser.known.methods.get(function.attr):
            _method(analyser, rule, call, function, scope, order)
    elif isinstance(function, (ast.Call, ast.Subscript, ast.IfExp, ast.BoolOp, ast.NamedExpr)):
        _aliased(analyser, call, function, scope, order)


def _is_builtin(analyser: Analyser, name: str, scope: Scope, order: int) -> bool:
    values = analyser.resolver.lookup(name, scope, order)
    return any(isinstance(value, Ref) and value.path == f"builtins.{name}" for value in values)


def _aliased(
    analyser: Analyser, call: ast.Call, function: ast.expr, scope: Scope, order: int
) -> None:
    """`g = getattr; g(o, name)`, `getattr(os, "system")("id")`, `[eval][0]("1")`."""
    for value in analyser.resolver.values(function, scope, order):
        if not isinstance(value, Ref):
            continue
        short = value.path.removeprefix("builtins.")
        handler = _BY_NAME.get(short) if value.path.startswith("builtins.") else None
        handler = handler or _BY_PATH.get(value.path)
        if handler is not None:
            handler(analyser, call, scope, order)
        elif isinstance(function, (ast.Call, ast.IfExp, ast.BoolOp, ast.NamedExpr)):
            rule = analyser.rule_of(value.path)
            if rule and "." in value.path and not value.path.endswith(")"):
                analyser.use(rule, function, value, call, scope, order)


def _method(
    analyser: Analyser,
    rule: str,
    call: ast.Call,
    function: ast.Attribute,
    scope: Scope,
    order: int,
) -> None:
    """A method whose name says enough, unless the object is known and something else."""
    receivers = analyser.resolver.values(function.value, scope, order)
    for value in receivers:
        if isinstance(value, Ref) and analyser.rule_of(f"{value.path}.{function.attr}"):
            return  # by its full name it has been looked at
        if isinstance(value, (Const, Literal)):
            return
    if rule in FILE_RULES:
        if rule == "BJ402" and any(isinstance(value, Ref) for value in receivers):
            return
        file_use(analyser, rule, function, f".{function.attr}", None, call, scope, order)
    else:
        analyser.report(rule, function, f".{function.attr}")


# -- attributes by name -----------------------------------------------------------------------


def _attribute_by_name(analyser: Analyser, call: ast.Call, scope: Scope, order: int) -> None:
    """getattr, setattr, delattr."""
    if len(call.args) < 2:
        if any(isinstance(each, ast.Starred) for each in call.args):
            analyser.report("BJ305", call, ast.unparse(call.func)[:60])
        return
    called = call.func.id if isinstance(call.func, ast.Name) else "getattr"
    objects = analyser.resolver.values(call.args[0], scope, order)
    for text in dict.fromkeys(analyser.texts(call.args[1], scope, order)):
        if text is None:
            modules = [each for each in map(_of_module(analyser), objects) if each]
            if modules:
                analyser.report("BJ306", call, f"{called}({modules[0]}, …)")
            else:
                analyser.report("BJ305", call, called)
            continue
        _constant_attribute(analyser, call, objects, text, called)
        if called == "setattr" and any(map(_of_module(analyser), objects)):
            analyser.report("BJ310", call, f"setattr of {text!r}")


def _of_module(analyser: Analyser) -> Callable[[object], str | None]:
    """The name of a module the catalogue knows, or of something in it."""

    def name(value: object) -> str | None:
        if not isinstance(value, Ref) or value.path.endswith((")", "]")):
            return None
        return value.path if value.path.partition(".")[0] in analyser.known.roots else None

    return name


def _constant_attribute(
    analyser: Analyser, call: ast.Call, objects: tuple[object, ...], text: str, called: str
) -> None:
    for base in objects:
        value = analyser.resolver.attribute_of(base, text)  # type: ignore[arg-type]
        if text in analyser.known.watched:
            analyser.inner_attribute(call, text, value, set())
        if isinstance(value, Ref) and isinstance(base, Ref):
            if "(" not in base.path and analyser.known.power(base.path, text):
                analyser.report("BJ107", call, f"{base.path}.{text}")
            elif id(call) in analyser.survey.called or called == "setattr":
                continue  # what is called is looked at with its arguments
            elif rule := analyser.rule_of(value.path):
                analyser.report(rule, call, value.path.removeprefix("builtins."))


def _getter(analyser: Analyser, call: ast.Call, scope: Scope, order: int) -> None:
    """operator.attrgetter("a.b"), operator.methodcaller("name")"""
    if not call.args:
        return
    for argument in call.args[: 1 if _called(call) == "methodcaller" else None]:
        for text in analyser.texts(argument, scope, order):
            if text is None:
                analyser.report("BJ305", call, _called(call))
                continue
            steps = text.split(".")
            for step in steps:
                if step in analyser.known.watched or step.strip("_") in analyser.known.powers:
                    value = Ref("?." + text)
                    rule = "BJ301" if len(steps) > 1 else None
                    if rule:
                        analyser.report(rule, call, text[:60])
                    else:
                        analyser.inner_attribute(call, step, value, set())
                    break


def _called(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else "a call"


# -- formats ------------------------------------------------------------------------------------


def _format(analyser: Analyser, call: ast.Call, scope: Scope, order: int) -> None:
    """`"{0.__class__}".format(x)`"""
    function = call.func
    if not isinstance(function, ast.Attribute):
        return
    if isinstance(function.value, ast.Attribute) and function.value.attr == "style":
        return  # `frame.style.format` is another thing
    receivers = analyser.resolver.values(function.value, scope, order)
    for value in receivers:
        if isinstance(value, Const) and isinstance(value.value, str):
            format_text(analyser, call, value.value)
        elif isinstance(value, Ref) and value.path in ("builtins.str", "string.Formatter()"):
            for text in analyser.texts(call.args[0], scope, order) if call.args else ():
                if text is None:
                    analyser.report("BJ304", call, function.attr)
                else:
                    format_text(analyser, call, text)
        elif not isinstance(value, (Const, Literal)) and (call.args or call.keywords):
            analyser.report("BJ304", call, f".{function.attr}()")


def format_text(analyser: Analyser, call: ast.AST, text: str) -> None:
    plain = text.replace("{{", "").replace("}}", "")
    if found := _WALK.search(plain):
        analyser.report("BJ303", call, _shown(found[0]))


# -- expressions of frames ------------------------------------------------------------------------


def _frame_expression(analyser: Analyser, call: ast.Call, scope: Scope, order: int) -> None:
    """`frame.query("…")`, `frame.eval("…")`, `pandas.eval("…")`: its own small language, but `@`
    and attributes lead out of it. `.eval()` of a model has no text, and is none of our business."""
    function = call.func
    if not isinstance(function, ast.Attribute):
        return
    argument = first_argument(call, "expr")
    if argument is None:
        return
    receivers = analyser.resolver.values(function.value, scope, order)
    if any(isinstance(each, Ref) and each.path == "builtins" for each in receivers):
        return  # builtins.eval has rules of its own
    if function.attr == "query" and any(
        isinstance(each, Ref) and not each.path.startswith(_FRAME_MAKERS) for each in receivers
    ):
        return
    name = f".{function.attr}()"
    for text in analyser.texts(argument, scope, order):
        if text is not None:
            if _leads_out(text):
                analyser.report("BJ204", call, name)
        elif function.attr == "eval" or _is_text(argument):
            analyser.report("BJ206", call, name)


def _leads_out(text: str) -> bool:
    """`@limit` is a variable and harmless; `@pd.read_csv`, `@f(...)` and dunders are not."""
    return bool(
        "__" in text
        or re.search(r"@\s*\w+\s*[.(\[]", text)
        or re.search(r"\bimport\b|\.\s*(?:pipe|apply|to_\w+|read_\w+)\s*\(", text)
    )


def _is_text(node: ast.expr) -> bool:
    """Put together as a text, though we do not know all of it."""
    return isinstance(node, (ast.JoinedStr, ast.BinOp))


_BY_NAME = {
    "getattr": _attribute_by_name,
    "setattr": _attribute_by_name,
    "delattr": _attribute_by_name,
}
_BY_METHOD = {
    "format": _format,
    "format_map": _format,
    "vformat": _format,
    "query": _frame_expression,
    "eval": _frame_expression,
    "attrgetter": _getter,
    "methodcaller": _getter,
}
_BY_PATH = {
    "operator.attrgetter": _getter,
    "operator.methodcaller": _getter,
    "inspect.getattr_static": _attribute_by_name,
    "builtins.object.__getattribute__": _attribute_by_name,
}
