"""Export a record as a notebook, a script or a page: `render(read("session.jsonl"), "html")`."""

from belljar.record.export.formats import FORMATS, render

__all__ = ["FORMATS", "render"]
