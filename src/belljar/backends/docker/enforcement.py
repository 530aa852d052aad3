"""How each limit is kept in a container, as `isolation` says it; names as in native/layers.py."""

from __future__ import annotations

from collections.abc import Sequence

from belljar.backends.docker.facts import Facts, own_kernel
from belljar.backends.isolation import Layer, State
from belljar.limits import Limits, format_size

_MEMORY_REMEDY = (
    "boot the engine's machine with the memory control group (cgroup_enable=memory swapaccount=1), "
    "or with control groups of version 2, delegated if the engine is rootless"
)
_CGROUP_REMEDY = "give the engine control groups (rootless: of version 2, delegated by systemd)"


def kept(
    limits: Limits, facts: Facts, warnings: Sequence[str], *, runtime: str | None = None
) -> tuple[Layer, ...]:
    """How each limit is kept by this engine. `warnings` are what it said when it made the
    container: which limits it has left out."""
    said = [warning.lower() for warning in warnings]
    return (
        _memory(limits, facts, said),
        _cpus(limits, facts, said),
        _processes(limits, facts, said, runtime or facts.default_runtime),
        _row("open_files", f"RLIMIT_NOFILE for each process, {limits.open_files}"),
        _row("workspace", f"tmpfs, {format_size(limits.workspace)}"),
        _row("tmp", f"tmpfs, {format_size(limits.tmp)}"),
        _row("output", f"counted by the host, {format_size(limits.output)}"),
        *(
            _row(name, "not set" if value is None else f"the host's clock, {value:g} s")
            for name, value in (
                ("timeout", limits.timeout),
                ("host_time", limits.host_time),
                ("lifetime", limits.lifetime),
                ("idle", limits.idle),
            )
        ),
    )


def _row(name: str, detail: str, state: State = "enforced", remedy: str | None = None) -> Layer:
    return Layer(name=name, state=state, detail=detail, remedy=remedy)


def _memory(limits: Limits, facts: Facts, said: Sequence[str]) -> Layer:
    discarded = any("memory limit" in each and "swap" not in each for each in said)
    if not facts.memory_limit or discarded:
        detail = "the engine has no memory control group: nothing limits it"
        return _row("memory", detail, "absent", _MEMORY_REMEDY)
    swaps = not facts.swap_limit or any("swap limit" in each for each in said)
    if swaps and facts.swap != 0:
        detail = f"cgroup, {format_size(limits.memory)}, and swap beyond it, which is not limited"
        return _row("memory", detail, "best-effort", _MEMORY_REMEDY)
    return _row("memory", f"cgroup, {format_size(limits.memory)}, no swap")


def _cpus(limits: Limits, facts: Facts, said: Sequence[str]) -> Layer:
    if facts.cpu_quota and not any("cpu" in each and "quota" in each for each in said):
        return _row("cpus", f"cgroup quota, {limits.cpus:g}")
    if facts.cpus and limits.cpus >= facts.cpus:
        return _row("cpus", f"the engine's machine has no more than {facts.cpus}")
    return _row("cpus", "the engine has no cpu quota: nothing limits it", "absent", _CGROUP_REMEDY)


def _processes(limits: Limits, facts: Facts, said: Sequence[str], runtime: str) -> Layer:
    if facts.pids_limit and not any("pids limit" in each for each in said):
        if own_kernel(runtime) == "gVisor":
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
