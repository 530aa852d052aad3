"""The system calls Python has no name for, under their man-page names. The only ctypes here.

Runs on the guest's interpreter too: Python 3.9, standard library only.
"""

import ctypes
import os
import platform
import signal
from typing import Any, Callable, List, Optional

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

MOUNT_ATTR_RDONLY = 1
MOUNT_ATTR_NOSUID = 2
MOUNT_ATTR_NODEV = 4
_AT_RECURSIVE = 0x8000

HUGE_PAGE = 2 * 1024 * 1024
_MADV_COLLAPSE = 25

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_SECUREBITS = 28
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
# NOROOT, NO_SETUID_FIXUP, KEEP_CAPS off, NO_CAP_AMBIENT_RAISE, each with its lock.
SECUREBITS_LOCKED = 0x01 | 0x02 | 0x04 | 0x08 | 0x20 | 0x40 | 0x80

# Numbers that are the same on every architecture (all calls since Linux 5.1) need no table.
_SYS_pidfd_open = 434
_SYS_mount_setattr = 442
_SYS_landlock_create_ruleset = 444
_SYS_landlock_add_rule = 445
_SYS_landlock_restrict_self = 446
_SYS_clone = {"x86_64": 56, "aarch64": 220}
_SYS_seccomp = {"x86_64": 317, "aarch64": 277}
_SYS_pivot_root = {"x86_64": 155, "aarch64": 41}
_SYS_capset = {"x86_64": 126, "aarch64": 91}

_libc = ctypes.CDLL(None, use_errno=True)
_python = ctypes.PyDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.mount.argtypes = (
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_ulong,
    ctypes.c_char_p,
)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.umount2.argtypes = (ctypes.c_char_p, ctypes.c_int)
_libc.unshare.argtypes = (ctypes.c_int,)
_libc.setns.argtypes = (ctypes.c_int, ctypes.c_int)
_libc.prctl.argtypes = (ctypes.c_int,) + (ctypes.c_ulong,) * 4
_libc.sethostname.argtypes = (ctypes.c_char_p, ctypes.c_size_t)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _syscall(what: str, number: int, *args: Any) -> int:
    wide = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    return _check(_libc.syscall(ctypes.c_long(number), *wide), what)


def _number(table: "dict[str, int]") -> int:
    machine = platform.machine()
    if machine not in table:
        raise OSError(f"the native backend does not know the machine {machine!r}")
    return table[machine]


def mount(
    source: Optional[str], target: str, kind: Optional[str], flags: int, data: str = ""
) -> None:
    given = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    result = _libc.mount(*given, flags, data.encode() or None)
    _check(result, f"mount {kind or 'bind'} on {target}")


def mount_setattr(path: str, attributes: int) -> None:
    """Set attributes on a mount and on everything mounted below it (Linux 5.12)."""

    class mount_attr(ctypes.Structure):
        _fields_ = [(n, ctypes.c_uint64) for n in ("set", "clear", "propagation", "userns_fd")]

    attr = mount_attr(attributes, 0, 0, 0)
    size = ctypes.sizeof(attr)
    name = ctypes.c_char_p(os.fsencode(path))
    args = (-100, name, _AT_RECURSIVE, ctypes.byref(attr), size)
    _syscall(f"mount_setattr {path}", _SYS_mount_setattr, *args)


def umount2(target: str, flags: int) -> None:
    _check(_libc.umount2(os.fsencode(target), flags), f"umount2 {target}")


def pivot_root(new: str, old: str) -> None:
    paths = [ctypes.c_char_p(os.fsencode(path)) for path in (new, old)]
    _syscall("pivot_root", _number(_SYS_pivot_root), *paths)


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), f"unshare {flags:#x}")


def setns(fd: int, kind: int) -> None:
    _check(_libc.setns(fd, kind), f"setns {kind:#x}")


def pidfd_open(pid: int) -> int:
    """os.pidfd_open, which some builds of Python lack."""
    return _syscall("pidfd_open", _SYS_pidfd_open, pid, 0)


def clone(flags: int) -> int:
    """fork() into new namespaces. For a single-threaded process whose child soon executes
    another program: the C library's idea of the thread's id is stale in the child."""
    return _syscall("clone", _number(_SYS_clone), flags | int(signal.SIGCHLD), 0, 0, 0, 0)


def fork() -> int:
    """fork() without Python's hooks, which touch, and so copy, hundreds of pages in the child.

    For a process with one thread, in which nothing has run since run_fork_hooks(). (PyDLL: the
    interpreter's own lock stays held meanwhile.)
    """
    return _check(_python.fork(), "fork")


def run_fork_hooks() -> None:
    """What os.fork() runs in a child (os.register_at_fork), here and now."""
    ctypes.pythonapi.PyOS_BeforeFork()
    ctypes.pythonapi.PyOS_AfterFork_Child()


def madvise_collapse(first: int, last: int) -> int:
    """Let huge pages take the place of small ones between two addresses (Linux 6.1): how many."""
    places = range(-(-first // HUGE_PAGE) * HUGE_PAGE, last - HUGE_PAGE + 1, HUGE_PAGE)
    return sum(_libc.madvise(place, HUGE_PAGE, _MADV_COLLAPSE) == 0 for place in places)


def prctl(option: int, *args: int) -> None:
    padded = (*args, 0, 0, 0, 0)[:4]
    _check(_libc.prctl(option, *padded), f"prctl {option}")


def sethostname(name: str) -> None:
    _check(_libc.sethostname(name.encode(), len(name)), "sethostname")


def capset_none() -> None:
    """Give up every capability: effective, permitted and inheritable."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()
    args = (ctypes.byref(header), ctypes.byref(data))
    _syscall("capset", _number(_SYS_capset), *args)


def drop_bounding_set() -> None:
    for capability in range(64):
        if _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            return  # EINVAL: past the last one this kernel knows


class _sock_fprog(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def seccomp_filter(program: bytes) -> None:
    buffer = ctypes.create_string_buffer(program, len(program))
    prog = _sock_fprog(len(program) // 8, ctypes.addressof(buffer))
    _syscall("seccomp", _number(_SYS_seccomp), 1, 0, ctypes.byref(prog))


def landlock_abi() -> int:
    """The version this kernel speaks; 0 if it has none."""
    try:
        return _syscall("landlock", _SYS_landlock_create_ruleset, None, 0, 1)
    except OSError:
        return 0


def landlock_create_ruleset(fields: List[int]) -> int:
    attr = (ctypes.c_uint64 * len(fields))(*fields)
    args = (ctypes.byref(attr), ctypes.sizeof(attr), 0)
    return _syscall("landlock_create_ruleset", _SYS_landlock_create_ruleset, *args)


class _path_beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"  # what `_pack_` means; 3.14 wants it said
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def landlock_allow(ruleset: int, parent: int, allowed: int) -> None:
    rule = _path_beneath(allowed, parent)
    args = (ruleset, 1, ctypes.byref(rule), 0)
    _syscall("landlock_add_rule", _SYS_landlock_add_rule, *args)


def landlock_restrict_self(ruleset: int) -> None:
    _syscall("landlock_restrict_self", _SYS_landlock_restrict_self, ruleset, 0)


def must_fail(what: str, attempt: Callable[[], object]) -> Optional[str]:
    """Try what was taken away: None if it failed as it must, else what it was."""
    try:
        attempt()
    except OSError:
        return None
    return what
