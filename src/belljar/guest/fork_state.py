"""What a fork of the worker changes so that it can run cells apart from the original."""

import os
import stat as modes
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, List, NamedTuple, Optional, Set, Tuple

from . import commands

if TYPE_CHECKING:
    import asyncio

CONTROL = 3  # the worker's socket, and its only descriptor beside the standard ones
_DELETED = " (deleted)"  # the kernel appends it to the path of a removed file
PARKED, RUNNING = b"500", b"1000"  # out of memory, the kernel kills running workers first


released_loops: "List[Any]" = []  # event loops that share descriptors with the original


class Snapshot(NamedTuple):
    """What the fork shares with the original, and paths that may change later."""

    directory: str
    files: "List[Tuple[int, str, int, int]]"  # descriptor, path, flags, position


def take_snapshot(workspace: str) -> Snapshot:
    try:
        directory = os.getcwd()
    except FileNotFoundError:
        directory = workspace
    found = []
    for fd, path in _list_descriptors():
        status = os.fstat(fd)
        if not modes.S_ISREG(status.st_mode) and not modes.S_ISDIR(status.st_mode):
            continue
        if not status.st_nlink or not (path + "/").startswith(workspace + "/"):
            path = f"/proc/self/fd/{fd}"  # the same file, but with a separate position
        flags = _read_flags(fd) & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC | os.O_NOFOLLOW)
        position = os.lseek(fd, 0, os.SEEK_CUR) if not flags & os.O_PATH else 0
        found.append((fd, path, flags, position))
    return Snapshot(directory, found)


def restore_snapshot(snapshot: Snapshot, workspace: str) -> None:
    """Open the files again: the fork shares them, and their positions, with the original."""
    for fd, path, flags, position in snapshot.files:
        _open_again(fd, path, flags, position)
    if os.readlink("/proc/self/cwd") != snapshot.directory:
        _change_directory(snapshot.directory, workspace)


def find_named_files(workspace: str) -> "Set[Tuple[int, int]]":
    """Device and inode of open files that have a name below the workspace."""
    found = set()
    for fd, path in _list_descriptors():
        if path.startswith(workspace + "/") and not path.endswith(_DELETED):
            status = os.fstat(fd)
            found.add((status.st_dev, status.st_ino))
    return found


def reopen_files(known: "Set[Tuple[int, int]]", workspace: str) -> None:
    """The workspace was emptied and filled again, so open files are those that were there before.
    Open files that had a name (`known`) again by that name."""
    for fd, path in _list_descriptors() if known else []:
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) in known and path.endswith(_DELETED):
            flags = _read_flags(fd) & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC | os.O_NOFOLLOW)
            position = os.lseek(fd, 0, os.SEEK_CUR) if not flags & os.O_PATH else 0
            _open_again(fd, path[: -len(_DELETED)], flags, position)
    directory = os.readlink("/proc/self/cwd")
    if directory.endswith(_DELETED):
        _change_directory(directory[: -len(_DELETED)], workspace)


def _open_again(fd: int, path: str, flags: int, position: int) -> None:
    try:
        new = os.open(path, flags | os.O_CLOEXEC)
    except OSError:
        return  # it cannot be opened again: keep the descriptor
    if not flags & os.O_PATH:
        os.lseek(new, position, os.SEEK_SET)
    os.dup2(new, fd, inheritable=os.get_inheritable(fd))
    os.close(new)


def _change_directory(directory: str, workspace: str) -> None:
    """The first of these directories that the mode allows."""
    for place in (directory, workspace, "/"):
        try:
            os.chdir(place)
            return
        except OSError:
            continue


def find_missing(
    loop: "Optional[asyncio.AbstractEventLoop]", known: List[int], control: int
) -> List[str]:
    """What a fork cannot have, in words. `control` is the socket that the fork will get."""
    found = []
    threads = [t for t in threading.enumerate() if t.ident not in known]
    if threads:
        found.append(f"{len(threads)} running thread{'s' * (len(threads) > 1)}")
    if has_tasks(loop):
        found.append("asyncio tasks that had not ended")
    ours = {CONTROL, control}
    for known_loop in (*released_loops, loop):
        ours.update(_list_wakeup_sockets(known_loop))
    links = _list_descriptors()
    if any(path.startswith("socket:") and fd not in ours for fd, path in links):
        found.append("open sockets (they are shared with the original)")
    if any(path.startswith("pipe:") and not _read_flags(fd) & os.O_ACCMODE for fd, path in links):
        found.append("open pipes (they are shared with the original)")
    if _shares_memory():
        found.append("shared memory (it is shared with the original)")
    own, processes = os.getpid(), commands.list_processes()
    if any(commands.read_parent(p) == own and commands.is_alive(p) for p in processes):
        found.append("child processes")
    return found


def has_tasks(loop: "Optional[asyncio.AbstractEventLoop]") -> bool:
    if loop is None or loop.is_closed():
        return False
    import asyncio  # there is a loop, so it is there

    return bool(asyncio.all_tasks(loop))


def _list_wakeup_sockets(loop: Any) -> List[int]:
    """The sockets by which an asyncio loop wakes itself."""
    ends = [getattr(loop, name, None) for name in ("_ssock", "_csock")]
    return [end.fileno() for end in ends if end is not None]


def _shares_memory() -> bool:
    with open("/proc/self/maps", "rb") as file:
        return any(line.split(None, 2)[1].startswith((b"rw-s", b"-w-s")) for line in file)


def renew_secrets() -> None:
    """Replace secrets from before the fork, which all forks would share. The worker seeds random
    generators itself; sources that ask the kernel need nothing; OpenSSL and tempfile notice the
    fork by the pid."""
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)


def set_oom_score(score: bytes) -> None:
    """The kernel kills the process with the highest score when memory runs out."""
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    except PermissionError:
        return  # the code has made its process not dumpable: keep the score
    try:
        os.write(fd, score)
    finally:
        os.close(fd)


def wait_for_init(middle: int) -> None:
    """Wait until init is the parent: when the process in the middle is gone. That may take long on
    a busy machine, or in fork hooks of the code. The host gives up sooner than this."""
    deadline, pause = time.monotonic() + 60.0, 0.0001
    while os.getppid() == middle and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(2 * pause, 0.005)
    if os.getppid() != 1:
        raise ChildProcessError("init is not the parent")


def redirect_to_null(streams: "Tuple[int, ...]" = (1, 2)) -> None:
    """The pipes belong to the original."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in streams:
        os.dup2(null, fd)
    os.close(null)


def _list_descriptors() -> "List[Tuple[int, str]]":
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append((int(name), os.readlink(f"/proc/self/fd/{name}")))
        except OSError:
            continue  # the descriptor of the listing
    return found


def _read_flags(fd: int) -> int:
    with open(f"/proc/self/fdinfo/{fd}") as file:
        for line in file:
            if line.startswith("flags:"):
                return int(line.split()[1], 8)
    return os.O_RDONLY
