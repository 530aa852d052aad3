"""A record as a page for a browser: complete in one file, and harmless whatever the guest wrote.

Nothing of the record is markup here: it is escaped, with two exceptions. HTML that the guest showed
stands in a frame with an empty `sandbox`: no scripts, no forms, an origin of its own. Pictures,
SVG too, are data of an <img>, where scripts do not run. The policy in the head forbids the page,
and with it the frames, to load anything or to run any script.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator

from belljar.limits import RULES, Limits, format_size
from belljar.record.export import words
from belljar.record.export.highlight import highlighted
from belljar.record.export.page_results import shown
from belljar.record.export.page_style import STYLE
from belljar.record.parse import Malformed, Reader, load_command
from belljar.record.reader import Cell, Event, Record, Session
from belljar.results.execution import CommandResult, Execution, Usage, printable

_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'"
)
MOST = 100_000  # characters of one output: a browser shall open the page; the record has the rest

_MOST_FILES = 20


def render(record: Record) -> str:
    name = _escaped(record.path.name)
    body = "\n".join(_body(record))
    return words.encodable(
        f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{name}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>{name}</h1>
{body}
</main>
</body>
</html>
"""
    )


def _body(record: Record) -> Iterator[str]:
    for note in record.notes:
        yield f'<p class="note">{_escaped(note)}</p>'
    for session in record.sessions:
        yield _head(session)
        for step in session.steps:
            yield _cell(step) if isinstance(step, Cell) else _event(step)


def _head(session: Session) -> str:
    counts = Counter(cell.execution.outcome.value for cell in session.cells)
    facts = {
        "environment": session.environment.name,
        "cells": ", ".join(f"{number} {outcome}" for outcome, number in counts.items()) or "none",
        "time": words.duration(sum(cell.execution.usage.wall for cell in session.cells)),
        "limits": _limits(session.limits),
        "variables": ", ".join(session.env),
        "functions": ", ".join(session.functions),
        "sandbox": f"{session.sandbox}, {session.backend}, Belljar {session.belljar}",
        **{f"metadata: {name}": value for name, value in session.metadata.items()},
    }
    rows = "".join(
        f"<dt>{_escaped(name)}</dt><dd>{_escaped(value)}</dd>"
        for name, value in facts.items()
        if value
    )
    return f"<header><h2>{words.moment(session.began)}</h2><dl>{rows}</dl></header>"


def _limits(limits: Limits) -> str:
    said = []
    for name, rule in RULES.items():
        value = getattr(limits, name)
        if name in ("memory", "timeout") or name in limits.explicit:
            shown = format_size(value) if rule.kind == "size" and value is not None else value
            said.append(f"{name} {shown}{' s' if rule.unit == 'seconds' and value else ''}")
    return ", ".join(said)


def _cell(cell: Cell) -> str:
    execution = cell.execution
    code = highlighted(printable(cell.code.rstrip("\n")))
    return _section(
        f"[{execution.execution_count}]",
        execution,
        f'<pre class="code">{code}</pre>',
        "".join(_outputs(execution)),
        id=f' id="cell-{cell.number}"',
    )


def _section(
    label: str, run: Execution | CommandResult, code: str, outputs: str, *, id: str = ""
) -> str:
    outcome = run.outcome.value
    good = "ok" if outcome == "ok" else "bad"
    ended = words.end_of(run) or outcome
    return (
        f"<section{id}><div class='bar'><span class='count'>{_escaped(label)}</span>"
        f"<span class='badge {good}'>{_escaped(ended)}</span>"
        f"<span class='cost'>{_cost(run.usage)}</span></div>{code}"
        + (f"<div class='out'>{outputs}</div>" if outputs else "")
        + "</section>"
    )


def _outputs(execution: Execution) -> Iterator[str]:
    yield _stream("stdout", execution.stdout)
    yield _stream("stderr", execution.stderr)
    for result in execution.results:
        yield shown(result, MOST)
    if execution.error is not None:
        yield f'<pre class="error">{_long(execution.error.traceback)}</pre>'
    background = "".join(execution.logs.background)
    yield _stream("background", background)
    # That a value could not travel concerns who called; its text is here.
    notes = [note for note in execution.notes if not note.startswith("value ")]
    for note in (*_deeds(execution), *notes):
        yield f'<p class="note">{_escaped(note)}</p>'


def _deeds(execution: Execution) -> Iterator[str]:
    """What it did besides showing something."""
    if execution.calls:
        counts = Counter(call.name for call in execution.calls)
        yield "called " + ", ".join(f"{name} ({number})" for name, number in counts.items())
    files = execution.files
    for kind, paths in (
        ("created", files.created if files else ()),
        ("changed", files.changed if files else ()),
        ("removed", files.removed if files else ()),
    ):
        if paths:
            more = f" and {len(paths) - _MOST_FILES} more" if len(paths) > _MOST_FILES else ""
            yield f"{kind} {', '.join(paths[:_MOST_FILES])}{more}"


def _stream(name: str, text: str) -> str:
    return f'<pre class="{name}">{_long(text)}</pre>' if text else ""


def _event(event: Event) -> str:
    if event.kind == "command":
        try:
            done = load_command(Reader(event.fields))
        except Malformed as error:
            return f'<p class="event">command: {_escaped(str(error))}</p>'
        code = f'<pre class="code">{_long(words.command_of(event))}</pre>'
        return _section(
            "$", done, code, _stream("stdout", done.stdout) + _stream("stderr", done.stderr)
        )
    return f'<p class="event">{_escaped(words.event_of(event))}</p>'


def _cost(usage: Usage) -> str:
    memory = "" if usage.peak_memory is None else f" · {words.size(usage.peak_memory)}"
    return f"{words.duration(usage.wall)}{memory}"


def _long(text: str) -> str:
    clean = words.plain(text).removesuffix("\n")
    more = len(clean) - MOST
    escaped = html.escape(clean[:MOST])
    return escaped + (f'\n<i class="more">… {more:,} more characters</i>' if more > 0 else "")


def _escaped(text: str) -> str:
    return html.escape(words.plain(text))
