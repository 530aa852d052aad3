"""A record as a Python script, with the `# %%` marks that editors know as cells."""

from __future__ import annotations

from belljar.record.export import words
from belljar.record.parse import Malformed, Reader, load_command
from belljar.record.reader import Cell, Event, Record
from belljar.results.execution import Execution, printable

# First, so that no comment of a cell can be taken for a declaration of the encoding.
_HEAD = "#!/usr/bin/env python3\n# -*- coding: utf-8 -*-\n"
_NO_CODE = ("SyntaxError", "IndentationError", "TabError")


def render(record: Record, *, outputs: bool) -> str:
    parts = [_HEAD + _comment(f"Exported from {record.path.name}")]
    for session in record.sessions:
        parts.append("# %% [markdown]\n" + _comment(words.heading(session)))
        for step in session.steps:
            if isinstance(step, Cell):
                parts.append(_cell(step, outputs=outputs))
            else:
                parts.append(_event(step, outputs=outputs))
    return words.encodable("\n".join(parts))


def _cell(cell: Cell, *, outputs: bool) -> str:
    code, execution = cell.code, cell.execution
    # One cell that does not compile would keep all the others from running.
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
            text += _comment(f"{name}:\n{words.plain(written)}")
    for result in execution.results:
        shown = result.text or ", ".join(result.formats())
        text += _comment(f"{'value' if result.is_main_result else 'display'}: {shown}")
    if execution.error is not None:
        text += _comment(f"{execution.error.name}: {execution.error.value}")
    if ended := words.end_of(execution):
        text += _comment(ended)
    return text


def _event(event: Event, *, outputs: bool) -> str:
    if event.kind != "command":
        return "# %% [markdown]\n" + _comment(words.event_of(event))
    text = "# %% [markdown]\n" + _comment("$ " + words.command_of(event))
    if outputs:
        try:
            done = load_command(Reader(event.fields))
        except Malformed as error:
            return text + _comment(f"what came of it cannot be read: {error}")
        text += _comment(words.plain(done.stdout + done.stderr)) + _comment(words.end_of(done))
    return text


def _comment(text: str) -> str:
    """Every line of it; `printable` leaves no other line end that Python knows."""
    lines = printable(text).removesuffix("\n").split("\n") if text else []
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)
