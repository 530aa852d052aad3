"""Foreign text: made fit to be shown in a terminal, a log, one line of a repr; and YAML, checked
before a parser builds it."""

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


MAX_YAML_DEPTH = 50


class UnsafeYAML(ValueError):
    def __init__(self, problem: str, line: int) -> None:
        super().__init__(problem)
        self.line = line


def check_yaml(text: str) -> None:
    """Raise UnsafeYAML for aliases and deep nesting, and yaml.YAMLError for what is not YAML.

    A few lines of aliases stand for more than any memory holds, or for themselves; and the time of
    the parser grows with the square of the depth. Needs PyYAML.
    """
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent):
            raise UnsafeYAML(f"aliases (*{event.anchor}) are not allowed", line)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_YAML_DEPTH:
            raise UnsafeYAML("is nested too deeply", line)
