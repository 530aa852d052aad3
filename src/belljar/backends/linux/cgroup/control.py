"""Control groups of one host process: detected, made, and removed at the end.

    detect() → Cgroups.create() → Cgroup: join_fds, readings, kill, remove → Cgroups.close()

Layout, in each hierarchy used:  <base>/belljar-<pid>-<start>-<pid namespace>/<sandbox>
"""

import contextlib
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import replace

from belljar.backends.linux import proc
from belljar.backends.linux.cgroup import tree
from belljar.backends.linux.cgroup.group import Cgroup
from belljar.backends.linux.cgroup.plan import WANTED, Directory, Hierarchy, Plan, plan
from belljar.backends.linux.cgroup.tree import Setting, settings
from belljar.errors import StartError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


class Cgroups:
    """What this process may do with control groups. Made by detect()."""

    def __init__(self, owner: tree.Owner | None, decided: Plan, *, kind: str = "cgroup") -> None:
        """`kind`: how `isolation` names these groups."""
        self.kind = kind
        self._owner = owner
        self._groups: set[Cgroup] = set()
        self._hierarchies: list[Hierarchy] = []
        self._lock = threading.Lock()
        self._closed = False
        why = dict(decided.why)
        for hierarchy in decided.hierarchies:
            # Tried, not guessed: a security module or a read-only mount may still say no.
            usable = self._prepare(hierarchy, why)
            if usable.controllers:
                self._hierarchies.append(usable)
        self.why: Mapping[str, str] = why
        self.controllers = frozenset[str]().union(*(h.controllers for h in self._hierarchies))
        self.version = max((h.version for h in self._hierarchies), default=0)

    def create(
        self, name: str, *, memory: int | None, processes: int | None, cpus: float | None
    ) -> Cgroup:
        """Make the group of one sandbox. What could be limited is in its `enforced`.

        Limits: bytes for the whole sandbox, number of threads and processes, share of CPUs.
        All or nothing: a failure leaves no directory behind.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(f"not a name for a control group: {name!r}")
        if self._owner is None or os.getpid() != self._owner.pid:
            raise StartError(
                "these control groups belong to another process", hint="call detect() after a fork"
            )
        enforced: set[str] = set()
        places: list[tuple[Hierarchy, str]] = []
        try:
            for hierarchy in self._hierarchies:
                path = self._make(hierarchy, name)
                places.append((hierarchy, path))
                for setting in settings(hierarchy, memory=memory, processes=processes, cpus=cpus):
                    _apply(path, setting)
                    enforced.add(setting.limit)
        except OSError as error:
            tree.remove(path for _, path in places)
            raise StartError(
                f"cannot make a control group: {error.filename or name}: {error.strerror}",
                hint="`belljar doctor` shows which control groups work here",
            ) from error
        group = Cgroup(self._owner, places, frozenset(enforced))
        with self._lock:
            # Those removed meanwhile need no closing.
            self._groups = {other for other in self._groups if not other.gone} | {group}
            closed = self._closed
        if closed:
            self.close()
            raise StartError("this process is ending, and starts no sandbox any more")
        return group

    def close(self) -> None:
        """Kill and remove all groups and the directories above them. May be called twice.

        Does nothing in a fork of the owner.
        """
        if self._owner is None or os.getpid() != self._owner.pid:
            return
        with self._lock:
            self._closed = True
            groups, self._groups = self._groups, set()
        for group in groups:
            group.kill()
            group.remove()
        for hierarchy in self._hierarchies:
            with contextlib.suppress(OSError):  # not empty, or gone: another detect() uses it
                os.rmdir(self._tree(hierarchy))

    def _tree(self, hierarchy: Hierarchy) -> str:
        assert self._owner is not None
        return f"{hierarchy.base}/{self._owner.name}"

    def _make(self, hierarchy: Hierarchy, name: str) -> str:
        path = f"{self._tree(hierarchy)}/{name}"
        try:
            os.mkdir(path)
        except FileNotFoundError:
            # Another Cgroups of this process was closed, and took the empty parent along.
            self._prepare(hierarchy, {})
            os.mkdir(path)
        return path

    def _prepare(self, hierarchy: Hierarchy, why: dict[str, str]) -> Hierarchy:
        """Make our directory; the result has the controllers that its children will have."""
        path = self._tree(hierarchy)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
        except OSError as error:
            reason = f"cannot make {path}: {error.strerror}"
            why.update(dict.fromkeys(hierarchy.controllers, reason))
            return replace(hierarchy, controllers=frozenset())
        if hierarchy.version == 1:
            return hierarchy
        usable = hierarchy.controllers
        for controller in hierarchy.controllers - {"cpuacct"}:
            try:
                _hand_on(hierarchy.base, controller)
                _hand_on(path, controller)
            except OSError as error:
                why[controller] = f"cannot enable it in {error.filename}: {error.strerror}"
                usable -= {controller}
        return replace(hierarchy, controllers=usable)


def _hand_on(group: str, controller: str) -> None:
    """v2: let the children of a group have a controller."""
    file = f"{group}/cgroup.subtree_control"
    if controller not in proc.read(file).split():
        tree.write(file, f"+{controller}")


def _apply(path: str, setting: Setting) -> None:
    try:
        tree.write(f"{path}/{setting.file}", setting.value)
    except OSError as error:
        if error.errno not in setting.tolerate:
            raise


def _look(path: str) -> Directory | None:
    """The facts about a group that plan() asks for."""
    writable = _may_write(path)
    if not os.path.exists(f"{path}/cgroup.controllers"):
        return Directory(writable=writable) if os.path.exists(f"{path}/cgroup.procs") else None
    needed = ("cgroup.procs", "cgroup.subtree_control")
    try:
        # The first byte tells; the root of a large machine lists thousands.
        with open(f"{path}/cgroup.procs", "rb", buffering=0) as procs:
            occupied = bool(procs.read(1))
        return Directory(
            writable=writable and all(_may_write(f"{path}/{file}") for file in needed),
            controllers=frozenset(proc.read(f"{path}/cgroup.controllers").split()),
            subtree=frozenset(proc.read(f"{path}/cgroup.subtree_control").split()),
            occupied=occupied,
            is_root=not os.path.exists(f"{path}/cgroup.type"),
        )
    except OSError:
        return None  # a group of threads, whose processes cannot be listed, or one just removed


def _may_write(path: str) -> bool:
    return os.access(path, os.W_OK, effective_ids=True)


def _plan(pid: int | str = "self") -> Plan:
    return plan(proc.read("/proc/self/mountinfo"), proc.read(f"/proc/{pid}/cgroup"), _look)


def detect(pid: int | str = "self", kind: str = "cgroup") -> Cgroups:
    """Find out, by making our directories, what can be limited here. Never raises.

    `pid`: a child process that scope.enter() has moved; the groups are for what it forks.
    """
    try:
        return Cgroups(tree.Owner.current(), _plan(pid), kind=kind)
    except OSError as error:
        reason = f"cannot tell which control groups there are: {error}"
        return Cgroups(None, Plan(hierarchies=(), why=dict.fromkeys(WANTED, reason)))


def leftovers() -> list[list[str]]:
    """The trees of owners that died: of each its directories, one in each hierarchy."""
    try:
        us = tree.Owner.current()
        bases = [hierarchy.base for hierarchy in _plan().hierarchies]
    except OSError:
        return []  # without our own identity we cannot tell which owners are dead
    found: dict[str, list[str]] = {}
    for base in bases:
        for path in tree.subgroups(base):
            owner = tree.Owner.parse(os.path.basename(path))
            # Another user's tree is that user's to sweep.
            if owner and _may_write(path) and owner.is_dead(seen_by=us):
                found.setdefault(owner.name, []).append(path)
    return list(found.values())


def sweep() -> int:
    """Remove the trees of owners that died, with the processes left in them; how many."""
    return sum(_sweep_tree(paths) for paths in leftovers())


def _sweep_tree(paths: list[str]) -> bool:
    try:
        # Not the tree we run in ourselves: a sandbox of a dead owner may use Belljar too.
        if any(os.getpid() in tree.members(group) for p in paths for group in tree.walk(p)):
            return False
        return tree.kill(paths) and tree.remove(paths)
    except OSError:
        return False  # another sweep was faster
