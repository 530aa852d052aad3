"""File operations inside the sandbox, so that the host never resolves a path of the guest. Also
the census of a directory before and after a cell, which shows the files that it changed.

Nothing here may block init: files are opened without blocking, and only regular files are read. A
census is cheap, and gives up where it would not be.
"""

import contextlib
import errno
import json
import operator
import os
import stat as modes
from typing import Any, Callable, Dict, List, Optional, Tuple

from ..protocol import messages, removal, wire
from . import trees

Answer = Tuple[Dict[str, Any], bytes]
MAX_LINKS = 40  # in one path, as many as Linux follows


def serve(init: Any, frame: wire.Frame) -> None:
    operations: Dict[str, Callable[[wire.Frame], Any]] = {
        "read": _read,
        "write": _write,
        "list": _list,
        "stat": _stat,
        "realpath": _resolve,
        "watch": _watch,
        "make_dir": _make_dir,
        "remove": _remove,
        "rename": _rename,
        "scan": trees.scan,
        "mapped": trees.find_mapped,
        "gather": trees.gather,
        "scatter": trees.scatter,
    }
    try:
        result, data = operations[frame.header["op"]](frame)
    except OSError as error:
        _refuse(init, frame, error.errno or errno.EIO, error.strerror or "refused")
        return
    except RecursionError:
        _refuse(init, frame, errno.ENAMETOOLONG, "nested too deep")
        return
    except Exception as error:  # out of memory, or a name this system cannot encode
        _refuse(init, frame, errno.EINVAL, type(error).__name__)
        return
    if data:
        init.send(wire.DATA, frame.request, None, data)
    init.send(wire.REPLY, frame.request, {"result": result})


def _refuse(init: Any, frame: wire.Frame, number: int, message: str) -> None:
    init.send(wire.REPLY, frame.request, {"error": {"errno": number, "message": message}})


def _read(frame: wire.Frame) -> Answer:
    """One part, from `offset`. The host asks for the next part when it has taken this one, so init
    holds no large file in memory."""
    header = frame.header
    fd = trees.open_regular(header["path"], os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        data = os.pread(fd, min(int(header["size"]), wire.MAX_PAYLOAD), int(header["offset"]))
    finally:
        os.close(fd)
    return {"size": size}, data


def _write(frame: wire.Frame) -> Answer:
    header = frame.header
    flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if header.get("append") else os.O_TRUNC)
    with contextlib.suppress(FileExistsError):  # a file: then open() says that it is no directory
        os.makedirs(os.path.dirname(header["path"]), exist_ok=True)
    fd = trees.open_regular(header["path"], flags)
    try:
        view = memoryview(frame.payload)
        while view:
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)
    return _describe(header["path"]), b""


def _list(frame: wire.Frame) -> Answer:
    """One page. The names are payload: five hundred long names do not fit into a header."""
    offset = int(frame.header["offset"])
    names = trees.list_names(frame.header["path"], messages.MAX_LIST)
    found = []
    for name in names[offset : offset + messages.LIST_PAGE]:
        try:
            found.append({"name": name, **_describe(os.path.join(frame.header["path"], name))})
        except FileNotFoundError:
            continue  # removed meanwhile
    return {"total": len(names)}, json.dumps(found).encode("ascii")


def _stat(frame: wire.Frame) -> Answer:
    return _describe(frame.header["path"], follow=frame.header.get("follow") is True), b""


def _describe(path: str, *, follow: bool = False) -> Dict[str, Any]:
    status = os.stat(path) if follow else os.lstat(path)
    kind = _get_type(status)
    described = {
        "type": kind,
        "size": status.st_size,
        "mode": modes.S_IMODE(status.st_mode),
        "mtime": status.st_mtime,
        "uid": status.st_uid,
        "gid": status.st_gid,
    }
    if kind == "symlink":
        described["target"] = os.readlink(path)
        with contextlib.suppress(OSError):  # it leads nowhere, or in a circle
            described["target_type"] = _get_type(os.stat(path))
    return described


def _get_type(status: os.stat_result) -> str:
    return trees.FILE_TYPES.get(modes.S_IFMT(status.st_mode), "other")


def _resolve(frame: wire.Frame) -> Answer:
    """The path without links. The kernel resolves it: it bounds the number of links, and Python's
    realpath() does not."""
    if frame.header.get("strict") is False:
        return {"path": _resolve_missing(frame.header["path"])}, b""
    fd = os.open(frame.header["path"], os.O_PATH | os.O_CLOEXEC)
    try:
        found, path = os.fstat(fd), os.readlink(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
    now = os.lstat(path)  # a file that was removed meanwhile has no path
    if (now.st_dev, now.st_ino) != (found.st_dev, found.st_ino):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    return {"path": path}, b""


def _resolve_missing(path: str) -> str:
    """The same for a path of which parts may be missing: name by name, as the kernel does it."""
    found, links = "", 0
    names = path.split("/")[::-1]
    while names:
        name = names.pop()
        if name == "..":
            found = os.path.dirname(found).rstrip("/")
        elif name not in ("", "."):
            try:
                target = os.readlink(f"{found}/{name}")
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR):
                    raise
                found = f"{found}/{name}"  # no link, or missing
                continue
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            if target.startswith("/"):
                found = ""
            names += target.split("/")[::-1]
    return found or "/"


def _watch(frame: wire.Frame) -> Answer:
    """All entries of a directory. The host compares them with those of its last request."""
    path, most = frame.header["path"], messages.MAX_WATCHED
    os.close(os.open(path, removal.DIRECTORY & ~os.O_NOFOLLOW))
    found = take_census(path, most, WATCH_TIMEOUT, deep=frame.header.get("recursive") is True)
    data = b"" if found is None else json.dumps(list(found.items())).encode("ascii")
    if found is None or len(data) > messages.MAX_PART:
        raise OSError(errno.E2BIG, f"it has more than {most} entries, too many to watch")
    return {}, data


def _make_dir(frame: wire.Frame) -> Answer:
    os.makedirs(frame.header["path"], exist_ok=True)
    return _describe(frame.header["path"]), b""


def _remove(frame: wire.Frame) -> Answer:
    removal.remove(frame.header["path"])
    return {}, b""


def _rename(frame: wire.Frame) -> Answer:
    os.rename(frame.header["path"], frame.header["to"])
    return _describe(frame.header["to"]), b""


# -- census ---------------------------------------------------------------------------------------

# type ("file", "dir", "symlink", "other"), size, mtime_ns, ctime_ns, inode, mode
Entry = Tuple[Any, ...]
Census = Dict[str, Entry]

MAX_PATH = 4000  # bytes below the root: no program opens a longer path in one call
CLOCK_INTERVAL = 64  # entries between two checks of the clock
WATCH_TIMEOUT = 0.5  # seconds
_get_state = operator.attrgetter("st_size", "st_mtime_ns", "st_ctime_ns", "st_ino", "st_mode")


def take_census(
    root: str, most: int = 5000, seconds: float = 0.05, *, deep: bool = True
) -> Optional[Census]:
    """All entries below `root` by relative path; None if they take more than `most` entries or
    `seconds` of CPU time. It does not recurse, and needs two descriptors at any depth. With
    `deep=False` only those in `root` itself."""
    found: Census = {}
    deadline = trees.Deadline(seconds)
    try:
        top = os.open(root, removal.DIRECTORY & ~os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        pending = [""]
        while pending:
            directory = pending.pop()
            inner = _add_entries(top, directory, found, most, deadline)
            if inner is None:
                return None
            if deep:
                pending += inner
    finally:
        os.close(top)
    return found


def _add_entries(
    top: int, directory: str, found: Census, most: int, deadline: trees.Deadline
) -> Optional[List[str]]:
    """Add the entries of one directory, and return its directories; None if it is too much."""
    try:
        fd = os.open(directory, removal.DIRECTORY, dir_fd=top) if directory else top
    except OSError:
        return []  # removed, replaced or not readable: it has no entries to compare
    prefix = directory + "/" if directory else ""
    inner: List[str] = []
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue  # removed meanwhile
                path = prefix + entry.name
                kind = _get_type(status)
                found[path] = (kind, *_get_state(status))
                if kind == "dir":
                    inner.append(path)
                    if len(os.fsencode(path)) > MAX_PATH:
                        return None
                if len(found) > most:
                    return None
                if len(found) % CLOCK_INTERVAL == 0 and deadline.passed:
                    return None
    except OSError:
        return inner
    finally:
        if fd != top:
            os.close(fd)
    return None if deadline.passed else inner


def compare_census(before: Census, after: Census) -> Dict[str, List[str]]:
    """The paths that were created, changed and removed, sorted.

    A directory does not count as changed: its entries do.
    """
    created = [path for path in after if path not in before]
    removed = [path for path in before if path not in after]
    changed = [
        path
        for path, entry in after.items()
        if path in before
        and entry != before[path]
        and not (entry[0] == "dir" and before[path][0] == "dir")
    ]
    return {"created": sorted(created), "changed": sorted(changed), "removed": sorted(removed)}
