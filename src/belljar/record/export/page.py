"""A record as a page for a browser: complete in one file, and harmless whatever the guest wrote.

Everything from the record is escaped, with two exceptions. Cleaned HTML that the guest showed is in
a frame with an empty `sandbox`: no scripts, no forms, an opaque origin. Pictures, SVG too, are data
of an <img>, where scripts do not run. The policy in the head forbids the page and its frames to
load anything or to run a script.
"""

from __future__ import annotations

import base64
import html
from collections import Counter
from collections.abc import Iterator

from belljar.limits import RULES, Limits, format_size
from belljar.record.export.export_text import (
    describe_command,
    describe_end,
    describe_event,
    format_time,
    highlight_code,
    plain_text,
)
from belljar.record.parse import Malformed, Reader, load_command
from belljar.record.reader import Cell, Event, Record, Session
from belljar.results import sanitize
from belljar.results.execution import CommandResult, Execution, Result, Usage
from belljar.text import encodable, format_bytes, format_seconds, printable

_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'"
)
MOST = 100_000  # characters of one output, so that a browser can open the page
_MOST_FILES = 20
_ROW = 26  # pixels of a row of a table, about
_LOWEST, _HIGHEST = 60, 480  # pixels of a frame
# A frame is a document of its own and does not see the style of the page.
_FRAME_STYLE = """
:root{color-scheme:light dark}
body{font:14px/1.45 system-ui,sans-serif;margin:4px}
table{border-collapse:collapse;border:0;font-variant-numeric:tabular-nums}
th,td{padding:3px 10px;border:0;border-bottom:1px solid #8884;text-align:right}
"""
# Light and dark. It loads nothing, not even fonts.
_STYLE = """
:root{color-scheme:light dark;--bg:#fbfbfa;--card:#fff;--ink:#1f2328;--dim:#66707b;--line:#e3e5e8;
--code:#f5f6f7;--accent:#3b6ea8;--good:#1a7f4b;--bad:#b3261e;--k:#8250df;--s:#116329;--c:#6e7781;
--n:#0550ae;--b:#953800}
@media (prefers-color-scheme:dark){:root{--bg:#14171a;--card:#1b1f24;--ink:#e2e6ea;--dim:#8f99a3;
--line:#2d333b;--code:#22272e;--accent:#7fb0e6;--good:#57c98a;--bad:#ff8a80;--k:#c8a5ff;--s:#8fd19e;
--c:#8b949e;--n:#79b8ff;--b:#f2b077}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:60rem;margin:0 auto;padding:2rem 1rem 4rem}
h1{font-size:1.5rem;margin:0 0 1rem;overflow-wrap:anywhere}
h2{font-size:1rem;margin:0 0 .5rem}
header{margin:1.5rem 0;padding:1rem;border:1px solid var(--line);border-radius:10px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;margin:0;font-size:.87rem}
dt{color:var(--dim)}
dd{margin:0;overflow-wrap:anywhere}
section{margin:1rem 0;background:var(--card);border:1px solid var(--line);border-radius:10px;
overflow:hidden}
.bar{display:flex;gap:.75rem;align-items:center;padding:.4rem .9rem;font-size:.8rem;
border-bottom:1px solid var(--line)}
.count{font-family:ui-monospace,monospace;color:var(--accent)}
.badge{padding:.05rem .5rem;border-radius:99px;border:1px solid;font-weight:600}
.ok{color:var(--good)}
.bad{color:var(--bad)}
.cost{margin-left:auto;color:var(--dim);font-variant-numeric:tabular-nums}
pre{margin:0;font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;
white-space:pre-wrap;overflow-wrap:anywhere;max-height:32rem;overflow:auto;tab-size:4}
.code{padding:.8rem .9rem;background:var(--code)}
.out{padding:.7rem .9rem;display:grid;gap:.6rem;border-top:1px solid var(--line);min-width:0}
.out>*{min-width:0}
.stderr,.error{color:var(--bad)}
.background,.more{color:var(--dim)}
.error{border-left:3px solid var(--bad);padding-left:.7rem}
.main{border-left:3px solid var(--accent);padding-left:.7rem}
img{max-width:100%;height:auto;background:#fff;border-radius:6px}
iframe{width:100%;border:0;resize:vertical;background:var(--card);display:block}
.note,.event{margin:0;color:var(--dim);font-size:.85rem}
.event{margin:1rem 0;text-align:center;overflow-wrap:anywhere}
.note{border-left:3px solid var(--line);padding-left:.7rem}
a{color:var(--accent)}
.k{color:var(--k)}.s{color:var(--s)}.c{color:var(--c);font-style:italic}.n{color:var(--n)}
.b{color:var(--b)}
"""


def render(record: Record) -> str:
    name = _escaped(record.path.name)
    body = "\n".join(_body(record))
    return encodable(
        f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{name}</title>
<style>{_STYLE}</style>
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
        yield _session_head(session)
        for step in session.steps:
            yield _cell(step) if isinstance(step, Cell) else _event(step)


def _session_head(session: Session) -> str:
    counts = Counter(cell.execution.outcome.value for cell in session.cells)
    facts = {
        "environment": session.environment.name,
        "cells": ", ".join(f"{number} {outcome}" for outcome, number in counts.items()) or "none",
        "time": format_seconds(sum(cell.execution.usage.wall for cell in session.cells)),
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
    return f"<header><h2>{format_time(session.began)}</h2><dl>{rows}</dl></header>"


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
    code = highlight_code(printable(cell.code.rstrip("\n")))
    where = "" if cell.context is None else f" context {cell.context[:16]}"
    return _section(
        f"[{execution.execution_count}]{where}",
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
    ended = describe_end(run) or outcome
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
        yield _result(result)
    if execution.error is not None:
        yield f'<pre class="error">{_cut_text(execution.error.traceback)}</pre>'
    background = "".join(execution.logs.background)
    yield _stream("background", background)
    # Leave out notes that a value could not be sent to the caller: its text is here.
    notes = [note for note in execution.notes if not note.startswith("value ")]
    for note in (*_side_effects(execution), *notes):
        yield f'<p class="note">{_escaped(note)}</p>'


def _side_effects(execution: Execution) -> Iterator[str]:
    """Calls of host functions and changes of files."""
    if execution.calls:
        counts = Counter(call.name for call in execution.calls)
        yield "called " + ", ".join(f"{name} ({number})" for name, number in counts.items())
    for kind, paths in vars(execution.files).items() if execution.files else ():
        if paths:
            more = f" and {len(paths) - _MOST_FILES} more" if len(paths) > _MOST_FILES else ""
            yield f"{kind} {', '.join(paths[:_MOST_FILES])}{more}"


def _stream(name: str, text: str) -> str:
    return f'<pre class="{name}">{_cut_text(text)}</pre>' if text else ""


def _event(event: Event) -> str:
    if event.kind == "command":
        try:
            done = load_command(Reader(event.fields))
        except Malformed as error:
            return f'<p class="event">command: {_escaped(str(error))}</p>'
        code = f'<pre class="code">{_cut_text(describe_command(event))}</pre>'
        return _section(
            "$", done, code, _stream("stdout", done.stdout) + _stream("stderr", done.stderr)
        )
    return f'<p class="event">{_escaped(describe_event(event))}</p>'


def _cost(usage: Usage) -> str:
    memory = "" if usage.peak_memory is None else f" · {format_bytes(usage.peak_memory)}"
    return f"{format_seconds(usage.wall)}{memory}"


def _cut_text(text: str) -> str:
    clean = plain_text(text).removesuffix("\n")
    more = len(clean) - MOST
    escaped = html.escape(clean[:MOST])
    return escaped + (f'\n<i class="more">… {more:,} more characters</i>' if more > 0 else "")


def _escaped(text: str) -> str:
    return html.escape(plain_text(text))


def _result(result: Result) -> str:
    """One result, in the format that tells a person most."""
    inner = _picture(result) or _document(result) or _frame(result) or _result_text(result)
    kind = "result main" if result.is_main_result else "result"
    return f'<div class="{kind}">{inner}</div>'


def _picture(result: Result) -> str:
    if picture := sanitize.find_picture(result):
        return sanitize.image(*picture, alt=plain_text(result.text or "picture")[:500])
    if {"image/png", "image/jpeg"} & set(result.raw):
        return '<p class="note">The picture was too large for the record.</p>'
    return ""


def _document(result: Result) -> str:
    if not result.pdf:
        return ""
    url = f"data:application/pdf;base64,{base64.b64encode(result.pdf).decode('ascii')}"
    size = format_bytes(len(result.pdf))
    return f'<p><a download="result.pdf" href="{url}">PDF</a>, {size}</p>'


def _frame(result: Result) -> str:
    shown = sanitize.to_html(result)
    if not shown:
        return ""
    rows = shown.count("<tr") or shown.count("\n") + 1
    height = max(_LOWEST, min(_HIGHEST, (rows + 1) * _ROW))
    document = html.escape(
        f"<!doctype html><meta charset='utf-8'><style>{_FRAME_STYLE}</style>{shown}"
    )
    return (
        f'<iframe sandbox="" title="HTML that the code showed" loading="lazy" '
        f'style="height:{height}px" srcdoc="{document}"></iframe>'
    )


def _result_text(result: Result) -> str:
    text = result.text or result.markdown or result.latex
    if text is None:
        texts = (content for content in result.raw.values() if isinstance(content, str))
        text = next(texts, f"[{', '.join(result.formats())}]")
    return f"<pre>{_cut_text(text)}</pre>"
