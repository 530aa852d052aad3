"""What stops a guest, by name, and what each is in a setting."""

from __future__ import annotations

_EVERYWHERE = {
    "environment": "only the variables that the caller gives, and a fixed few",
    "closed": "every descriptor is closed before the guest's program starts",
    "protocol": "answers are typed, length-prefixed and capped; the kernel's exit status wins",
    "supervisor": "init, another process than the code's, keeps the time and tells the end",
    "deadline": "the host's clock, and a kill that reaches everything in the guest",
    "cap": "the host reads bytes up to a limit, whatever they are",
    "codec": "values are plain data in our own encoding; the host unpickles nothing",
    "printable": "texts for people are escaped",
    "beneath": "files are opened below a directory, without links, and only if they are files",
    "budget": "transfers are bounded by bytes, by files and by depth",
    "options": "options are typed and checked once, before anything starts",
    "one-tenant": "a guest serves one sandbox, and is thrown away",
    "isolated": "the interpreter is isolated, and its root is read-only",
    "reseeded": "random numbers are seeded in each guest",
    "order": "all layers are on before anything is sent; a layer that is missing means no guest",
    "lease": "the guest's life hangs on a connection of the host's",
    "doctor": "layers are measured on the live guest, and the filter is ours",
    "nothing": "there is no such feature",
}
_NATIVE = {
    "root": "mount namespace with a read-only root of its own",
    "landlock": "Landlock rules",
    "pids": "pid namespace",
    "network": "network namespace with loopback alone",
    "ipc": "ipc namespace",
    "names": "uts and time settings of its own namespaces",
    "powerless": "no capability in any set, no_new_privs, a user namespace of one user",
    "filter": "seccomp filter: an allow-list of calls, flags and socket families",
    "memory": "memory control group",
    "tasks": "pids control group and RLIMIT_NPROC",
    "cpu": "cpu control group",
    "tmpfs": "tmpfs with a size and a number of files",
    "rlimits": "resource limits",
    "devices": "a /dev of six nodes, nodev elsewhere",
    "proc": "a /proc of its own processes, kernel files masked, no /sys",
    "uid": "a user of the host of its own",
}
_USER = {
    "memory": "RLIMIT_DATA, a watchdog, no memory outside processes (best effort: said aloud)",
    "tasks": "RLIMIT_NPROC in its own user namespace",
    "cpu": "processors it may run on",
    "uid": "a user namespace of its own",
}
_DOCKER = {
    "root": "read-only root of the container's image",
    "landlock": "Landlock rules",
    "pids": "the container's pid namespace",
    "network": "no network but loopback",
    "ipc": "the container's ipc namespace",
    "names": "the container's namespaces",
    "powerless": "all capabilities dropped, no-new-privileges, an unprivileged user",
    "filter": "our seccomp profile, given to the engine",
    "memory": "the container's memory limit",
    "tasks": "the container's pids limit",
    "cpu": "the container's cpu limit",
    "tmpfs": "tmpfs with a size",
    "rlimits": "resource limits",
    "devices": "the container's /dev, no device added",
    "proc": "masked paths in /proc, no writable /sys",
    "uid": "a user of the host of its own",
}
_GVISOR = dict.fromkeys(
    ("filter", "landlock", "proc", "devices"),
    "gVisor's own kernel answers: the host's is not called",
)


def explain(names: tuple[str, ...], kind: str, *, counted: bool) -> tuple[str, ...]:
    """What stops an attempt in this kind of setting, without saying one thing twice."""
    table = _EVERYWHERE | (_NATIVE if kind == "native" else _DOCKER)
    if kind == "native" and not counted:
        table |= _USER
    if kind == "gvisor":
        table |= _GVISOR
    return tuple(dict.fromkeys(table[name] for name in names))
