"""What an engine says of itself, reduced to what decides how a guest is confined there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}  # Go's words, which Podman uses


@dataclass(frozen=True, kw_only=True)
class Facts:
    """From `GET /info` and `GET /version`. What an engine does not tell counts as missing."""

    engine: Literal["docker", "podman"] = "docker"
    version: str = ""
    api_version: tuple[int, int] = (0, 0)
    machine: str = ""  # as os.uname() says it: "x86_64", "aarch64"
    cpus: int = 0  # 0: unknown
    # What the engine's kernel and its control groups can limit.
    memory_limit: bool = False
    swap_limit: bool = False
    pids_limit: bool = False
    cpu_quota: bool = False
    swap: int | None = None  # bytes there are; None: unknown
    cgroup_version: int = 0  # 0: unknown
    rootless: bool = False
    userns: bool = False  # uids in containers are others than outside
    runtimes: tuple[str, ...] = ()
    default_runtime: str = ""
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, info: Mapping[str, Any], version: Mapping[str, Any]) -> Facts:
        podman = "BuildahVersion" in info or "podman" in _components(version)
        security = _security(info)
        swap = info.get("SwapTotal")  # Podman's alone
        rootless = "rootless" in security or info.get("Rootless") is True
        return cls(
            engine="podman" if podman else "docker",
            version=_text(info.get("ServerVersion") or version.get("Version")),
            api_version=_pair(_text(version.get("ApiVersion"))),
            machine=_machine(_text(info.get("Architecture") or version.get("Arch"))),
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
        """Whether a container can be given any uid, and it is the same outside."""
        return not (self.rootless or self.userns)


def _components(version: Mapping[str, Any]) -> str:
    """The names of what the engine is made of, in lower case."""
    parts = version.get("Components") or ()
    return " ".join(_text(part.get("Name")) for part in parts if isinstance(part, Mapping)).lower()


def _security(info: Mapping[str, Any]) -> set[str]:
    """`["name=seccomp,profile=default", "name=rootless"]` → the names."""
    named = (_text(option).partition(",")[0] for option in info.get("SecurityOptions") or ())
    return {name.removeprefix("name=") for name in named}


def _machine(name: str) -> str:
    return _MACHINES.get(name, name)


def _pair(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return _count(major), _count(minor)


def _count(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return max(value, 0)
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else 0


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


_KERNELS = {"runsc": "gVisor", "kata": "a virtual machine"}  # by how runtimes' names begin


def own_kernel(runtime: str) -> str | None:
    """What stands between a guest and the host's kernel, if anything does."""
    return next((what for word, what in _KERNELS.items() if runtime.startswith(word)), None)
