"""The posture of a live guest, read from outside: /proc of the host, never the guest's word."""

from __future__ import annotations

import os
from dataclasses import dataclass

from belljar.backends.linux import proc
from belljar.errors import StartError

NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")


@dataclass(frozen=True, kw_only=True)
class Posture:
    uid: int  # as the host counts
    groups: frozenset[int]  # all of them, as the host counts
    capabilities: int  # effective, permitted, inheritable, bounding and ambient, together
    no_new_privs: bool
    seccomp: int  # 2: a filter
    namespaces: frozenset[str] | None  # those that are not the host's; None: we may not look


def read(pid: int) -> Posture:
    try:
        status = proc.read_status(pid)
        namespaces = _own_namespaces(pid)
    except OSError as error:
        raise StartError(f"the posture of the new guest cannot be read: {error}") from error
    capabilities = 0
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        capabilities |= int(status[name], 16)
    return Posture(
        uid=int(status["Uid"].split()[0]),
        groups=frozenset(map(int, f"{status['Gid']} {status['Groups']}".split())),
        capabilities=capabilities,
        no_new_privs=status["NoNewPrivs"] == "1",
        seccomp=int(status["Seccomp"]),
        namespaces=namespaces,
    )


def _own_namespaces(pid: int) -> frozenset[str] | None:
    try:
        return frozenset(
            kind
            for kind in NAMESPACES
            if os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
        )
    except PermissionError:
        return None  # another user's process


def find_same_guest(init: int) -> list[int]:
    """All processes in the pid namespace of this init that we may look at, without init."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [pid for pid in pids if pid != init and same_guest(pid, init)]


def same_guest(pid: int, init: int) -> bool:
    """Whether a process lives in the pid namespace of this init."""
    try:
        if os.readlink(f"/proc/{pid}/ns/pid") != os.readlink(f"/proc/{init}/ns/pid"):
            return False
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False  # one of them has ended
    # One that is ending has given up its other namespaces. Its first thread may do so alone.
    return any(_has_namespaces(f"{pid}/task/{each}") for each in threads)


def _has_namespaces(task: str) -> bool:
    try:
        return bool(os.readlink(f"/proc/{task}/ns/mnt"))
    except OSError:
        return False


def check(posture: Posture, *, root: bool) -> None:
    """A guest that lacks a layer is not used, whatever the reason."""
    wrong = faults(posture)
    if posture.namespaces is None:
        wrong.append("does not show its namespaces")
    if root and posture.uid == 0:
        wrong.append("runs as root")
    if wrong:
        raise StartError(f"the new guest is not confined: it {', and '.join(wrong)}")


def faults(posture: Posture, *, without: frozenset[str] = frozenset()) -> list[str]:
    """What keeps it from being confined. `without`: namespaces that it need not have."""
    wrong = []
    seen = set(NAMESPACES) if posture.namespaces is None else posture.namespaces
    if missing := set(NAMESPACES) - seen - without:
        wrong.append(f"shares the host's {', '.join(sorted(missing))} namespace")
    if posture.capabilities:
        wrong.append(f"has capabilities {posture.capabilities:#x}")
    if not posture.no_new_privs:
        wrong.append("may gain privileges")
    if posture.seccomp != 2:
        wrong.append("has no seccomp filter")
    return wrong


def most_files(pid: int) -> int | None:
    """How many files a process may open at most, by its hard limit; None: as many as it likes."""
    try:
        lines = proc.read(f"/proc/{pid}/limits").split("\n")
    except OSError as error:
        raise StartError(f"the limits of the new guest cannot be read: {error}") from error
    hard = next(line for line in lines if line.startswith("Max open files")).split()[4]
    return None if hard == "unlimited" else int(hard)
