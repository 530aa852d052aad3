"""What this host offers a sandbox, found out before any guest starts."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from belljar.environment.environment import Environment

# Run in a process of its own, because a namespace once entered cannot be left.
_TRY_USER_NAMESPACE = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
sys.exit(ctypes.get_errno() if libc.unshare(0x10000000) else 0)
"""
_USER_NAMESPACE_SETTINGS = (
    ("/proc/sys/user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"),
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "sysctl kernel.unprivileged_userns_clone=1",
    ),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile for python",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Fact:
    name: str
    state: Literal["ok", "no"]
    detail: str
    remedy: str | None = None


def gather(environment: Environment) -> list[Fact]:
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
    known = system == "Linux" and machine in ("x86_64", "aarch64")
    return Fact(
        name="kernel",
        state="ok" if known else "no",
        detail=f"{system} {platform.release()} {machine}",
        remedy=None if known else "the native backend needs Linux on x86_64 or aarch64",
    )


def _user() -> Fact:
    from belljar.backends.linux import identity

    detail = "an ordinary user, whose uid all guests have"
    if os.geteuid() == 0:
        detail = (
            "root; each guest gets a host uid of its own"
            if identity.has_uid_for_each()
            else "root of a user namespace that has no uids for guests: they have its own, "
            f"{identity.uid_above()} in the namespace above"
        )
    return Fact(name="user", state="ok", detail=f"uid {os.geteuid()}, {detail}")


def _user_namespaces() -> Fact:
    tried = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _TRY_USER_NAMESPACE], check=False, capture_output=True
    )
    remedies = [remedy for path, bad, remedy in _USER_NAMESPACE_SETTINGS if _reads(path, bad)]
    if tried.returncode == 0:
        # AppArmor lets the call succeed and takes the rights away afterwards.
        restricted = bool(remedies) and os.geteuid() != 0
        return Fact(
            name="user namespaces",
            state="no" if restricted else "ok",
            detail="allowed, but restricted by a setting" if restricted else "allowed (tried)",
            remedy="; ".join(remedies) if restricted else None,
        )
    return Fact(
        name="user namespaces",
        state="no",
        detail=f"refused: {os.strerror(tried.returncode)}",
        remedy="; ".join(remedies)
        or "in a container, its seccomp profile or security options have to allow unshare(2)",
    )


def _reads(path: str, value: str) -> bool:
    try:
        return Path(path).read_text().strip() == value
    except OSError:
        return False  # no such setting in this kernel


def _seccomp() -> Fact:
    try:
        actions = Path("/proc/sys/kernel/seccomp/actions_avail").read_text().split()
    except OSError:
        return Fact(
            name="seccomp",
            state="no",
            detail="not in this kernel",
            remedy="a kernel with CONFIG_SECCOMP_FILTER",
        )
    return Fact(name="seccomp", state="ok", detail=f"actions: {' '.join(actions)}")


def _landlock() -> Fact:
    from belljar.backends.linux import syscalls

    version = syscalls.landlock_abi()
    if version:
        return Fact(name="landlock", state="ok", detail=f"version {version}")
    return Fact(
        name="landlock",
        state="no",
        detail="not in this kernel, or not enabled",
        remedy="Linux 5.13 or later with landlock among the lsm= of the kernel's command line",
    )


def _cgroups() -> list[Fact]:
    from belljar.backends.linux import cgroup
    from belljar.backends.linux.cgroup import scope

    found = cgroup.detect()
    try:
        if "memory" not in found.controllers and scope.is_available():
            detail = "a sandbox gets one from the user's systemd when it starts: see its limits"
            return [Fact(name="cgroups", state="ok", detail=detail)]
        what = f"version {found.version}" if found.version else "none to be had"
        usable = ", ".join(sorted(found.controllers)) or "no controllers"
        facts = [
            Fact(name="cgroups", state="ok" if found.version else "no", detail=f"{what}: {usable}")
        ]
        names: dict[str, list[str]] = {}
        for name, why in sorted(found.why.items()):
            names.setdefault(why, []).append(name)
        return facts + [
            Fact(name=f"cgroup {', '.join(those)}", state="no", detail=why)
            for why, those in names.items()
        ]
    finally:
        found.close()


def _interpreter(environment: Environment) -> Fact:
    from belljar.backends.linux import identity
    from belljar.environment.interpreter import find_interpreter
    from belljar.errors import SandboxError

    try:
        found = find_interpreter(environment.python)
    except SandboxError as error:
        return Fact(name="interpreter", state="no", detail=error.message, remedy=error.hint)
    detail = f"Python {'.'.join(map(str, found.version))}, {found.executable}"
    # As root the guest runs under another uid, so it is the others' rights that count.
    mode = os.stat(found.executable).st_mode
    if identity.has_uid_for_each() and mode & 0o005 != 0o005:
        return Fact(
            name="interpreter",
            state="no",
            detail=f"{detail}: other users may not run it",
            remedy=f"chmod o+rx {found.executable}",
        )
    return Fact(name="interpreter", state="ok", detail=detail)
