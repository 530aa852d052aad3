"""The formats to which a record can be exported, and the simplest: a Python script.

The script has the `# %%` marks that editors know as cells; outputs become comments.
"""

from __future__ import annotations

from belljar.errors import unknown_option
from belljar.record.export import notebook, page
from belljar.record.export.export_text import (
    describe_command,
    describe_end,
    describe_event,
    plain_text,
    session_heading,
)
from belljar.record.parse import Malformed, Reader, load_command
from belljar.record.reader import Cell, Event, Record
from belljar.results.execution import Execution
from belljar.text import encodable, printable

FORMATS = {
    "ipynb": "a notebook for Jupyter",
    "py": "a script with one `# %%` cell for each",
    "html": "a page for a browser, complete in one file",
}


# The first lines, so that Python takes no comment of a cell for a declaration of the encoding.
_HEAD = "#!/usr/bin/env python3\n# -*- coding: utf-8 -*-\n"
_NO_CODE = ("SyntaxError", "IndentationError", "TabError")


def render(record: Record, to: str, *, outputs: bool = False) -> str:
    """The text of the exported file. `outputs`: a script has them as comments."""
    if to == "ipynb":
        return notebook.render(record)
    if to == "py":
        return _render_script(record, outputs=outputs)
    if to == "html":
        return page.render(record)
    raise unknown_option("format", to, FORMATS)


def _render_script(record: Record, *, outputs: bool) -> str:
    parts = [_HEAD + _comment(f"Exported from {record.path.name}")]
    for session in record.sessions:
        parts.append("# %% [markdown]\n" + _comment(session_heading(session)))
        for step in session.steps:
            if isinstance(step, Cell):
                parts.append(_script_cell(step, outputs=outputs))
            else:
                parts.append(_script_event(step, outputs=outputs))
    return encodable("\n".join(parts))


def _script_cell(cell: Cell, *, outputs: bool) -> str:
    code, execution = cell.code, cell.execution
    # One cell that does not compile would prevent the whole script from running.
    broken = execution.error is not None and execution.error.name in _NO_CODE
    if "code" in cell.left_out:
        text = "# %%\n" + _comment("The code of this cell is not in the record.")
    elif broken or "\0" in code:
        text = "# %%\n" + _comment("This cell does not compile:") + _comment(code)
    else:
        text = "# %%\n" + code.rstrip("\n") + "\n"
    return text + (_outputs(execution) if outputs else "")


def _outputs(execution: Execution) -> str:
    text = ""
    for name, written in (("stdout", execution.stdout), ("stderr", execution.stderr)):
        if written:
            text += _comment(f"{name}:\n{plain_text(written)}")
    for result in execution.results:
        shown = result.text or ", ".join(result.formats())
        text += _comment(f"{'value' if result.is_main_result else 'display'}: {shown}")
    if execution.error is not None:
        text += _comment(f"{execution.error.name}: {execution.error.value}")
    if ended := describe_end(execution):
        text += _comment(ended)
    return text


def _script_event(event: Event, *, outputs: bool) -> str:
    if event.kind != "command":
        return "# %% [markdown]\n" + _comment(describe_event(event))
    text = "# %% [markdown]\n" + _comment("$ " + describe_command(event))
    if outputs:
        try:
            done = load_command(Reader(event.fields))
        except Malformed as error:
            return text + _comment(f"the result cannot be read: {error}")
        text += _comment(plain_text(done.stdout + done.stderr)) + _comment(describe_end(done))
    return text


def _comment(text: str) -> str:
    """Every line as a comment; `printable` escapes all other line ends that Python knows."""
    lines = printable(text).removesuffix("\n").split("\n") if text else []
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)
