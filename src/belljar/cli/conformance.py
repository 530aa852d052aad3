"""`belljar conformance`: the threat list, tried on this machine, with a report."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from belljar.cli import exit_codes
from belljar.errors import InvalidOption

if TYPE_CHECKING:
    from belljar.conformance.results import Report
    from belljar.conformance.setting import Setting

SUMMARY = "try every known attack here, and report what held"
FORMATS = ("text", "json", "html")

_DESCRIPTION = """\
Release hostile programs into sandboxes on this machine, row by row of the threat list, and judge
each from outside: canaries, /proc, control groups, listeners, what is left. For most rows a control
runs the same program where nothing stops it, and must be seen. Takes minutes. How to
read the report: docs/reports/conformance.md.
"""
_EPILOG = """\
exit codes:
  0     every row that applies held, or is best effort here and said to be so
  1     a row failed, or its control did not trip, or something was left behind
  2     wrong usage
  120   no sandbox can be started here; see `belljar doctor`
  130   interrupted (Ctrl-C)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument(
        "--backend",
        choices=("native", "docker"),
        help="where the guests are (default: as a Sandbox would choose)",
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
    parser.add_argument("--format", choices=FORMATS, default="text", help="default: text")
    parser.add_argument(
        "--out", metavar="FILE", help="write the report to FILE, and a summary to stdout"
    )
    parser.add_argument("--no-controls", action="store_true", help="leave the controls out")
    parser.add_argument("--list", action="store_true", help="list the rows, and run nothing")


def run(args: argparse.Namespace) -> int:
    from belljar.conformance import runner
    from belljar.conformance.progress import Line

    rows = chosen(args.rows)
    if args.list:
        _list(rows)
        return exit_codes.OK
    if args.runtime and args.backend == "native":
        raise InvalidOption("--runtime is for containers", hint="leave out --backend native")
    if args.out:
        _check_out(Path(args.out).absolute())
    setting = _setting(args.backend, args.runtime)
    wanted = runner.Wanted(setting=setting, rows=rows, controls=not args.no_controls)
    report = runner.run(wanted, Line())
    _write(report, args.format, args.out)
    return exit_codes.OK if report.held else exit_codes.ERROR


def _check_out(out: Path) -> None:
    """Before minutes are spent on what could not be written."""
    if out.is_dir() or not out.parent.is_dir():
        wrong = "is a directory" if out.is_dir() else f"there is no directory {str(out.parent)!r}"
        raise InvalidOption(f"--out {str(out)!r}: {wrong}")
    if not os.access(out if out.exists() else out.parent, os.W_OK):
        raise InvalidOption(f"--out {str(out)!r} cannot be written")


def chosen(words: list[str] | None) -> frozenset[int]:
    """The numbers of the rows that are asked for; all, if none are named."""
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
    from belljar.cli import terminal
    from belljar.conformance.rows import ROWS
    from belljar.conformance.runner import parts_of

    table = [
        [str(row.number), row.family, row.title, str(len(parts_of(row)))]
        for row in ROWS
        if row.number in rows
    ]
    terminal.table(table, ("ROW", "FAMILY", "WHAT IS TRIED", "ATTEMPTS"))


def _setting(backend: str | None, runtime: str | None) -> Setting:
    """As measured on a guest: which backend it has, and whether its memory is counted."""
    from belljar.conformance.setting import Setting
    from belljar.sandbox.blocking import Sandbox

    asked = backend or ("docker" if runtime else "auto")
    with Sandbox(backend=asked, runtime=runtime, environment="python", strict=False) as sandbox:
        isolation = sandbox.isolation
    counted = isolation.layer("memory").state == "enforced"
    if isolation.backend == "docker":
        runtime = runtime or _default_runtime()
    return Setting(backend=isolation.backend, runtime=runtime, counted=counted)


def _default_runtime() -> str:
    from belljar.backends.docker import settings
    from belljar.cli import engine_facts

    return settings.complete(settings.Docker()).runtime or engine_facts.find().runtimes[0]


def _write(report: Report, format_: str, out: str | None) -> None:
    from belljar.conformance import report_html, report_json, report_text

    render = {"text": report_text, "json": report_json, "html": report_html}[format_].render
    if out is None:
        print(render(report), end="")
        return
    Path(out).write_text(render(report), encoding="utf-8")
    print(report_text.summary(report), end="")
