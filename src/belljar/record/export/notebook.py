"""A record as a notebook, nbformat 4.5.

The content came from a guest, and viewers treat a result by its MIME type: nbconvert lets scripts
run in Markdown and SVG, and extensions run other types. So only known types are written, as text,
pictures, data or cleaned HTML.
"""

from __future__ import annotations

import base64
import json
import re

from belljar.record.export.export_text import (
    describe_command,
    describe_end,
    describe_event,
    plain_text,
    session_heading,
    without_ansi,
)
from belljar.record.parse import Malformed, Reader, load_command
from belljar.record.reader import Cell, Event, Record
from belljar.results import sanitize
from belljar.results.execution import CommandResult, Execution, Result
from belljar.results.result import CHART
from belljar.text import encodable

_DEPTH = 100  # of nested JSON: more could crash a reader of the notebook
Json = dict[str, object]


def render(record: Record) -> str:
    cells: list[Json] = []
    for session in record.sessions:
        cells.append(_markdown(record.path.name, session_heading(session)))
        cells += [_cell(s) if isinstance(s, Cell) else _event(s) for s in session.steps]
    numbered = [{"id": f"cell-{index}", **cell} for index, cell in enumerate(cells, 1)]
    notebook = {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
            "language_info": {"name": "python", "file_extension": ".py"},
        },
        "cells": numbered,
    }
    return encodable(json.dumps(notebook, indent=1, ensure_ascii=False, allow_nan=False))


def _cell(cell: Cell) -> Json:
    execution = cell.execution
    usage = {"wall": execution.usage.wall, "peak_memory": execution.usage.peak_memory}
    told: Json = {"outcome": execution.outcome.value, "usage": usage}
    if cell.context is not None:
        told["context"] = cell.context
    return {
        "cell_type": "code",
        "execution_count": execution.execution_count,
        "metadata": {"belljar": told},
        "source": cell.code.rstrip("\n"),
        "outputs": _outputs(execution),
    }


def _outputs(execution: Execution) -> list[Json]:
    outputs = _streams(execution)
    for result in execution.results:
        kind: Json = {"output_type": "display_data"}
        if result.is_main_result:
            count = execution.execution_count
            kind = {"output_type": "execute_result", "execution_count": count}
        outputs.append({"data": _bundle(result), "metadata": {}, **kind})
    if execution.error is not None:
        trace = without_ansi(execution.error.traceback)
        outputs.append(
            {
                "output_type": "error",
                "ename": execution.error.name,
                "evalue": execution.error.value,
                "traceback": trace.removesuffix("\n").split("\n"),
            }
        )
    if ended := describe_end(execution):
        outputs.append(_stream("stderr", f"[{ended}]\n"))
    return outputs


def _streams(run: Execution | CommandResult) -> list[Json]:
    texts = {"stdout": run.stdout, "stderr": run.stderr}
    return [_stream(name, text) for name, text in texts.items() if text]


def _stream(name: str, text: str) -> Json:
    return {"output_type": "stream", "name": name, "text": text}


# The classes prevent typesetting of TeX, which has commands for links and styles.
_HTML = '<div class="tex2jax_ignore mathjax_ignore">{}</div>'


def _bundle(result: Result) -> Json:
    data: Json = {}
    for mime, content in (("image/png", result.png), ("image/jpeg", result.jpeg)):
        if content:
            data[mime] = base64.b64encode(content).decode("ascii")
    if result.svg and not data:
        data["text/html"] = sanitize.image("image/svg+xml", result.svg.encode("utf-8", "replace"))
    elif shown := sanitize.to_html(result):
        data["text/html"] = _HTML.format(shown)
    for mime in ("application/json", CHART):
        if isinstance(said := result.raw.get(mime), str):
            # nbformat wants parsed JSON; invalid JSON is shown as text.
            try:
                data[mime] = _parsed(said)
            except (ValueError, RecursionError):
                data["text/plain"] = said
    if text := _text(result, shown="text/html" in data):
        data["text/plain"] = text
    return data


def _text(result: Result, *, shown: bool) -> str | None:
    """Its text, else the source of a format that is not shown otherwise."""
    if result.text or shown:
        return result.text
    return result.markdown or result.latex or result.html


def _parsed(text: str) -> object:
    parsed: object = json.loads(text)
    json.dumps(parsed, allow_nan=False)
    level = [parsed]
    for _ in range(_DEPTH):
        level = [child for each in level for child in _children(each)]
        if not level:
            return parsed
    raise ValueError("it is nested too deeply")


def _children(value: object) -> list[object]:
    return list(value.values()) if isinstance(value, dict) else value if type(value) is list else []


def _event(event: Event) -> Json:
    if event.kind == "command":
        try:
            done = load_command(Reader(event.fields))
        except Malformed as error:
            return _markdown("command", str(error))
        ended = describe_end(done)
        return {
            "cell_type": "code",
            "execution_count": None,
            "metadata": {"belljar": {"outcome": done.outcome.value}},
            "source": "%%sh\n" + describe_command(event),
            "outputs": _streams(done) + ([_stream("stderr", f"[{ended}]\n")] if ended else []),
        }
    return _markdown(describe_event(event))


_PLAIN = re.compile(r"[^A-Za-z0-9 ,/-]")


def _markdown(*parts: str) -> Json:
    """The texts as code, with each sign as an entity, so that no Markdown dialect sees markup."""
    spans = (_PLAIN.sub(lambda sign: f"&#{ord(sign[0])};", plain_text(part)) for part in parts)
    source = " ".join(f"<code>{span}</code>" for span in spans)
    return {"cell_type": "markdown", "metadata": {}, "source": source}
