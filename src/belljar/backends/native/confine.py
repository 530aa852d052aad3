"""From a fork of the zygote to a guest: every layer, in the one order that works.

`confine_init` makes the namespaces and file systems of a guest, `confine_worker` enters them; both
then give up all their rights. Each step is named, so that a failure says which layer is missing;
nothing of the caller's is read before the last of them.
"""

import fcntl
import json
import os
import resource
import signal
import socket
import stat
import struct
from typing import Any, Callable, Dict, List, Optional, Tuple

from ..linux import syscalls as sys_
from . import rootfs

INSIDE_ID = 1000  # uid and gid the code sees
_TMPFS = sys_.MS_NOSUID | sys_.MS_NODEV
_DEVICES = ["null", "zero", "full", "random", "urandom", "tty", "pts"]
# Terminals of the guest's own, and how many: the kernel counts those of all guests together.
# Without gid=, which this user namespace may not map, they belong to the group that opens them.
_TERMINALS = "newinstance,ptmxmode=0666,mode=620,max=16"


class StepFailed(Exception):
    def __init__(self, step: str, error: OSError) -> None:
        super().__init__(f"{step}: {error}")
        self.step = step
        self.errno = error.errno


def specification(config: Dict[str, Any], request: Dict[str, Any]) -> Dict[str, Any]:
    """What the steps need to know of a guest."""
    name = "seccomp_stricter" if request["deny_hidden_memory"] else "seccomp"
    return {**request, "seccomp": config[name]}


def read_variables(fd: int) -> "Dict[str, str]":
    """The environment variables of a guest. Not in the request: all later guests find in their
    memory what the zygote or the preloader has read."""
    data = os.pread(fd, os.fstat(fd).st_size, 0)
    os.close(fd)
    variables: Dict[str, str] = json.loads(data)
    return variables


def confine_init(spec: Dict[str, Any], join: List[int]) -> Dict[str, Any]:
    """Turn this process (PID 1 of its new pid namespace) into a guest's init. What was measured."""
    facts: Dict[str, Any] = {}
    kernel: List[int] = []  # a descriptor of /proc/sys, taken before it is masked
    _take_steps(
        # First, so that everything from here on is charged to the guest.
        ("cgroup", lambda: _join(join)),
        ("namespaces", _make_namespaces),
        ("host name", lambda: sys_.sethostname("belljar")),
        ("loopback", _loopback_up),
        ("file systems", lambda: kernel.append(_mount(spec, facts))),
        # Mounts, network and pids stay owned by the zygote's user namespace: even a guest that
        # became root in its own would have no power over them.
        ("identity", lambda: _become(spec["uid"], kernel.pop())),
        *_last_steps(spec, facts),
    )
    return facts


def confine_worker(spec: Dict[str, Any], init: int, join: List[int]) -> Dict[str, Any]:
    """Turn this process into a worker in the guest of this init, given by its pidfd. It is in the
    pid namespace already."""
    facts: Dict[str, Any] = {}
    _take_steps(
        ("cgroup", lambda: _join(join)),
        ("namespaces", lambda: sys_.setns(init, _NAMESPACES | sys_.CLONE_NEWUSER)),
        ("identity", lambda: _become_inside(init)),
        *_last_steps(spec, facts),
    )
    return facts


Step = Tuple[str, Callable[[], Any]]


def _last_steps(spec: Dict[str, Any], facts: Dict[str, Any]) -> List[Step]:
    return [
        ("capabilities", _drop_capabilities),
        ("limits", lambda: _set_limits(spec["rlimits"])),
        ("cpus", lambda: _set_affinity(spec["affinity"])),
        ("landlock", lambda: facts.update(landlock=restrict_files(*_writable(spec, facts)))),
        # Last: it takes away most calls used above.
        ("seccomp", lambda: sys_.seccomp_filter(spec["seccomp"])),
        ("dumpable", lambda: sys_.prctl(sys_.PR_SET_DUMPABLE, 0)),
        ("probe", _check_powers),
    ]


def _take_steps(*steps: Step) -> None:
    for name, step in steps:
        try:
            step()
        except OSError as error:
            raise StepFailed(name, error) from None


def _join(descriptors: List[int]) -> None:
    for fd in descriptors:
        os.write(fd, b"0")  # "the writer"
        os.close(fd)


_NAMESPACES = sys_.CLONE_NEWNS | sys_.CLONE_NEWNET | sys_.CLONE_NEWIPC | sys_.CLONE_NEWUTS
_NAMESPACES |= sys_.CLONE_NEWCGROUP


def _make_namespaces() -> None:
    # cgroup: after joining, so that the guest sees its own group as the root.
    sys_.unshare(_NAMESPACES)


def _loopback_up() -> None:
    """Bring up loopback, by which programs inside the sandbox may talk to each other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh22x", b"lo", 1)  # IFF_UP
        fcntl.ioctl(any_socket, 0x8914, request)  # SIOCSIFFLAGS


# -- file systems ---------------------------------------------------------------------------


def _mount(spec: Dict[str, Any], facts: Dict[str, Any]) -> int:
    uid = spec["uid"]
    kernel = _mount_proc(spec)
    covered = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in spec["covered"]]
    for path, size, inodes in (
        ("/tmp", spec["tmp"], 16384),
        ("/dev/shm", spec["tmp"], 4096),
        (spec["workdir"], spec["workspace"], 65536),
        *((path, spec["workspace"], 65536) for path in spec["scratch"]),
    ):
        _make_directory(path, uid)
        options = f"size={size},nr_inodes={inodes},mode=0700,uid={uid},gid={uid}"
        flags = _TMPFS | (sys_.MS_NOEXEC if spec["noexec"] else 0)
        sys_.mount("tmpfs", path, "tmpfs", flags, options)
        if path == "/tmp":
            _share_tmp(spec["places"], uid)
    for path, fd in covered:
        _bind_again(path, fd, uid)
    if spec["named"]:
        rootfs.replace_files(spec["named"])
    # Not nodev: these are devices.
    sys_.mount("devpts", "/dev/pts", "devpts", sys_.MS_NOSUID | sys_.MS_NOEXEC, _TERMINALS)
    facts["store"] = _hide_store(spec["workdir"], uid)
    return kernel


def _share_tmp(places: List[str], uid: int) -> None:
    """Mount directories of this file system at other places too: one limit bounds them all."""
    for number, path in enumerate([*places, "/tmp"]):  # /tmp last: it hides the others
        source = f"/tmp/{number}"
        os.mkdir(source)
        os.chmod(source, 0o1777 if path == "/var/tmp" else 0o700)
        os.chown(source, uid, uid)
        sys_.mount(source, path, None, sys_.MS_BIND)


def _make_directory(path: str, uid: int) -> None:
    """If it is in a place that is the guest's own, and so is not in the root."""
    if not os.path.isdir(path):
        _make_directory(os.path.dirname(path), uid)
        os.mkdir(path, 0o755)
        os.chown(path, uid, uid)


def _bind_again(path: str, fd: int, uid: int) -> None:
    """A mount of the caller's in a place that is now the guest's own."""
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        _make_directory(path, uid)
    else:
        _make_directory(os.path.dirname(path), uid)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o444))
    sys_.mount(f"/proc/self/fd/{fd}", path, None, sys_.MS_BIND | sys_.MS_REC)
    os.close(fd)


def _hide_store(path: str, uid: int) -> int:
    """Mount a directory of a file system over its root: checkpoints lie beside it, under the same
    limit of size, where only who has this descriptor can reach them."""
    store = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    os.mkdir("current", 0o700, dir_fd=store)
    os.chown("current", uid, uid, dir_fd=store)
    sys_.mount(path + "/current", path, None, sys_.MS_BIND)
    return store


def _mount_proc(spec: Dict[str, Any]) -> int:
    """A /proc of this pid namespace, in which all that tells of the host, or sets it, is masked:
    everything but the processes and a short list, so that what future kernels add is masked."""
    sys_.mount("proc", "/proc", "proc", _TMPFS | sys_.MS_NOEXEC)
    kernel = os.open("/proc/sys", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    # The scratch tmpfs lives on through the binds made of it, after the real /tmp covers it.
    scratch = _TMPFS | sys_.MS_NOEXEC
    sys_.mount("tmpfs", "/tmp", "tmpfs", scratch, "size=64k,mode=0755")
    os.mkdir("/tmp/empty")
    with open("/proc/sys/kernel/random/uuid") as file:
        boot_id = file.read()
    for name, text in (("nothing", ""), ("meminfo", spec["meminfo"]), ("boot_id", boot_id)):
        with open(f"/tmp/{name}", "w") as file:
            file.write(text)
    sys_.mount(None, "/tmp", None, sys_.MS_REMOUNT | sys_.MS_RDONLY | scratch)  # with all binds
    for name in os.listdir("/proc"):
        path = "/proc/" + name
        if name.isdigit() or name in _PROC_KEPT or os.path.islink(path):
            continue
        if name == "meminfo":
            source = "/tmp/meminfo"
        elif name == "sys":
            source = "/run/belljar/sys"  # of the root, which is read-only
        else:
            source = "/tmp/empty" if os.path.isdir(path) else "/tmp/nothing"
        sys_.mount(source, path, None, sys_.MS_BIND)
    sys_.mount("/tmp/boot_id", "/proc/sys/kernel/random/boot_id", None, sys_.MS_BIND)
    return kernel


# What ordinary programs (ps, free, psutil, the C library) read, and CPUID tells anyway.
_PROC_KEPT = {"cpuinfo", "stat", "uptime", "loadavg", "version", "filesystems"}


# -- identity -------------------------------------------------------------------------------


# Counted for each user namespace, and against the host user's own share as well: so a guest
# may make no namespaces, and cannot use up what its neighbours need.
_SYSCTLS = {
    "max_user_namespaces": 0,
    "max_mnt_namespaces": 0,
    "max_pid_namespaces": 0,
    "max_net_namespaces": 0,
    "max_ipc_namespaces": 0,
    "max_uts_namespaces": 0,
    "max_cgroup_namespaces": 0,
    "max_time_namespaces": 0,
    "max_inotify_instances": 8,
    "max_inotify_watches": 4096,
}


# Of its network namespace: connections inside the sandbox need no large buffers, and where there
# is no cgroup nothing else bounds them.
_NETWORK = {"tcp_rmem": "4096 65536 262144", "tcp_wmem": "4096 65536 262144"}


def _become(uid: int, kernel: int) -> None:
    """An unprivileged uid, and a user namespace that maps it alone."""
    for name, values in _NETWORK.items():
        _write(f"net/ipv4/{name}", values, kernel)
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        # Changing the uid made /proc/self root's; the maps below must be written by us.
        sys_.prctl(sys_.PR_SET_DUMPABLE, 1)
    sys_.unshare(sys_.CLONE_NEWUSER)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{INSIDE_ID} {uid} 1")
    _write("/proc/self/gid_map", f"{INSIDE_ID} {uid} 1")
    for name, value in _SYSCTLS.items():
        _write(f"user/{name}", str(value), kernel)
    os.close(kernel)


def _become_inside(init: int) -> None:
    """The one user of the guest's user namespace, which this process has entered."""
    os.close(init)
    os.setresgid(INSIDE_ID, INSIDE_ID, INSIDE_ID)
    os.setresuid(INSIDE_ID, INSIDE_ID, INSIDE_ID)
    sys_.prctl(sys_.PR_SET_DUMPABLE, 0)  # whatever the host's fs.suid_dumpable says


def _drop_capabilities() -> None:
    sys_.prctl(sys_.PR_SET_NO_NEW_PRIVS, 1)
    sys_.prctl(sys_.PR_CAP_AMBIENT, sys_.PR_CAP_AMBIENT_CLEAR_ALL)
    sys_.prctl(sys_.PR_SET_SECUREBITS, sys_.SECUREBITS_LOCKED)
    sys_.drop_bounding_set()
    sys_.capset_none()
    # A change of credentials clears it. The end of the parent takes this process along.
    sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)


def _set_limits(limits: Dict[str, int]) -> None:
    for name, value in limits.items():
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        # An inherited lower limit stays: it cannot be raised, and is at least as strict.
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def _set_affinity(cpus: List[int]) -> None:
    if cpus:
        os.sched_setaffinity(0, cpus)


def _writable(spec: Dict[str, Any], facts: Dict[str, Any]) -> Tuple[List[str], List[str]]:
    directories = [spec["workdir"], *spec["scratch"], "/tmp", "/dev/shm", *spec["places"]]
    directories += spec["writable"]
    if "store" in facts:
        # It has the workspace in it, but Landlock does not look at what a mount hides.
        directories.append(f"/proc/self/fd/{facts['store']}")
    return directories, ["/dev/" + name for name in _DEVICES] + spec["writable_files"]


def _write(path: str, text: str, below: Optional[int] = None) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=below)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


# -- the probe ------------------------------------------------------------------------------


def _check_powers() -> None:
    kept = probe()
    if kept:
        raise OSError(f"it can still {kept}")


def probe() -> List[str]:
    """Powers that should be gone, tried again: the names of those that are not."""
    attempts: List[Tuple[str, Callable[[], object]]] = [
        ("mount a file system", lambda: sys_.mount("tmpfs", "/tmp", "tmpfs", 0)),
        ("enter a new user namespace", lambda: sys_.unshare(sys_.CLONE_NEWUSER)),
        ("write into the root", lambda: os.close(os.open("/usr/.probe", os.O_CREAT | os.O_WRONLY))),
        ("become uid 0", lambda: os.setuid(0)),
        ("open a raw socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close()),
        ("open a vsock socket", lambda: socket.socket(40, socket.SOCK_STREAM).close()),
        ("reach the network", _connect),
        ("change the host name", lambda: sys_.sethostname("probe")),
        ("set a kernel variable", lambda: _write("/proc/sys/kernel/core_pattern", "core")),
    ]
    return [what for what, attempt in attempts if sys_.must_fail(what, attempt)]


def _connect() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("192.0.2.1", 9))


_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_ALL_V1 = (1 << 13) - 1
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV


def landlock_rights(abi: int) -> int:
    rights = _ALL_V1
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV)):
        if abi >= since:
            rights |= right
    return rights


def restrict_files(writable: List[str], devices: List[str]) -> int:
    """Apply to this process for good; the version applied, 0 where the kernel has none."""
    abi = sys_.landlock_abi()
    if abi == 0:
        return 0
    rights = landlock_rights(abi)
    # Files only. The network namespace has only its own loopback. Scopes of signals and abstract
    # sockets (version 6) are left to the pid and network namespaces: they would part init, worker
    # and commands, which are no forks of each other.
    ruleset = sys_.landlock_create_ruleset([rights])
    try:
        _allow_path(ruleset, "/", _READ & rights)
        # /proc: kernel files decide for themselves; /proc/self/oom_score_adj and comm are the
        # sandbox's own business, everything that is the host's is masked.
        _allow_path(ruleset, "/proc", (_READ | _WRITE_FILE | _TRUNCATE) & rights)
        for path in writable:
            _allow_path(ruleset, path, rights)
        for path in devices:
            _allow_path(ruleset, path, _ON_FILES & rights)
        sys_.landlock_restrict_self(ruleset)
    finally:
        os.close(ruleset)
    return abi


def _allow_path(ruleset: int, path: str, rights: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        sys_.landlock_allow(ruleset, fd, rights)
    finally:
        os.close(fd)
