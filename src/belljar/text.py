"""Text and values of guests, made safe to show or to write: terminals, logs, reprs, JSON, YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NoReturn

# C0 without tab and newline, DEL, C1; line separators; bidirectional overrides, which reorder what
# people read; lone surrogates, which no terminal or log file can encode.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Escape what a terminal or a log would execute instead of show; newline and tab stay.

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


_CONTROL_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])"
)


def show_as_terminal(text: str) -> str:
    r"""The text as a terminal would show it at the end: without colours, and of a line that was
    written again and again, such as a progress bar, only the last version.

    >>> show_as_terminal("\x1b[32mgreen\x1b[0m\n10%\r50%\r100%\n")
    'green\n100%'
    """
    lines = _CONTROL_SEQUENCE.sub("", text).replace("\r\n", "\n").rstrip("\n").split("\n")
    return printable("\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines))


LEFT_OUT = "\n[… {:,} characters left out …]\n"
_LEFT_OUT_SIZE = 60  # characters that it takes at most


def fit_texts(texts: Iterable[str], limit: int | None) -> str:
    """Join texts, each on its own lines. If they are longer than `limit` characters, the longest
    ones lose their middle.

    >>> print(fit_texts(["x" * 500, "an error"], 120))
    xxxxxxxxxxxxxxxxxxxxxxxxx
    [… 450 characters left out …]
    xxxxxxxxxxxxxxxxxxxxxxxxx
    an error
    """
    kept = [text for text in texts if text]
    if limit is None or sum(map(len, kept)) + len(kept) <= limit:
        return "\n".join(kept)
    room, most = limit - len(kept), limit
    for count, size in zip(range(len(kept), 0, -1), sorted(map(len, kept)), strict=True):
        most = room // count  # if the shorter ones are whole, each of the others has so much
        if size > most:
            break
        room -= size
    return "\n".join(_cut_middle(text, most) for text in kept)[:limit]


def _cut_middle(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    side = max((most - _LEFT_OUT_SIZE) // 2, 0)
    return text[:side] + LEFT_OUT.format(len(text) - 2 * side) + text[len(text) - side :]


def encodable(text: str) -> str:
    """Replace lone surrogates, which a file or a page cannot contain."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def format_bytes(count: int) -> str:
    """Rounded, for people (`limits.format_size` is exact)."""
    number, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if number < 1000:
            break
        number, unit = number / 1024, larger
    return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"


def format_seconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:,.2f} s"


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


def parse_json(text: str | bytes) -> object:
    """Strictly: unlike `json.loads`, refuse NaN and Infinity, which JSON does not have."""
    parsed: object = json.loads(text, parse_constant=_refuse_constant)
    return parsed


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


MAX_ITEMS = 100_000  # of an array; JSON is the wrong format for more


def as_json(value: object) -> object:
    """The value in JSON's types, or None if JSON cannot hold it.

    A tuple, set or range becomes a list; dates, Decimals, UUIDs and paths become text; numpy
    scalars become numbers and small arrays lists. A table becomes None: its data are in the result.
    """
    try:
        carried: object = json.loads(json.dumps(value, allow_nan=False, default=_convert_value))
    except (TypeError, ValueError, RecursionError):
        return None
    return carried


def _convert_value(value: Any) -> object:
    # Imported here: almost everything imports this module, and few values need these.
    from datetime import date, datetime, time, timedelta
    from decimal import Decimal
    from pathlib import PurePath
    from uuid import UUID

    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta | Decimal | UUID | PurePath):
        return str(value)
    if isinstance(value, set | frozenset):
        return list(value)
    if isinstance(value, range) and not value[MAX_ITEMS:]:
        return list(value)
    # By the name of its module, so that numpy is not imported here.
    if type(value).__module__ == "numpy" and getattr(value, "size", MAX_ITEMS) < MAX_ITEMS:
        # tolist() alone gives times in nanoseconds as bare numbers.
        return (value.astype(str) if value.dtype.kind in "mM" else value).tolist()
    raise TypeError(f"a {type(value).__qualname__} has no form in JSON")
