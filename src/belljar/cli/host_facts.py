"""What this host and its container engine offer a sandbox, found out before any guest starts."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from belljar.errors import SandboxError

if TYPE_CHECKING:
    from belljar.backends.docker.client.engine import Engine
    from belljar.environment.environment import Environment

Answer = TypeVar("Answer")

# Runs in a separate process, because a process cannot leave a namespace.
_TRY_USER_NAMESPACE = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
sys.exit(ctypes.get_errno() if libc.unshare(0x10000000) else 0)
"""
# Settings of the kernel, the value that forbids user namespaces, and the end of the remedy.
_USER_NAMESPACE_SETTINGS = (
    ("user.max_user_namespaces", "0", "=10000"),
    ("kernel.unprivileged_userns_clone", "0", "=1"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "=0, or an AppArmor profile for python"),
)


@dataclass(frozen=True, kw_only=True)
class Fact:
    name: str
    state: Literal["ok", "no"]
    detail: str
    remedy: str | None = None


def _ok(name: str, detail: str) -> Fact:
    return Fact(name=name, state="ok", detail=detail)


def _no(name: str, detail: str, remedy: str | None = None) -> Fact:
    return Fact(name=name, state="no", detail=detail, remedy=remedy)


def list_host_facts(environment: Environment) -> list[Fact]:
    return [
        _kernel(),
        _user(),
        _user_namespaces(),
        _seccomp(),
        _landlock(),
        *_cgroups(),
        _interpreter(environment),
    ]


def _kernel() -> Fact:
    system, machine = platform.system(), platform.machine()
    detail = f"{system} {platform.release()} {machine}"
    if system == "Linux" and machine in ("x86_64", "aarch64"):
        return _ok("kernel", detail)
    return _no("kernel", detail, "the native backend needs Linux on x86_64 or aarch64")


def _user() -> Fact:
    from belljar.backends.linux import identity

    detail = "an ordinary user; all guests run with this uid"
    if os.geteuid() == 0:
        detail = (
            "root; each guest gets its own host uid"
            if identity.has_uid_for_each()
            else "root of a user namespace without uids for guests; all guests run with its uid, "
            f"{identity.uid_above()} in the parent namespace"
        )
    return _ok("user", f"uid {os.geteuid()}, {detail}")


def _user_namespaces() -> Fact:
    tried = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _TRY_USER_NAMESPACE], check=False, capture_output=True
    )
    remedies = "; ".join(
        f"sysctl {name}{remedy}"
        for name, bad, remedy in _USER_NAMESPACE_SETTINGS
        if _reads(name, bad)
    )
    if tried.returncode != 0:
        why = f"refused: {os.strerror(tried.returncode)}"
        other = "in a container: its seccomp profile or security options must allow unshare(2)"
        return _no("user namespaces", why, remedies or other)
    if remedies and os.geteuid() != 0:
        # AppArmor lets the call succeed and removes the capabilities afterwards.
        return _no("user namespaces", "allowed, but restricted by a setting", remedies)
    return _ok("user namespaces", "allowed (tried)")


def _reads(setting: str, value: str) -> bool:
    try:
        return Path("/proc/sys", *setting.split(".")).read_text().strip() == value
    except OSError:
        return False  # no such setting in this kernel


def _seccomp() -> Fact:
    try:
        actions = Path("/proc/sys/kernel/seccomp/actions_avail").read_text().split()
    except OSError:
        return _no("seccomp", "not in this kernel", "use a kernel with CONFIG_SECCOMP_FILTER")
    return _ok("seccomp", f"actions: {' '.join(actions)}")


def _landlock() -> Fact:
    from belljar.backends.linux import syscalls

    version = syscalls.landlock_abi()
    if version:
        return _ok("landlock", f"version {version}")
    return _no(
        "landlock",
        "not in this kernel, or not enabled",
        "use Linux 5.13 or later with landlock in lsm= on the kernel's command line",
    )


def _cgroups() -> list[Fact]:
    from belljar.backends.linux import cgroup
    from belljar.backends.linux.cgroup import scope

    found = cgroup.detect()
    try:
        if "memory" not in found.controllers and scope.is_available():
            detail = "the user's systemd gives each sandbox one when it starts: see its limits"
            return [_ok("cgroups", detail)]
        what = f"version {found.version}" if found.version else "not available"
        usable = ", ".join(sorted(found.controllers)) or "no controllers"
        facts = [(_ok if found.version else _no)("cgroups", f"{what}: {usable}")]
        names: dict[str, list[str]] = {}
        for name, why in sorted(found.why.items()):
            names.setdefault(why, []).append(name)
        return facts + [_no(f"cgroup {', '.join(those)}", why) for why, those in names.items()]
    finally:
        found.close()


def _interpreter(environment: Environment) -> Fact:
    from belljar.backends.linux import identity
    from belljar.environment.environment import choose_interpreter

    try:
        found = choose_interpreter(environment)
    except SandboxError as error:
        return _no("interpreter", error.message, error.hint)
    detail = f"Python {'.'.join(map(str, found.version))}, {found.executable}"
    # As root the guest runs under another uid, so the permissions for others count.
    mode = os.stat(found.executable).st_mode
    if identity.has_uid_for_each() and mode & 0o005 != 0o005:
        return _no(
            "interpreter", f"{detail}: other users may not run it", f"chmod o+rx {found.executable}"
        )
    return _ok("interpreter", detail)


# -- the container engine -------------------------------------------------------------------------

INFO_TIMEOUT = 10.0  # seconds
# Docker lists the shim of runc as another runtime.
_SAME_AS_RUNC = ("io.containerd.runc.v2", "io.containerd.runtime.v1.linux")

# The first release of each series that follows no link of an image when it masks and mounts.
_RUNC_FIXED: dict[tuple[int, ...], tuple[int, ...]] = {(1, 2): (1, 2, 8), (1, 3): (1, 3, 3)}

# A field of /info that says whether the engine can enforce a limit, its name, and the remedy.
_LIMITS = (
    ("MemoryLimit", "memory limit", "boot the engine's host with cgroup_enable=memory"),
    ("SwapLimit", "swap accounting", "boot the engine's host with swapaccount=1, or turn swap off"),
    ("PidsLimit", "process limit", "the engine's host needs the pids control group"),
    ("CpuCfsQuota", "cpu limit", "the engine's host needs the cpu control group with its quota"),
)


@dataclass(frozen=True, kw_only=True)
class EngineFound:
    facts: list[Fact]
    runtimes: tuple[str, ...]  # the default one first


def find_engine() -> EngineFound:
    """Ask the engine that the docker backend would use. Raises SandboxError without an engine."""

    async def ask(engine: Engine) -> EngineFound:
        info = await engine.request("GET", "/info", timeout=INFO_TIMEOUT)
        version = await engine.request("GET", "/version", timeout=INFO_TIMEOUT)
        facts = list(list_engine_facts(engine, info, version))
        return EngineFound(facts=facts, runtimes=list_runtimes(info))

    return ask_engine(None, ask, "about itself")


def ask_engine(
    host: str | None,
    question: Callable[[Engine], Awaitable[Answer]],
    about: str = "about its images",
) -> Answer:
    """Run `question` with the engine at this address (None: the one that docker uses)."""
    import anyio

    from belljar.backends.docker.client import endpoint
    from belljar.backends.docker.client.engine import Engine, parsing_answer

    engine = Engine(endpoint.find_endpoint(host))
    with parsing_answer(engine, about):
        return anyio.run(question, engine)


def list_runtimes(info: Mapping[str, Any]) -> tuple[str, ...]:
    """Names, the default one first. For Podman only the default: its API accepts no other, and its
    list names runtimes that are not installed.

    >>> list_runtimes({"Runtimes": {"runsc": {}, "runc": {}}, "DefaultRuntime": "runc"})
    ('runc', 'runsc')
    """
    default = str(info.get("DefaultRuntime") or "")
    names = sorted(info.get("Runtimes") or ())
    others = [name for name in names if name != default and name not in _SAME_AS_RUNC]
    if "BuildahVersion" in info:
        others = []
    return (default, *others) if default else tuple(others)


def list_engine_facts(
    engine: Engine, info: Mapping[str, Any], version: Mapping[str, Any]
) -> Iterator[Fact]:
    where = engine.endpoint
    yield _ok("address", f"{where} ({where.source})")
    yield _ok("version", _engine_version(info, version))
    yield from _runc_facts(version)
    options = [str(option) for option in info.get("SecurityOptions") or ()]
    yield _ok("user", _engine_user(options))
    yield from _engine_cgroups(info)
    yield _engine_seccomp(options)


def _engine_version(info: Mapping[str, Any], version: Mapping[str, Any]) -> str:
    components = version.get("Components") or [{}]
    name = str(components[0].get("Name") or "Engine")
    name = "Docker Engine" if name == "Engine" else name
    place = f"{info.get('OperatingSystem')}, {info.get('Architecture')}"
    return f"{name} {version.get('Version')}, API {version.get('ApiVersion')}, on {place}"


def _runc_facts(version: Mapping[str, Any]) -> Iterator[Fact]:
    """runc mounts inside the image's file tree; old releases follow links there."""
    for each in version.get("Components") or ():
        found = re.search(r"(\d+)\.(\d+)\.(\d+)", str(each.get("Version")))
        if "runc" not in str(each.get("Name")) or found is None:
            continue
        numbers = tuple(map(int, found.groups()))
        fixed = _RUNC_FIXED.get(numbers[:2], _RUNC_FIXED[1, 2])
        if numbers >= fixed:
            yield _ok("runc", found[0])
            continue
        first = ".".join(map(str, fixed))
        yield _no(
            "runc",
            f"{found[0]}: older than {first}, the first with the fixes of November 2025, "
            "unless your distribution has added them",
            "upgrade runc, or use runtime='runsc' for images you do not trust",
        )


def _engine_user(options: list[str]) -> str:
    if any("rootless" in option for option in options):
        return "rootless: the engine runs as an ordinary user"
    if any("userns" in option for option in options):
        return "root, with user namespaces: root in a container has no rights outside"
    return "root, without user namespaces"


def _engine_cgroups(info: Mapping[str, Any]) -> Iterator[Fact]:
    version, driver = info.get("CgroupVersion") or "1", info.get("CgroupDriver") or "none"
    detail = f"version {version}, driver {driver}"
    if driver == "none":
        yield _no("cgroups", detail, "rootless engines need cgroup v2 with delegation")
    else:
        yield _ok("cgroups", detail)
    for field, name, remedy in _LIMITS:
        # Some engines (Podman) leave out a field although they enforce the limit.
        if info.get(field) is False:
            yield _no(name, "the engine cannot enforce it", remedy)
        else:
            yield _ok(name, "enforced by the engine")


def _engine_seccomp(options: list[str]) -> Fact:
    if any("seccomp" in option for option in options):
        return _ok("seccomp", "filters can be set")
    return _no(
        "seccomp",
        "the engine has no seccomp support",
        "use a kernel with CONFIG_SECCOMP_FILTER, and an engine built with seccomp",
    )
