"""File operations, done inside the sandbox: the host never resolves a path of the guest's.

Nothing here may block init: files are opened without blocking, and only regular ones are read.
"""

import errno
import json
import os
import stat as modes
from typing import Any, Callable, Dict, Iterator, Tuple

from ..protocol import messages, removal, wire
from . import trees

Answer = Tuple[Dict[str, Any], bytes]


class Refused(OSError):
    """An operation this module will not do, with the reason."""


def serve(init: Any, frame: wire.Frame) -> None:
    operations: Dict[str, Callable[[wire.Frame], Any]] = {
        "read": _read,
        "write": _write,
        "list": _list,
        "stat": lambda frame: (_info(frame.header["path"]), b""),
        "make_dir": _make_dir,
        "remove": _remove,
        "rename": _rename,
        "scan": trees.scan,
        "mapped": trees.mapped,
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
    """One part, from `offset`: the host asks for the next when it has taken this one, so
    a large file waits for nobody in memory."""
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
    parent = os.path.dirname(header["path"])
    if parent:
        os.makedirs(parent, exist_ok=True)
    fd = trees.open_regular(header["path"], flags)
    try:
        view = memoryview(frame.payload)
        while view:
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)
    return _info(header["path"]), b""


def _list(frame: wire.Frame) -> Answer:
    """One page. Names travel as payload: five hundred long ones do not fit into a header."""
    offset = int(frame.header["offset"])
    with os.scandir(frame.header["path"]) as entries:
        names = sorted(entry.name for entry in _capped(entries))
    found = []
    for name in names[offset : offset + messages.LIST_PAGE]:
        try:
            found.append({"name": name, **_info(os.path.join(frame.header["path"], name))})
        except FileNotFoundError:
            continue  # removed meanwhile
    return {"total": len(names)}, json.dumps(found).encode("ascii")


def _capped(entries: "Iterator[os.DirEntry[str]]") -> "Iterator[os.DirEntry[str]]":
    for count, entry in enumerate(entries):
        if count >= messages.MAX_LIST:
            raise Refused(errno.E2BIG, f"the directory has more than {messages.MAX_LIST} entries")
        yield entry


def _info(path: str) -> Dict[str, Any]:
    status = os.lstat(path)
    kind = "other"
    for name, test in (("file", modes.S_ISREG), ("dir", modes.S_ISDIR), ("symlink", modes.S_ISLNK)):
        if test(status.st_mode):
            kind = name
    return {
        "type": kind,
        "size": status.st_size,
        "mode": modes.S_IMODE(status.st_mode),
        "mtime": status.st_mtime,
    }


def _make_dir(frame: wire.Frame) -> Answer:
    os.makedirs(frame.header["path"], exist_ok=True)
    return _info(frame.header["path"]), b""


def _remove(frame: wire.Frame) -> Answer:
    removal.remove(frame.header["path"])
    return {}, b""


def _rename(frame: wire.Frame) -> Answer:
    os.rename(frame.header["path"], frame.header["to"])
    return _info(frame.header["to"]), b""
