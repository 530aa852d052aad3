"""What the kernel says about a guest's processes: identity, filters, namespaces, mounts,
descriptors.

`posture()` describes one task; `drift()` lists how the tasks of a guest differ from a reference.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from belljar.conformance.processes import alive, mounts, pid_namespace, process, threads

Posture = dict[str, object]

NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time")
STORE = "its own tmpfs of /workspace"
_STATUS = (
    *("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"),
    *("NoNewPrivs", "Seccomp", "Seccomp_filters", "TracerPid", "Cpus_allowed"),
)
_FAMILIES = {1: "unix", 2: "inet", 10: "inet6"}
_TYPES = {1: "stream", 2: "dgram", 5: "seqpacket"}
# Kinds of descriptors that a guest's code may have, beside its files.
_USUAL = {
    *("pipe", "eventfd", "eventpoll", "timerfd", "signalfd", "inotify", "pidfd"),
    *("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"),
    *("socket unix stream", "socket unix dgram", "socket unix seqpacket"),
    *("socket inet stream", "socket inet dgram", "socket inet6 stream", "socket inet6 dgram"),
}
_OWN_FILES = ("/workspace", "/tmp", "/dev/shm", "/home/user", "/var/tmp", "/memfd:", "/proc/")
_F_GETPIPE_SZ, _PIDFD_GETFD = 1032, 438
_PATIENCE = 30.0  # seconds for a process that begins or ends while it is inspected

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


# --- what /proc says -------------------------------------------------------------------------


def status(pid: int, tid: int | None = None) -> dict[str, str]:
    path = f"/proc/{pid}/task/{tid or pid}/status"
    rows = (line.partition(":") for line in Path(path).read_text().splitlines())
    return {name: " ".join(value.split()) for name, _, value in rows}


def posture(pid: int, tid: int | None = None) -> Posture:
    """One task as the kernel describes it: everything that a guest must not be able to change."""
    rows = status(pid, tid)
    root = os.stat(f"/proc/{pid}/root/")
    base = f"/proc/{pid}/task/{tid or pid}"
    nice = int(Path(f"{base}/stat").read_text(errors="replace").rpartition(")")[2].split()[16])
    return {
        **{name: rows.get(name) for name in _STATUS},
        **{f"{kind} namespace": os.readlink(f"{base}/ns/{kind}") for kind in NAMESPACES},
        "root": (root.st_dev, root.st_ino),
        "mounts": mounts(pid),
        "scheduling": (os.sched_getscheduler(tid or pid), nice < 0),
    }


def summary(pid: int) -> str:
    """The posture in one line, for a report."""
    rows = status(pid)
    capabilities = int(rows["CapEff"], 16) | int(rows["CapPrm"], 16) | int(rows["CapBnd"], 16)
    ours, theirs = "/proc/self/ns/", f"/proc/{pid}/ns/"
    own = [kind for kind in NAMESPACES if os.readlink(theirs + kind) != os.readlink(ours + kind)]
    return (
        f"uid {rows['Uid'].split()[0]}, capabilities {capabilities:#x}, no_new_privs "
        f"{rows['NoNewPrivs']}, seccomp {rows['Seccomp']}, own namespaces: {', '.join(own)}"
    )


# --- descriptors -----------------------------------------------------------------------------


def descriptors(pid: int) -> dict[int, str]:
    """The kind of each open descriptor, by number."""
    found = {}
    for name in sorted(os.listdir(f"/proc/{pid}/fd"), key=int):
        with contextlib.suppress(FileNotFoundError):
            found[int(name)] = _kind(pid, int(name), os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def _kind(pid: int, number: int, link: str) -> str:
    if link.startswith("socket:"):
        with _borrowed(pid, number) as fd, socket.socket(fileno=os.dup(fd)) as sock:
            family = sock.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN)
            kind = sock.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)
        return f"socket {_FAMILIES.get(family, family)} {_TYPES.get(kind, kind)}"
    if link.startswith("pipe:"):
        with _borrowed(pid, number) as fd:
            size = fcntl.fcntl(fd, _F_GETPIPE_SZ)
        return "pipe" if size <= 65536 else f"pipe of {size} bytes"
    if link.startswith("pidfd:"):
        return "pidfd"
    if link.startswith("anon_inode:"):
        return link.partition(":")[2].strip("[]")
    if os.path.isdir(f"/proc/{pid}/fd/{number}"):
        return STORE if _is_store(pid, number) else f"directory {link}"
    return link


def _is_store(pid: int, number: int) -> bool:
    """True for the directory where init, and no other process, keeps checkpoints: the root of the
    guest's tmpfs that also holds /workspace. It is not on a file system of the host."""
    if status(pid)["NSpid"].split()[-1] != "1":
        return False
    held = os.stat(f"/proc/{pid}/fd/{number}")
    return held.st_dev == os.stat(f"/proc/{pid}/root/workspace").st_dev


@contextlib.contextmanager
def _borrowed(pid: int, number: int) -> Iterator[int]:
    """A copy of another process's descriptor."""
    pidfd = os.pidfd_open(pid)
    try:
        wide = (ctypes.c_long(each) for each in (_PIDFD_GETFD, pidfd, number))
        fd = int(_libc.syscall(*wide, 0))
        if fd < 0:
            error = ctypes.get_errno()
            if error == errno.EBADF:
                raise FileNotFoundError(error, f"process {pid} has just closed {number}")
            raise OSError(error, f"pidfd_getfd {pid} {number}")
        try:
            yield fd
        finally:
            os.close(fd)
    finally:
        os.close(pidfd)


def unusual(kind: str) -> bool:
    """True if a guest's code should not have a descriptor of this kind."""
    return kind not in _USUAL and not kind.startswith(_OWN_FILES)


# --- drift -----------------------------------------------------------------------------------


def drift(reference: Posture, pids: Iterable[int], *, known: Collection[str] = ()) -> list[str]:
    """Differences between the tasks of these processes and the reference, as sentences."""
    return [line for pid in pids for line in _drift(reference, pid, known)]


def _drift(reference: Posture, pid: int, known: Collection[str]) -> list[str]:
    first, deadline = process(pid), time.monotonic() + _PATIENCE
    while first is not None:
        late = time.monotonic() > deadline
        try:
            found = _differences(reference, pid, known)
            if (now := process(pid)) is not None and now.started != first.started:
                return []  # it has ended, and another process has its number
            # A worker that was just forked is still being confined (its parent is outside), or
            # still has to close the directory of init.
            outside = pid_namespace(first.parent) != pid_namespace(pid)
            new = outside or any(line.endswith("is directory /workspace") for line in found)
            if late or not found or not new:
                return found
        except OSError:
            # A process that is ending belongs to no user, and a thread may be gone.
            if not alive(pid, first.started):
                return []
            if late:
                raise
        time.sleep(0.05)
    return []


def _differences(reference: Posture, pid: int, known: Collection[str]) -> list[str]:
    found = []
    for tid in threads(pid):
        now = posture(pid, tid)
        for name, value in reference.items():
            if now[name] != value:
                found.append(f"{name} of {pid}/{tid}: {value!r:.200} -> {now[name]!r:.200}")
    for number, kind in descriptors(pid).items():
        if unusual(kind) and kind not in known:
            found.append(f"descriptor {number} of {pid} is {kind}")
    return found
