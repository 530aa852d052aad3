"""Recorder: writes down what a sandbox is asked and what it answers, a line at a time.

`Sandbox(record=PATH)` makes one. `format` tells what the lines look like, `read` reads them.

The code, its output and the files given to it are in the record as they are, so that the file is
readable for its owner alone. Of environment variables only the names are kept: their values are
often secrets.
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
from belljar.record.reader import is_header as _is_header
from belljar.results.execution import Execution

_HEADER = 4096  # bytes: enough to tell a record from another file


class Recorder:
    """Appends to one file. Any thread may call it; once begun, it raises nothing.

    A disk that fails must not take what the code did with it: `failed` then says why the record
    ends, and nothing more is written, because a record with a hole could not be replayed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = _checked(path)
        self.failed: str | None = None
        self._session = uuid.uuid4().hex[:12]
        self._file = -1
        self._lock = threading.Lock()
        os.close(_open(self.path))  # what is wrong with it is said now, not at the first cell

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
        """Open the file and say what the sandbox is. Raises FileError if that is not possible.

        Of `env` the names are taken, so that a mapping will do. `host_files` are the paths in the
        guest where files of the host are seen (a kept workspace, mounts): they are not recorded.
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
    ) -> None:
        """A cell that has ended. `timeout`: as the caller gave it; `began`: as of time.time().
        `script`: what came with its code, of which the file's name, the arguments and what was
        read of standard input are kept."""
        fields = {
            "timeout": timeout,
            "env": sorted(env),
            "undo_on_error": undo_on_error,
            **(dump_script(script) if script is not None else {}),
        }
        self._write("cell", fields, began, lambda room: dump_cell(code, execution, room))

    def event(self, kind: str, **fields: object) -> None:
        """Whatever else changed the sandbox: "restart", "put", "write", "command", …

        Bytes (also inside a mapping) are kept up to INLINE; of larger ones size and hash are.
        A CommandResult is kept with its output. `began` tells when, if it was not just now.
        """
        began = fields.pop("began", None)
        self._write(kind, fields, began if isinstance(began, float) else time.time())

    def close(self) -> None:
        """Say that the session has ended. May be called twice."""
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
                size = os.fstat(self._file).st_size  # others may append too
                room = Room(size)
                plain = {name: dump_field(value, room) for name, value in fields.items()}
                line = json.dumps({**head, **plain, **more(room)}, allow_nan=False)
                self._append(line, MAX_RECORD - size)
            except OSError as error:
                self.failed = f"{str(self.path)!r}: {error.strerror}"
            except (TypeError, ValueError, RecursionError) as error:
                self.failed = f"{str(self.path)!r}: a {kind!r} cannot be written down: {error}"

    def _append(self, line: str, room: int) -> None:
        if len(line) >= MAX_LINE:
            raise ValueError(f"it takes more than {MAX_LINE >> 20} MiB")
        if len(line) >= room:  # nobody could read any of it
            raise ValueError(f"the record would have more than {MAX_RECORD >> 20} MiB")
        # One call as long as the disk has room: others may append to the same file.
        rest = memoryview(line.encode("ascii") + b"\n")
        while rest:
            rest = rest[os.write(self._file, rest) :]


def _checked(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise InvalidOption(f"record is the path of a file, not {path!r}")
    if not os.fspath(path) or "\0" in os.fspath(path):
        raise InvalidOption(f"record={os.fspath(path)!r} is not the name of a file")
    return Path(path).absolute()  # the directory may be another one when the sandbox starts


def _open(path: Path) -> int:
    """A descriptor that appends, at the beginning of a line, to a new or an older record."""
    # Not through a symbolic link and not into a pipe: what a cell printed goes to one known file.
    # O_NONBLOCK: a pipe without a reader would keep us waiting.
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        file = os.open(path, flags, 0o600)
    except OSError as error:
        raise _refused(path, error) from error
    try:
        _check(file, path)
    except BaseException:
        os.close(file)
        raise
    return file


def _check(file: int, path: Path) -> None:
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        raise InvalidOption(f"record={str(path)!r} is not an ordinary file")
    if status.st_uid != os.geteuid():
        # In a directory where others may write, somebody could have put it there to read it.
        raise InvalidOption(
            f"record={str(path)!r} belongs to another user", hint="give the name of a new file"
        )
    if status.st_size == 0:
        return
    if not _is_header(os.pread(file, _HEADER, 0)):
        raise InvalidOption(
            f"record={str(path)!r} exists and is not a record",
            hint="give the name of a new file, or of an older record to append to",
        )
    try:
        if os.pread(file, 1, status.st_size - 1) != b"\n":  # its writer was killed in mid-line
            os.write(file, b"\n")
    except OSError as error:
        raise _refused(path, error) from error


_REMEDIES = {
    errno.ENOENT: "its directory does not exist: make it first",
    errno.ELOOP: "it is a symbolic link: give the file itself",
    errno.EISDIR: "it is a directory: give the name of a file in it",
}


def _refused(path: Path, error: OSError) -> FileError:
    number = error.errno or errno.EIO
    return FileError(
        f"cannot write the record {str(path)!r}: {os.strerror(number)}",
        errno=number,
        path=str(path),
        hint=_REMEDIES.get(number),
    )
