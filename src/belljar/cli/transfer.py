"""Between this host and the sandbox: `--put FILE[:PATH]`, `--get PATH[:DEST]`, standard input.

The user's command line, never the guest, decides where a file is written on this host.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import posixpath
import select
import shlex
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from belljar.backends.linux.safe_dir import write_file
from belljar.cli import terminal
from belljar.errors import InvalidOption

if TYPE_CHECKING:
    from belljar.files.script import Input
    from belljar.results.execution import Execution
    from belljar.sandbox.blocking import Sandbox


def add_put(parser: argparse.ArgumentParser, where: str = "the sandbox") -> None:
    parser.add_argument(
        "--put",
        metavar="FILE[:PATH]",
        action="append",
        default=[],
        help=f"copy a file of this host into {where}, below /workspace (repeatable)",
    )


def parse_put(text: str) -> tuple[Path, str]:
    """The file of this host, and its path in the sandbox (relative: below /workspace). Split at the
    last colon, unless the whole text names an existing file."""
    source, colon, target = text.rpartition(":")
    if not colon or not source or os.path.exists(text):
        source, target = text, ""
    if not source:
        raise InvalidOption("--put needs the name of a file", hint="write --put FILE[:PATH]")
    if not target or target.endswith("/"):
        target += os.path.basename(source)
    return Path(source), target


def parse_get(text: str) -> tuple[str, Path]:
    """The path in the sandbox (relative: below /workspace), and the file of this host. Split at the
    last colon. A DEST that is a directory gets a file with PATH's base name."""
    path, colon, dest = text.rpartition(":")
    if not colon or not path:
        path, dest = text.rstrip(":"), ""
    name = posixpath.basename(path)
    target = Path(dest or ".")
    if not dest or dest.endswith("/") or target.is_dir():
        if name in ("", ".", ".."):
            raise InvalidOption(
                f"--get {text!r} does not name a file", hint="write --get PATH[:DEST]"
            )
        target /= name
    if not target.parent.is_dir():
        raise InvalidOption(
            f"--get {text!r}: there is no directory {str(target.parent)!r}", hint="create it first"
        )
    return path, target


def load_all(texts: Sequence[str]) -> dict[str, bytes]:
    """The contents of every `--put`, by the path in the sandbox."""
    return {target: _load(source) for source, target in map(parse_put, texts)}


def _load(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidOption(
            f"cannot read {str(path)!r}: {error.strerror}",
            hint="--put takes one file; repeat it for more"
            if isinstance(error, IsADirectoryError)
            else None,
        ) from error


def fetch(sandbox: Sandbox, path: str, target: Path) -> None:
    content = sandbox.files.read(path, format="bytes")
    try:
        if target.is_relative_to("/dev"):  # /dev/stdout
            target.write_bytes(content)
        else:
            write_file(target, content)
    except OSError as error:
        # A FileError, as for a file in the guest: to the user both mean that --get failed.
        raise terminal.cannot_write(target, error) from error


# -- standard input -----------------------------------------------------------------------------

PATIENCE = 5.0  # seconds for a running read to notice that the code has ended


@contextlib.contextmanager
def open_stdin() -> Iterator[Input | None]:
    """Standard input for the code; None if this process has none.

    It is read only when the code asks for it, and never after the code has ended. So the rest stays
    for others (`while read line; do belljar run FILE; done`), and a terminal or a silent pipe keeps
    no process waiting.
    """
    from belljar.files.script import Input

    try:
        fd = sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):  # it is closed, or is not a file
        yield None
        return
    ended, end = os.pipe()
    reading = threading.Lock()

    def read(size: int) -> bytes:
        with reading:
            # A thread that waits in read(2) cannot be stopped, so wait in select(2).
            ready, _, _ = select.select([fd, ended], [], [])
            return b"" if ended in ready else os.read(fd, size)

    try:
        # The time in which a person types an answer does not count as the code's.
        yield Input(read, counts_time=not os.isatty(fd))
    finally:
        os.close(end)
        if reading.acquire(timeout=PATIENCE):
            os.close(ended)


# -- files that the code did not find -------------------------------------------------------------


def find_missing_file(execution: Execution, script: str | None) -> tuple[str, str] | None:
    """If the code did not find a file or module that this host has: the option in the general note
    about it, and a better message.

    Only plain relative names below the current directory and beside `script` are tried. The message
    goes to stderr, not into the Execution, JSON or a record: there the author of the code could
    read it, and learn which files exist by asking for them.
    """
    from belljar.sandbox import advice

    if execution.outcome != "error" or execution.error is None:
        return None
    module, path = advice.missing_module(execution.error), advice.missing_file(execution.error)
    name = f"{module}.py" if module is not None else path
    if name is None:
        return None
    for directory in dict.fromkeys(("", os.path.dirname(script or ""))):
        here = os.path.join(directory, name)
        if _is_below_here(here):
            target = "" if os.path.basename(here) == name else f":{name}"
            option = "--with" if module is not None else "--put"
            return option, f"{here} is on this host; add --put {shlex.quote(here + target)}"
    return None


def _is_below_here(path: str) -> bool:
    """True for a file in or below the current directory, after links are resolved."""
    root = os.path.realpath(os.curdir)
    real = os.path.realpath(path)
    return os.path.commonpath([root, real]) == root and os.path.isfile(real)
