"""The source text: checked for size and characters, then parsed, never compiled."""

from __future__ import annotations

import ast
import io
import itertools
import re
import sys
import threading
import time
import tokenize
import unicodedata
import warnings
from bisect import bisect_left
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Problem:
    """Why the text cannot be parsed, or what is wrong with its characters."""

    rule: str
    told: str
    line: int = 1
    column: int = 0
    end_line: int = 1
    end_column: int = 0
    remedy: str | None = None


def lines(code: str) -> list[str]:
    """Lines as Python counts them; `splitlines` splits at more characters."""
    return code.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def refuse(code: str, caps: Caps) -> Problem | None:
    """Check size and characters, before the text is parsed."""
    # First the cheap check: there are at most as many characters as bytes.
    size = len(code)
    if size <= caps.bytes:
        surrogate = None if code.isascii() else _SURROGATE.search(code)
        if surrogate:
            return _at(code, surrogate.start(), "BJ007", f"U+{ord(surrogate[0]):04X}")
        size = size if code.isascii() else len(code.encode())
    if size > caps.bytes:
        return Problem("BJ002", f"{size} bytes, more than {caps.bytes}")
    if (count := code.count("\n") + 1) > caps.lines:
        return Problem("BJ002", f"{count} lines, more than {caps.lines}")
    if (nul := code.find("\0")) >= 0:
        return _at(code, nul, "BJ007", "U+0000")
    return None


def parse(code: str) -> ast.Module | Problem:
    if any(match[0].count(".") > MOST_DOTS for match in _DOTTED.finditer(code)):
        return Problem("BJ003", f"a name of more than {MOST_DOTS} parts")
    try:
        return _parse(code)
    except SyntaxError as error:
        if "\n%" in f"\n{code.lstrip()}" or "%" in (error.text or ""):
            from belljar.protocol.messages import drop_magics

            try:
                return _parse(drop_magics(code))
            except (SyntaxError, RecursionError, MemoryError, ValueError):
                return _syntax(code, error)
        return _syntax(code, error)
    except RecursionError:
        return Problem("BJ003", "more levels than the parser allows")
    except MemoryError:  # the parser also raises it when its stack is full
        return Problem("BJ003", "more levels than the parser allows")
    except (ValueError, OverflowError) as error:
        return Problem("BJ001", f"({error})")


def _parse(code: str) -> ast.Module:
    """`ast.parse` only makes a tree. Its warnings are shown when the code runs."""
    with _WARNINGS, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code)


def _syntax(code: str, error: SyntaxError) -> Problem:
    line = max(error.lineno or 1, 1)
    every = lines(code)
    text = every[line - 1] if line <= len(every) else ""
    column = _bytes(text, (error.offset or 1) - 1)
    end_line = max(error.end_lineno or line, line)
    last = every[end_line - 1] if end_line <= len(every) else ""
    end = _bytes(last, (error.end_offset or 0) - 1) if error.end_offset else column + 1
    if (end_line, end) <= (line, column):
        end_line, end = line, column + 1
    return Problem(
        "BJ001", f"({error.msg})", line, column, end_line, end, remedy=_newer(text, line, code)
    )


def _newer(text: str, line: int, code: str) -> str | None:
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
        _at(code, match.start(), "BJ009", f"U+{ord(match[0]):04X}")
        for match in itertools.islice(_REORDERING.finditer(code), MOST)
    ]
    words: list[tuple[int, int, int]] = []  # line, where it begins and ends
    every = lines(code)
    for number, line in enumerate(every, 1):
        if line.isascii():
            continue
        if time.thread_time() > deadline:
            return [*found, Problem("BJ005", "its characters take too long to check", number)]
        words += (
            (number, match.start(), match.end())
            for match in _WORD.finditer(line)
            if not match[0].isascii() and _is_disguised(match[0])
        )
    for number, start, end in _identifiers(code, words)[:MOST] if words else ():
        line = every[number - 1]
        places = _bytes(line, start), _bytes(line, end)
        told = _read(line[start:end])
        found.append(Problem("BJ008", told, number, places[0], number, places[1]))
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


def _at(code: str, index: int, rule: str, told: str) -> Problem:
    line = code.count("\n", 0, index) + 1
    start = code.rfind("\n", 0, index) + 1
    column = _bytes(code[start:index], index - start)
    width = len(code[index].encode("utf-8", "surrogatepass"))
    return Problem(rule, told, line, column, line, column + width)
