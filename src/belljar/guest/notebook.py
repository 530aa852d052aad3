"""Cells that are written as for a notebook: shell commands, magics, a common indent.

Imported only when a cell is not Python as it stands. A line that is not Python becomes a call of
magics.py on the same line, so that tracebacks point into the cell.
"""

import ast
import contextlib
import re
from typing import Any, Dict, Iterable, List, Optional, Tuple

from ..protocol import messages
from .magics import CELL_MAGICS, IDLE, LINE_MAGICS
from .shell_commands import COMMANDS_HINT, HINTS, PACKAGES_HINT, explain_unknown
from .streams import ends_silently

FLAGS = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT

_CELL = re.compile(r"\s*%%(\w+)[ \t]*([^\n]*)(?:\n|\Z)")
_LINE = re.compile(r"([ \t]*)(?:([\w.,\[\]'\" \t]+?)[ \t]*=[ \t]*)?(!!?|%(?=[A-Za-z_]))(.*)\Z")
_NEXT = re.compile(r"#|'''|\"\"\"|'|\"|[(\[{]|[)\]}]|\\\Z")
_ENDS = {quote: re.compile(rf"(?:\\.|(?!{quote})[^\\])*") for quote in ("'''", '"""', "'", '"')}

At = Tuple[str, int, int, str]  # file, line, column and text, as in a SyntaxError


def parse_cell(code: str, name: str) -> Any:
    """The syntax tree of a cell that is not Python; raises SyntaxError if it is no notebook's."""
    cell = _CELL.match(code)
    if cell is None:
        return _parse_lines(code, name)
    number, (magic, line), body = code[: cell.end(1)].count("\n") + 1, cell.groups(), cell.end()
    if magic in ("time", "capture"):
        tree = _parse_body("\n" * code[:body].count("\n") + code[body:], name)
        return _measure(tree) if magic == "time" else _capture(tree, line, code)
    if magic not in CELL_MAGICS:
        raise _unknown(f"%%{magic}", CELL_MAGICS, (name, number, 1, cell[0].strip()))
    call = f"get_ipython().run_cell_magic({magic!r}, {line.strip()!r}, {code[body:]!r})"
    tree = compile(call, name, "exec", FLAGS)
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = number  # type: ignore[attr-defined]
            node.col_offset, node.end_col_offset = 0, len(cell[0].strip())  # type: ignore[attr-defined]
    return tree


def _parse_body(code: str, name: str) -> Any:
    with contextlib.suppress(SyntaxError):
        return compile(code, name, "exec", FLAGS)
    return parse_cell(code, name)  # it may begin with another magic


def _parse_lines(code: str, name: str) -> Any:
    before = code.split("\n")
    lines, changed = _replace_lines(before, name)
    text = "\n".join(lines)
    try:
        tree = _compile_indented(text, name) or compile(text, name, "exec", FLAGS)
    except SyntaxError as error:
        if error.lineno is not None and 0 < error.lineno <= len(before):
            error.text = before[error.lineno - 1]
        advice = None if changed else explain_magic(code)
        if advice:
            error.msg = f"{error.msg} ({advice})"
        raise
    for node in ast.walk(tree):
        if getattr(node, "lineno", 0) in changed:
            line = before[node.lineno - 1]  # type: ignore[attr-defined]
            node.col_offset = len(line) - len(line.lstrip())  # type: ignore[attr-defined]
            node.end_col_offset = len(line.encode("utf-8", "replace"))  # type: ignore[attr-defined]
    return tree


def _compile_indented(text: str, name: str) -> Any:
    """The tree of code that is indented as a whole; None for other code. The text is not changed,
    because strings of several lines may be in it."""
    if not re.match(r"(?:[ \t]*(?:#[^\n]*)?\n)*[ \t]+[^\s#]", text):
        return None
    try:
        tree: Any = compile("if 1:\n" + text, name, "exec", FLAGS)
    except SyntaxError as error:
        for place in ("lineno", "end_lineno"):
            setattr(error, place, max((getattr(error, place, None) or 2) - 1, 1))
        raise
    if len(tree.body) != 1 or tree.body[0].orelse:
        return None
    tree.body = tree.body[0].body
    return ast.increment_lineno(tree, -1)


def _replace_lines(lines: List[str], name: str) -> "Tuple[List[str], Dict[int, str]]":
    """The lines as Python, and by their numbers those that were not."""
    made: List[str] = []
    changed: Dict[int, str] = {}
    scanner = _Scanner()
    while len(made) < len(lines):
        line, number = lines[len(made)].rstrip("\r"), len(made) + 1
        found = _LINE.match(line) if scanner.at_start else None
        if found is None:
            scanner.feed(line)
            made.append(line)
            continue
        rest, last = found[4], number
        while rest.endswith("\\") and last < len(lines):
            rest = rest[:-1] + lines[last]
            last += 1
        at = (name, number, len(found[1]) + 1, line)
        target = "" if found[2] is None else f"{found[2]} = "
        made.append(found[1] + _make_statement(target, found[3], rest.strip(), at))
        made += [""] * (last - number)
        changed[number] = line
    return made, changed


def _make_statement(target: str, kind: str, rest: str, at: At) -> str:
    if kind != "%":
        method = "getoutput" if target or kind == "!!" else "system"
        return f"{target}get_ipython().{method}({rest!r})"
    magic, _, line = rest.partition(" ")
    line = line.strip()
    if magic in IDLE:
        return f"{target}None" if target else "pass"
    if magic == "time" and line:
        # In place, so that it can await and set variables.
        with contextlib.suppress(SyntaxError):
            compile(line, at[0], "eval", FLAGS)
            return f"{target}get_ipython().stop_clock(get_ipython().start_clock(), ({line}))"
        return f"with get_ipython().clock(): {target}{line}"
    if magic not in LINE_MAGICS:
        raise _unknown(f"%{magic}", (*LINE_MAGICS, *IDLE), at)
    return f"{target}get_ipython().run_line_magic({magic!r}, {line!r})"


def _measure(tree: Any) -> Any:
    """Time a whole cell, whose last expression stays its value."""
    for each in ("get_ipython().start_cell()", "get_ipython().stop_cell(None)"):
        (statement,) = ast.parse(each).body
        if "start" in each:
            tree.body.insert(0, statement)
        elif isinstance(tree.body[-1], ast.Expr) and len(tree.body) > 1:
            statement.value.args[0] = tree.body[-1].value  # type: ignore[attr-defined]
            tree.body[-1] = ast.copy_location(statement, tree.body[-1])
        else:
            tree.body.append(statement)
    return ast.fix_missing_locations(tree)


def _capture(tree: Any, line: str, code: str) -> Any:
    """Capture the output of a whole cell, and the value of its last expression with it."""
    made = ast.parse(f"with get_ipython().capture({line!r}): get_ipython().show_value(None)")
    block: Any = made.body[0]
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr) and not ends_silently(code, last):
        show = block.body[0].value
        show.args[0], last.value = last.value, ast.copy_location(show, last)
    block.body = tree.body or block.body
    tree.body = [block]
    return ast.fix_missing_locations(tree)


def _unknown(magic: str, known: Iterable[str], at: At) -> SyntaxError:
    return SyntaxError(explain_unknown(magic, known), at)


class _Scanner:
    """Knows whether the next line begins a statement: not one in a string or in brackets."""

    def __init__(self) -> None:
        self._quote, self._depth, self._continued = "", 0, False

    @property
    def at_start(self) -> bool:
        return not (self._quote or self._depth > 0 or self._continued)

    def feed(self, line: str) -> None:
        self._continued, position = False, 0
        while position < len(line):
            if self._quote:
                found = _ENDS[self._quote].match(line, position)
                position = found.end() if found else len(line)
                if not line.startswith(self._quote, position):
                    break  # it goes on in the next line
                position += len(self._quote)
                self._quote = ""
                continue
            token = _NEXT.search(line, position)
            if token is None or token[0] == "#":
                return
            position = token.end()
            if token[0] in _ENDS:
                self._quote = token[0]
            elif token[0] == "\\":
                self._continued = True
            else:
                self._depth += 1 if token[0] in "([{" else -1
        if len(self._quote) == 1 and not line.endswith("\\"):
            self._quote = ""  # not closed: Python will say so


# -- without notebook=True ------------------------------------------------------------------------

_CELL_MAGIC = re.compile(r"%%(\w+)")
_HABIT = re.compile(r"(?:[\w., \t]+=)?[ \t]*(?:(!+)[ \t]*(.*)|%([A-Za-z]\w*)[ \t]*(.*))")
_HELP = re.compile(r"\?{1,2}[ \t]*([\w.]+)[ \t]*$|([\w.]+)[ \t]*\?{1,2}[ \t]*$")
_INSTALLS = re.compile(r"(?:\S*python\S* -m )?(?:uv )?(?:pip\d?|conda|mamba|apt|apt-get)\b")


def explain_magic(code: str) -> Optional[str]:
    """What to write instead of notebook syntax that does not compile; None for other errors."""
    cell = _CELL_MAGIC.match(code.lstrip())
    if cell:
        return _advise(f"%%{cell[1]}", HINTS.get(cell[1]))
    lines = code.split("\n")
    number = messages.find_syntax_error(code)
    if number is None or number > len(lines):
        return None
    line = lines[number - 1].strip()
    found, help_ = _HABIT.match(line), _HELP.match(line)
    if help_:
        return _advise(f"{line[:40]!r}", f"use help({(help_[1] or help_[2])[:80]})")
    if found is None:
        return None
    if found[1]:
        return _advise("!", PACKAGES_HINT if _INSTALLS.match(found[2]) else COMMANDS_HINT)
    return _advise(f"%{found[3]}", HINTS.get(found[3]))


def _advise(what: str, instead: Optional[str]) -> str:
    said = f"{what} is notebook syntax, not Python"
    return f"{said}: {instead}" if instead else f"{said}; there are no magics here"
