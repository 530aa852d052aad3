"""What `isolation` says of a guest in a container: seen from outside, on the live one.

Where the engine is on this machine, the host's own /proc is the witness; else what the engine says
of the container it has made. A container that lacks what was asked for is not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from belljar.backends.base import GuestSpec
from belljar.backends.docker.facts import Facts, own_kernel
from belljar.backends.docker.settings import Docker
from belljar.backends.isolation import Layer
from belljar.backends.linux import posture
from belljar.errors import StartError

# Namespaces that engines may leave out: what that means, and the remedy.
_MAY_LACK = {
    "user": (
        "the host's: uids are the host's too",
        "run the engine with --userns-remap or rootless",
    ),
    "cgroup": (
        "the host's: the code sees the name of its own group",
        "Podman needs control groups of version 2 for it",
    ),
}


def measured(
    pid: int, inspected: Mapping[str, Any], facts: Facts, *, asked: GuestSpec
) -> tuple[Layer, ...]:
    """`pid`: of the container's first process, 0 if it is on another machine."""
    runtime = str(inspected["HostConfig"].get("Runtime") or facts.default_runtime)
    kernel = own_kernel(runtime)
    wrong = list(_wrong_settings(inspected, asked.network))
    wanted = asked.docker.runtime
    if wanted is not None and runtime != wanted:  # Podman takes no notice of it
        wrong.append(f"has the runtime {runtime!r} and not {wanted!r}")
    seen = posture.read(pid) if pid and kernel is None else None
    if seen is not None:
        wrong += posture.faults(seen, without=frozenset(_MAY_LACK))
        shown = seen.namespaces or ("cgroup",)
        if "cgroup" not in shown and not _lacks_cgroup_namespaces(facts):
            wrong.append("shares the host's cgroup namespace")
        # Engines look for a group of that name first, in the image's own list.
        gid = int(inspected["Config"]["User"].partition(":")[2])
        if len(seen.groups) > 1 or (facts.unique_uids and seen.groups != {gid}):
            wrong.append(f"has the groups {sorted(seen.groups)}, and not {gid} alone")
    if wrong:
        raise StartError(f"the container is not confined: it {', and '.join(wrong)}")
    said = "measured" if seen is not None else f"inside {kernel}" if kernel else "by the engine"
    own = {*posture.NAMESPACES}
    looked = seen is not None and seen.namespaces is not None
    if seen is not None and seen.namespaces is not None:
        own &= seen.namespaces
    elif not (kernel or facts.userns or facts.rootless):
        own.discard("user")
    rows = [_row("runtime", f"{runtime}: {kernel}" if kernel else runtime)]
    for kind in posture.NAMESPACES:
        name = f"{kind} namespace"
        if kind in own:
            rows.append(_row(name, f"its own, {said if looked or kernel else 'by the engine'}"))
        else:
            detail, remedy = _MAY_LACK[kind]
            rows.append(Layer(name=name, state="absent", detail=detail, remedy=remedy))
    rows += [
        # gVisor leaves the profile out, unless it is told to (--oci-seccomp).
        _row("seccomp", f"{kernel} answers" if kernel else f"{_filter(asked.docker)}, {said}"),
        _row("capabilities", f"none, {said}"),
        _row("no_new_privs", f"set, {said}"),
        _row("uid", f"{inspected['Config']['User'].partition(':')[0]}, {said}"),
        _row("root file system", "read-only"),
    ]
    if asked.network == "open":
        detail = "open: the code reaches whatever the engine's own network does"
        rows.append(Layer(name="network", state="absent", detail=detail, remedy='network="none"'))
    return tuple(rows)


def most_files(pid: int, inspected: Mapping[str, Any], facts: Facts) -> int | None:
    """The hard limit of open files of the container's first process; None: not to be seen here."""
    runtime = str(inspected["HostConfig"].get("Runtime") or facts.default_runtime)
    return posture.most_files(pid) if pid and own_kernel(runtime) is None else None


def _filter(docker: Docker) -> str:
    return "the caller's own profile" if docker.seccomp is not None else "allow-list filter"


def _lacks_cgroup_namespaces(facts: Facts) -> bool:
    return facts.engine == "podman" and facts.cgroup_version == 1


def _row(name: str, detail: str) -> Layer:
    return Layer(name=name, state="enforced", detail=detail)


def _wrong_settings(inspected: Mapping[str, Any], network: str) -> Iterator[str]:
    """What the engine has made otherwise than it was asked to."""
    config = inspected["HostConfig"]
    options = config.get("SecurityOpt") or []
    if config.get("NetworkMode") != ("bridge" if network == "open" else "none"):
        yield f"has the network {config.get('NetworkMode')}"
    if not config.get("ReadonlyRootfs"):
        yield "may write to its root file system"
    if config.get("Privileged"):
        yield "is privileged"
    if not any(option.startswith("no-new-privileges") for option in options):
        yield "may gain privileges"
    if not any(option.startswith("seccomp=") and "unconfined" not in option for option in options):
        yield "has no seccomp filter"
    if config.get("CapAdd"):
        yield f"has capabilities {config['CapAdd']}"
    if inspected["Config"].get("User", "").partition(":")[0] in ("", "0", "root"):
        yield "runs as root"
