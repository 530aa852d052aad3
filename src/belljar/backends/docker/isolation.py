"""What confines a guest in a container: what the engine can do, what it keeps, what it made.

The layers of a live container are measured in /proc of this machine if it runs here; else they are
what the engine says of it. A container that lacks a layer that was asked for is not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from belljar.backends.base import GuestSpec
from belljar.backends.docker.settings import Docker, docker_settings
from belljar.backends.isolation import Layer, State, describe_own_limits
from belljar.backends.linux import posture
from belljar.errors import StartError
from belljar.limits import Limits, format_size

# -- the engine ---------------------------------------------------------------------------------

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}  # Go's names, which Podman uses


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """What decides how a guest is confined there, from `GET /info` and `GET /version`. A feature
    that the engine does not mention counts as missing."""

    engine: Literal["docker", "podman"] = "docker"
    version: str = ""
    api_version: tuple[int, int] = (0, 0)
    machine: str = ""  # as in os.uname(): "x86_64", "aarch64"
    cpus: int = 0  # 0: unknown
    # What the engine's kernel and its control groups can limit.
    memory_limit: bool = False
    swap_limit: bool = False
    pids_limit: bool = False
    cpu_quota: bool = False
    swap: int | None = None  # bytes; None: unknown
    cgroup_version: int = 0  # 0: unknown
    rootless: bool = False
    userns: bool = False  # uids in a container differ from those outside
    runtimes: tuple[str, ...] = ()
    default_runtime: str = ""
    warnings: tuple[str, ...] = ()

    @classmethod
    def parse(cls, info: Mapping[str, Any], version: Mapping[str, Any]) -> EngineFacts:
        podman = "BuildahVersion" in info or "podman" in _components(version)
        security = _security(info)
        swap = info.get("SwapTotal")  # only Podman has it
        machine = _text(info.get("Architecture") or version.get("Arch"))
        rootless = "rootless" in security or info.get("Rootless") is True
        return cls(
            engine="podman" if podman else "docker",
            version=_text(info.get("ServerVersion") or version.get("Version")),
            api_version=_pair(_text(version.get("ApiVersion"))),
            machine=_MACHINES.get(machine, machine),
            cpus=_count(info.get("NCPU")),
            memory_limit=info.get("MemoryLimit") is True,
            swap_limit=info.get("SwapLimit") is True,
            pids_limit=info.get("PidsLimit") is True,
            cpu_quota=info.get("CpuCfsQuota") is True or info.get("CPUCfsQuota") is True,
            swap=_count(swap) if swap is not None else None,
            cgroup_version=_count(info.get("CgroupVersion")),
            rootless=rootless,
            userns="userns" in security or rootless,
            runtimes=tuple(sorted(info.get("Runtimes") or ())),
            default_runtime=_text(info.get("DefaultRuntime")),
            warnings=tuple(_text(each) for each in info.get("Warnings") or ()),
        )

    @property
    def unique_uids(self) -> bool:
        """True if a container can have any uid, and has the same one outside."""
        return not (self.rootless or self.userns)


def _components(version: Mapping[str, Any]) -> str:
    """The names of the engine's components, in lower case."""
    parts = version.get("Components") or ()
    return " ".join(_text(part.get("Name")) for part in parts if isinstance(part, Mapping)).lower()


def _security(info: Mapping[str, Any]) -> set[str]:
    """`["name=seccomp,profile=default", "name=rootless"]` → the names."""
    named = (_text(option).partition(",")[0] for option in info.get("SecurityOptions") or ())
    return {name.removeprefix("name=") for name in named}


def _pair(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return _count(major), _count(minor)


def _count(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return max(value, 0)
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else 0


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


_KERNELS = {"runsc": "gVisor", "kata": "a virtual machine"}  # by the start of a runtime's name


def guest_kernel(runtime: str) -> str | None:
    """The kernel of its own that this runtime gives a guest, if it does."""
    return next((what for word, what in _KERNELS.items() if runtime.startswith(word)), None)


# -- limits -------------------------------------------------------------------------------------

_MEMORY_REMEDY = (
    "boot the engine's machine with the memory control group (cgroup_enable=memory swapaccount=1), "
    "or with control groups of version 2, delegated if the engine is rootless"
)
_CGROUP_REMEDY = "give the engine control groups (rootless: of version 2, delegated by systemd)"


def describe_limits(
    limits: Limits, facts: EngineFacts, warnings: Sequence[str], *, runtime: str | None = None
) -> tuple[Layer, ...]:
    """How this engine enforces each limit. `warnings`: its answer to the request for a container;
    they name limits that it left out."""
    said = [warning.lower() for warning in warnings]
    return (
        _memory(limits, facts, said),
        _cpus(limits, facts, said),
        _processes(limits, facts, said, runtime or facts.default_runtime),
        *describe_own_limits(limits),
    )


def _memory(limits: Limits, facts: EngineFacts, said: Sequence[str]) -> Layer:
    discarded = any("memory limit" in each and "swap" not in each for each in said)
    if not facts.memory_limit or discarded:
        detail = "the engine has no memory control group: nothing limits it"
        return _row("memory", detail, "absent", _MEMORY_REMEDY)
    swaps = not facts.swap_limit or any("swap limit" in each for each in said)
    if swaps and facts.swap != 0:
        detail = f"cgroup, {format_size(limits.memory)}, and swap beyond it, which is not limited"
        return _row("memory", detail, "best-effort", _MEMORY_REMEDY)
    return _row("memory", f"cgroup, {format_size(limits.memory)}, no swap")


def _cpus(limits: Limits, facts: EngineFacts, said: Sequence[str]) -> Layer:
    if facts.cpu_quota and not any("cpu" in each and "quota" in each for each in said):
        return _row("cpus", f"cgroup quota, {limits.cpus:g}")
    if facts.cpus and limits.cpus >= facts.cpus:
        return _row("cpus", f"the engine's machine has no more than {facts.cpus}")
    return _row("cpus", "the engine has no cpu quota: nothing limits it", "absent", _CGROUP_REMEDY)


def _processes(limits: Limits, facts: EngineFacts, said: Sequence[str], runtime: str) -> Layer:
    if facts.pids_limit and not any("pids limit" in each for each in said):
        if guest_kernel(runtime) == "gVisor":
            detail = (
                f"cgroup, {limits.processes} or somewhat more, beyond which the sandbox ends; "
                "threads are not limited"
            )
            return _row("processes", detail, "best-effort", "the runtime runc limits them exactly")
        return _row("processes", f"cgroup, {limits.processes}")
    if facts.unique_uids and not facts.pids_limit:
        return _row("processes", f"RLIMIT_NPROC of its own uid, {limits.processes}")
    detail = "the engine has no pids control group: nothing limits them"
    return _row("processes", detail, "absent", _CGROUP_REMEDY)


# -- layers of a live container -----------------------------------------------------------------

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


def measure_layers(
    pid: int, inspected: Mapping[str, Any], facts: EngineFacts, *, asked: GuestSpec
) -> tuple[Layer, ...]:
    """The layers of a live container. Raises StartError if one that was asked for is missing.

    `pid`: of the container's first process, 0 if it is on another machine.
    """
    runtime = str(inspected["HostConfig"].get("Runtime") or facts.default_runtime)
    kernel = guest_kernel(runtime)
    wrong = list(_wrong_settings(inspected, asked.network))
    wanted = docker_settings(asked.settings).runtime
    if wanted is not None and runtime != wanted:  # Podman ignores the setting
        wrong.append(f"has the runtime {runtime!r} not {wanted!r}")
    seen = posture.read(pid) if pid and kernel is None else None
    if seen is not None:
        wrong += posture.faults(seen, without=frozenset(_MAY_LACK))
        shown = seen.namespaces or ("cgroup",)
        if "cgroup" not in shown and not _lacks_cgroup_namespaces(facts):
            wrong.append("shares the host's cgroup namespace")
        # An engine may take the gid for the name of a group in the image.
        gid = int(inspected["Config"]["User"].partition(":")[2])
        if len(seen.groups) > 1 or (facts.unique_uids and seen.groups != {gid}):
            wrong.append(f"has the groups {sorted(seen.groups)}, not only {gid}")
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
            rows.append(_row(name, detail, "absent", remedy))
    rows += [
        # gVisor ignores the profile unless it is started with --oci-seccomp.
        _row(
            "seccomp",
            f"{kernel} answers"
            if kernel
            else f"{_filter(docker_settings(asked.settings))}, {said}",
        ),
        _row("capabilities", f"none, {said}"),
        _row("no_new_privs", f"set, {said}"),
        _row("uid", f"{inspected['Config']['User'].partition(':')[0]}, {said}"),
        _row("root file system", "read-only"),
    ]
    if asked.network == "open":
        detail = "open: the code reaches whatever the engine's own network does"
        rows.append(_row("network", detail, "absent", 'network="none"'))
    return tuple(rows)


def read_file_limit(pid: int, inspected: Mapping[str, Any], facts: EngineFacts) -> int | None:
    """The hard limit of open files of the container's first process; None: not visible here."""
    runtime = str(inspected["HostConfig"].get("Runtime") or facts.default_runtime)
    return posture.most_files(pid) if pid and guest_kernel(runtime) is None else None


def _filter(docker: Docker) -> str:
    return "the caller's own profile" if docker.seccomp is not None else "allow-list filter"


def _lacks_cgroup_namespaces(facts: EngineFacts) -> bool:
    return facts.engine == "podman" and facts.cgroup_version == 1


def _wrong_settings(inspected: Mapping[str, Any], network: str) -> Iterator[str]:
    """Settings of the container that differ from what was requested."""
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


def _row(name: str, detail: str, state: State = "enforced", remedy: str | None = None) -> Layer:
    return Layer(name=name, state=state, detail=detail, remedy=remedy)
