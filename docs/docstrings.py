"""A griffe extension: how docstrings and comments of the source become the API pages.

The comment behind a field of a dataclass or an enum is its documentation. Examples in docstrings
are plain paragraphs of code; here they become code blocks.
"""

from __future__ import annotations

import ast
import textwrap
from typing import Any

import griffe


class Docstrings(griffe.Extension):
    def on_attribute_instance(self, *, attr: griffe.Attribute, **rest: Any) -> None:
        if attr.docstring or attr.endlineno is None or isinstance(attr.filepath, list):
            return
        line = attr.lines_collection[attr.filepath][attr.endlineno - 1]
        _, mark, comment = line.partition("  # ")
        if mark and not comment.startswith("noqa"):
            attr.docstring = griffe.Docstring(comment.strip(), parent=attr)

    def on_object(self, *, obj: griffe.Object, **rest: Any) -> None:
        if obj.docstring:
            paragraphs = obj.docstring.value.split("\n\n")
            obj.docstring.value = "\n\n".join(map(_fenced, paragraphs))


def _fenced(paragraph: str) -> str:
    code = textwrap.dedent(paragraph)
    if code.startswith(">>> "):
        return f"```pycon\n{code}\n```"
    if "(" not in code:
        return paragraph
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        compile(code, "docstring", "exec", flags=flags)
    except SyntaxError:
        return paragraph
    return f"```python\n{code}\n```"
