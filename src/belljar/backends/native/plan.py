"""What a native guest will be, as data: decided here, without touching anything.

`root_steps` is the root file system that all guests of a zygote share, the rest is what one guest
gets of its own. `rootfs.py` and `confine.py` carry them out.
"""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from belljar.backends.linux import guest_view, identity
from belljar.backends.mounts import WORKSPACE, Mount
from belljar.environment.interpreter import Interpreter, guest_python

Step = list[object]

_SYSTEM = (
    *("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec"),
    *("/usr/share", "/usr/include", "/bin", "/sbin", "/lib", "/lib32", "/lib64"),
)
_SKELETON = (
    *(
        "/proc",
        "/tmp",
        "/dev",
        "/dev/shm",
        "/dev/pts",
        "/etc",
        "/opt",
        "/run",
        "/run/belljar",
        "/usr",
    ),
    *("/usr/local", "/root", *guest_view.PLACES, "/usr/local/bin"),
)

# /proc/sys as the guest sees it: a few harmless values that programs ask for.
_SYSCTLS = {
    "kernel/ostype": "Linux\n",
    "kernel/hostname": "belljar\n",
    "kernel/pid_max": "32768\n",
    "kernel/ngroups_max": "65536\n",
    "kernel/cap_last_cap": "40\n",
    "kernel/random/boot_id": "",  # a place for each guest's own
    "vm/overcommit_memory": "0\n",
    "net/core/somaxconn": "4096\n",
    "fs/file-max": "65536\n",
}


def root_steps(
    environment: Path,
    interpreter: Interpreter,
    mounts: Iterable[Mount] = (),
    directories: Iterable[str] = (WORKSPACE,),
) -> list[Step]:
    """`directories` are where a guest mounts file systems of its own."""
    mounts = tuple(mounts)
    directories = tuple(directories)
    return [
        *_skeleton(directories),
        *_system(),
        *_interpreter(interpreter),
        ["bind", str(environment), guest_view.GUEST_ENV, "dir"],
        *_etc(),
        *_devices(),
        *_scratch(mounts, directories),
        *_mounts(mounts),
    ]


def _skeleton(own: Iterable[str]) -> Iterator[Step]:
    for path in (*own, *_SKELETON):
        yield ["dir", path]
    for name, text in _SYSCTLS.items():
        yield ["dir", f"/run/belljar/sys/{os.path.dirname(name)}"]
        yield ["file", f"/run/belljar/sys/{name}", text]


def _system() -> Iterator[Step]:
    for path in _SYSTEM:
        if os.path.islink(path):
            yield ["symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            yield ["bind", path, path, "dir"]
    # Packages of the host's own Python are not the guest's business.
    for packages in sorted(Path("/usr/lib").glob("python3*/*-packages")):
        yield ["mask", str(packages)]


def _interpreter(interpreter: Interpreter) -> Iterator[Step]:
    """An interpreter outside /usr appears at a fixed place: its own may be somebody's home."""
    if interpreter.prefix == "/usr":
        return
    yield ["dir", f"{guest_view.GUEST_PYTHON_PREFIX}/bin"]
    yield ["bind", interpreter.executable, guest_python(interpreter), "file"]
    libraries = f"{guest_view.GUEST_PYTHON_PREFIX}/lib"
    name = "python{}.{}".format(*interpreter.version)
    if interpreter.prefix == "/usr/local":
        # Other software lives there too: only what is Python's.
        yield ["bind", interpreter.stdlib, f"{libraries}/{name}", "dir"]
        for library in sorted(Path(interpreter.libdir).glob("libpython3*.so*")):
            yield ["bind", str(library.resolve()), f"{libraries}/{library.name}", "file"]
    else:
        yield ["bind", os.path.dirname(interpreter.stdlib), libraries, "dir"]
    if os.path.isdir(os.path.join(interpreter.stdlib, "site-packages")):
        yield ["mask", f"{libraries}/{name}/site-packages"]


def _etc() -> Iterator[Step]:
    yield ["dir", "/etc/fonts"]
    files = guest_view.FILES | {"passwd": guest_view.passwd(1000, _shell())}
    for name, text in files.items():
        yield ["file", f"/etc/{name}", text]
    if os.path.exists("/usr/share/zoneinfo/UTC"):
        yield ["symlink", "/usr/share/zoneinfo/UTC", "/etc/localtime"]
    # Debian's names for "the awk that is installed": links into /usr, and nothing else.
    try:
        links = sorted(
            entry.name for entry in os.scandir("/etc/alternatives") if entry.is_symlink()
        )
    except OSError:
        return
    yield ["dir", "/etc/alternatives"]
    for name in links:
        if (target := os.readlink(f"/etc/alternatives/{name}")).startswith("/usr/"):
            yield ["symlink", target, f"/etc/alternatives/{name}"]


def _shell() -> str:
    return guest_view.SHELL if os.path.exists(guest_view.SHELL) else "/bin/sh"


def _devices() -> Iterator[Step]:
    # /dev/tty is the terminal of the session that opens it, and a guest's sessions are its own.
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        if stat.S_ISCHR(os.stat(f"/dev/{name}").st_mode):
            yield ["device", name]
    yield ["symlink", "/proc/self/fd", "/dev/fd"]
    yield ["symlink", "pts/ptmx", "/dev/ptmx"]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        yield ["symlink", f"/proc/self/fd/{number}", f"/dev/{name}"]


def _scratch(mounts: Iterable[Mount], directories: Iterable[str]) -> Iterator[Step]:
    """For imports that write there. A guest never sees it: each has its own over it."""
    for path in places(mounts, directories)["places"]:
        yield ["scratch", path]


def _mounts(mounts: Iterable[Mount]) -> Iterator[Step]:
    """Those of the caller's. The device and inode say that it is still what was checked."""
    for mount in mounts:
        same = [mount.device, mount.inode]
        yield ["mount", mount.host, mount.guest, mount.kind, mount.read_only, same]


# -- one guest ------------------------------------------------------------------------------


def pick_uid(root: bool) -> int:
    """In the zygote's user namespace: one of many as root, else the only one there is."""
    return random.SystemRandom().randrange(1, identity.UID_COUNT) if root else 0


def places(mounts: Iterable[Mount], directories: Iterable[str]) -> dict[str, list[str]]:
    """Where the guest has a part of its /tmp, and which of the caller's mounts that would cover."""
    points = [mount.guest for mount in mounts]
    own = guest_view.own_places((*points, *directories))
    inside = tuple(f"{place}/" for place in own)
    return {"places": own, "covered": [path for path in points if path.startswith(inside)]}


def writable(mounts: Iterable[Mount]) -> dict[str, object]:
    """For Landlock, which knows other rights for directories than for files."""
    open_ones = [mount for mount in mounts if not mount.read_only]
    return {
        "writable": [mount.guest for mount in open_ones if mount.kind == "dir"],
        "writable_files": [mount.guest for mount in open_ones if mount.kind == "file"],
    }


def affinity(cpus: float, available: set[int]) -> list[int]:
    """Without a cgroup: as many processors as whole ones were asked for, anywhere."""
    wanted = max(1, -int(-cpus // 1))
    if wanted >= len(available):
        return []
    return sorted(random.sample(sorted(available), wanted))


def meminfo(memory: int) -> str:
    """/proc/meminfo as the guest sees it: its limit, so that programs size themselves by it."""
    total = memory // 1024
    rows = {"MemTotal": total, "MemFree": total, "MemAvailable": total, "Buffers": 0, "Cached": 0}
    rows |= {"SwapCached": 0, "Active": 0, "Inactive": 0, "SwapTotal": 0, "SwapFree": 0}
    rows |= {"Shmem": 0, "Slab": 0, "SReclaimable": 0}
    return "".join(f"{name + ':':<16}{value:>8} kB\n" for name, value in rows.items())


def environment_variables(interpreter: Interpreter) -> dict[str, str]:
    """All a guest's environment holds, but for what the caller adds."""
    variables = {"PATH": guest_view.PATH, **guest_view.VARIABLES, "SHELL": _shell()}
    if interpreter.shared and interpreter.prefix != "/usr":
        variables["LD_LIBRARY_PATH"] = f"{guest_view.GUEST_PYTHON_PREFIX}/lib"
    return variables
