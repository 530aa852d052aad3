"""`belljar export FILE --to ipynb|py|html`: turn a record into a notebook, script or page."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from belljar.cli import terminal
from belljar.errors import InvalidOption

_EPILOG = """\
formats:
  ipynb   a notebook for Jupyter, with all outputs
  py      a script with a `# %%` line before each cell; --outputs adds the outputs as comments
  html    a page for a browser, complete in one file; scripts in it do not run

examples:
  belljar export session.jsonl --to html
  belljar export session.jsonl -o analysis.ipynb
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Turn a record (see `run --record`) into a notebook, a script or a page."
    parser.epilog = _EPILOG
    parser.add_argument("file", metavar="FILE", help="the record")
    parser.add_argument(
        "--to", metavar="FORMAT", help="ipynb, py or html (default: the ending of -o)"
    )
    parser.add_argument(
        "-o",
        "--out",
        metavar="OUT",
        help="the file to write; `-` is standard output (default: FILE with another ending)",
    )
    parser.add_argument(
        "--outputs", action="store_true", help="add the outputs to a script, as comments"
    )
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")


def run(args: argparse.Namespace) -> None:
    from belljar.record import read
    from belljar.record.export import render
    from belljar.results import sanitize

    to = _format(args.to, args.out)
    if args.outputs and to != "py":
        raise InvalidOption(
            "--outputs is for scripts only", hint="a notebook and a page always have the outputs"
        )
    target = None if args.out == "-" else Path(args.out or Path(args.file).with_suffix(f".{to}"))
    if target is not None:
        _check(target, Path(args.file), force=args.force)
    record = read(args.file)
    text = render(record, to, outputs=args.outputs)
    for note in record.notes:
        terminal.say(note)
    if to != "py" and not sanitize.is_available():
        terminal.say(sanitize.MISSING)
    if target is None:
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        _write(target, text, force=args.force)
        count = len(record.cells)
        terminal.say(f"wrote {str(target)!r} ({count} cell{'' if count == 1 else 's'})")


def _format(given: str | None, out: str | None) -> str:
    from belljar.errors import unknown_option
    from belljar.record.export import FORMATS

    if given is None:
        suffix = Path(out or "").suffix.removeprefix(".")
        if suffix in FORMATS:
            return suffix
        raise InvalidOption("no format was given", hint=f"use --to {' or --to '.join(FORMATS)}")
    if given not in FORMATS:
        raise unknown_option("format", given, FORMATS)
    return given


def _check(target: Path, source: Path, *, force: bool) -> None:
    """Refuse a bad target before the work, and never overwrite the record itself."""
    if not target.parent.is_dir():
        raise InvalidOption(f"there is no directory {str(target.parent)!r} to write to")
    if target.is_dir():
        raise InvalidOption(f"{str(target)!r} is a directory", hint="-o takes the name of a file")
    if not os.path.lexists(target):
        return
    if source.exists() and target.exists() and target.samefile(source):
        raise InvalidOption(f"{str(target)!r} is the record itself", hint="name another file: -o")
    if not force:
        raise InvalidOption(f"{str(target)!r} exists", hint="--force replaces it")


def _write(target: Path, text: str, *, force: bool) -> None:
    """Write a temporary file first: an existing file is replaced completely or not at all."""
    scratch = target.with_name(f".belljar-export-{os.urandom(8).hex()}")
    try:
        try:
            with open(scratch, "xb") as out:
                out.write(text.encode("utf-8"))
            if force:
                os.replace(scratch, target)
            else:
                os.link(scratch, target)  # fails if another process has created it meanwhile
        finally:
            scratch.unlink(missing_ok=True)
    except OSError as error:
        raise terminal.cannot_write(target, error) from error
