"""Files in and out: `--put FILE[:PATH]` and `--get PATH[:DEST]`.

Where a file lands on this host is decided by what the user typed, never by the guest.
"""

from __future__ import annotations

import argparse
import os
import posixpath
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from belljar.backends.linux.safe_dir import write_file
from belljar.errors import FileError, InvalidOption

if TYPE_CHECKING:
    from belljar.sandbox.blocking import Sandbox


@dataclass(frozen=True, kw_only=True)
class Put:
    source: Path  # here
    target: str  # in the sandbox; relative: below /workspace


@dataclass(frozen=True, kw_only=True)
class Get:
    path: str  # in the sandbox; relative: below /workspace
    target: Path  # here


def add_put(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--put",
        metavar="FILE[:PATH]",
        action="append",
        default=[],
        help="copy a file of this host into the sandbox, below /workspace (repeatable)",
    )


def parse_put(text: str) -> Put:
    """Cut at the last colon, unless all of it is the name of a file."""
    source, colon, target = text.rpartition(":")
    if not colon or not source or os.path.exists(text):
        source, target = text, ""
    if not source:
        raise InvalidOption("--put needs the name of a file", hint="write --put FILE[:PATH]")
    if not target or target.endswith("/"):
        target += os.path.basename(source)
    return Put(source=Path(source), target=target)


def parse_get(text: str) -> Get:
    """Cut at the last colon. A DEST that is a directory gets the name that PATH ends in."""
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
            f"--get {text!r}: there is no directory {str(target.parent)!r} to put it in"
        )
    return Get(path=path, target=target)


def load(put: Put) -> bytes:
    try:
        return put.source.read_bytes()
    except OSError as error:
        raise InvalidOption(
            f"cannot read {str(put.source)!r}: {error.strerror}",
            hint="--put takes one file; repeat it for more"
            if isinstance(error, IsADirectoryError)
            else None,
        ) from error


def fetch(sandbox: Sandbox, get: Get) -> None:
    content = sandbox.files.read(get.path, format="bytes")
    try:
        if get.target.is_relative_to("/dev"):  # /dev/stdout
            get.target.write_bytes(content)
        else:
            write_file(get.target, content)
    except OSError as error:
        # The same error as for a file in the guest: to the user both are "--get failed".
        raise FileError(
            f"cannot write {str(get.target)!r}: {error.strerror}",
            errno=error.errno or 0,
            path=str(get.target),
        ) from error
