"""`belljar replay FILE`: run a record again, and show what differs."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from belljar.cli import exit_codes, sandbox_options
from belljar.errors import InvalidOption

if TYPE_CHECKING:
    from belljar.environment.environment import Environment
    from belljar.record.reader import Record

SUMMARY = "run a record again and show what differs"
SAME, DIFFERS = exit_codes.OK, exit_codes.ERROR
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
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = (
        "Run every cell of a record again, in a fresh sandbox with the recorded environment and\n"
        "limits, and show what differs: outcome, output, values, pictures. Times, memory and the\n"
        "addresses of objects are no difference."
    )
    parser.epilog = _EPILOG
    parser.add_argument("file", metavar="FILE", help="the record")
    parser.add_argument("--json", action="store_true", help="print what differs as JSON")
    parser.add_argument(
        "--strict",
        dest="exact",
        action="store_true",
        help="addresses of objects and tracebacks count too",
    )
    parser.add_argument(
        "--stop-at-first", action="store_true", help="run no more after a cell that differs"
    )
    parser.add_argument(
        "--cells",
        metavar="N-M",
        help="compare these only, such as 2-4,7; those before them run for their variables",
    )
    parser.add_argument(
        "--functions",
        metavar="FILE.py",
        help="the host's functions that the code may call: the public functions of this module, "
        "which is run on this host",
    )
    parser.add_argument(
        "--trust-environment",
        action="store_true",
        help="build the environment as the record describes it; its packages are imported outside "
        "of any sandbox",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="only what differs")
    parser.add_argument("-v", "--verbose", action="store_true", help="also how long each cell took")
    sandbox_options.add_all(parser, environment=None)


def run(args: argparse.Namespace) -> int:
    from belljar.cli import terminal
    from belljar.cli.replay_view import View
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
    with View(
        len(cells or record.cells), silent=args.json, quiet=args.quiet, times=args.verbose
    ) as view:
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
            on_cell=view.cell,
        )
        view.rest(replayed)
    if args.json:
        print(json.dumps(replayed.to_dict(), indent=2))
    else:
        for note in (*record.notes, *replayed.notes):
            terminal.say(note)
    return SAME if replayed.same else DIFFERS


def _timeout(limits: Mapping[str, object]) -> float | None:
    """--timeout is for every cell, also for one that was recorded with its own."""
    timeout = limits.get("timeout")
    return timeout if isinstance(timeout, float) else None


def _cells(text: str | None) -> set[int] | None:
    if text is None:
        return None
    chosen: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last or last - first > 10**6:
            raise InvalidOption(
                f"--cells {text!r} names no cells", hint="write --cells 3, or --cells 1-3,7"
            )
        chosen.update(range(first, last + 1))
    return chosen


def _functions(path: str | None) -> dict[str, Callable[..., object]]:
    """The public functions a module defines; the user chose it, and it runs with his rights."""
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
    """Who runs a record of somebody else shall see what it takes."""
    from belljar.cli import terminal
    from belljar.limits import format_size

    for session in record.sessions:
        time = (
            "no time limit" if session.limits.timeout is None else f"{session.limits.timeout:g} s"
        )
        terminal.say(
            f"{len(session.cells)} cells, environment {session.environment.name!r}, "
            f"memory {format_size(session.limits.memory)}, {time} for each cell"
        )
