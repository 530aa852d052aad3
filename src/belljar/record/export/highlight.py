"""Python code as HTML, with the tokens that `tokenize` finds in spans.

The code may be anything. Whatever the tokenizer says, each character of the code is written once,
in order, and escaped; code that it cannot read is written without spans.
"""

from __future__ import annotations

import builtins
import html
import io
import keyword
import token
import tokenize
from collections.abc import Iterator

LONGEST = 200_000  # characters; more than that nobody reads, and the tokenizer is slow
_STRINGS = {
    number
    for name, number in vars(token).items()
    if name == "STRING" or name.startswith(("FSTRING_", "TSTRING_"))
}
_BUILTINS = frozenset(dir(builtins))


def highlighted(code: str) -> str:
    """HTML for the inside of a <pre>; `code` is printable already."""
    if len(code) > LONGEST:
        return html.escape(code)
    try:
        return "".join(_spans(code))
    except (tokenize.TokenError, SyntaxError, ValueError):
        return html.escape(code)


def _spans(code: str) -> Iterator[str]:
    # As the tokenizer counts lines, so that its positions become offsets.
    starts = [0]
    for line in io.StringIO(code):
        starts.append(starts[-1] + len(line))
    done, previous = 0, ""
    for each in tokenize.generate_tokens(io.StringIO(code).readline):
        kind = _kind(each, attribute=previous == ".")
        previous = each.string
        if kind is None:
            continue
        begin, end = (
            min(starts[min(row - 1, len(starts) - 1)] + column, len(code))
            for row, column in (each.start, each.end)
        )
        if begin < done or end <= begin:
            continue
        yield html.escape(code[done:begin])
        yield f'<span class="{kind}">{html.escape(code[begin:end])}</span>'
        done = end
    yield html.escape(code[done:])


def _kind(each: tokenize.TokenInfo, *, attribute: bool) -> str | None:
    if each.type == token.COMMENT:
        return "c"
    if each.type in _STRINGS:
        return "s"
    if each.type == token.NUMBER:
        return "n"
    if each.type == token.NAME:
        if keyword.iskeyword(each.string):
            return "k"
        return "b" if each.string in _BUILTINS and not attribute else None
    return None
