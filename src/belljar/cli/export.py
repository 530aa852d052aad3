"""`belljar export FILE --to ipynb|py|html`: a record as something to read or to go on with."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from belljar.cli import exit_codes
from belljar.errors import FileError, InvalidOption

if TYPE_CHECKING:
    from belljar.record.reader import Record

SUMMARY = "make a notebook, a script or a page of a record"

_EPILOG = """\
formats:
  ipynb   a notebook for Jupyter, with all outputs
  py      a script with one `# %%` cell for each; --outputs adds what came out, as comments
  html    a page for a browser, complete in one file; scripts in it do not run

examples:
  belljar export session.jsonl --to html
  belljar export session.jsonl -o analysis.ipynb
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = "Make a notebook, a script or a page of a record (see `run --record`)."
    parser.epilog = _EPILOG
    parser.add_argument("file", metavar="FILE", help="the record")
    parser.add_argument("--to", metavar="FORMAT", help="ipynb, py or html (default: that of -o)")
    parser.add_argument(
        "-o",
        "--out",
        metavar="OUT",
        help="the file to write; `-` is standard output (default: beside FILE, with its name)",
    )
    parser.add_argument(
        "--outputs", action="store_true", help="in a script: what came out, as comments"
    )
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")


def run(args: argparse.Namespace) -> int:
    from belljar.cli import terminal
    from belljar.record import read
    from belljar.record.export import render
    from belljar.results import sanitize

    to = _format(args.to, args.out)
    if args.outputs and to != "py":
        raise InvalidOption(
            "--outputs is for scripts", hint="a notebook and a page have them anyway"
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
        terminal.say(f"wrote {str(target)!r} ({_count(record)})")
    return exit_codes.OK


def _format(given: str | None, out: str | None) -> str:
    from belljar.errors import unknown_option
    from belljar.record.export import FORMATS

    if given is None:
        suffix = Path(out or "").suffix.removeprefix(".")
        if suffix in FORMATS:
            return suffix
        raise InvalidOption("which format?", hint=f"--to {', --to '.join(FORMATS)}")
    if given not in FORMATS:
        raise unknown_option("format", given, FORMATS)
    return given


def _check(target: Path, source: Path, *, force: bool) -> None:
    """Before the work is done, and never over the record itself."""
    if not target.parent.is_dir():
        raise InvalidOption(f"there is no directory {str(target.parent)!r} to write to")
    if target.is_dir():
        raise InvalidOption(f"{str(target)!r} is a directory", hint="-o takes the name of a file")
    if not os.path.lexists(target):
        return
    if source.exists() and target.exists() and target.samefile(source):
        raise InvalidOption(f"{str(target)!r} is the record itself", hint="give another name: -o")
    if not force:
        raise InvalidOption(f"{str(target)!r} exists", hint="--force replaces it")


def _write(target: Path, text: str, *, force: bool) -> None:
    """Beside it first: what is there already is replaced by the whole, or stays."""
    raw = text.encode("utf-8")
    try:
        file, scratch = tempfile.mkstemp(dir=target.parent, prefix=".belljar-export-")
        try:
            with os.fdopen(file, "wb") as out:
                out.write(raw)
                os.fchmod(out.fileno(), 0o666 & ~_umask())
            if force:
                os.replace(scratch, target)
            else:
                os.link(scratch, target)  # fails if somebody has made it meanwhile
        finally:
            if os.path.lexists(scratch):
                os.unlink(scratch)
    except OSError as error:
        raise FileError(
            f"cannot write {str(target)!r}: {error.strerror}",
            errno=error.errno or 0,
            path=str(target),
        ) from error


def _umask() -> int:
    """There is no way to ask for it but to set it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _count(record: Record) -> str:
    number = len(record.cells)
    return f"{number} cell{'' if number == 1 else 's'}"
