"""Where our control groups can live: decided from text, without touching anything.

Each controller belongs to exactly one hierarchy of the running kernel: the unified one (v2)
or one of the old ones (v1, one mount each, sometimes two controllers on one mount). So the
question is asked per controller, and "hybrid" needs no case of its own.

The rules that matter:
  v1  any group may have both processes and children; ours go below the group we are in.
  v2  a group other than the true root either has processes or hands controllers to its
      children. Our own group has us in it, so the place is usually an ancestor. To move
      a process, one must be allowed to write `cgroup.procs` of the common ancestor of its
      old and its new group; for a group below one of our ancestors, that is the ancestor.
"""

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

LIMITING = ("memory", "pids", "cpu")
# cpuacct counts CPU time; v2 counts it in every group, without a controller.
WANTED = (*LIMITING, "cpuacct")


@dataclass(frozen=True, kw_only=True)
class Directory:
    """What the file system says about one group."""

    writable: bool  # we may make children here and, in v2, move our processes to them
    controllers: frozenset[str] = frozenset()  # v2: those it has
    subtree: frozenset[str] = frozenset()  # v2: those its children have
    occupied: bool = False  # v2: it has processes of its own
    is_root: bool = False  # v2: the root of the hierarchy, not only of our view of it


Look = Callable[[str], Directory | None]


@dataclass(frozen=True, kw_only=True)
class Hierarchy:
    """One place for our groups, and what it is used for."""

    version: int
    base: str
    controllers: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Plan:
    hierarchies: tuple[Hierarchy, ...]
    why: Mapping[str, str]  # a sentence with the remedy for each missing controller


@dataclass(frozen=True, kw_only=True)
class Mount:
    root: str
    point: str
    kind: str  # of the file system; "cgroup" is v1
    options: frozenset[str]  # of the file system: in v1 the names of its controllers


def plan(mountinfo: str, cgroup: str, look: Look) -> Plan:
    """Decide from the texts of /proc/self/mountinfo and /proc/self/cgroup.

    `look` tells about a directory, None if it is not there.
    """
    mounts = list(parse_mounts(mountinfo))
    paths = parse_own_paths(cgroup)
    why: dict[str, str] = {}

    unified = _plan_v2([m for m in mounts if m.kind == "cgroup2"], paths.get(""), look, why)
    hierarchies = [unified] if unified else []
    taken = unified.controllers if unified else frozenset()
    for controller in WANTED:
        if controller in taken:
            continue
        carriers = [m for m in mounts if m.kind == "cgroup" and controller in m.options]
        base = _plan_v1(carriers, controller, paths.get(controller), look, why)
        if base is not None:
            found = frozenset({controller})
            hierarchies.append(Hierarchy(version=1, base=base, controllers=found))
        elif controller not in why:
            why[controller] = (
                f"no mounted cgroup hierarchy has the {controller} controller: mount one, or "
                "see /proc/cgroups and the kernel's command line (cgroup_disable=)"
            )
    usable = frozenset().union(*(h.controllers for h in hierarchies))
    return Plan(
        hierarchies=_merge(hierarchies),
        why={controller: why[controller] for controller in WANTED if controller not in usable},
    )


def _merge(hierarchies: list[Hierarchy]) -> tuple[Hierarchy, ...]:
    """Controllers mounted together (cpu,cpuacct) share one group."""
    merged: dict[str, Hierarchy] = {}
    for h in hierarchies:
        before = merged.get(h.base)
        controllers = h.controllers | before.controllers if before else h.controllers
        merged[h.base] = Hierarchy(version=h.version, base=h.base, controllers=controllers)
    return tuple(merged.values())


def _plan_v1(
    mounts: list[Mount], controller: str, own: str | None, look: Look, why: dict[str, str]
) -> str | None:
    for mount in mounts:
        base = None if own is None else own_directory(mount, own)
        if base is None:
            why[controller] = _out_of_sight(mount)
            continue
        directory = look(base)
        if directory and directory.writable:
            return base
        why[controller] = (
            f"{base} may not be written: run as root, or let root make a group below it that "
            "this user owns, and start the program in that group"
        )
    return None


def _plan_v2(
    mounts: list[Mount], own: str | None, look: Look, why: dict[str, str]
) -> Hierarchy | None:
    """The nearest ancestor whose children can have the most of memory, pids and cpu."""
    best, best_rank = None, 0
    seen: set[str] = set()
    reason = ""
    for mount in mounts:
        start = None if own is None else own_directory(mount, own)
        if start is None:
            why.update(dict.fromkeys(WANTED, _out_of_sight(mount)))
            continue
        for path in _upwards(start, mount.point):
            directory = look(path)
            if directory is None:
                continue
            seen |= directory.controllers
            can = _children_can_have(directory)
            rank = sum(weight for c, weight in zip(LIMITING, (4, 2, 1), strict=True) if c in can)
            if rank > best_rank:
                best_rank = rank
                used = can & set(LIMITING) | {"cpuacct"}
                best = Hierarchy(version=2, base=path, controllers=used)
            reason = reason or (_occupied(path) if directory.writable else "")
    if best:
        reason = _not_handed_on(best)
    elif seen & set(LIMITING):
        reason = reason or _unwritable(own or "/")
        seen.add("cpuacct")
    why.update(dict.fromkeys(seen, reason))
    return best


def _children_can_have(directory: Directory) -> frozenset[str]:
    if not directory.writable:
        return frozenset()
    if directory.occupied and not directory.is_root:
        return directory.subtree
    return directory.subtree | directory.controllers


def _not_handed_on(place: Hierarchy) -> str:
    return (
        f"{place.base} has no such controller to hand on: enable it in the groups above (systemd: "
        "Delegate=cpu memory pids in a drop-in of user@.service)"
    )


def _unwritable(own: str) -> str:
    return (
        f"the group {own} and those above it may not be written: start the program with "
        "`systemd-run --user --scope`, or run it as root"
    )


def _occupied(path: str) -> str:
    return (
        f"{path} has processes of its own, so its children cannot be limited: move these into a "
        f"child (mkdir {path}/init and write each pid to its cgroup.procs), or give the program "
        "a writable parent group"
    )


def _out_of_sight(mount: Mount) -> str:
    return (
        f"{mount.point} does not show the group of this process (it is a mount of {mount.root}): "
        f"mount a {mount.kind} file system in this cgroup namespace"
    )


def own_directory(mount: Mount, own: str) -> str | None:
    """The directory of our group below one mount, None if that mount does not show it.

    Inside a cgroup namespace paths are relative to its root, and ".." stands for what lies
    above it, without the names that would be needed to find the way down again.
    """
    if ".." in own.split("/") or ".." in mount.root.split("/"):
        return None
    root = mount.root.rstrip("/")
    if own != root and not own.startswith(root + "/"):
        return None
    return posixpath.join(mount.point, own[len(root) :].strip("/")).rstrip("/")


def places(
    mountinfo: str, cgroup: str, exists: Callable[[str], bool]
) -> Iterator[tuple[Hierarchy, str]]:
    """The groups that a process is in, to read their counters; not to make groups below them."""
    mounts = list(parse_mounts(mountinfo))
    paths = parse_own_paths(cgroup)
    left = set(WANTED)
    for mount in mounts:
        found = frozenset(left & mount.options & paths.keys()) if mount.kind == "cgroup" else None
        if not found:
            continue
        path = own_directory(mount, paths[min(found)])
        if path is not None and exists(path):
            left -= found
            yield Hierarchy(version=1, base=path, controllers=found), path
    for mount in mounts:
        path = own_directory(mount, paths[""]) if mount.kind == "cgroup2" and "" in paths else None
        if path is not None and left and exists(f"{path}/memory.current"):
            yield Hierarchy(version=2, base=path, controllers=frozenset(left)), path
            return


def _upwards(path: str, top: str) -> Iterator[str]:
    while path != top and path != "/":
        yield path
        path = posixpath.dirname(path)
    yield path


def parse_mounts(mountinfo: str) -> Iterator[Mount]:
    """All mounts, of whatever kind."""
    for line in mountinfo.split("\n"):
        # The count of optional fields varies; a lone "-" ends them. One blank stands between two
        # fields, and a field may be empty.
        left, _, right = line.partition(" - ")
        before, after = left.split(" "), right.split(" ")
        if len(before) >= 5 and len(after) >= 3:
            yield Mount(
                root=_unescape(before[3]),
                point=_unescape(before[4]),
                kind=after[0],
                options=frozenset(after[2].split(",")),
            )


def parse_own_paths(cgroup: str) -> dict[str, str]:
    """Our path per controller; that of the unified hierarchy has the key ""."""
    paths: dict[str, str] = {}
    for line in cgroup.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            paths[""] = path
        else:
            paths.update((name, path) for name in controllers.split(",") if "=" not in name)
    return paths


def _unescape(field: str) -> str:
    """The kernel writes blanks and backslashes in paths as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
