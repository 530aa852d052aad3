"""Requests about whole trees, served inside the sandbox, one page of work each.

    scan     the entries of some directories, one page
    gather   parts of some files, each with the description of the file when it was read
    scatter  files, directories and links to make or to remove

Paths are relative to one directory, which is opened first. Whatever the tree looks like, nothing
here recurses, blocks or holds more than a few descriptors, and the cost of a request is bounded.
"""

import contextlib
import errno
import json
import os
import stat as modes
import time
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Tuple, TypeVar, Union

from ..protocol import messages, removal, wire
from .tree_pack import open_regular, write_at

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
FULL = (errno.ENOSPC, errno.EDQUOT)
FILE_TYPES = {modes.S_IFREG: "file", modes.S_IFDIR: "dir", modes.S_IFLNK: "symlink"}

Answer = Tuple[Dict[str, Any], bytes]
T = TypeVar("T")


def describe(status: os.stat_result) -> List[int]:
    """If two descriptions are equal, the file has not changed."""
    mode = modes.S_IMODE(status.st_mode)
    return [mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


class _Root:
    """The directory that a request is about. With `unlock`, directories below it whose modes forbid
    it to their owner are made accessible meanwhile.

    By descriptors, so that a link that replaces a directory has no effect.
    """

    def __init__(self, header: wire.Header) -> None:
        self.fd = os.open(header["path"], removal.DIRECTORY & ~os.O_NOFOLLOW)
        self._unlocks = bool(header.get("unlock"))
        self._device = os.fstat(self.fd).st_dev  # file systems mounted below are left alone
        self._before: Dict[str, os.stat_result] = {}

    def __enter__(self) -> "_Root":
        return self

    def retry(self, directory: str, attempt: "Callable[[], T]") -> "T":
        """Call `attempt`, and again if a directory had to be unlocked."""
        try:
            return attempt()
        except PermissionError:
            if not self._unlock(directory):
                raise
            return attempt()

    def _unlock(self, directory: str) -> bool:
        """Unlock a directory and those above it. True if any of them was locked."""
        if not self._unlocks or not directory:
            return False
        done = self._unlock_one(directory)
        if done is not None:
            return done
        parts, opened = directory.split("/"), False
        for depth in range(1, len(parts) + 1):
            opened = bool(self._unlock_one("/".join(parts[:depth]))) or opened
        return opened

    def _unlock_one(self, path: str) -> Optional[bool]:
        """None if it cannot be opened. Once for each: a process may lock it again and again."""
        try:
            fd = os.open(path, removal.DIRECTORY | os.O_PATH, dir_fd=self.fd)
        except OSError:
            return None
        try:
            status = os.fstat(fd)
            is_open = status.st_mode & 0o500 == 0o500
            if is_open or status.st_dev != self._device or path in self._before:
                return False
            os.chmod(f"/proc/self/fd/{fd}", modes.S_IMODE(status.st_mode) | 0o500)
            self._before[path] = status
            return True
        except OSError:
            return False  # it has another owner: the caller gets the first error
        finally:
            os.close(fd)

    def __exit__(self, *raised: object) -> None:
        """Restore the modes, those of the innermost directories first."""
        for path, status in reversed(list(self._before.items())):
            try:
                fd = os.open(path, removal.DIRECTORY | os.O_PATH, dir_fd=self.fd)
            except OSError:
                continue  # moved or removed meanwhile
            try:
                now = os.fstat(fd)
                if (now.st_dev, now.st_ino) == (status.st_dev, status.st_ino):
                    os.chmod(f"/proc/self/fd/{fd}", modes.S_IMODE(status.st_mode))
            finally:
                os.close(fd)
        os.close(self.fd)


# -- scan -----------------------------------------------------------------------------------


def scan(frame: wire.Frame) -> Answer:
    """As many entries of the directories in the payload as fit into a page.

    `done`: how many directories are complete. `after`: the last name of the next one.
    """
    directories = json.loads(frame.payload)[: messages.MAX_ROWS]
    after: str = frame.header.get("after") or ""
    found: List[List[Any]] = []
    failed: List[List[int]] = []
    done, last = 0, ""
    with _Root(frame.header) as root:
        for number, directory in enumerate(directories):
            try:
                room = messages.SCAN_PAGE - len(found)
                attempt = partial(_scan_one, root.fd, number, directory, after, room)
                rows, last = root.retry(directory, attempt)
                found += rows
            except OSError as error:
                failed.append([number, error.errno or errno.EIO])
                last = ""
            if last:
                break
            done, after = number + 1, ""
            if len(found) >= messages.SCAN_PAGE:
                break
    page = json.dumps({"entries": found, "failed": failed}).encode("ascii")
    return {"done": done, "after": last}, page


def _scan_one(
    root: int, number: int, directory: str, after: str, room: int
) -> Tuple[List[List[Any]], str]:
    """Entries in the order of their names, and the last name if there are more than `room`."""
    rows: List[List[Any]] = []
    fd = os.open(directory or ".", removal.DIRECTORY, dir_fd=root)
    try:
        names = list_names(fd, messages.MAX_NAMES, after)
        for name in names[:room]:
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                rows.append([number, name, *_describe_entry(fd, name)])
        return rows, names[room - 1] if len(names) > room else ""
    finally:
        os.close(fd)


def list_names(directory: Union[int, str], most: int, after: str = "") -> List[str]:
    names = []
    with os.scandir(directory) as entries:
        for count, entry in enumerate(entries):
            if count >= most:
                raise OSError(errno.E2BIG, f"the directory has more than {most} entries")
            if entry.name > after and entry.name not in unfinished:
                names.append(entry.name)
    return sorted(names)


def _describe_entry(fd: int, name: str) -> List[Any]:
    status = os.stat(name, dir_fd=fd, follow_symlinks=False)
    kind = FILE_TYPES.get(modes.S_IFMT(status.st_mode), "other")
    row: List[Any] = [kind, *describe(status)]
    if kind == "symlink":
        row.append(os.readlink(name, dir_fd=fd))
    return row


# -- gather ---------------------------------------------------------------------------------


def gather(frame: wire.Frame) -> Answer:
    """Parts of files: [path, offset, size] each, together at most MAX_PART bytes."""
    rows: List[List[Any]] = []
    data = bytearray()
    follow = bool(frame.header.get("follow"))  # one file, which the caller has named
    with _Root(frame.header) as root:
        for path, offset, size in json.loads(frame.payload)[: messages.MAX_ROWS]:
            size = min(int(size), messages.MAX_PART - len(data))
            try:
                attempt = partial(_read, root.fd, path, int(offset), size, follow)
                row, part = root.retry(os.path.dirname(path), attempt)
            except OSError as error:
                row, part = [error.errno or errno.EIO], b""
            rows.append(row)
            data += part
    return {"rows": rows}, bytes(data)


def _read(root: int, path: str, offset: int, size: int, follow: bool) -> Tuple[List[Any], bytes]:
    """[0, length of the part, True if the file did not change meanwhile, True if a later change
    would show, the description]."""
    fd = open_regular(path, os.O_RDONLY, root, follow)
    try:
        before = describe(os.fstat(fd))
        data = os.pread(fd, size, offset) if size > 0 else b""
        after = describe(os.fstat(fd))
    finally:
        os.close(fd)
    return [0, len(data), before == after, _is_settled(after), *after], data


def _is_settled(description: List[int]) -> bool:
    """True if a change from now on gives the file another time stamp."""
    return description[3] < time.time_ns() - messages.FRESH


# -- files that are being written -----------------------------------------------------------

# A file is written under a temporary name beside its target, and replaces that when it is whole.
# The host chooses the name, and listings leave it out. Name -> what is written, and the target:
# the same path if the target cannot be replaced.
unfinished: Dict[str, Tuple[str, str]] = {}


def begin(
    path: str, partial: str, status: "Optional[os.stat_result]", below: Optional[int] = None
) -> int:
    """Open what will replace `path`. `status` is of the file there, if the new one is to be like
    it."""
    written = os.path.join(os.path.dirname(path), partial)
    try:
        fd = os.open(written, _NEW, 0o666, dir_fd=below)
        if status is not None and not _resemble(fd, status):
            os.close(fd)
            os.unlink(written, dir_fd=below)
            written = path
    except OSError as error:
        if error.errno in FULL:
            raise
        written = path  # the directory is not writable, but the file may be
    if written == path:
        fd = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, below, follow=False)
    unfinished[partial] = written, path
    return fd


def _resemble(fd: int, status: os.stat_result) -> bool:
    """Take over mode and group. False if the new file cannot replace the old one: that is mounted
    there, or its owner is another."""
    made = os.fstat(fd)
    if (made.st_dev, made.st_uid) != (status.st_dev, status.st_uid):
        return False
    try:
        if made.st_gid != status.st_gid:
            os.fchown(fd, -1, status.st_gid)
        os.fchmod(fd, status.st_mode & 0o777)
    except OSError:
        return False
    return True


def open_unfinished(partial: str, below: Optional[int] = None) -> int:
    if partial not in unfinished:  # its beginning was written to a guest that is gone
        raise OSError(errno.ESTALE, "the beginning of the file is lost")
    # The code may have put a link there.
    return open_regular(unfinished[partial][0], os.O_WRONLY, below, follow=False)


def finish(partial: str, below: Optional[int] = None) -> None:
    written, path = unfinished[partial]
    if written != path:
        os.rename(written, path, src_dir_fd=below, dst_dir_fd=below)
    del unfinished[partial]


def discard(partial: str, below: Optional[int] = None) -> None:
    """Remove what is not whole, unless it is the target itself. May be called twice."""
    written, path = unfinished.pop(partial, ("", ""))
    if written != path:
        with contextlib.suppress(OSError):  # the code has moved or removed it
            os.unlink(written, dir_fd=below)


# -- scatter --------------------------------------------------------------------------------


def scatter(frame: wire.Frame) -> Answer:
    """Apply the rows in the payload, each with its part of the data that follows them."""
    (length,) = messages.LENGTH.unpack_from(frame.payload)
    start = messages.LENGTH.size + length
    wanted = json.loads(frame.payload[messages.LENGTH.size : start])[: messages.MAX_ROWS]
    data = memoryview(frame.payload)[start:]
    with contextlib.suppress(FileExistsError):  # a file: then _Root says that it is no directory
        os.makedirs(frame.header["path"], exist_ok=True)
    verbs: Dict[str, Callable[..., List[Any]]] = {
        "file": _make_file,
        "dir": _make_dir,
        "symlink": partial(_make_link, hard=False),
        "link": partial(_make_link, hard=True),
        "remove": _remove,
    }
    rows: List[List[Any]] = []
    with _Root(frame.header) as root:
        for verb, path, *rest in wanted:
            if verb == "file":
                part, data = data[: rest[1]], data[rest[1] :]
                rest.append(part)
            if verb in ("file", "symlink", "link"):
                rest.append(frame.header["partial"])
            try:
                rows.append([0, *verbs[verb](root.fd, path, *rest)])
            except OSError as error:
                rows.append([error.errno or errno.EIO])
    return {"rows": rows}, b""


def _make_file(
    root: int,
    path: str,
    offset: int,
    size: int,
    mode: Optional[int],
    mtime: Optional[int],
    part: memoryview,
    partial: str,
) -> List[Any]:
    """Write a part; the last one comes with the mode and the time of the file."""
    fd = _begin_file(root, path, partial) if offset == 0 else open_unfinished(partial, root)
    try:
        write_at(fd, part, offset)
        if mode is not None:
            os.fchmod(fd, mode & 0o777)
        if mtime is not None:
            os.utime(fd, ns=(mtime, mtime))
            finish(partial, root)
        after = describe(os.fstat(fd))
        return [_is_settled(after), *after]
    except BaseException:
        discard(partial, root)
        raise
    finally:
        os.close(fd)


def _begin_file(root: int, path: str, partial: str) -> int:
    """It replaces what has that name, unless that is a directory."""
    _make_parents(root, path)
    try:
        status = os.stat(path, dir_fd=root, follow_symlinks=False)
    except FileNotFoundError:
        return begin(path, partial, None, root)
    if modes.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a directory")
    return begin(path, partial, status if modes.S_ISREG(status.st_mode) else None, root)


def _make_parents(root: int, path: str) -> None:
    parent = os.path.dirname(path)
    missing: List[str] = []
    while parent:
        try:
            os.close(os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root))
            break
        except FileNotFoundError:
            missing.append(parent)
            parent = os.path.dirname(parent)
    for each in reversed(missing):
        os.mkdir(each, dir_fd=root)


def _make_dir(root: int, path: str) -> List[Any]:
    _make_parents(root, path)
    try:
        os.mkdir(path, dir_fd=root)
    except FileExistsError:
        os.close(os.open(path, removal.DIRECTORY, dir_fd=root))  # fails unless it is a directory
    return []


def _make_link(root: int, path: str, target: str, name: str, hard: bool) -> List[Any]:
    """Under another name first, so that an error leaves what has this one."""
    _make_parents(root, path)
    made = os.path.join(os.path.dirname(path), name)
    if hard:
        os.link(target, made, src_dir_fd=root, dst_dir_fd=root, follow_symlinks=False)
    else:
        os.symlink(target, made, dir_fd=root)
    try:
        os.rename(made, path, src_dir_fd=root, dst_dir_fd=root)
    finally:
        with contextlib.suppress(FileNotFoundError):  # still there if both are the same file
            os.unlink(made, dir_fd=root)
    return []


def _remove(root: int, path: str) -> List[Any]:
    with contextlib.suppress(FileNotFoundError):  # it is removed already
        removal.remove(path, root)
    return []
