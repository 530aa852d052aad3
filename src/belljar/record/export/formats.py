"""Which formats a record can be exported to."""

from __future__ import annotations

from belljar.errors import unknown_option
from belljar.record.export import export_script, notebook, page
from belljar.record.reader import Record

FORMATS = {
    "ipynb": "a notebook for Jupyter",
    "py": "a script with one `# %%` cell for each",
    "html": "a page for a browser, complete in one file",
}


def render(record: Record, to: str, *, outputs: bool = False) -> str:
    """The text of the file. `outputs`: a script has them too, as comments."""
    if to == "ipynb":
        return notebook.render(record)
    if to == "py":
        return export_script.render(record, outputs=outputs)
    if to == "html":
        return page.render(record)
    raise unknown_option("format", to, FORMATS)
