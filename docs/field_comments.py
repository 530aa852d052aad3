"""A griffe extension: the comment behind a field of a dataclass or an enum is its documentation."""

from __future__ import annotations

from typing import Any

import griffe


class FieldComments(griffe.Extension):
    def on_attribute_instance(self, *, attr: griffe.Attribute, **rest: Any) -> None:
        if attr.docstring is not None or attr.lineno is None or attr.endlineno is None:
            return
        if not isinstance(attr.filepath, type(attr.filepath)) or attr.parent is None:
            return
        lines = attr.lines_collection[attr.filepath]
        _, mark, comment = lines[attr.endlineno - 1].partition("  # ")
        if mark and not comment.startswith("noqa"):
            attr.docstring = griffe.Docstring(comment.strip(), parent=attr)
