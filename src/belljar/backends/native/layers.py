"""What `isolation` says of a native guest: layers as measured, and how each limit is kept."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

from belljar.backends.isolation import Layer, State, describe_common_limits
from belljar.backends.linux import identity, posture
from belljar.limits import Limits, format_size

_DELEGATE = (
    "run as root, in a cgroup that is delegated to you, or on a machine with cgroup v2 as a user "
    "whose systemd manager runs (after a login, or `loginctl enable-linger`)"
)


def measured(seen: posture.Posture, hello: Mapping[str, object]) -> tuple[Layer, ...]:
    landlock = int(str(hello.get("landlock") or 0))
    return (
        *(
            Layer(name=f"{kind} namespace", state="enforced", detail="its own")
            for kind in posture.NAMESPACES
        ),
        Layer(name="seccomp", state="enforced", detail="allow-list filter"),
        Layer(name="capabilities", state="enforced", detail="none, not even in the bounding set"),
        Layer(name="no_new_privs", state="enforced", detail="set"),
        _uid(seen.uid),
        Layer(
            name="landlock",
            state="enforced" if landlock else "absent",
            detail=f"version {landlock}" if landlock else "not in this kernel",
            remedy=None if landlock else "a kernel of 5.13 or later with Landlock enabled",
        ),
    )


def _uid(uid: int) -> Layer:
    """uid 0 is never a host's: guests of such a one have another. But what it is above this user
    namespace decides what files of its host it owns."""
    if uid:
        return Layer(name="uid", state="enforced", detail=f"host uid {uid}, 1000 inside")
    above = identity.uid_above()
    return Layer(
        name="uid",
        state="enforced" if above else "best-effort",
        detail=f"the caller's: 0 in this user namespace, {above} in the one above, 1000 inside; "
        "the namespace has no others for guests",
        remedy=None if above else "start it as an ordinary user, or outside the user namespace",
    )


def kept(
    limits: Limits, in_cgroup: frozenset[str], kind: str, why: Mapping[str, str]
) -> tuple[Layer, ...]:
    """How each limit is kept on this host.

    `in_cgroup`: those that the control group keeps, `kind` whose group it is. `why`: the reason
    for each missing controller.
    """

    def row(name: str, ok: bool, detail: str, remedy: str) -> Layer:
        state: State = "enforced" if ok else "best-effort"
        return Layer(name=name, state=state, detail=detail, remedy=None if ok else remedy)

    memory = "memory" in in_cgroup
    cpus = "cpus" in in_cgroup
    whole = limits.cpus == int(limits.cpus) or limits.cpus >= (os.cpu_count() or 1)
    counted = "processes" in in_cgroup
    per_namespace = _kernel() >= (5, 14)
    return (
        row(
            "memory",
            memory,
            f"{kind}, {format_size(limits.memory)}"
            if memory
            else "a limit on the writable memory of each process, and a watchdog over all; "
            + why.get("memory", "no memory cgroup"),
            _DELEGATE,
        ),
        row(
            "cpus",
            cpus or whole,
            f"quota of the {kind}, {limits.cpus:g}"
            if cpus
            else f"pinned to {max(1, -int(-limits.cpus // 1))} processor(s)",
            _DELEGATE,
        ),
        row(
            "processes",
            counted or per_namespace,
            f"{kind if counted else 'RLIMIT_NPROC in its user namespace'}, {limits.processes}",
            "Linux 5.14 counts processes for each user namespace",
        ),
        *describe_common_limits(limits),
    )


def _kernel() -> tuple[int, int]:
    major, minor = platform.release().split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()) or 0)
