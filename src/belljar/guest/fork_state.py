"""What a fork of the worker must put right, so that it goes on as if it had always been alone."""

import asyncio
import os
import stat as modes
import sys
import threading
import time
from typing import Any, List, NamedTuple, Optional, Set, Tuple

from . import commands

CONTROL = 3
_DELETED = " (deleted)"  # what the kernel adds to a path that leads nowhere any more
PARKED, RUNNING = b"500", b"1000"  # out of memory, what runs is to go before what is parked


released_loops: "List[Any]" = []  # event loops whose descriptors are another process's as well


class Snapshot(NamedTuple):
    """What is shared with the original, or is named by paths that may lead elsewhere later."""

    directory: str
    files: "List[Tuple[int, str, int, int]]"  # descriptor, path, flags, position


def take_snapshot(workspace: str) -> Snapshot:
    try:
        directory = os.getcwd()
    except FileNotFoundError:
        directory = workspace
    found = []
    for fd, path in _descriptors():
        status = os.fstat(fd)
        if not modes.S_ISREG(status.st_mode) and not modes.S_ISDIR(status.st_mode):
            continue
        if not status.st_nlink or not (path + "/").startswith(workspace + "/"):
            path = (
                f"/proc/self/fd/{fd}"  # the same file, but from now on with a position of its own
            )
        flags = _flags(fd) & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC | os.O_NOFOLLOW)
        position = os.lseek(fd, 0, os.SEEK_CUR) if not flags & os.O_PATH else 0
        found.append((fd, path, flags, position))
    return Snapshot(directory, found)


def restore_snapshot(snapshot: Snapshot, workspace: str) -> None:
    """Open files are shared with the original up to here, and so is how far they were read."""
    for fd, path, flags, position in snapshot.files:
        _open_again(fd, path, flags, position)
    if os.readlink("/proc/self/cwd") != snapshot.directory:
        _change_directory(snapshot.directory, workspace)


def find_named_files(workspace: str) -> "Set[Tuple[int, int]]":
    """What is open below the workspace and has a name there, by device and inode."""
    found = set()
    for fd, path in _descriptors():
        if path.startswith(workspace + "/") and not path.endswith(_DELETED):
            status = os.fstat(fd)
            found.add((status.st_dev, status.st_ino))
    return found


def reopen_files(known: "Set[Tuple[int, int]]", workspace: str) -> None:
    """The workspace was emptied and made anew: what is open of it are the files that were there
    before. Those that are `known` to have had a name then are opened by it once more."""
    for fd, path in _descriptors() if known else []:
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) in known and path.endswith(_DELETED):
            flags = _flags(fd) & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC | os.O_NOFOLLOW)
            position = os.lseek(fd, 0, os.SEEK_CUR) if not flags & os.O_PATH else 0
            _open_again(fd, path[: -len(_DELETED)], flags, position)
    directory = os.readlink("/proc/self/cwd")
    if directory.endswith(_DELETED):
        _change_directory(directory[: -len(_DELETED)], workspace)


def _open_again(fd: int, path: str, flags: int, position: int) -> None:
    try:
        new = os.open(path, flags | os.O_CLOEXEC)
    except OSError:
        return  # it may not be opened again: it stays what it was
    if not flags & os.O_PATH:
        os.lseek(new, position, os.SEEK_SET)
    os.dup2(new, fd, inheritable=os.get_inheritable(fd))
    os.close(new)


def _change_directory(directory: str, workspace: str) -> None:
    """Where the code was, unless it has forbidden itself to go there."""
    for place in (directory, workspace, "/"):
        try:
            os.chdir(place)
            return
        except OSError:
            continue


def find_missing(
    loop: Optional[asyncio.AbstractEventLoop], known: List[int], control: int
) -> List[str]:
    """What no fork can have, in words. `control` is the socket that the fork will get."""
    found = []
    threads = [t for t in threading.enumerate() if t.ident not in known]
    if threads:
        found.append(f"{len(threads)} running thread{'s' * (len(threads) > 1)}")
    if loop is not None and not loop.is_closed() and asyncio.all_tasks(loop):
        found.append("asyncio tasks that had not ended")
    ours = {CONTROL, control}
    for known_loop in (*released_loops, loop):
        ours.update(_sockets_of(known_loop))
    links = _descriptors()
    if any(path.startswith("socket:") and fd not in ours for fd, path in links):
        found.append("open sockets (they are shared with the original)")
    if any(path.startswith("pipe:") and not _flags(fd) & os.O_ACCMODE for fd, path in links):
        found.append("open pipes (they are shared with the original)")
    if _shares_memory():
        found.append("shared memory (it is shared with the original)")
    if _has_children():
        found.append("child processes")
    return found


def _sockets_of(loop: Any) -> List[int]:
    """Those that asyncio's own loops wake themselves by."""
    ends = [getattr(loop, name, None) for name in ("_ssock", "_csock")]
    return [end.fileno() for end in ends if end is not None]


def _shares_memory() -> bool:
    with open("/proc/self/maps", "rb") as file:
        return any(line.split(None, 2)[1].startswith((b"rw-s", b"-w-s")) for line in file)


def renew_secrets() -> None:
    """Let go of secrets that were drawn before the fork, which siblings would have in common. The
    worker seeds generators of random numbers itself; what asks the kernel each time needs nothing,
    and OpenSSL and tempfile see by the number of their process that they were forked."""
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)


def set_oom_score(score: bytes) -> None:
    """For the kernel, which ends somebody when memory runs out."""
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    except PermissionError:
        return  # the code has made its process nobody's (PR_SET_DUMPABLE): it ranks as before
    try:
        os.write(fd, score)
    finally:
        os.close(fd)


def wait_for_init(middle: int) -> None:
    """To become its child, once the process in the middle is gone: which may take long on a busy
    machine, or in hooks that the code has for forks. The host gives up sooner than this."""
    deadline, pause = time.monotonic() + 60.0, 0.0001
    while os.getppid() == middle and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(2 * pause, 0.005)
    if os.getppid() != 1:
        raise ChildProcessError("init is not the parent")


def redirect_to_null(streams: "Tuple[int, ...]" = (1, 2)) -> None:
    """Its pipes are the original's."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in streams:
        os.dup2(null, fd)
    os.close(null)


def _descriptors() -> "List[Tuple[int, str]]":
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append((int(name), os.readlink(f"/proc/self/fd/{name}")))
        except OSError:
            continue  # of the listing itself
    return found


def _flags(fd: int) -> int:
    with open(f"/proc/self/fdinfo/{fd}") as file:
        for line in file:
            if line.startswith("flags:"):
                return int(line.split()[1], 8)
    return os.O_RDONLY


def _has_children() -> bool:
    own = str(os.getpid()).encode()
    for pid in commands.list_processes():
        try:
            fields = commands.read_stat(pid)
        except OSError:
            continue  # ended meanwhile
        if fields[1] == own and not commands.has_ended(fields):
            return True
    return False
