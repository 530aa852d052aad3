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
import re
import stat as modes
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from ..protocol import messages, removal, wire
from . import trees
from .tree_pack import open_regular, write_at

Answer = Tuple[Dict[str, Any], bytes]
MAPPED_TIMEOUT = 0.05  # seconds
WAIT_FACTOR = 4  # the wall clock may take so many times the CPU time, while others run
_OCTAL = re.compile(rb"\\([0-7]{3})")
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
        "mapped": find_mapped,
        "gather": trees.gather,
        "scatter": _scatter,
        "discard": _discard,
    }
    try:
        result, data = operations[frame.header["op"]](frame)
    except OSError as error:
        mount = _find_mount(frame.header["path"]) if error.errno in trees.FULL else ""
        _refuse(init, frame, error.errno or errno.EIO, error.strerror or "refused", mount)
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


def _refuse(init: Any, frame: wire.Frame, number: int, message: str, mount: str = "") -> None:
    error = {"errno": number, "message": message, "mount": mount}
    init.send(wire.REPLY, frame.request, {"error": error})


def _read(frame: wire.Frame) -> Answer:
    """One part, from `offset`. The host asks for the next part when it has taken this one, so init
    holds no large file in memory."""
    header = frame.header
    fd = open_regular(header["path"], os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        data = os.pread(fd, min(int(header["size"]), wire.MAX_PAYLOAD), int(header["offset"]))
    finally:
        os.close(fd)
    return {"size": size}, data


def _write(frame: wire.Frame) -> Answer:
    """Write one part of a file. The file that was there is replaced after the last part."""
    header = frame.header
    path, partial, offset = header["path"], header["partial"], header["offset"]
    fd = trees.open_unfinished(partial) if offset else _begin_write(path, partial)
    try:
        write_at(fd, frame.payload, offset)
        if header["last"]:
            trees.finish(partial)
    except BaseException:
        trees.discard(partial)
        raise
    finally:
        os.close(fd)
    return (_describe(path) if header["last"] else {}), b""


def _begin_write(path: str, partial: str) -> int:
    with contextlib.suppress(FileExistsError):  # a file: then open() says that it is no directory
        os.makedirs(os.path.dirname(path), exist_ok=True)
    is_link = os.path.islink(path)  # then the file that it leads to is written, not the link
    try:
        fd = open_regular(path, os.O_WRONLY)  # an error unless it may be written
    except FileNotFoundError:
        return trees.begin(_resolve_missing(path) if is_link else path, partial, None)
    try:
        return trees.begin(_get_path(fd) if is_link else path, partial, os.fstat(fd))
    finally:
        os.close(fd)


def _scatter(frame: wire.Frame) -> Answer:
    result, data = trees.scatter(frame)
    if any(row[0] in trees.FULL for row in result["rows"]):
        result["mount"] = _find_mount(frame.header["path"])
    return result, data


def _discard(frame: wire.Frame) -> Answer:
    """The host gives up a file that is not whole."""
    fd = os.open(frame.header["path"], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        trees.discard(frame.header["partial"], fd)
    finally:
        os.close(fd)
    return {}, b""


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
        return {"path": _get_path(fd)}, b""
    finally:
        os.close(fd)


def _get_path(fd: int) -> str:
    found, path = os.fstat(fd), os.readlink(f"/proc/self/fd/{fd}")
    now = os.lstat(path)  # a file that was removed meanwhile has no path
    if (now.st_dev, now.st_ino) != (found.st_dev, found.st_ino):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    return path


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
    _refuse_mounts(frame.header["path"])
    removal.remove(frame.header["path"])
    return {}, b""


def _refuse_mounts(path: str) -> None:
    """A mount point cannot be removed: its content would be gone before the kernel says so."""
    above, name = os.path.split(path)
    # A link itself is removed, so the last name is not followed.
    path = _resolve_missing(path) if name in ("", "..") else _join(_resolve_missing(above), name)
    inner = [mount for mount in _list_mounts() if _is_below(mount, path)]
    if path in inner:
        raise OSError(errno.EBUSY, "it is a mount point; remove what it contains instead")
    if inner:
        raise OSError(errno.EBUSY, f"{inner[0]!r} is mounted inside; remove the other entries")


def _find_mount(path: str) -> str:
    """The mount point of the file system that has a path; empty if it is not known."""
    try:
        path = _resolve_missing(path)
        return max((each for each in _list_mounts() if _is_below(path, each)), key=len)
    except (OSError, ValueError):
        return ""


def _list_mounts() -> List[str]:
    with open("/proc/self/mountinfo", "rb") as file:
        rows = file.read().splitlines()
    # The kernel writes spaces and the like as octal numbers.
    points = (_OCTAL.sub(lambda found: bytes([int(found[1], 8)]), row.split()[4]) for row in rows)
    return [os.fsdecode(point) for point in points]


def _is_below(path: str, directory: str) -> bool:
    """True also for the directory itself."""
    return path == directory or path.startswith(_join(directory, ""))


def _join(directory: str, name: str) -> str:
    return directory.rstrip("/") + "/" + name


def _rename(frame: wire.Frame) -> Answer:
    os.rename(frame.header["path"], frame.header["to"])
    return _describe(frame.header["to"]), b""


class Deadline:
    def __init__(self, seconds: float) -> None:
        self._work = time.thread_time() + seconds
        self._wait = time.monotonic() + WAIT_FACTOR * seconds

    @property
    def passed(self) -> bool:
        return time.thread_time() > self._work or time.monotonic() > self._wait


def find_mapped(frame: wire.Frame) -> Answer:
    """Inodes of files that processes have mapped for writing: on tmpfs, the kernel updates the time
    only for the first such write. Limited in time and size, so some may be missing. Natively, init
    may not look into the worker, and the host does this."""
    inodes: Set[int] = set()
    deadline = Deadline(MAPPED_TIMEOUT)
    room = messages.MAX_MAPS
    for name in os.listdir("/proc"):
        if not name.isdigit() or deadline.passed or room <= 0:
            continue
        try:
            with open(f"/proc/{name}/maps", "rb") as file:
                text = file.read(room)
        except OSError:
            continue  # it has ended, or is init itself
        room -= len(text)
        inodes |= messages.find_shared(text)
    return {"inodes": sorted(inodes)[: messages.MAX_ROWS]}, b""


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
    deadline = Deadline(seconds)
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
    top: int, directory: str, found: Census, most: int, deadline: Deadline
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
                if entry.name in trees.unfinished:
                    continue
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
