"""`belljar conformance`: try the threat list on this machine, and write a report."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from belljar.cli import exit_codes, host_facts, terminal
from belljar.errors import InvalidOption

if TYPE_CHECKING:
    from belljar.conformance.report_data import Report
    from belljar.conformance.runner import Progress
    from belljar.conformance.setting import Setting

FORMATS = ("text", "json", "html")

_DESCRIPTION = """\
Run hostile programs in sandboxes on this machine, for each row of the threat list, and judge each
from outside by canaries, /proc, control groups, listeners and leftovers. For most rows a control
runs the same program where nothing stops it, to prove that the checks notice it. This takes
minutes; docs/reports/conformance.md explains the report.
"""
_EPILOG = """\
exit codes:
  0     every row that applies held, or is reported as best effort here
  1     a row failed, its control did not trip, or something was left behind
  2     wrong usage
  120   no sandbox can be started here; see `belljar doctor`
  130   interrupted (Ctrl-C)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument(
        "--backend",
        choices=("native", "docker"),
        help="where the guests run (default: as a Sandbox would choose)",
    )
    parser.add_argument(
        "--runtime", metavar="NAME", help="runc or runsc (gVisor); means --backend docker"
    )
    parser.add_argument(
        "--row",
        dest="rows",
        nargs="+",
        action="extend",
        metavar="N",
        help="only these rows, such as: --row 1 20-29",
    )
    parser.add_argument("--format", choices=FORMATS, default="text", help="(default: text)")
    parser.add_argument(
        "--out", metavar="FILE", help="write the report to FILE, and print a summary"
    )
    parser.add_argument("--no-controls", action="store_true", help="do not run the controls")
    parser.add_argument("--list", action="store_true", help="list the rows, and run nothing")


def run(args: argparse.Namespace) -> int:
    from belljar.conformance import runner

    rows = chosen(args.rows)
    if args.list:
        _list(rows)
        return exit_codes.OK
    if args.runtime and args.backend == "native":
        raise InvalidOption("--runtime needs the docker backend", hint="omit --backend native")
    if args.out:
        _check_out(Path(args.out).absolute())
    setting = _setting(args.backend, args.runtime)
    with _show_progress() as progress:
        report = runner.run(setting, rows, progress, controls=not args.no_controls)
    _write(report, args.format, args.out)
    return exit_codes.OK if report.held else exit_codes.ERROR


@contextlib.contextmanager
def _show_progress() -> Iterator[Progress]:
    """One line on a terminal, which goes away at the end; nothing elsewhere."""
    from rich import progress
    from rich.console import Console

    shown = progress.Progress(
        *(progress.BarColumn(20), progress.MofNCompleteColumn(), progress.TimeElapsedColumn()),
        progress.TextColumn("{task.description}", markup=False),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with shown:
        task = shown.add_task("")
        yield lambda done, total, what: shown.update(
            task, completed=done, total=total, description=what
        )


def _check_out(out: Path) -> None:
    """Fail now, not after minutes of work."""
    if out.is_dir() or not out.parent.is_dir():
        wrong = "is a directory" if out.is_dir() else f"there is no directory {str(out.parent)!r}"
        raise InvalidOption(f"--out {str(out)!r}: {wrong}")
    if not os.access(out if out.exists() else out.parent, os.W_OK):
        raise InvalidOption(f"--out {str(out)!r} cannot be written")


def chosen(words: list[str] | None) -> frozenset[int]:
    """The row numbers that the words name; all rows without words."""
    from belljar.conformance.rows import ROWS

    first, last = ROWS[0].number, ROWS[-1].number
    if not words:
        return frozenset(range(first, last + 1))
    found: set[int] = set()
    for word in (part for each in words for part in each.split(",") if part):
        span = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", word)
        begin, end = (int(span[1]), int(span[2] or span[1])) if span else (0, 0)
        if not first <= begin <= end <= last:
            raise InvalidOption(
                f"there is no row {word!r}",
                hint=f"rows are numbers from {first} to {last}, or spans such as 20-29; "
                "`belljar conformance --list` shows them",
            )
        found |= set(range(begin, end + 1))
    return frozenset(found)


def _list(rows: frozenset[int]) -> None:
    from belljar.conformance.rows import ROWS
    from belljar.conformance.runner import list_attempts

    table = [
        [str(row.number), row.family, row.title, str(len(list_attempts(row)))]
        for row in ROWS
        if row.number in rows
    ]
    terminal.table(table, ("ROW", "FAMILY", "WHAT IS TRIED", "ATTEMPTS"))


def _setting(backend: str | None, runtime: str | None) -> Setting:
    """Measure on a guest which backend it has, and whether control groups limit its memory."""
    from belljar.backends.docker import settings
    from belljar.conformance.setting import Setting
    from belljar.sandbox.blocking import Sandbox

    asked = backend or ("docker" if runtime else "auto")
    with Sandbox(backend=asked, runtime=runtime, environment="python", strict=False) as sandbox:
        isolation = sandbox.isolation
    counted = isolation.layer("memory").state == "enforced"
    if isolation.backend != "docker":
        return Setting(backend=isolation.backend, counted=counted)
    found = host_facts.find_engine()
    version = {fact.name: fact.detail for fact in found.facts}.get("version", "unknown")
    runtime = (
        runtime or settings.fill_from_environment(settings.Docker()).runtime or found.runtimes[0]
    )
    return Setting(backend="docker", runtime=runtime, counted=counted, engine=version)


def _write(report: Report, format_: str, out: str | None) -> None:
    from belljar.conformance import report_data, report_html, report_text

    render = {
        "text": report_text.render,
        "json": report_data.render_json,
        "html": report_html.render,
    }[format_]
    if out is None:
        print(render(report), end="")
        return
    Path(out).write_text(render(report), encoding="utf-8")
    print(report_text.summary(report), end="")
