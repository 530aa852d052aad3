"""What Belljar raises when it could not do what it was asked.

What the *guest's code* did (an exception, a time-out, too much memory) is a value, an `Execution`;
it becomes an exception only on request, by `Execution.raise_for_outcome()`.

    SandboxError                    the root: a message, and a hint that names the remedy
    ├── InvalidOption               an unknown option, or a value out of range (a ValueError)
    ├── BackendUnavailable          this host cannot run the backend asked for
    │   └── LimitNotEnforceable     a limit the caller set cannot be enforced here
    ├── EnvironmentBuildError       the packages of an Environment could not be installed
    ├── StartError                  the guest did not come up
    ├── SandboxClosed               used after close(), kill() or the end of its lifetime
    │   ├── ManagerClosed           a manager that is closed makes no more sandboxes
    │   └── PoolClosed              a pool that is closed gives no more guests
    ├── SandboxPaused               used between pause() and resume()
    ├── ManagerFull                 a manager has no place for another sandbox
    │   └── QuotaExceeded           this owner has as many as one may have
    ├── PoolFull                    no guest of a pool was free in time (a TimeoutError)
    ├── NameTaken                   a manager has a sandbox of this name
    ├── SandboxMissing              a manager has none of this name, or no more (a KeyError)
    ├── ProtocolError               the guest broke the wire; it has been killed
    ├── GuestLost                   the guest died in an operation that has no Execution to say so
    ├── CannotTravel                a value cannot go in or out; names the part (a TypeError)
    ├── NameMissing                 get() of a name the sandbox does not have (a KeyError)
    ├── CheckpointLost              the checkpoint is gone, with its guest or by release()
    ├── FileError                   a file operation in the guest failed (an OSError)
    │   ├── FileMissing             (a FileNotFoundError)
    │   ├── FileExists              (a FileExistsError)
    │   ├── NotADirectory           (a NotADirectoryError)
    │   ├── IsADirectory            (an IsADirectoryError)
    │   └── PermissionDenied        (a PermissionError)
    └── ExecutionError              raised by raise_for_outcome() and raise_for_exit()
        ├── ExecutionTimeout        (a TimeoutError)
        └── ExecutionOutOfMemory    (a MemoryError)
"""

from __future__ import annotations

import difflib
import errno as errnos
import functools
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    from belljar.results.execution import CommandResult, Execution


T = TypeVar("T")
MOST_SHOWN = 20  # options in one hint, beside the nearest


class SandboxError(Exception):
    """The root of everything Belljar raises on purpose."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  hint: {self.hint}"

    def _keywords(self) -> dict[str, Any]:
        """The keyword arguments to make an equal error."""
        return {"hint": self.hint}

    def __reduce__(self) -> tuple[object, ...]:
        # By default an exception is unpickled from its positional arguments alone, which would
        # lose or refuse the keywords; errors do cross processes (multiprocessing, executors).
        remake = functools.partial(type(self), self.message, **self._keywords())
        return remake, (), self.__dict__


class InvalidOption(SandboxError, ValueError):
    """An option that does not exist, or a value outside its range."""


class BackendUnavailable(SandboxError):
    """This host cannot run the backend asked for; the hint says what is missing."""


class LimitNotEnforceable(BackendUnavailable):
    """A limit the caller set cannot be enforced on this host, so nothing was started."""


class EnvironmentBuildError(SandboxError):
    """The interpreter or the packages of an Environment could not be had; nothing was kept."""


class StartError(SandboxError):
    """The guest did not come up; what was already made for it has been removed."""


class SandboxClosed(SandboxError):
    """The sandbox was used after close(), kill() or the end of its lifetime."""


class ManagerClosed(SandboxClosed):
    """The manager is closed, or being closed, and makes no more sandboxes."""


class PoolClosed(SandboxClosed):
    """The pool is closed, or being closed, and gives no more guests."""


class SandboxPaused(SandboxError):
    """The sandbox is paused, and does nothing before resume()."""


class ManagerFull(SandboxError):
    """There are as many sandboxes as the manager may have."""


class QuotaExceeded(ManagerFull):
    """The owner has as many sandboxes as one owner may have."""


class PoolFull(SandboxError, TimeoutError):
    """No guest could be had within the time that the caller would wait."""


class NameTaken(SandboxError):
    """There is a sandbox of this name already, or one is being made."""


class SandboxMissing(SandboxError, KeyError):
    """The manager has no sandbox of this name: it never had, or it was deleted, swept or lost."""


class ProtocolError(SandboxError):
    """The guest sent what the wire does not allow; it has been killed."""


class GuestLost(SandboxError):
    """The guest died during an operation that has no Execution to say so."""


class CannotTravel(SandboxError, TypeError):
    """A value cannot go into the sandbox or come out of it; the message names the part."""


class NameMissing(SandboxError, KeyError):
    """The sandbox has no variable of this name."""


class CheckpointLost(SandboxError):
    """There is no such checkpoint any more."""


class FileError(SandboxError, OSError):
    """A file operation in the guest failed; `path` is as the guest sees it."""

    errno: int

    def __init__(self, message: str, *, errno: int, path: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.errno = errno
        self.strerror = os.strerror(errno)
        self.path = self.filename = path

    def _keywords(self) -> dict[str, Any]:
        return super()._keywords() | {"errno": self.errno, "path": self.path}


class FileMissing(FileError, FileNotFoundError):
    """There is no such file or directory in the guest."""


class FileExists(FileError, FileExistsError):
    """Something is already there."""


class NotADirectory(FileError, NotADirectoryError):
    """A directory was needed, and there is something else."""


class IsADirectory(FileError, IsADirectoryError):
    """A file was needed, and there is a directory."""


class PermissionDenied(FileError, PermissionError):
    """The guest's own user may not do this."""


# The other builtins Python derives from OSError are about sockets and processes, not files.
_BY_ERRNO: dict[int, type[FileError]] = {
    errnos.ENOENT: FileMissing,
    errnos.EEXIST: FileExists,
    errnos.ENOTDIR: NotADirectory,
    errnos.EISDIR: IsADirectory,
    errnos.EACCES: PermissionDenied,
    errnos.EPERM: PermissionDenied,
}


def file_error(
    errno: int, path: str, message: str | None = None, *, hint: str | None = None
) -> FileError:
    """Give the error for `errno`, of the class that is also the matching builtin.

    >>> isinstance(file_error(2, "/workspace/a.csv"), FileNotFoundError)
    True
    """
    if message is None:
        message = f"{os.strerror(errno)}: {path!r}"
    return _BY_ERRNO.get(errno, FileError)(message, errno=errno, path=path, hint=hint)


class ExecutionError(SandboxError):
    """The guest's code did not end well, and the caller wanted an exception for it."""

    def __init__(
        self, message: str, *, execution: Execution | CommandResult, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.execution = execution

    def _keywords(self) -> dict[str, Any]:
        return super()._keywords() | {"execution": self.execution}


class ExecutionTimeout(ExecutionError, TimeoutError):
    """The code used up its wall-clock time."""


class ExecutionOutOfMemory(ExecutionError, MemoryError):
    """The code wanted more memory than its limit."""


def nearest(word: str, options: Iterable[str]) -> str | None:
    """Find the option that `word` was probably meant to be.

    >>> nearest("memmory", ["memory", "cpus"])
    'memory'
    """
    by_lower = {option.lower(): option for option in options}
    # The comparison is quadratic in the length of the word, which may come from anywhere.
    found = difflib.get_close_matches(word[:100].lower(), by_lower, n=1)
    return by_lower[found[0]] if found else None


def suggests(cls: type[T]) -> type[T]:
    """Decorate a class: the AttributeError for a name that it has not names the nearest one."""

    def missing(self: object, name: str) -> NoReturn:
        raise attribute_error(f"{type(self).__name__!r} object", name, dir(self), self)

    cls.__getattr__ = missing  # type: ignore[attr-defined]
    return cls


def stays_one(cls: type[T]) -> type[T]:
    """Decorate a class whose objects stand for something that lives: a copy of one is the object
    itself (frameworks copy the tools that hold it), and pickling one is an error."""

    def refuse(self: object) -> NoReturn:
        raise CannotTravel(
            f"a {type(self).__name__} cannot be pickled: it belongs to this process",
            hint="make one in the other process; copy() and deepcopy() give the object itself",
        )

    cls.__copy__ = lambda self: self  # type: ignore[attr-defined]
    cls.__deepcopy__ = lambda self, memo: self  # type: ignore[attr-defined]
    cls.__reduce__ = refuse  # type: ignore[method-assign]
    return cls


def attribute_error(
    owner: str, name: str, names: Iterable[str], obj: object = None
) -> AttributeError:
    """Make the error for a name that `owner` has not; private names suggest nothing."""
    public = [each for each in names if not each.startswith("_")]
    guess = None
    if not name.startswith("_"):
        guess = nearest(name, public) or next((e for e in public if e.startswith(name)), None)
    question = "" if guess is None else f"; did you mean {guess!r}?"
    # Without `name=` the interpreter adds no guess of its own.
    return AttributeError(f"{owner} has no attribute {name!r}{question}", obj=obj)


def check_callbacks(**callbacks: object) -> None:
    """Called before the code runs, so that the error does not wait for the first output."""
    for name, callback in callbacks.items():
        if callback is not None and not callable(callback):
            raise InvalidOption(f"{name} must be callable, not {callback!r}")


def check_encodable(what: str, text: str) -> None:
    """The kernel takes bytes, and some lone surrogates have none."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise InvalidOption(f"{what} cannot be encoded: {error.reason}: {text!r}") from None


def unknown_option(kind: str, word: str, options: Iterable[str]) -> InvalidOption:
    """Make the error for a word that is not in `options`; `kind` says what it should have been.

    >>> print(unknown_option("option", "memmory", ["memory", "cpus"]))
    unknown option 'memmory'
      hint: did you mean 'memory'? options: memory, cpus
    """
    known = list(options)
    guess = nearest(word, known)
    hints = [] if guess is None else [f"did you mean {guess!r}?"]
    if guess is None or len(known) <= MOST_SHOWN:
        hints.append(f"options: {', '.join(known)}")
    return InvalidOption(f"unknown {kind} {word[:100]!r}", hint=" ".join(hints))
