"""Recorder: writes each operation on a sandbox and its result to a file, one line each.

`Sandbox(record=PATH)` makes one. `format` describes the lines, `read` reads them.

The record has the code, its output and the files given to it, so only its owner may read the file.
It has only the names of environment variables: their values are often secrets.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from belljar import __version__
from belljar.backends.mounts import WORKSPACE
from belljar.environment.environment import Environment
from belljar.errors import FileError, InvalidOption
from belljar.files.script import Script
from belljar.limits import Limits
from belljar.record.format import (
    FORMAT,
    MAX_LINE,
    MAX_RECORD,
    VERSION,
    Room,
    dump_cell,
    dump_environment,
    dump_field,
    dump_script,
)
from belljar.record.reader import is_record
from belljar.results.execution import Execution


class Recorder:
    """Appends to one file. Any thread may call it; after `begin` it raises nothing.

    A disk that fails must not lose the result of the code: `failed` then says why the record ends,
    and nothing more is written, because a record with a gap could not be replayed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = _check_path(path)
        self.failed: str | None = None
        self._session = uuid.uuid4().hex[:12]
        self._file = -1
        self._lock = threading.Lock()
        os.close(_open(self.path))  # so that an error is raised now, not at the first cell

    def begin(
        self,
        *,
        sandbox: str,
        backend: str,
        environment: Environment,
        limits: Limits,
        env: Iterable[str] = (),
        functions: Iterable[str] = (),
        metadata: Mapping[str, str] | None = None,
        host_files: Iterable[str] = (),
        workdir: str = WORKSPACE,
    ) -> None:
        """Open the file and describe the sandbox. Raises FileError if that is not possible.

        Only the names of `env` are written; it may be a mapping. `host_files`: the paths in the
        guest at which it sees files of the host (a kept workspace, mounts), which are not recorded.
        """
        with self._lock:
            if self._file < 0:
                self._file = _open(self.path)
        self._write(
            "session",
            {
                "format": FORMAT,
                "version": VERSION,
                "belljar": __version__,
                "sandbox": sandbox,
                "backend": backend,
                "environment": dump_environment(environment),
                "limits": limits.to_dict(),
                "explicit_limits": sorted(limits.explicit),
                "env": sorted(env),
                "functions": sorted(functions),
                "metadata": dict(metadata or {}),
                "host_files": sorted(host_files),
                "workdir": workdir,
            },
        )
        if self.failed is not None:
            self.close()
            raise FileError(
                f"cannot begin the record: {self.failed}", errno=errno.EIO, path=str(self.path)
            )

    def cell(
        self,
        *,
        code: str,
        execution: Execution,
        timeout: float | None,
        began: float,
        env: Iterable[str] = (),
        undo_on_error: bool = False,
        script: Script | None = None,
        context: str | None = None,
    ) -> None:
        """Write a cell that has ended. `timeout`: as the caller gave it; `began`: by time.time().
        `script`: its file name, arguments, and what it read from standard input are written.
        `context`: the id of the interpreter, if it was not the sandbox's own."""
        fields = {
            "timeout": timeout,
            "env": sorted(env),
            "undo_on_error": undo_on_error,
            **({} if context is None else {"context": context}),
            **(dump_script(script) if script is not None else {}),
        }
        self._write("cell", fields, began, lambda room: dump_cell(code, execution, room))

    def event(self, kind: str, **fields: object) -> None:
        """Write another operation on the sandbox: "restart", "put", "write", "command", …

        Bytes (also inside a mapping) are written up to INLINE; of larger ones size and hash.
        A CommandResult is written with its output. `began`: when it started (default: now).
        """
        began = fields.pop("began", None)
        self._write(kind, fields, began if isinstance(began, float) else time.time())

    def close(self) -> None:
        """Write the end of the session. May be called twice."""
        if self._file >= 0 and self.failed is None:
            self._write("end", {})
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def _write(
        self,
        kind: str,
        fields: Mapping[str, object],
        at: float | None = None,
        more: Callable[[Room], dict[str, object]] = lambda room: {},
    ) -> None:
        with self._lock:
            if self._file < 0 or self.failed is not None:
                return
            head = {"kind": kind, "session": self._session, "at": at or time.time()}
            try:
                size = os.fstat(self._file).st_size  # other sandboxes may append too
                room = Room(size)
                plain = {name: dump_field(value, room) for name, value in fields.items()}
                line = json.dumps({**head, **plain, **more(room)}, allow_nan=False)
                self._append(line, MAX_RECORD - size)
            except OSError as error:
                self.failed = f"{str(self.path)!r}: {error.strerror}"
            except (TypeError, ValueError, RecursionError) as error:
                self.failed = f"{str(self.path)!r}: a {kind!r} cannot be recorded: {error}"

    def _append(self, line: str, room: int) -> None:
        if len(line) >= MAX_LINE:
            raise ValueError(f"it takes more than {MAX_LINE >> 20} MiB")
        if len(line) >= room:  # a reader would refuse the whole record
            raise ValueError(f"the record would have more than {MAX_RECORD >> 20} MiB")
        # One write unless the disk is full: other sandboxes may append to the same file.
        rest = memoryview(line.encode("ascii") + b"\n")
        while rest:
            rest = rest[os.write(self._file, rest) :]


def _check_path(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise InvalidOption(f"record must be the path of a file, not {path!r}")
    if not os.fspath(path) or "\0" in os.fspath(path):
        raise InvalidOption(f"record={os.fspath(path)!r} is not the name of a file")
    return Path(path).absolute()  # the caller may change directory before the sandbox starts


def _open(path: Path) -> int:
    """A descriptor that appends to a new or an existing record, at the start of a line."""
    # Not through a symbolic link and not into a pipe: output of the code goes to one known file.
    # O_NONBLOCK: opening a pipe without a reader would block.
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        file = os.open(path, flags, 0o600)
    except OSError as error:
        raise _write_error(path, error) from error
    try:
        _check_file(file, path)
    except BaseException:
        os.close(file)
        raise
    return file


def _check_file(file: int, path: Path) -> None:
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        raise InvalidOption(f"record={str(path)!r} is not a regular file")
    if status.st_uid != os.geteuid():
        # In a directory where others may write, another user could have made it to read it later.
        raise InvalidOption(
            f"record={str(path)!r} belongs to another user", hint="give the name of a new file"
        )
    if status.st_size == 0:
        return
    if not is_record(file):
        raise InvalidOption(
            f"record={str(path)!r} exists and is not a record",
            hint="give the name of a new file, or of a record to append to",
        )
    try:
        if os.pread(file, 1, status.st_size - 1) != b"\n":  # its writer was killed within a line
            os.write(file, b"\n")
    except OSError as error:
        raise _write_error(path, error) from error


_REMEDIES = {
    errno.ENOENT: "its directory does not exist: make it first",
    errno.ELOOP: "it is a symbolic link: name the file itself",
    errno.EISDIR: "it is a directory: name a file in it",
}


def _write_error(path: Path, error: OSError) -> FileError:
    number = error.errno or errno.EIO
    return FileError(
        f"cannot write the record {str(path)!r}: {os.strerror(number)}",
        errno=number,
        path=str(path),
        hint=_REMEDIES.get(number),
    )
