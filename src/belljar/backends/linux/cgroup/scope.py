"""A control group from the user's systemd, for users who may not make one themselves.

The group of a login session belongs to root. The user's own systemd manager (`user@.service`)
has groups with the memory, pids and cpu controllers, and gives a process one of them on request:
a scope with `Delegate=yes`, which the user may divide. Only processes that are in the scope
already can be moved between its children. So the launcher goes into a scope before it forks;
zygote and guests are born there, and the host process stays where it is. The manager removes the
scope when its last process has ended.
"""

import os
import shutil
import subprocess
import time

from belljar.backends.linux import proc
from belljar.backends.linux.cgroup import tree
from belljar.backends.linux.cgroup.plan import places

_CALL = (
    "org.freedesktop.systemd1",
    "/org/freedesktop/systemd1",
    "org.freedesktop.systemd1.Manager",
    "StartTransientUnit",
    "ssa(sv)a(sa(sv))",
)
_ANSWER_TIMEOUT = 10.0  # for the manager to take the request
_MOVE_TIMEOUT = 10.0  # for the manager to carry it out
# A group of v2 that has processes gives its children no controllers: those in the scope itself
# move into this child.
_CHILD = "launcher"


class ScopeRefused(Exception):
    """The manager did not give a scope, for the reason in the message."""


def is_available() -> bool:
    """Whether this user has a running manager, and `busctl` to talk to it."""
    return os.path.exists(f"{_runtime_directory()}/systemd/private") and bool(_busctl())


def enter(pid: int) -> None:
    """Move a child process that has forked nothing yet into a new scope. Blocks.

    Raises ScopeRefused; the process may be in a scope even then, but cannot use it.
    """
    name = f"belljar-{os.getpid()}-{pid}.scope"
    _request(name, pid)
    try:
        scope = _wait_until_inside(name, pid)
        os.mkdir(f"{scope}/{_CHILD}")
        tree.write(f"{scope}/{_CHILD}/cgroup.procs", str(pid))
    except OSError as error:
        raise ScopeRefused(f"{name} cannot be used: {error}") from error


def _request(name: str, pid: int) -> None:
    properties = [
        *("PIDs", "au", "1", str(pid)),
        *("Delegate", "b", "true"),
        *("Description", "s", "Belljar sandboxes"),
        *("CollectMode", "s", "inactive-or-failed"),
    ]
    arguments = [*_CALL, name, "fail", "4", *properties, "0"]
    try:
        done = subprocess.run(
            [_busctl(), "--user", "--quiet", "call", *arguments],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env={"XDG_RUNTIME_DIR": _runtime_directory()},
            timeout=_ANSWER_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise ScopeRefused(f"no answer in {_ANSWER_TIMEOUT:.0f} s") from None
    except OSError as error:
        raise ScopeRefused(str(error)) from error
    if done.returncode:
        raise ScopeRefused(done.stderr.strip()[:500] or f"busctl ended with {done.returncode}")


def _wait_until_inside(name: str, pid: int) -> str:
    """The scope's directory, once the manager has moved the process there."""
    deadline = time.monotonic() + _MOVE_TIMEOUT
    while True:
        texts = proc.read("/proc/self/mountinfo"), proc.read(f"/proc/{pid}/cgroup")
        for hierarchy, path in places(*texts, os.path.exists):
            if hierarchy.version == 2 and os.path.basename(path) == name:
                return path
        if time.monotonic() > deadline:
            raise ScopeRefused(f"{name} was not there after {_MOVE_TIMEOUT:.0f} s")
        time.sleep(0.002)


def _runtime_directory() -> str:
    # Not set after `su`, in cron, and in services.
    return os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"


def _busctl() -> str:
    return shutil.which("busctl", path="/usr/bin:/bin:/run/current-system/sw/bin") or ""
