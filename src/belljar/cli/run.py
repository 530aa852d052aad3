"""`belljar run FILE|-|-c CODE`: run code in a new sandbox."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from belljar.cli import exit_codes, sandbox_options, script_header, terminal, transfer
from belljar.cli.terminal import Presenter
from belljar.errors import FileMissing, InvalidOption, SandboxError

if TYPE_CHECKING:
    from belljar.files.script import Script
    from belljar.results.execution import Execution
    from belljar.sandbox.blocking import Sandbox

_EXAMPLES = """\
examples:
  belljar run analysis.py --put sales.csv --get chart.png
  belljar run convert.py --put data.csv -- data.csv --rows 10
  belljar run clean.py < raw.csv > clean.csv
  belljar run -c 'print(6 * 7)'
  belljar run untrusted.py --env python --timeout 5 --memory 256m --json
  belljar run map.py --with geopandas

"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [OPTION ...] FILE|-c CODE [-- ARG ...]"
    parser.description = (
        "Run a file of Python in a new sandbox. Its output is passed on as it comes; the value of\n"
        "a last expression is printed as in a REPL; a traceback goes to stderr. input() and\n"
        "sys.stdin read this command's standard input; programs that the code starts do not.\n"
        "Words after `--` are the code's arguments, sys.argv[1:]."
    )
    parser.epilog = _EXAMPLES + exit_codes.HELP
    parser.add_argument("file", metavar="FILE", nargs="?", help="the code; `-` is standard input")
    parser.add_argument("-c", dest="code", metavar="CODE", help="the code itself")
    transfer.add_put(parser)
    parser.add_argument(
        "--get",
        metavar="PATH[:DEST]",
        action="append",
        default=[],
        help="after the run, also a failed one, copy a file from the sandbox to the current "
        "directory or DEST (repeatable)",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="save the pictures, tables and other results that the code shows: "
        "DIR/result-1.png, ...",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print everything known about the run as JSON, instead of its output",
    )
    parser.add_argument(
        "--raw",
        action="store_true",
        help="do not escape control characters on a terminal (the code can then control it)",
    )
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="print only the code's output and errors"
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="print time, memory and output size to stderr (the default on a terminal)",
    )
    parser.add_argument(
        "--no-script-packages",
        action="store_true",
        help="ignore the file's `# /// script` header (PEP 723)",
    )
    sandbox_options.add_record(parser)
    sandbox_options.add_files(parser)
    sandbox_options.add_policy(parser)
    sandbox_options.add_all(parser)


def run(args: argparse.Namespace) -> int:
    with sandbox_options.watching(args):
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    # Find mistakes in the options before anything starts.
    gets = [transfer.parse_get(text) for text in args.get]
    puts = transfer.load_all(args.put)
    code = _code(args)
    args.header = None
    if args.code is None and not args.no_script_packages:
        args.header = script_header.read(args.file, code)
    sandbox = sandbox_options.make(args)
    presenter = Presenter(
        raw=args.raw,
        quiet=args.quiet,
        later=args.verbose,
        cost=args.verbose or sys.stderr.isatty(),
        out=args.out,
    )
    missed: list[str] = []
    if sandbox.policy is not None and not sandbox.policy.check(code).allowed:
        execution = _execute(sandbox, args, code, presenter)  # reports it, starts nothing
        sandbox.close()
    else:
        with sandbox:
            for path, content in puts.items():
                sandbox.files.write(path, content)
            if args.header is not None:
                args.header.check_guest(sandbox)
            execution = _execute(sandbox, args, code, presenter)
            missed = [path for path, target in gets if not _fetch(sandbox, path, target)]
    exit_code = exit_codes.from_execution(execution)
    incomplete = bool(missed) or presenter.failed_to_save or execution.saved is False
    return exit_codes.FILE if incomplete and exit_code == exit_codes.OK else exit_code


def _code(args: argparse.Namespace) -> str:
    if (args.file is None) == (args.code is None):
        raise InvalidOption(
            "there is no code to run" if args.file is None else "FILE and -c exclude each other",
            hint="use `belljar run FILE`, `belljar run -c CODE`, or `belljar run -` for standard "
            "input",
        )
    return read_code(args.file) if args.code is None else str(args.code)


def read_code(name: str) -> str:
    """The text of a file, or of standard input."""
    from belljar.files import script

    if name == "-":
        return script.decode_source(sys.stdin.buffer.read(), name)
    return script.read_source(Path(name))


@contextlib.contextmanager
def _script(args: argparse.Namespace, code: str) -> Iterator[Script]:
    """The code, its base name (without this host's directories), its arguments, and standard
    input, unless the code itself came from there."""
    from belljar.files.script import Script, check_arguments

    name = None if args.file in (None, "-") else Path(args.file).name
    first = name or args.file or "-c"
    argv = check_arguments((first, *args.arguments))
    with contextlib.nullcontext() if args.file == "-" else transfer.open_stdin() as given:
        yield Script(code=code, name=name, argv=argv, stdin=given, csv=bool(args.out))


def _execute(
    sandbox: Sandbox, args: argparse.Namespace, code: str, presenter: Presenter
) -> Execution:
    with _script(args, code) as script:
        show = presenter.run_code
        execution = sandbox.run_code(script) if args.json else show(sandbox, script)
    missing = transfer.find_missing_file(execution, args.file)
    if args.json:
        for result in execution.results:
            presenter.save(result)
        print(execution.to_json(indent=2), flush=True)
        if execution.saved is False:
            presenter.say_notes(execution)
    else:
        presenter.finish(execution, without=None if missing is None else missing[0])
    if missing is not None:
        presenter.remark(missing[1])
    return execution


def _fetch(sandbox: Sandbox, path: str, target: Path) -> bool:
    """False if it failed; that must not hide the outcome or the other files."""
    try:
        transfer.fetch(sandbox, path, target)
    except SandboxError as error:
        missing = isinstance(error, FileMissing)
        terminal.say(f"--get: there is no {path!r} in the sandbox" if missing else str(error))
        return False
    return True
