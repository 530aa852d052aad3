"""Split lines of Python into statements, as they are typed or piped in.

The text is not compiled here, because it may be hostile and the guest may have another version of
Python. Counting brackets and quotes is enough; the guest reports invalid Python.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(r"#|'''|\"\"\"|'|\"|[()\[\]{}]")
_STRING_END = {
    quote: re.compile(rf"(?:\\.|(?!{quote})[^\\])*{quote}") for quote in ("'", '"', "'''", '"""')
}
# These continue until a line that does not belong to them, even if they fit into one line.
_COMPOUND = re.compile(r"(?:if|for|while|try|with|def|class|async)\b|@")
_CONTINUES = re.compile(r"(?:else|elif|except|finally)\b")


class Lexer:
    """Tracks what is open at the end of a line: a string, brackets, a backslash."""

    def __init__(self) -> None:
        self._quote = ""
        self._depth = 0
        self._joined = False
        self.opens_block = False  # the last line ended in a colon

    @property
    def at_rest(self) -> bool:
        """True if the next line begins a new logical line."""
        return not (self._quote or self._depth or self._joined)

    def feed(self, line: str) -> None:
        code = self._without_strings(line)
        self._joined = not self._quote and code.endswith("\\")
        self.opens_block = self.at_rest and code.rstrip().endswith(":")

    def _without_strings(self, line: str) -> str:
        code, at = "", 0
        while at < len(line):
            if self._quote:
                end = _STRING_END[self._quote].match(line, at)
                if end is None:
                    break
                self._quote, at = "", end.end()
                continue
            token = _TOKEN.search(line, at)
            if token is None:
                return code + line[at:]
            code += line[at : token.start()]
            at = token.end()
            if token[0] == "#":
                return code
            if token[0] in _STRING_END:
                self._quote = token[0]
                code += '"'
            else:
                self._depth = max(0, self._depth + (1 if token[0] in "([{" else -1))
                code += token[0]
        # Only a triple-quoted string, or one with a backslash at its end, continues on the next
        # line. Any other open string is an error that the guest reports.
        backslashes = len(line) - len(line.rstrip("\\"))
        if len(self._quote) == 1 and backslashes % 2 == 0:
            self._quote = ""
        return code


class Splitter:
    """Lines in, statements out.

    At a terminal an empty line ends a block (there is no other sign); in a pipe it does not,
    because functions in files have empty lines.

    >>> splitter = Splitter(empty_line_ends_block=False)
    >>> splitter.feed("if x:"), splitter.feed("    y()"), splitter.feed("z = 1")
    ([], [], ['if x:\\n    y()', 'z = 1'])
    """

    def __init__(self, *, empty_line_ends_block: bool) -> None:
        self._empty_line_ends_block = empty_line_ends_block
        self.clear()

    def clear(self) -> None:
        self._lexer = Lexer()
        self._lines: list[str] = []
        self._in_block = False
        self._decorated = False

    @property
    def pending(self) -> bool:
        """True if a statement has begun and is not complete."""
        return bool(self._lines)

    @property
    def at_rest(self) -> bool:
        return self._lexer.at_rest

    def feed(self, line: str) -> list[str]:
        """Add a line; returns the statements that it completes, at most two."""
        done: list[str] = []
        if self._lexer.at_rest:
            empty = not line.strip()
            if self._in_block and (
                (empty and self._empty_line_ends_block) or self._begins_another(line)
            ):
                done += self.finish()
            if not self._lines and (empty or line.lstrip().startswith("#")):
                return done
            if line[:1].strip():  # not indented: the head of a statement, or of a part of one
                self._in_block = self._in_block or bool(_COMPOUND.match(line))
                self._decorated = line.startswith("@")
        self._lexer.feed(line)
        self._lines.append(line)
        if self._lexer.at_rest:
            self._in_block = self._in_block or self._lexer.opens_block
            if not self._in_block:
                done += self.finish()
        return done

    def _begins_another(self, line: str) -> bool:
        indented = not line[:1].strip()
        return not (indented or self._decorated or line.startswith("#") or _CONTINUES.match(line))

    def finish(self) -> list[str]:
        """The input has ended: returns what is left, complete or not."""
        left = ["\n".join(self._lines)] if self._lines else []
        self.clear()
        return left
