"""The source text: checked for size and characters, then parsed, never compiled."""

from __future__ import annotations

import ast
import contextlib
import io
import itertools
import operator
import re
import sys
import threading
import time
import tokenize
import unicodedata
import warnings
from bisect import bisect_left

from belljar.policy.document import Caps

_SURROGATE = re.compile("[\ud800-\udfff]")
_REORDERING = re.compile("[\u202a-\u202e\u2066-\u2069]")
_WORD = re.compile(r"[^\W\d]\w*")
# Before Python 3.12 the expressions of an f-string are part of one token.
_FORMATTED = re.compile(r"(?i)[rb]?f")
# Python's parser keeps every prefix of a dotted name: `import a.a.a...` takes quadratic memory.
_DOTTED = re.compile(r"(?:\.(?:[ \t\f]|\\\r?\n)*\w+(?:[ \t\f]|\\\r?\n)*)+")
MOST_DOTS = 500
_WARNINGS = threading.Lock()  # the filters of warnings belong to the whole process

# Syntax of newer Pythons, for the hint of a syntax error on an older one.
_NEWER = (
    ((3, 12), re.compile(r"^\s*type\s+\w+(\[.*\])?\s*="), "type aliases"),
    ((3, 12), re.compile(r"^\s*(async\s+)?(def|class)\s+\w+\s*\["), "type parameters"),
    ((3, 12), re.compile(r"\b[fF]['\"]"), "quotes and backslashes inside f-strings"),
    ((3, 14), re.compile(r"\b[tT]['\"]"), "template strings"),
    ((3, 14), re.compile(r"^\s*except\s+\w+\s*,"), "except without parentheses"),
    ((3, 15), re.compile(r"^\s*lazy\s+(import|from)\b"), "lazy imports"),
)

MOST = 200  # problems of one kind that are reported


Range = tuple[int, int, int, int]  # line from 1, column, end line, end column
START: Range = (1, 0, 1, 0)
_get_range = operator.attrgetter("lineno", "col_offset", "end_lineno", "end_col_offset")


class Problem(Exception):
    """Why the code cannot be checked, or what is wrong with its characters."""

    def __init__(
        self, rule: str, told: str, where: Range = START, remedy: str | None = None
    ) -> None:
        super().__init__(told)
        self.rule, self.told, self.where, self.remedy = rule, told, where, remedy


def find_range(node: ast.AST | None) -> Range:
    try:
        where: Range = _get_range(node)
    except AttributeError:  # not a node of the text
        return START
    return where


def lines(code: str) -> list[str]:
    """Lines as Python counts them; `splitlines` splits at more characters."""
    return code.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def refuse(code: str, caps: Caps) -> None:
    """Check size and characters, before the text is parsed; raises Problem."""
    # First the cheap check: there are at most as many characters as bytes.
    size = len(code)
    if size <= caps.bytes and not code.isascii():
        if surrogate := _SURROGATE.search(code):
            raise _at(code, surrogate.start(), "BJ007")
        size = len(code.encode())
    if size > caps.bytes:
        raise Problem("BJ002", f"{size} bytes, more than {caps.bytes}")
    if (count := code.count("\n") + 1) > caps.lines:
        raise Problem("BJ002", f"{count} lines, more than {caps.lines}")
    if (nul := code.find("\0")) >= 0:
        raise _at(code, nul, "BJ007")


def parse(code: str) -> ast.Module:
    """The tree; raises Problem."""
    if any(match[0].count(".") > MOST_DOTS for match in _DOTTED.finditer(code)):
        raise Problem("BJ003", f"a name of more than {MOST_DOTS} parts")
    try:
        return _parse(code)
    except SyntaxError as error:
        if "\n%" in f"\n{code.lstrip()}" or "%" in (error.text or ""):
            from belljar.protocol.messages import drop_magics

            with contextlib.suppress(SyntaxError, RecursionError, MemoryError, ValueError):
                return _parse(drop_magics(code))
        raise _syntax(code, error) from None
    except (RecursionError, MemoryError):  # the second also if the stack of the parser is full
        raise Problem("BJ003", "more levels than the parser allows") from None
    except (ValueError, OverflowError) as error:
        raise Problem("BJ001", f"({error})") from None


def _parse(code: str) -> ast.Module:
    """`ast.parse` only makes a tree. Its warnings are shown when the code runs."""
    with _WARNINGS, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code)


def _syntax(code: str, error: SyntaxError) -> Problem:
    every = lines(code)
    line = max(error.lineno or 1, 1)
    end_line = max(error.end_lineno or line, line)
    text, last = (every[n - 1] if n <= len(every) else "" for n in (line, end_line))
    column = _bytes(text, (error.offset or 1) - 1)
    end = _bytes(last, error.end_offset - 1) if error.end_offset else column + 1
    if (end_line, end) <= (line, column):
        end_line, end = line, column + 1
    return Problem("BJ001", f"({error.msg})", (line, column, end_line, end), _newer(text))


def _newer(text: str) -> str | None:
    """The remedy for a line that is syntax of a newer Python."""
    running = sys.version_info[:2]
    for version, pattern, what in _NEWER:
        if running < version and pattern.search(text):
            mine, theirs = ".".join(map(str, running)), ".".join(map(str, version))
            return (
                f"correct it; if it is {what} of Python {theirs}, check it on Python {theirs}: "
                f"the Python that runs belljar parses the code, here {mine}"
            )
    return None


def disguised(code: str, deadline: float) -> list[Problem]:
    """Characters that reorder the text, and identifiers that Python reads as other letters."""
    if code.isascii():
        return []
    found = [
        _at(code, match.start(), "BJ009")
        for match in itertools.islice(_REORDERING.finditer(code), MOST)
    ]
    words: list[tuple[int, int, int]] = []  # line, where it begins and ends
    every = lines(code)
    for number, line in enumerate(every, 1):
        if line.isascii():
            continue
        if time.thread_time() > deadline:
            where = (number, 0, number, 0)
            return [*found, Problem("BJ005", "its characters take too long to check", where)]
        words += (
            (number, match.start(), match.end())
            for match in _WORD.finditer(line)
            if not match[0].isascii() and _is_disguised(match[0])
        )
    for number, start, end in _identifiers(code, words)[:MOST] if words else ():
        line = every[number - 1]
        where = (number, _bytes(line, start), number, _bytes(line, end))
        found.append(Problem("BJ008", _read(line[start:end]), where))
    return found


def _is_disguised(word: str) -> bool:
    """False for `R²`, which is not an identifier, so it can only be in a string or comment."""
    read = _read(word)
    return read != word and read.isascii() and word.lstrip("0123456789").isidentifier()


def _read(word: str) -> str:
    """The identifier as Python reads it."""
    return unicodedata.normalize("NFKC", word)


def _identifiers(code: str, words: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The words (in their order) that are identifiers, not part of a string or a comment."""
    idle = bytearray(len(words))
    try:
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type == tokenize.COMMENT or (
                token.type == tokenize.STRING and not _FORMATTED.match(token.string)
            ):
                first, last = bisect_left(words, token.start), bisect_left(words, token.end)
                idle[first:last] = b"\1" * (last - first)
    except (tokenize.TokenError, SyntaxError, RecursionError):
        return words  # rather too many findings than too few
    return [word for word, is_idle in zip(words, idle, strict=True) if not is_idle]


def _bytes(text: str, characters: int) -> int:
    """`ast` counts columns in bytes of UTF-8."""
    return len(text[: max(characters, 0)].encode("utf-8", "surrogatepass"))


def _at(code: str, index: int, rule: str) -> Problem:
    """The problem with one character."""
    line = code.count("\n", 0, index) + 1
    column = _bytes(code[code.rfind("\n", 0, index) + 1 : index], index)
    where = (line, column, line, column + _bytes(code[index], 1))
    return Problem(rule, f"U+{ord(code[index]):04X}", where)
