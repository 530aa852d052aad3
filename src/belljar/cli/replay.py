"""`belljar replay FILE`: run a record again, and show the differences."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from belljar.cli import exit_codes, sandbox_options, terminal
from belljar.errors import InvalidOption
from belljar.text import format_seconds, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from belljar.environment.environment import Environment
    from belljar.record.comparison import Difference
    from belljar.record.reader import Record
    from belljar.sandbox.replay import Replay, ReplayedCell


_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)

_EPILOG = """\
exit codes:
  0     everything is as it was recorded
  1     something differs
  2     wrong usage, or a file that is not a record; nothing ran
  120   the sandbox could not be started or used
  130   interrupted (Ctrl-C)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run every cell of a record again, in a new sandbox with the recorded environment and\n"
        "limits, and show differences in outcome, output, values and pictures. Times, memory and\n"
        "addresses of objects are not compared."
    )
    parser.epilog = _EPILOG
    parser.add_argument("file", metavar="FILE", help="the record")
    parser.add_argument("--json", action="store_true", help="print the differences as JSON")
    parser.add_argument(
        "--strict",
        dest="exact",
        action="store_true",
        help="compare addresses of objects and tracebacks too",
    )
    parser.add_argument(
        "--stop-at-first", action="store_true", help="stop after the first cell that differs"
    )
    parser.add_argument(
        "--cells",
        metavar="N-M",
        help="compare only these, such as 2-4,7; earlier cells run for their variables",
    )
    parser.add_argument(
        "--functions",
        metavar="FILE.py",
        help="host functions that the code may call: the public functions of this module, which "
        "runs on this host",
    )
    parser.add_argument(
        "--trust-environment",
        action="store_true",
        help="build the environment as the record describes it; its packages are imported outside "
        "the sandbox",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print only differences")
    parser.add_argument("-v", "--verbose", action="store_true", help="also print times")
    sandbox_options.add_all(parser, environment=None)


def run(args: argparse.Namespace) -> int:
    from belljar.environment.environment import resolve
    from belljar.record import read
    from belljar.sandbox.replay import replay

    record = read(args.file)
    limits = sandbox_options.limits(args)
    given = None if args.environment is None else resolve(args.environment)
    cells = _cells(args.cells)
    functions = _functions(args.functions)
    if not args.json and not args.quiet:
        _introduce(record)
    view = View(len(cells or record.cells), quiet=args.quiet, times=args.verbose)
    with contextlib.nullcontext() if args.json else view:
        replayed = replay(
            record,
            environment=given,
            known=_known(record),
            trust_environment=args.trust_environment,
            limits=limits,
            timeout=_timeout(limits),
            env=sandbox_options.variables(args.variables),
            functions=functions,
            backend=args.backend,
            strict=args.strict,
            cells=cells,
            exact=args.exact,
            stop_at_first=args.stop_at_first,
            on_cell=None if args.json else view.show_cell,
        )
    if args.json:
        terminal.print_json(replayed.to_dict())
    else:
        view.finish(replayed)
        for note in (*record.notes, *replayed.notes):
            terminal.say(note)
    return exit_codes.OK if replayed.same else exit_codes.ERROR


def _timeout(limits: Mapping[str, object]) -> float | None:
    """--timeout applies to every cell, also to one that was recorded with its own."""
    timeout = limits.get("timeout")
    return timeout if isinstance(timeout, (int, float)) else None


def _cells(text: str | None) -> set[int] | None:
    if text is None:
        return None
    chosen: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last or last - first > 10**6:
            raise InvalidOption(
                f"--cells {text!r} does not name cells", hint="write --cells 3, or --cells 1-3,7"
            )
        chosen.update(range(first, last + 1))
    return chosen


def _functions(path: str | None) -> dict[str, Callable[..., object]]:
    """The public functions that a module defines. It runs with the rights of the user."""
    if path is None:
        return {}
    import inspect
    import runpy

    try:
        names = runpy.run_path(path, run_name="belljar_functions")
    except OSError as error:
        raise InvalidOption(f"cannot read {path!r}: {error.strerror}") from error
    except Exception as error:
        raise InvalidOption(f"{path!r} failed: {type(error).__name__}: {error}") from error
    found: dict[str, Callable[..., object]] = {
        name: value
        for name, value in names.items()
        if not name.startswith("_")
        and inspect.isfunction(value)
        and value.__module__ == "belljar_functions"
    }
    if not found:
        raise InvalidOption(f"{path!r} defines no public function")
    return found


def _known(record: Record) -> dict[str, Environment]:
    """The environments of this host that the record names."""
    from belljar.environment import environment
    from belljar.environment.environment import resolve

    wanted = {session.environment.name for session in record.sessions}
    return {name: resolve(name) for name in environment.known_names() if name in wanted}


def _introduce(record: Record) -> None:
    """Print what the record will use, because it may come from another person."""
    from belljar.limits import format_size

    for session in record.sessions:
        time = (
            "no time limit" if session.limits.timeout is None else f"{session.limits.timeout:g} s"
        )
        terminal.say(
            f"{len(session.cells)} cells, environment {session.environment.name!r}, "
            f"memory {format_size(session.limits.memory)}, {time} for each cell"
        )


_DIFF_STYLES = {"-": "red", "+": "green", "@": "cyan"}
Piece = tuple[str, str]  # part of a line, and its style


class View:
    """Shows a replay as it goes: one line for each cell, and its differences below."""

    def __init__(self, total: int, *, quiet: bool, times: bool) -> None:
        self._total = total
        self._quiet = quiet  # print only differences
        self._times = times
        self._done = 0
        self._console: Console | None = None
        self._status: Status | None = None

    def __enter__(self) -> None:
        """Show a progress line on a terminal; it disappears at the end."""
        if sys.stdout.isatty():
            # The same Console prints everything, so that the progress line stays separate.
            self._console = terminal.make_console()
            self._status = self._console.status(self._progress())
            self._status.start()

    def __exit__(self, *exception: object) -> None:
        if self._status is not None:
            self._status.stop()

    def _progress(self) -> str:
        return f"cell {min(self._done + 1, self._total)} of {self._total}"

    def show_cell(self, cell: ReplayedCell) -> None:
        first = cell.recorded.code.strip().partition("\n")[0]
        times = ""
        if self._times and cell.replayed is not None:
            before, after = cell.recorded.execution.usage.wall, cell.replayed.usage.wall
            times = f"{format_seconds(before)} -> {format_seconds(after)}"
        self._show(f"cell {cell.recorded.number}", cell.differences, first, times)
        self._done += 1
        if self._status is not None:
            self._status.update(self._progress())

    def finish(self, replay: Replay) -> None:
        for command in replay.commands:
            words = command.command
            text = words if isinstance(words, str) else " ".join(words)
            self._show(f"command, line {command.line}", command.differences, text)
        if not self._quiet:
            found = [cell.differences for cell in replay.cells]
            found += [command.differences for command in replay.commands]
            differ = sum(map(bool, found))
            verdict = (
                f"{differ} of {len(found)} differ" if differ else f"all {len(found)} as recorded"
            )
            self._print((verdict, "bold"))

    def _show(
        self, label: str, differences: tuple[Difference, ...], code: str, times: str = ""
    ) -> None:
        if self._quiet and not differences:
            return
        what = ", ".join(each.what for each in differences)
        verdict = (f"differs: {what}", "red") if differences else ("same", "green")
        self._print((label, ""), verdict, (times, "dim"), (code[:60], "dim"))
        for each in differences:
            self._difference(each)

    def _difference(self, difference: Difference) -> None:
        diff = difference.diff()
        if not diff:
            self._print(("  ", ""), (str(difference), ""))
            return
        self._print(("  ", ""), (difference.what, "bold"))
        for line in diff.split("\n"):
            self._print(("  ", ""), (line, _DIFF_STYLES.get(line[:1], "")))

    def _print(self, *pieces: Piece) -> None:
        """Print one line; text from the guest is escaped here."""
        shown = [(printable(text).replace("\n", "\\n"), style) for text, style in pieces if text]
        if self._console is None:
            print("  ".join(text for text, _ in shown), flush=True)
            return
        from rich.text import Text

        line = Text("  ").join(Text(text, style=style) for text, style in shown)
        self._console.print(line, no_wrap=True, overflow="ellipsis")
