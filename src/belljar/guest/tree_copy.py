"""Copying trees that somebody hostile has made, as they are: modes, times, links, holes."""

import contextlib
import errno
import os
import stat as modes
from typing import Callable, Iterator, List, NamedTuple, Optional

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
Links = Callable[[], int]
PIECE = 8 * 1024 * 1024  # bytes copied at once


class _Level(NamedTuple):
    source: int
    target: int
    names: "Iterator[str]"
    parent: int  # of the source; -1 at the top
    name: str
    status: "Optional[os.stat_result]"  # None at the top, whose mode is the caller's matter


def copy(source: int, target: int, links: Links) -> None:
    """All that is in one directory into another. `links` makes a directory beside, for files
    with several names.

    Without recursion: a tree may be thousands deep. Two descriptors for each level.
    """
    stack: List[_Level] = [_Level(source, target, iter(os.listdir(source)), -1, "", None)]
    while stack:
        level = stack[-1]
        name = next(level.names, None)
        if name is None:
            stack.pop()
            _leave(level)
            continue
        try:
            inner = _copy_entry(name, level, links)
        except FileNotFoundError:
            continue  # removed meanwhile, by something that runs on
        if inner is not None:
            stack.append(inner)


def _copy_entry(name: str, level: _Level, links: Links) -> "Optional[_Level]":
    """The level below, if it is a directory."""
    found = os.stat(name, dir_fd=level.source, follow_symlinks=False)
    if modes.S_ISDIR(found.st_mode):
        return _enter(name, level, found)
    if modes.S_ISREG(found.st_mode):
        _copy_file(name, level, found, links)
    elif modes.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(name, dir_fd=level.source), name, dir_fd=level.target)
        _set_times(name, level.target, found)
    elif modes.S_ISFIFO(found.st_mode):
        os.mkfifo(name, 0o600, dir_fd=level.target)
        os.chmod(name, modes.S_IMODE(found.st_mode), dir_fd=level.target)
        _set_times(name, level.target, found)
    # A socket is nothing without the process that listens to it.
    return None


def _enter(name: str, level: _Level, found: os.stat_result) -> _Level:
    """Also where its owner has forbidden himself to go."""
    if not _open_to_owner(found):
        os.chmod(name, found.st_mode & 0o7777 | 0o700, dir_fd=level.source)
    source = os.open(name, _DIRECTORY, dir_fd=level.source)
    os.mkdir(name, 0o700, dir_fd=level.target)
    target = os.open(name, _DIRECTORY, dir_fd=level.target)
    return _Level(source, target, iter(os.listdir(source)), level.source, name, found)


def _leave(level: _Level) -> None:
    if level.status is None:
        return  # the top, which is the caller's
    _dress(level.target, level.status)
    os.close(level.source)
    os.close(level.target)
    if not _open_to_owner(level.status):
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            os.chmod(level.name, modes.S_IMODE(level.status.st_mode), dir_fd=level.parent)


def _open_to_owner(status: os.stat_result) -> bool:
    return status.st_mode & 0o500 == 0o500


def _copy_file(name: str, level: _Level, found: os.stat_result, links: Links) -> None:
    known = str(found.st_ino)
    if found.st_nlink > 1:
        try:
            os.link(known, name, src_dir_fd=links(), dst_dir_fd=level.target)
            return
        except FileNotFoundError:
            pass  # the first of its names
    source = _open_to_read(name, level.source, found)
    try:
        flags = _FILE | os.O_WRONLY | os.O_CREAT | os.O_EXCL
        target = os.open(name, flags, 0o600, dir_fd=level.target)
        try:
            _copy_data(source, target, found.st_size)
            _dress(target, found)
        finally:
            os.close(target)
    finally:
        os.close(source)
    if found.st_nlink > 1:
        os.link(name, known, src_dir_fd=level.target, dst_dir_fd=links())


def _open_to_read(name: str, directory: int, found: os.stat_result) -> int:
    """Also what its owner has forbidden himself to read."""
    try:
        return os.open(name, _FILE | os.O_RDONLY, dir_fd=directory)
    except PermissionError:
        mode = modes.S_IMODE(found.st_mode)
        os.chmod(name, mode | 0o600, dir_fd=directory)
        try:
            return os.open(name, _FILE | os.O_RDONLY, dir_fd=directory)
        finally:
            os.chmod(name, mode, dir_fd=directory)


def _copy_data(source: int, target: int, size: int) -> None:
    """Holes stay holes: a file may claim to be larger than any memory."""
    os.truncate(target, size)
    position = 0
    while position < size:
        try:
            position = os.lseek(source, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # only a hole is left
            raise
        end = os.lseek(source, position, os.SEEK_HOLE)
        os.lseek(target, position, os.SEEK_SET)
        while position < end:
            data = os.pread(source, min(end - position, PIECE), position)
            if not data:
                return  # it shrank
            position += os.write(target, data)
            os.lseek(target, position, os.SEEK_SET)


def _dress(fd: int, status: os.stat_result) -> None:
    os.fchmod(fd, modes.S_IMODE(status.st_mode))
    os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))


def _set_times(name: str, directory: int, status: os.stat_result) -> None:
    times = (status.st_atime_ns, status.st_mtime_ns)
    os.utime(name, ns=times, dir_fd=directory, follow_symlinks=False)
