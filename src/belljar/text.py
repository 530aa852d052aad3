"""Foreign text, made fit to be shown: in a terminal, a log, one line of a repr."""

from __future__ import annotations

import re

# C0 without tab and newline, DEL, C1; the line separators and the controls that reorder what is
# read (bidirectional overrides); lone surrogates, which no terminal or log file can encode.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Escape what a terminal or a log would obey instead of show; newline and tab stay.

    >>> printable("\x1b]0;owned\x07 done\n")
    '\\x1b]0;owned\\x07 done\n'
    """
    return _UNPRINTABLE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def one_line(text: str, width: int = 60) -> str:
    line = printable(text[:width]).replace("\n", "\\n").replace("\t", "\\t")
    return line if len(text) <= width else f"{line}…"
