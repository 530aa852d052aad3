"""The rows of the threat list: what hostile code tries, and which mechanisms stop it.

The attempts of a row are the programs and checks that name its number.
"""

from __future__ import annotations

from dataclasses import dataclass

FILES = "Files and paths"
KERNEL = "Namespaces, privileges, kernel"
PROCESSES = "Processes and signals"
LIMITS = "Memory, processors, room"
TIME = "Time and ends"
OUTPUT = "Output, protocol, results"
TRANSFERS = "The host's file API"
NETWORK = "Networks and sockets"
MACHINE = "The machine"
TENANTS = "Tenants and life cycles"
CALLERS = "Options and setup"
FAMILIES = (
    *(FILES, KERNEL, PROCESSES, LIMITS, TIME, OUTPUT),
    *(TRANSFERS, NETWORK, MACHINE, TENANTS, CALLERS),
)


@dataclass(frozen=True)
class Row:
    number: int
    family: str
    title: str
    stopped_by: tuple[str, ...]  # names in the tables below


def _row(number: int, family: str, title: str, *stopped_by: str) -> Row:
    return Row(number, family, title, stopped_by)


ROWS = (
    _row(1, FILES, "Secrets of the host are read", "root", "landlock", "environment"),
    _row(2, FILES, "System files are changed or removed", "root", "landlock"),
    _row(3, FILES, "A link in the workspace leads to the host", "root", "beneath"),
    _row(4, FILES, "A hard link brings a file of the host in", "root", "tmpfs"),
    _row(5, FILES, "/proc gives a way to another root", "pids", "root"),
    _row(6, FILES, "An inherited descriptor leads out", "closed"),
    _row(7, FILES, "The working directory lies above the root", "root", "closed"),
    _row(8, KERNEL, "File systems are mounted or remounted", "powerless", "filter"),
    _row(9, KERNEL, "A new user namespace gives powers back", "filter", "powerless"),
    _row(10, KERNEL, "clone3 hides its flags from the filter", "filter"),
    _row(11, KERNEL, "Namespaces of others are entered", "filter", "powerless"),
    _row(12, KERNEL, "The root is left by a second chroot", "filter", "powerless"),
    _row(13, KERNEL, "A program with privileges gives them", "powerless", "root"),
    _row(14, KERNEL, "Devices are made or opened", "powerless", "devices"),
    _row(15, PROCESSES, "The supervisor is traced", "filter", "supervisor"),
    _row(16, PROCESSES, "Memory or descriptors of others are taken", "filter", "pids"),
    _row(17, PROCESSES, "The supervisor's memory is written", "supervisor", "filter"),
    _row(18, PROCESSES, "Processes of the host are ended", "pids"),
    _row(19, PROCESSES, "The code ends or stops its own runner", "supervisor", "deadline"),
    _row(20, LIMITS, "Processes without end", "tasks", "rlimits"),
    _row(21, LIMITS, "Threads without end", "tasks"),
    _row(22, LIMITS, "Memory without end", "memory"),
    _row(23, LIMITS, "Memory in files without a name, or shared", "memory", "filter", "tmpfs"),
    _row(24, LIMITS, "Many children, each within the limit", "memory"),
    _row(25, LIMITS, "Kernel memory in pipes", "memory", "rlimits"),
    _row(26, LIMITS, "Kernel memory in sockets, descriptors in flight", "memory", "rlimits"),
    _row(27, LIMITS, "Kernel memory in names and inodes", "memory", "tmpfs"),
    _row(28, LIMITS, "Every writable place is filled", "tmpfs"),
    _row(29, LIMITS, "Empty files without end", "tmpfs"),
    _row(30, LIMITS, "Directories nested thousands deep", "tmpfs", "pids"),
    _row(31, LIMITS, "Objects of System V and message queues stay", "ipc", "rlimits"),
    _row(32, LIMITS, "All descriptors are used up", "rlimits"),
    _row(33, LIMITS, "Quotas that a user shares are used up", "uid"),
    _row(34, LIMITS, "More processor time than the share", "cpu"),
    _row(35, LIMITS, "A better place in the schedule", "powerless", "filter", "rlimits"),
    _row(36, TIME, "Signals are ignored, the end is slept through", "deadline", "supervisor"),
    _row(37, TIME, "One call that never comes back", "deadline"),
    _row(38, TIME, "A daemon outlives its sandbox", "pids"),
    _row(39, TIME, "The host's process dies, the guest lives on", "lease", "pids"),
    _row(40, OUTPUT, "A flood of output", "cap"),
    _row(41, OUTPUT, "One line without an end", "cap"),
    _row(42, OUTPUT, "Standard input is waited for, or closed", "deadline"),
    _row(43, OUTPUT, "Output that is no text", "cap", "codec"),
    _row(44, OUTPUT, "Control sequences for the caller's terminal", "printable"),
    _row(45, OUTPUT, "Forged answers on the guest's own sockets", "protocol", "supervisor"),
    _row(46, OUTPUT, "Secrets in the guest's own memory", "environment", "closed"),
    _row(47, OUTPUT, "The runner is replaced from within", "supervisor", "protocol"),
    _row(48, OUTPUT, "An exit that looks like success", "supervisor"),
    _row(49, OUTPUT, "A crash, and its core file", "rlimits", "supervisor"),
    _row(50, OUTPUT, "Recursion, in Python and below it", "rlimits", "supervisor"),
    _row(51, OUTPUT, "The connection is closed or covered", "supervisor"),
    _row(52, TIME, "A hang after the result", "deadline"),
    _row(53, OUTPUT, "Threads that speak in a later cell", "protocol"),
    _row(54, OUTPUT, "Results that are huge, cyclic or hostile", "codec", "cap", "deadline"),
    _row(55, OUTPUT, "A result that is code for the host", "codec"),
    _row(56, OUTPUT, "Values that parsers stumble over", "codec", "cap"),
    _row(57, TRANSFERS, "A tree that unpacks outside, or without end", "beneath", "budget"),
    _row(58, TRANSFERS, "A path that changes while it is opened", "beneath"),
    _row(59, TRANSFERS, "A pipe or device where a file was", "beneath"),
    _row(60, TRANSFERS, "A file larger than any disk", "budget"),
    _row(61, TRANSFERS, "A file that changes while it is read", "budget"),
    _row(62, TRANSFERS, "Names of every kind", "beneath", "printable"),
    _row(63, TRANSFERS, "Files that the host would run later", "isolated", "options"),
    _row(64, MACHINE, "The caller's terminal is typed into", "filter", "closed"),
    _row(65, MACHINE, "Keyrings of the kernel", "filter"),
    _row(66, MACHINE, "Rare and dangerous calls", "filter"),
    _row(67, MACHINE, "io_uring, which no filter sees", "filter"),
    _row(68, MACHINE, "System calls of another architecture", "filter"),
    _row(69, NETWORK, "Sockets of rare families", "filter"),
    _row(70, NETWORK, "Abstract sockets of the host", "network", "landlock"),
    _row(71, NETWORK, "Sockets of services in the file system", "root"),
    _row(72, NETWORK, "Services on the host's addresses", "network"),
    _row(73, NETWORK, "Metadata services, and names that carry data", "network"),
    _row(74, NETWORK, "Tricks against a list of allowed hosts", "nothing"),
    _row(75, NETWORK, "An empty setting that means everything", "options", "network"),
    _row(76, MACHINE, "Clock, name and variables of the machine", "powerless", "filter", "names"),
    _row(77, MACHINE, "Power, kernels, modules, swap", "powerless", "filter"),
    _row(78, MACHINE, "Programs that the kernel runs", "proc", "root"),
    _row(79, MACHINE, "What the kernel tells of the machine", "proc"),
    _row(80, FILES, "Files opened by a handle", "filter", "powerless"),
    _row(81, PROCESSES, "Who dies when memory runs out", "supervisor", "memory", "root"),
    _row(82, TENANTS, "Code planted for the next interpreter", "isolated", "one-tenant"),
    _row(83, TENANTS, "A sandbox sees another", "pids", "network", "ipc", "uid"),
    _row(84, TENANTS, "What one tenant leaves for the next", "one-tenant"),
    _row(85, TENANTS, "Random numbers that a sibling knows", "reseeded"),
    _row(86, CALLERS, "A root that is full of traps", "order", "root"),
    _row(87, CALLERS, "Options that lower the walls", "options", "beneath"),
    _row(88, CALLERS, "Code that is odd as a text", "protocol", "options"),
    _row(89, TENANTS, "Starts and ends of every kind", "lease", "pids"),
    _row(90, CALLERS, "Code that runs before the walls stand", "order"),
    _row(91, KERNEL, "A thread without the filter", "order", "filter", "powerless"),
    _row(92, CALLERS, "Rules of an old runtime", "doctor", "filter"),
    _row(93, MACHINE, "A terminal of its own leads to others", "terminals", "filter", "closed"),
    _row(94, TENANTS, "A paused sandbox goes on", "freezer"),
    _row(95, NETWORK, "A forwarded port leads back", "network"),
    _row(96, OUTPUT, "A context speaks for another", "protocol", "supervisor"),
)


_EVERYWHERE = {
    "environment": "only the variables that the caller gives, and a fixed few",
    "closed": "every descriptor is closed before the guest's program starts",
    "protocol": "answers are typed, length-prefixed and capped; the kernel's exit status wins",
    "supervisor": "init, a process separate from the code, keeps the time and reports the end",
    "deadline": "the host's clock, and a kill that reaches everything in the guest",
    "cap": "the host reads a limited number of bytes",
    "codec": "values are plain data in Belljar's own encoding; the host unpickles nothing",
    "printable": "texts for people are escaped",
    "beneath": "only regular files are opened, below one directory, without following links",
    "budget": "transfers are limited in bytes, files and depth",
    "options": "options are typed and checked once, before anything starts",
    "one-tenant": "a guest serves one sandbox and is then thrown away",
    "isolated": "the interpreter is isolated, and its root is read-only",
    "reseeded": "each guest seeds its random numbers again",
    "order": "all layers are on before anything is sent; if one is missing, no guest starts",
    "lease": "the guest ends when its connection to the host closes",
    "doctor": "layers are measured on the live guest, and the filter is Belljar's own",
    "landlock": "Landlock rules",
    "rlimits": "resource limits",
    "uid": "its own host uid",
    "nothing": "there is no such feature",
    "freezer": "the host stops every process, and looks whether it stays so",
}
_NATIVE = {
    "root": "mount namespace with its own read-only root",
    "pids": "pid namespace",
    "network": "network namespace with loopback only",
    "ipc": "ipc namespace",
    "names": "its own uts namespace (host name)",
    "powerless": "no capability in any set, no_new_privs, a user namespace of one user",
    "filter": "seccomp filter: an allow-list of calls, flags and socket families",
    "memory": "memory control group",
    "tasks": "pids control group and RLIMIT_NPROC",
    "cpu": "cpu control group",
    "tmpfs": "tmpfs with a limited size and number of files",
    "devices": "a /dev of six nodes, nodev elsewhere",
    "terminals": "a devpts of its own, with 16 terminals at most",
    "proc": "a /proc of its own processes, kernel files masked, no /sys",
}
_USER = {
    "memory": "RLIMIT_DATA, a watchdog, no memory outside processes (reported as best effort)",
    "tasks": "RLIMIT_NPROC in its own user namespace",
    "cpu": "CPU affinity",
    "uid": "its own user namespace",
}
_DOCKER = {
    "root": "read-only root of the container's image",
    "pids": "the container's pid namespace",
    "network": "no network except loopback",
    "ipc": "the container's ipc namespace",
    "names": "the container's namespaces",
    "powerless": "all capabilities dropped, no-new-privileges, an unprivileged user",
    "filter": "Belljar's seccomp profile, given to the engine",
    "memory": "the container's memory limit",
    "tasks": "the container's pids limit",
    "cpu": "the container's cpu limit",
    "tmpfs": "tmpfs with a limited size",
    "devices": "the container's /dev, no device added",
    "terminals": "the container's own devpts",
    "proc": "masked paths in /proc, no writable /sys",
}
_GVISOR = dict.fromkeys(
    ("filter", "landlock", "proc", "devices", "terminals"),
    "gVisor's kernel answers; the host's kernel is not called",
)


def explain_mechanisms(names: tuple[str, ...], kind: str, *, counted: bool) -> tuple[str, ...]:
    """What stops an attempt in this kind of setting, each thing once."""
    table = _EVERYWHERE | (_NATIVE if kind == "native" else _DOCKER)
    if kind == "native" and not counted:
        table |= _USER
    if kind == "gvisor":
        table |= _GVISOR
    return tuple(dict.fromkeys(table[name] for name in names))
