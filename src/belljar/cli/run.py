"""`belljar run FILE|-`: one piece of code in a sandbox of its own."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from belljar.cli import exit_codes, sandbox_options, script_header
from belljar.errors import FileMissing, InvalidOption, SandboxError

if TYPE_CHECKING:
    from belljar.blocking import Sandbox
    from belljar.cli.presenter import Presenter
    from belljar.cli.transfer import Get
    from belljar.execution import Execution

SUMMARY = "run a file of Python in a sandbox"
INTRODUCTION = 30.0  # seconds, for what takes a millisecond

_EXAMPLES = """\
examples:
  belljar run analysis.py --put sales.csv --get chart.png
  belljar run convert.py --put data.csv -- data.csv --rows 10
  echo 'print(6 * 7)' | belljar run -
  belljar run untrusted.py --env python --timeout 5 --memory 256m --json
  belljar run map.py --with geopandas

"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "%(prog)s [OPTION ...] FILE [-- ARG ...]"
    parser.description = (
        "Run a file of Python in a sandbox of its own. Its output passes through as it comes; the\n"
        "value of a last expression is printed as in a REPL; a traceback goes to stderr. What\n"
        "follows `--` are the code's own arguments, sys.argv[1:]."
    )
    parser.epilog = _EXAMPLES + exit_codes.HELP
    parser.add_argument("file", metavar="FILE", help="the code; `-` is standard input")
    parser.add_argument(
        "--put",
        metavar="FILE[:PATH]",
        action="append",
        default=[],
        help="copy a file of this host into the sandbox, below /workspace (repeatable)",
    )
    parser.add_argument(
        "--get",
        metavar="PATH[:DEST]",
        action="append",
        default=[],
        help="copy a file out of the sandbox afterwards, also if the code failed, to the current "
        "directory or DEST (repeatable)",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="save pictures, tables and the like that the code shows: DIR/result-1.png, ...",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print all that is known of the run as JSON, instead of its output",
    )
    parser.add_argument(
        "--raw",
        action="store_true",
        help="do not escape control characters on a terminal (the code can then drive it)",
    )
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="the code's own output and errors only"
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="say on stderr what the run cost (on a terminal this is the default)",
    )
    parser.add_argument(
        "--no-script-packages",
        action="store_true",
        help="leave the file's `# /// script` header (PEP 723) out of account",
    )
    sandbox_options.add_record(parser)
    sandbox_options.add_files(parser)
    sandbox_options.add_policy(parser)
    sandbox_options.add_all(parser)


def run(args: argparse.Namespace) -> int:
    with sandbox_options.watching(args):
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    from belljar.cli import transfer
    from belljar.cli.presenter import Presenter
    from belljar.cli.results import ResultFiles

    # Everything the user may have mistyped is found before anything is started.
    gets = [transfer.parse_get(text) for text in args.get]
    puts = [(put.target, transfer.load(put)) for put in map(transfer.parse_put, args.put)]
    code = read_code(args.file)
    args.header = None if args.no_script_packages else script_header.read(args.file, code)
    sandbox = sandbox_options.make(args)
    presenter = Presenter(
        raw=args.raw,
        quiet=args.quiet,
        notes=args.verbose,
        cost=args.verbose or sys.stderr.isatty(),
        files=ResultFiles(Path(args.out)) if args.out else None,
    )
    missed: list[Get] = []
    if sandbox.policy is not None and not sandbox.policy.check(code).allowed:
        execution = _execute(sandbox, code, presenter, as_json=args.json)  # says so, starts nothing
        sandbox.close()
    else:
        with sandbox:
            for path, content in puts:
                sandbox.files.write(path, content)
            if args.header is not None:
                args.header.check_guest(sandbox)
            _introduce(sandbox, args.file, args.arguments)
            execution = _execute(sandbox, code, presenter, as_json=args.json)
            missed = [get for get in gets if not _fetch(sandbox, get)]
    exit_code = exit_codes.of(execution)
    incomplete = bool(missed) or presenter.failed_to_save
    return exit_codes.FILE if incomplete and exit_code == exit_codes.OK else exit_code


def read_code(name: str) -> str:
    """The text of the file, in the encoding it declares, as Python itself would read it."""
    import importlib.util

    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return importlib.util.decode_source(raw)
    except OSError as error:
        raise InvalidOption(f"cannot read {name!r}: {error.strerror}") from error
    except (SyntaxError, UnicodeDecodeError) as error:
        raise InvalidOption(f"{name!r} is not Python source: {error}") from error


def _introduce(sandbox: Sandbox, name: str, arguments: list[str]) -> None:
    """Tell the code its name and its arguments, in a cell of its own before it.

    In the same cell it would shift the lines of tracebacks. It leaves no name but `__file__`.
    """
    file = "-" if name == "-" else Path(name).name  # where it lies on this host is not told
    if name == "-" and not arguments:
        return
    words = ", ".join(map(ascii, [file, *arguments]))
    code = f"__import__('sys').argv = [{words}]"
    if name != "-":
        code += f"; __file__ = {file!a}"
    # The limit of time is for the code that was asked for.
    sandbox.introduce(code, timeout=INTRODUCTION)


def _execute(sandbox: Sandbox, code: str, presenter: Presenter, *, as_json: bool) -> Execution:
    if as_json:
        execution = sandbox.run_code(code)
        for result in execution.results:
            presenter.save(result)
        print(execution.to_json(indent=2), flush=True)
        return execution
    execution = sandbox.run_code(
        code,
        on_stdout=presenter.on_stdout,
        on_stderr=presenter.on_stderr,
        on_result=presenter.on_result,
    )
    presenter.finish(execution)
    return execution


def _fetch(sandbox: Sandbox, get: Get) -> bool:
    """One that fails must hide neither the outcome nor the other files."""
    from belljar.cli import terminal, transfer

    try:
        transfer.fetch(sandbox, get)
    except FileMissing:
        terminal.say(f"--get: the code left no {get.path!r}")
        return False
    except SandboxError as error:
        terminal.say(str(error))
        return False
    return True
