"""The report as one HTML file: no scripts, no external resources, every quotation escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator

from belljar.conformance import report_text
from belljar.conformance.report_data import BAD, Attempt, Report, RowResult, State
from belljar.conformance.rows import FAMILIES
from belljar.text import printable

_STYLE = """
:root { color-scheme: light dark; --line: #d5d9de; --soft: #f4f6f8; --text: #1c2733;
  --quiet: #566473; --back: #fff; --held: #14663a; --failed: #b3161b; --vacuous: #8a5300;
  --unmade: #4a5a6a; }
@media (prefers-color-scheme: dark) { :root { --line: #36424e; --soft: #1d252d; --text: #e3e9ef;
  --quiet: #9fb0c0; --back: #12181e; --held: #2c8a57; --failed: #d2484c; --vacuous: #b57a1f;
  --unmade: #5d7083; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
  max-width: 72rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.6rem; margin: 0 0 .75rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
.verdict { border-left: .5rem solid; padding: .7rem 1rem; background: var(--soft);
  font-size: 1.1rem; font-weight: 600; overflow-wrap: anywhere; }
.verdict.held { border-color: var(--held); } .verdict.failed { border-color: var(--failed); }
.totals { display: flex; flex-wrap: wrap; gap: .6rem; padding: 0; margin: 1rem 0; }
.totals li { list-style: none; border: 1px solid var(--line); border-radius: .4rem;
  padding: .4rem .8rem; } .totals b { font-size: 1.3rem; margin-right: .4rem; }
table { border-collapse: collapse; width: 100%; } caption { text-align: left; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
th { font-weight: 600; } thead th { color: var(--quiet); font-size: .85rem; }
.facts th { width: 11rem; color: var(--quiet); font-weight: 500; }
.rows { table-layout: fixed; } .rows .n { width: 3.2rem; text-align: right; }
.rows .s { width: 6.4rem; } .rows .t { width: 5rem; text-align: right; color: var(--quiet); }
.rows tr.row td { border-bottom: 0; padding-top: .7rem; }
.badge { display: inline-block; font-size: .75rem; font-weight: 700; letter-spacing: .03em;
  color: #fff; border-radius: .3rem; padding: .1rem .45rem; white-space: nowrap; }
.badge.held { background: var(--held); } .badge.failed { background: var(--failed); }
.badge.vacuous, .badge.best_effort { background: var(--vacuous); }
.badge.not_applicable, .badge.not_run { background: var(--unmade); }
.by { color: var(--quiet); font-size: .9rem; }
details { margin: .3rem 0; } summary { cursor: pointer; }
details > div { margin: .3rem 0 .8rem 1.1rem; padding: .5rem .8rem; background: var(--soft);
  border-radius: .4rem; }
dl { margin: 0; display: grid; grid-template-columns: 6rem 1fr; gap: .2rem .8rem; }
dt { color: var(--quiet); } dd { margin: 0; overflow-wrap: anywhere; }
dd ul { margin: 0; padding-left: 1.1rem; } .problem { color: var(--failed); font-weight: 600; }
code { font: .85em ui-monospace, monospace; color: var(--quiet); }
@media print { details > div { background: none; } body { max-width: none; } }
"""


def render(report: Report) -> str:
    return "".join(_page(report))


def _text(text: str) -> str:
    """Escape text that may quote a guest: it becomes visible, and never markup."""
    return html.escape(printable(text), quote=True)


def _page(report: Report) -> Iterator[str]:
    title = f"Belljar conformance: {report.head.setting}"
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield '<meta http-equiv="Content-Security-Policy" '
    yield "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
    yield f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
    yield f"<h1>{_text(title)}</h1>\n"
    yield f'<p class="verdict {"held" if report.held else "failed"}">'
    yield f"{_text(report_text.write_verdict(report))}</p>\n"
    badges = "".join(f"<li><b>{n}</b>{_badge(state)}</li>" for state, n in report.totals.items())
    yield f'<ul class="totals">{badges}</ul>\n'
    # Problems come first, so that a reader need not search for them.
    if problems := report_text.list_problems(report):
        yield "<h2>What did not hold</h2>\n"
        yield from _table(problems)
    yield "<h2>Where and when</h2>\n"
    yield from _table(report_text.list_facts(report.head))
    yield "<details><summary>Layers and limits, measured on a live guest</summary><div>"
    layers = report_text.list_layers(report.head)
    yield from _table((name, f"{state}: {detail}") for name, state, detail in layers)
    yield "</div></details>\n"
    for family in FAMILIES:
        rows = [row for row in report.rows if row.family == family]
        if rows:
            yield from _family(family, rows)
    yield "<h2>What the labels mean</h2>\n"
    meanings = ((report_text.LABELS[state], text) for state, text in report_text.MEANINGS.items())
    yield from _table(meanings)
    yield "</body>\n</html>\n"


def _table(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield '<table class="facts"><tbody>'
    for name, value in rows:
        yield f'<tr><th scope="row">{_text(name)}</th><td>{_text(value)}</td></tr>'
    yield "</tbody></table>\n"


def _family(family: str, rows: list[RowResult]) -> Iterator[str]:
    held = sum(row.state is State.HELD for row in rows)
    yield f"<h2>{_text(family)} <small>({held} of {len(rows)} held)</small></h2>\n"
    yield '<table class="rows"><thead><tr><th class="n" scope="col">row</th>'
    yield '<th class="s" scope="col">result</th><th scope="col">what is tried, what stops it</th>'
    yield '<th class="t" scope="col">time</th></tr></thead><tbody>\n'
    for row in rows:
        yield f'<tr id="row-{row.number}"><td class="n">{row.number}</td>'
        yield f'<td class="s">{_badge(row.state)}</td><td><strong>{_text(row.title)}</strong>'
        yield f'<div class="by">stopped by: {_text("; ".join(row.mechanisms))}</div>'
        for attempt in row.attempts:
            yield from _attempt(attempt)
        yield f'</td><td class="t">{row.seconds:.1f} s</td></tr>\n'
    yield "</tbody></table>\n"


def _attempt(attempt: Attempt) -> Iterator[str]:
    opened = " open" if attempt.state in BAD else ""
    yield f"<details{opened}><summary>{_badge(attempt.state)} {_text(attempt.what)} "
    yield f"<code>{_text(attempt.name)}</code></summary><div><dl>"
    if attempt.why:
        yield f"<dt>because</dt><dd>{_text(attempt.why)}</dd>"
    if attempt.why and not attempt.evidence:
        yield "</dl></div></details>"
        return
    yield f"<dt>expected</dt><dd>{_text(attempt.expected)}</dd>"
    yield f"<dt>actual</dt><dd>{_text(attempt.actual)}</dd>"
    if attempt.problems:
        yield '<dt>problem</dt><dd class="problem">' + _list(attempt.problems) + "</dd>"
    if attempt.evidence:
        yield "<dt>evidence</dt><dd>" + _list(attempt.evidence) + "</dd>"
    yield f"<dt>control</dt><dd>{_text(report_text.describe_control(attempt.control))}</dd>"
    yield f"<dt>time</dt><dd>{attempt.seconds:.1f} s</dd></dl></div></details>"


def _list(lines: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{_text(line)}</li>" for line in lines) + "</ul>"


def _badge(state: State) -> str:
    return f'<span class="badge {state.name.lower()}">{report_text.LABELS[state]}</span>'
