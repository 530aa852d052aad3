"""The posture of a guest in words that are the same on every machine, and how two of them differ.

`Lens` reads every task of a live guest from outside (/proc) and normalises: namespaces are "own",
"the host's" or "its parent's"; users are classes; limits that nobody set are "inherited"; what is
bound below /usr and /opt is one class. `golden_compare.py` compares them.

What /proc does not show is not here: Landlock, securebits, keyrings. `test_escapes.py` tries those.
"""

import contextlib
import os
import re
import signal
from collections import Counter
from pathlib import Path

import census
import oracles
import setting
from belljar.backends.linux import guest_view, identity
from golden_mounts import mount_table

_CAPABILITIES = (
    *("chown", "dac_override", "dac_read_search", "fowner", "fsetid", "kill", "setgid", "setuid"),
    *("setpcap", "linux_immutable", "net_bind_service", "net_broadcast", "net_admin", "net_raw"),
    *("ipc_lock", "ipc_owner", "sys_module", "sys_rawio", "sys_chroot", "sys_ptrace", "sys_pacct"),
    *("sys_admin", "sys_boot", "sys_nice", "sys_resource", "sys_time", "sys_tty_config", "mknod"),
    *("lease", "audit_write", "audit_control", "setfcap", "mac_override", "mac_admin", "syslog"),
    *("wake_alarm", "block_suspend", "audit_read", "perfmon", "bpf", "checkpoint_restore"),
)
_SETS = {"inheritable": "CapInh", "permitted": "CapPrm", "effective": "CapEff"}
_SETS |= {"bounding": "CapBnd", "ambient": "CapAmb"}
_SIGNALS = {"blocked": "SigBlk", "ignored": "SigIgn", "caught": "SigCgt"}
_POLICIES = {os.SCHED_OTHER: "other", os.SCHED_BATCH: "batch", os.SCHED_IDLE: "idle"}
# Rows of /proc/PID/limits that Belljar sets; the others come from who started the guest.
_SET = {"core file size", "open files", "locked memory", "pending signals", "msgqueue size"}
_SET |= {"nice priority", "realtime priority", "file size"}
_SET |= set() if setting.DOCKER else {"processes"}
_INTERPRETER = 128 << 20  # the most that may have been in use before any code


def read(path):
    return Path(path).read_text(errors="surrogateescape")


# --- words ---------------------------------------------------------------------------------------


def who_is(number, guest):
    """`guest`: the number that this guest has, which counts if it is nobody else's."""
    if number == guest and identity.UID_FIRST < number < identity.UID_FIRST + identity.UID_COUNT:
        return "guest"
    if number == identity.UID_FIRST:
        return "zygote"
    if number in (os.getuid(), os.getgid()) and number:
        return "caller"
    return {0: "root", oracles.NOBODY: "nobody"}.get(number, f"another, {number}")


def bits(text, names):
    """The names of the bits of a mask, in one line."""
    mask = int(text, 16)
    found = [number for number in range(mask.bit_length()) if mask >> number & 1]
    return " ".join(names(number) for number in found) or "none"


def capability(number):
    return _CAPABILITIES[number] if number < len(_CAPABILITIES) else f"number {number}"


def capabilities(rows):
    """The five sets, or those that there are; "all" are as many as the kernel knows."""
    every = range(int(read("/proc/sys/kernel/cap_last_cap")) + 1)
    whole = " ".join(capability(number) for number in every)
    found = {name: bits(rows[row], capability) for name, row in _SETS.items() if row in rows}
    return {name: "all" if words == whole else words for name, words in found.items()}


def signal_name(number):
    with contextlib.suppress(ValueError):
        return signal.Signals(number + 1).name
    return f"signal {number + 1}"


def limit_rows(text):
    rows = {}
    for line in text.splitlines()[1:]:
        name, soft, hard = re.match(r"Max (.*?)  +(\S+) +(\S+)", line).groups()
        rows[name] = f"{soft} {hard}"
    return rows


def environment(text):
    """One variable depends on where the interpreter is, and is there or not."""
    if oracles.ENVIRONMENT_SECRET in text:
        return {"THE CANARY": "is there"}
    found = dict(word.partition("=")[::2] for word in text.split("\0") if word)
    if found.get("LD_LIBRARY_PATH") == f"{guest_view.GUEST_PYTHON_PREFIX}/lib":
        del found["LD_LIBRARY_PATH"]
    return dict(sorted(found.items()))


# --- one guest, from outside ---------------------------------------------------------------------


def links(base):
    return {kind: os.readlink(f"{base}/ns/{kind}") for kind in sorted(os.listdir(f"{base}/ns"))}


def opened(base):
    """A thread may have a table of its own."""
    return set(os.listdir(f"{base}/fd"))


class Lens:
    """Looks at the processes of one guest, and knows what is its own and what others'."""

    def __init__(self, sandbox):
        self.init = oracles.init_of(sandbox)
        self.limits = sandbox.limits
        self.parent = census.process(self.init).parent  # the zygote, or the engine's shim
        self.uid = int(oracles.status(self.init)["Uid"].split()[0])
        self.namespaces = links(f"/proc/{self.init}")

    def who(self, number):
        return who_is(number, self.uid)

    def posture(self):
        """By role. Every task of every process is looked at; who is not init and not the worker
        is an `other`."""
        if setting.GVISOR:
            gofers = [p for p in census.descendants(self.parent) if p.parent == self.parent]
            below = [pid for pid in oracles.tree(self.init) if pid != self.init]
            roles = {"gofer": [p.pid for p in gofers if p.pid != self.init]}
            return self._of({"sentry": [self.init], "stub": below, **roles})
        worker = self.worker()
        others = [pid for pid in oracles.tree(self.init) if pid not in (self.init, worker)]
        return self._of({"init": [self.init], "worker": [worker], "other": others})

    def beginning(self):
        """What a worker may go down from: its limits, and init's score for being killed."""
        rows = limit_rows(read(f"/proc/{self.worker()}/limits"))
        score = int(read(f"/proc/{self.init}/oom_score_adj"))
        found = {f"limits > {name}": value for name, value in rows.items()}
        return {**found, "scheduling > score for being killed": score}

    def worker(self):
        if setting.GVISOR:
            return self.init
        born = census.descendants(self.init)
        return min(born, key=lambda p: p.started).pid

    def _of(self, roles):
        found = {"mounts": mount_table(read(f"/proc/{self.init}/mountinfo"), self.who)}
        found["control groups"] = self._groups()
        for role, pids in roles.items():
            for count, pid in enumerate(pids):
                common = self.process(pid, role)
                for tid in oracles.threads(pid):
                    task = common | self.thread(pid, tid, role)
                    if census.is_ending(tid):  # and has lost some of what it had
                        raise ProcessLookupError(f"{role} {pid}/{tid} is just ending")
                    name = f"{role} {count + 1}" if role == "other" else role
                    if found.setdefault(name, task) != task:
                        found[f"{role} {pid}/{tid}"] = task
        return found

    def process(self, pid, role):
        """What all threads of a process have in common."""
        found = {
            "user map": self._map(read(f"/proc/{pid}/uid_map")),
            "group map": self._map(read(f"/proc/{pid}/gid_map")),
            "setgroups": read(f"/proc/{pid}/setgroups").strip(),
            "files in proc are": self.who(os.stat(f"/proc/{pid}/environ").st_uid) + "'s",
            "session": self._session(pid, oracles.status(pid)),
            "limits": self._limits(pid),
            "environment": environment(read(f"/proc/{pid}/environ")),
            "descriptors": self.descriptors(pid, role),
        }
        if setting.GVISOR:
            del found["session"]
        return found

    def thread(self, pid, tid, role):
        """What the kernel keeps for each thread."""
        base = f"/proc/{pid}/task/{tid}"
        rows = oracles.status(pid, tid)
        found = {
            "users": " ".join(self.who(int(word)) for word in rows["Uid"].split()),
            "groups": " ".join(self.who(int(word)) for word in rows["Gid"].split()),
            "further groups": self._further(rows["Groups"]),
            "capabilities": capabilities(rows),
            "no new privileges": rows["NoNewPrivs"],
            "seccomp": {"mode": rows["Seccomp"]},
            "namespaces": self._namespaces(base),
            "mounts": "the guest's" if self._mounts(base) else "others",
            "control groups": "the guest's" if self._same(base, "cgroup") else "others",
            "root": self._root(base),
            "directory": os.readlink(f"{base}/cwd"),
            "umask": rows["Umask"],
            "traced by": self._tracer(rows["TracerPid"]),
            "personality": read(f"{base}/personality").strip(),
            "signals": {name: bits(rows[row], signal_name) for name, row in _SIGNALS.items()},
            "scheduling": self._scheduling(pid, tid, role),
            "descriptors are": "its process's"
            if opened(base) == opened(f"/proc/{pid}")
            else "others",
        }
        if "Seccomp_filters" in rows:
            found["seccomp"]["filters"] = rows["Seccomp_filters"]
        if setting.GVISOR:  # it is Go's business how it waits
            del found["signals"], found["personality"]
        return found

    def _further(self, text):
        if text and not setting.DOCKER and text == oracles.status(os.getpid())["Groups"]:
            return "the caller's"
        return " ".join(self.who(int(word)) for word in text.split()) or "none"

    def _map(self, text):
        rows = [line.split() for line in text.splitlines()]
        if rows == [["0", "0", "4294967295"]]:
            return "everybody, as outside"
        return ", ".join(f"{a} is {self.who(int(b))}, {n} of them" for a, b, n in rows)

    def _namespaces(self, base):
        host, parent = links("/proc/self"), links(f"/proc/{self.parent}")
        words = {}
        for kind, link in links(base).items():
            if link == host.get(kind):
                words[kind] = "the host's"
            elif link == parent.get(kind):
                words[kind] = "its parent's"
            else:
                words[kind] = "own" if link == self.namespaces.get(kind) else "another"
        return words

    def _same(self, base, name):
        return read(f"{base}/{name}") == read(f"/proc/{self.init}/{name}")

    def _mounts(self, base):
        gofer = setting.GVISOR and "gofer" in read(f"{base}/cmdline")  # which has its own
        return gofer or self._same(base, "mountinfo")

    def _root(self, base):
        there, here = os.stat(f"{base}/root/"), os.stat("/")
        same = (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
        return "the host's" if same else os.readlink(f"{base}/root")

    def _tracer(self, pid):
        if pid == "0":
            return "nobody"
        sentry = setting.GVISOR and os.path.exists(f"/proc/{self.init}/task/{pid}")
        return "the sentry" if sentry else "somebody"

    def _session(self, pid, rows):
        inside = rows["NSpid"].split()[-1]
        fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        return {
            "number inside": "1" if inside == "1" else "another",
            "leads its session": str(rows["NSsid"].split()[-1] == inside),
            "leads its group": str(rows["NSpgid"].split()[-1] == inside),
            "terminal": "none" if fields[4] == "0" else fields[4],
        }

    def _scheduling(self, pid, tid, role):
        fields = read(f"/proc/{pid}/task/{tid}/stat").rpartition(")")[2].split()
        policy = os.sched_getscheduler(tid)
        ours, oom = read("/proc/self/oom_score_adj"), read(f"/proc/{pid}/oom_score_adj")
        inherited = not setting.DOCKER and role == "init" and ours == oom
        if role in ("sentry", "stub", "gofer"):
            oom = "0 or more" if int(oom) >= 0 else oom
        return {
            "policy": _POLICIES.get(policy, f"number {policy}"),
            "niceness": str(int(fields[16]) - _base_niceness()),
            "realtime priority": fields[37],
            "processors": self._processors(os.sched_getaffinity(tid)),
            "score for being killed": "inherited" if inherited else oom.strip(),
        }

    def _processors(self, found):
        ours = os.sched_getaffinity(0)
        wanted = min(len(ours), max(1, -int(-self.limits.cpus // 1)))
        if not setting.COUNTED and len(found) == wanted and found <= ours:
            return "as many as the limit"
        return "all" if found >= ours else f"{len(found)} of them"

    def _limits(self, pid):
        parents = limit_rows(read(f"/proc/{self.parent}/limits"))
        rows = limit_rows(read(f"/proc/{pid}/limits"))
        if setting.GVISOR:  # it raises its own as far as it may
            return {n: "inherited" if _hard(v) == _hard(parents[n]) else v for n, v in rows.items()}
        data = rows["data size"].split()[0]
        most = self.limits.memory
        if data.isdigit() and most < int(data) < most + _INTERPRETER:
            rows["data size"] = "the limit of memory, and what the interpreter began with"
        return {
            name: "inherited" if value == parents.get(name) and name not in _SET else value
            for name, value in rows.items()
        }

    def descriptors(self, pid, role):
        """Init's and gVisor's by kind, as their numbers say nothing; the worker's by number."""
        found = oracles.descriptors(pid)
        kinds = {number: self._kind(pid, number, kind) for number, kind in found.items()}
        if role in ("sentry", "stub", "gofer"):
            return sorted(set(kinds.values()))
        if role == "init":
            return {kind: str(count) for kind, count in sorted(Counter(kinds.values()).items())}
        return {str(number): kind for number, kind in kinds.items()}

    def _kind(self, pid, number, kind):
        if kind == "pipe":
            with contextlib.suppress(FileNotFoundError):
                flags = int(
                    re.search(r"flags:\s+(\d+)", read(f"/proc/{pid}/fdinfo/{number}"))[1], 8
                )
                return f"pipe, {('to read', 'to write', 'both ways')[flags & 3]}"
        if setting.GVISOR and kind.startswith("/root/"):
            return "a file of the image"
        if setting.GVISOR and "/io.containerd.runtime." in kind:
            return f"the engine's {Path(kind).name} of this container"
        return kind

    def _groups(self):
        """Of the controllers that limit; where none is its own, a native guest has none."""
        where, parents = control_groups(self.init), control_groups(self.parent)
        found = {}
        for name, (one, two) in _CONTROLLERS.items():
            kind = name.partition(",")[0]
            path = where.get(kind)
            own = path and path != parents.get(kind) and re.search(r"belljar|[0-9a-f]{64}", path)
            if not own:
                found[name] = "the host's"
                continue
            with contextlib.suppress(FileNotFoundError):
                file = one if Path(path, one.split()[0]).exists() else two
                words = " ".join(read(Path(path, part)).strip() for part in file.split())
                found[name] = f"at most {_ratio(words)}"
        return found


_CONTROLLERS = {
    "memory": ("memory.limit_in_bytes", "memory.max"),
    "pids": ("pids.max", "pids.max"),
    "cpu": ("cpu.cfs_quota_us cpu.cfs_period_us", "cpu.max"),
}


def _hard(row):
    return row.split()[1]


def _ratio(words):
    """Of quota and period."""
    first, _, second = words.partition(" ")
    return f"{int(first) / int(second):g}" if first.isdigit() and second else words


def control_groups(pid):
    """Controller -> directory of the process's group on this host."""
    mounted, found = {}, {}
    for line in read("/proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2":
            mounted.setdefault("", before.split()[4])
        elif kind == "cgroup":
            mounted |= dict.fromkeys(options.split(","), before.split()[4])
    for line in read(f"/proc/{pid}/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(",") if names else ("", "memory", "pids", "cpu"):
            if (names or name not in found) and (top := mounted.get(name if names else "")):
                found[name] = top + path
    return found


def _base_niceness():
    """Natively a guest has that of who starts it."""
    return 0 if setting.DOCKER else os.getpriority(os.PRIO_PROCESS, 0)


# --- one guest, by its own word ------------------------------------------------------------------


def inside(told):
    """What golden/say_posture.py said in the guest: init and worker as gVisor shows them there."""
    found = {}
    for role, process in zip(("init", "worker"), told["processes"], strict=False):
        lines = (line.partition(":") for line in process["status"].splitlines())
        rows = {name: " ".join(value.split()) for name, _, value in lines}
        uid = int(rows["Uid"].split()[0])

        def who(number, uid=uid):
            return who_is(number, uid)

        found[role] = {
            "users": " ".join(who(int(word)) for word in rows["Uid"].split()),
            "groups": " ".join(who(int(word)) for word in rows["Gid"].split()),
            "further groups": " ".join(who(int(word)) for word in rows["Groups"].split()),
            "capabilities": capabilities(rows),
            "seccomp": {"mode": rows["Seccomp"]},
            "directory": process["directory"] or "it does not say",
            "environment": environment(process["environment"]),
            "descriptors": process["descriptors"],
        }
        found["mounts"] = mount_table(process["mounts"], who)
    found["processes"] = str(len(told["processes"]))
    found["worker"]["limits"] = told["limits"]
    return found
