"""Code to run with what belongs to it: the name of its file, arguments, standard input."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import anyio.to_thread

from belljar.errors import InvalidOption

MAX_ARGUMENTS = 128 * 1024  # characters of all arguments together
MAX_READ = 1024 * 1024  # bytes of one read of standard input
KEPT = 1024 * 1024  # bytes of standard input that a record can hold


class Input:
    """Standard input of one cell, read only when the code asks for it."""

    def __init__(self, read: Callable[[int], bytes], *, counts_time: bool = True) -> None:
        """`read(size)` gives at most `size` bytes, b"" at the end; it may block, and runs in a
        thread. `counts_time`: whether waiting for it counts against the time-out of the cell."""
        self._read = read
        self.counts_time = counts_time
        self._kept = bytearray()
        self._size = 0
        self._hash = hashlib.sha256()

    def read(self, size: int) -> bytes:
        """Called for the guest, which chose `size`."""
        if type(size) is not int or size < 1:
            raise ValueError("the size of a read must be a whole number above 0")
        data = self._read(min(size, MAX_READ))
        self._size += len(data)
        self._hash.update(data)
        if self._size <= KEPT:
            self._kept += data
        return data

    def recorded(self) -> object:
        """What the code has read, for a record: the bytes, or size and hash of too many."""
        if self._size <= KEPT:
            return bytes(self._kept)
        return {"left_out": self._size, "sha256": self._hash.hexdigest()}


@dataclass(frozen=True, kw_only=True)
class Script:
    """What `run_code` runs, after the caller's text, path and input are read and checked."""

    code: str
    name: str | None = None  # of its file, for tracebacks and `__file__`; None: <cell N>
    argv: tuple[str, ...] | None = None  # sys.argv; None: unchanged
    stdin: Input | None = None
    csv: bool = False  # tables that it shows are sent as CSV, too
    allow_return: bool = False  # at the top level
    notebook: bool = False  # it may be written as for a notebook: `!ls`, `%time`

    def header(self) -> dict[str, object]:
        """The fields for the guest besides the code."""
        fields = {
            "file": self.name,
            "argv": None if self.argv is None else list(self.argv),
            "stdin": self.stdin is not None,
            "csv": self.csv,
            "return": self.allow_return,
            "notebook": self.notebook,
        }
        return {name: value for name, value in fields.items() if value}


async def make_script(
    code: object, stdin: str | bytes | None, *, allow_return: bool = False, notebook: bool = False
) -> Script:
    """The Script for what a caller gives to `run_code`."""
    if isinstance(code, Script):
        return replace(code, allow_return=allow_return or code.allow_return, notebook=notebook)
    made = Script(code="", stdin=make_input(stdin), allow_return=allow_return, notebook=notebook)
    if isinstance(code, os.PathLike):
        path = Path(code)
        text = await anyio.to_thread.run_sync(read_source, path)
        return replace(made, code=text, name=path.name, argv=(path.name,))
    if not isinstance(code, str):
        raise InvalidOption(
            f"code must be a str or the path of a file, not {type(code).__name__}",
            hint="decode bytes before running them",
        )
    return replace(made, code=code)


def read_source(path: Path) -> str:
    """The text of a file of this host, in the encoding that it declares, as Python reads it."""
    try:
        return decode_source(path.read_bytes(), str(path))
    except OSError as error:
        raise InvalidOption(f"cannot read {str(path)!r}: {error.strerror}") from error


def decode_source(source: bytes, name: str) -> str:
    try:
        return importlib.util.decode_source(source)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise InvalidOption(f"{name!r} is not Python source: {error}") from error


def make_input(stdin: str | bytes | None) -> Input | None:
    if stdin is None:
        return None
    if not isinstance(stdin, (str, bytes, bytearray, memoryview)):
        raise InvalidOption(f"stdin must be str or bytes, not {type(stdin).__name__}")
    data = stdin.encode("utf-8", "surrogateescape") if isinstance(stdin, str) else bytes(stdin)
    return Input(io.BytesIO(data).read)


def check_arguments(arguments: tuple[str, ...]) -> tuple[str, ...]:
    if sum(map(len, arguments)) > MAX_ARGUMENTS:
        raise InvalidOption(
            "the arguments of the code are longer than 128 KiB", hint="write them to a file"
        )
    return arguments
