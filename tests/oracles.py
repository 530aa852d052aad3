"""What the host sees of a hostile guest: canaries, counters, postures. Never the guest's word.

`Canaries` are things on the host that a guest must not reach; `wrongs()` says which were.
`tree()` and `drift()` compare what the kernel says of a guest's processes before and after.
`control()` runs the same hostile file where nothing stops it (as an unprivileged user, or in a
bare namespace): there the oracle must trip, or it would prove nothing.
"""

import base64
import contextlib
import ctypes
import errno
import hashlib
import json
import os
import platform
import pwd
import re
import resource
import secrets
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from importlib import resources
from pathlib import Path

import census
import setting

ROOT = os.geteuid() == 0
HERE = Path(__file__).parent
ESCAPES = HERE / "escapes"
NOBODY = 65534
# Of canaries and controls: when the tests run as root, these do not.
UNPRIVILEGED = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if ROOT else {}
# One that an unprivileged user may execute, for canaries and controls.
PYTHON = "/usr/bin/python3" if ROOT else sys.executable
NUMBERS = json.loads(
    resources.files("belljar").joinpath("backends/native/syscall_numbers.json").read_text()
)[platform.machine()]

# In the host's environment before any zygote starts, so that an inherited one would be seen.
ENVIRONMENT_SECRET = secrets.token_hex(16)
os.environ["BELLJAR_CANARY"] = ENVIRONMENT_SECRET

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


# --- canaries --------------------------------------------------------------------------------

_PROCESS = """
import ctypes, os, sys
secret = sys.stdin.readline().strip().encode()
buffer = ctypes.create_string_buffer(secret)
print(ctypes.addressof(buffer), flush=True)
for line in sys.stdin:
    print(buffer.raw[:-1].decode("latin-1"), flush=True)
"""


class Canaries:
    """A secret file, a file to be damaged, listeners, a live process; and how they fare."""

    def __init__(self):
        self.secret = secrets.token_hex(16)
        # Not below the tests' own directory: an unprivileged control must reach it.
        self.directory = Path(tempfile.mkdtemp(prefix="canary-", dir="/tmp"))
        self.directory.chmod(0o777)
        self.secret_file = self.directory / "secret.txt"
        self.victim = self.directory / "victim"
        self.hits = Counter()
        self._sockets = {}
        self._stop = threading.Event()

    def __enter__(self):
        self.secret_file.write_text(self.secret)
        self.secret_file.chmod(0o644)
        self.victim.write_text("untouched")
        self.victim.chmod(0o666)
        self._listen()
        self._start_process()
        self._thread = threading.Thread(target=self._serve, name="canaries", daemon=True)
        self._thread.start()
        self.reset()
        return self

    def __exit__(self, *exception):
        self._stop.set()
        self._thread.join()
        for sock in self._sockets:
            sock.close()
        self.process.kill()
        self.process.communicate()
        shutil.rmtree(self.directory)

    def _listen(self):
        self.port = 0
        for name, family, kind, address in (
            ("tcp", socket.AF_INET, socket.SOCK_STREAM, "0.0.0.0"),
            ("tcp6", socket.AF_INET6, socket.SOCK_STREAM, "::"),
            ("udp", socket.AF_INET, socket.SOCK_DGRAM, "0.0.0.0"),
            ("udp6", socket.AF_INET6, socket.SOCK_DGRAM, "::"),
        ):
            sock = socket.socket(family, kind)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address, self.port))
            self.port = sock.getsockname()[1]
            self._add(name, sock)
        self.unix_path = str(self.directory / "socket")
        self.abstract = f"belljar-canary-{secrets.token_hex(6)}"
        for name, address in (("unix", self.unix_path), ("abstract", "\0" + self.abstract)):
            sock = socket.socket(socket.AF_UNIX)
            sock.bind(address)
            self._add(name, sock)
        os.chmod(self.unix_path, 0o777)

    def _add(self, name, sock):
        if sock.type == socket.SOCK_STREAM:
            sock.listen(16)
        sock.setblocking(False)
        self._sockets[sock] = name

    def _serve(self):
        while not self._stop.is_set():
            for sock in select.select(list(self._sockets), [], [], 0.05)[0]:
                self.hits[self._sockets[sock]] += 1
                if sock.type == socket.SOCK_DGRAM:
                    sock.recv(4096)
                    continue
                with sock.accept()[0] as peer:
                    peer.sendall(self.secret.encode())

    def _start_process(self):
        self.process = subprocess.Popen(
            [PYTHON, "-I", "-c", _PROCESS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PROCESS_SECRET": self.secret},
            **UNPRIVILEGED,
        )
        self.address = int(self._ask(self.secret))

    def _ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def environment(self, *, confined):
        """What a guest is told: where the canaries are, never the secret itself."""
        targets = {
            "secret_file": str(self.secret_file),
            "victim": str(self.victim),
            "directory": str(self.directory),
            "port": self.port,
            "unix": self.unix_path,
            "abstract": self.abstract,
            "lan": lan_address(),
            "pid": self.process.pid,
            "address": self.address,
            "host_pid": os.getpid(),
            "home": pwd.getpwuid(os.getuid()).pw_dir,
        }
        variables = {"TARGETS": json.dumps(targets), "SYSCALLS": json.dumps(NUMBERS)}
        variables |= {"CONFINED": "1"} if confined else {}
        return variables | ({"IMAGE": "1"} if confined and setting.DOCKER else {})

    # -- the verdict ------------------------------------------------------------------------

    def reset(self):
        self.hits.clear()
        self._before = self._files()
        self._host = host_values()
        self._clock = time.time() - time.monotonic()

    def _files(self):
        found = {}
        for path in sorted(self.directory.rglob("*")):
            status = path.lstat()
            content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
            digest = hashlib.sha256(content).hexdigest()[:16]
            found[path.name] = (status.st_ino, status.st_nlink, status.st_mtime_ns, digest)
        return found

    def wrongs(self, output=""):
        """What a guest did to the host, by the name of the oracle that saw it."""
        found = {}
        for secret in (self.secret, ENVIRONMENT_SECRET):
            if secret in output or secret[::-1] in output:
                found["secret"] = "a secret of the host is in the output"
        if (files := self._files()) != self._before:
            found["files"] = f"files on the host changed: {self._before} -> {files}"
        if +self.hits:
            found["hits"] = f"listeners on the host were reached: {dict(self.hits)}"
        if self.process.poll() is not None:
            found["process"] = f"a process of the host died: {self.process.returncode}"
        elif self._ask("?") != self.secret:
            found["memory"] = "the memory of a process of the host was written"
        if (values := host_values()) != self._host:
            changed = {k: (self._host[k], v) for k, v in values.items() if v != self._host[k]}
            found["host"] = f"the host changed: {changed}"
        if abs(time.time() - time.monotonic() - self._clock) > 0.5:
            found["host"] = "the host's clock was set"
        return found

    def revive(self):
        """After a control has done its damage."""
        self.process.kill()
        self.process.communicate()
        self._start_process()
        for path in self.directory.iterdir():
            if path.name not in self._before:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.victim.unlink(missing_ok=True)
        self.victim.write_text("untouched")
        self.victim.chmod(0o666)
        for row in sysv() - self._host["sysv"]:
            kind, _, number = row.split()
            option = {"shm": "-m", "sem": "-s", "msg": "-q"}[kind]
            subprocess.run(["ipcrm", option, number], check=True)
        self.reset()


def lan_address():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))
            return sock.getsockname()[0]
        except OSError:
            return "127.0.0.1"


def sysv():
    rows = set()
    for kind in ("shm", "sem", "msg"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]:
                rows.add(f"{kind} {' '.join(line.split()[:2])}")
    return frozenset(rows)


_HOST_FILES = (
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/domainname",
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/sysrq",
    "/proc/sys/kernel/random/boot_id",
    "/proc/swaps",
    "/proc/modules",
    "/sys/kernel/uevent_helper",
    "/etc/hosts",
)


def host_values():
    """Settings of the whole machine that a guest may want to change."""
    values = {"sysv": sysv()}
    for path in _HOST_FILES:
        with contextlib.suppress(OSError):
            values[path] = Path(path).read_bytes()
    with contextlib.suppress(OSError):
        values["keys"] = frozenset(_keys(Path("/proc/keys").read_text()))
    return values


def _keys(text):
    """Number, type and name of each. A container gets a ring of its own from its runtime; keys in
    it would be further rows."""
    for row in text.splitlines():
        number, *_, kind, name = row.partition(":")[0].split(None, 8)
        if not re.fullmatch(r"_ses\.[0-9a-f]{64}", name):
            yield f"{number} {kind} {name}"


def everything(execution):
    """All that came out of a run, in one text to search."""
    parts = [execution.stdout, execution.stderr, repr(execution)]
    for name in ("text", "value", "error", "logs", "notes"):
        parts.append(str(getattr(execution, name, "")))
    for result in getattr(execution, "results", ()):
        for content in result.raw.values():
            raw = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
            parts.append(raw.decode("latin-1"))
            with contextlib.suppress(ValueError):
                parts.append(base64.b64decode(raw, validate=True).decode("latin-1"))
    return "\n".join(parts)


# --- postures --------------------------------------------------------------------------------

NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time")
_STATUS = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_STATUS += ("NoNewPrivs", "Seccomp", "Seccomp_filters", "TracerPid", "Cpus_allowed")
_FAMILIES = {1: "unix", 2: "inet", 10: "inet6"}
_TYPES = {1: "stream", 2: "dgram", 5: "seqpacket"}
_ANONYMOUS = {"eventfd", "eventpoll", "timerfd", "signalfd", "inotify", "pidfd"}
_PLAIN_PATHS = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def status(pid, tid=None):
    path = f"/proc/{pid}/task/{tid or pid}/status"
    rows = (line.partition(":") for line in Path(path).read_text().splitlines())
    return {name: " ".join(value.split()) for name, _, value in rows}


def threads(pid):
    return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))


def mounts(pid):
    """Mount point, options and type of everything mounted, in order."""
    rows = []
    for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        rows.append((fields[4], fields[5], after.split()[0], after.split()[2]))
    return tuple(rows)


def descriptors(pid):
    """What kind of thing each open descriptor is."""
    found = {}
    for name in sorted(os.listdir(f"/proc/{pid}/fd"), key=int):
        with contextlib.suppress(FileNotFoundError):
            found[int(name)] = _kind(pid, int(name), os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def _kind(pid, number, link):
    if link.startswith("socket:"):
        with _borrowed(pid, number) as fd, socket.socket(fileno=os.dup(fd)) as sock:
            family = sock.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN)
            kind = sock.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)
        return f"socket {_FAMILIES.get(family, family)} {_TYPES.get(kind, kind)}"
    if link.startswith("pipe:"):
        import fcntl

        with _borrowed(pid, number) as fd:
            size = fcntl.fcntl(fd, 1032)  # F_GETPIPE_SZ
        return "pipe" if size <= 65536 else f"pipe of {size} bytes"
    if link.startswith("pidfd:"):
        return "pidfd"
    if link.startswith("anon_inode:"):
        return link.partition(":")[2].strip("[]")
    if os.path.isdir(f"/proc/{pid}/fd/{number}"):
        return STORE if _is_store(pid, number) else f"directory {link}"
    return link


STORE = "its own tmpfs of /workspace"


def _is_store(pid, number):
    """Where init, and nobody else, keeps checkpoints: the root of the tmpfs of which /workspace is
    a part, and no file system of the host's."""
    with open(f"/proc/{pid}/status") as file:
        first = next(line for line in file if line.startswith("NSpid")).split()[-1] == "1"
    held = os.stat(f"/proc/{pid}/fd/{number}")
    return first and held.st_dev == os.stat(f"/proc/{pid}/root/workspace").st_dev


@contextlib.contextmanager
def _borrowed(pid, number):
    """A copy of another process's descriptor."""
    pidfd = os.pidfd_open(pid)
    try:
        fd = _libc.syscall(ctypes.c_long(438), ctypes.c_long(pidfd), ctypes.c_long(number), 0)
        if fd < 0:
            error = ctypes.get_errno()
            if error == errno.EBADF:
                raise FileNotFoundError(error, f"descriptor {number} of {pid} was just closed")
            raise OSError(error, f"pidfd_getfd {pid} {number}")
        try:
            yield fd
        finally:
            os.close(fd)
    finally:
        os.close(pidfd)


def unusual(kind):
    """Whether a guest's own code has no business with a descriptor of this kind."""
    if kind == "pipe" or kind in _ANONYMOUS or kind in _PLAIN_PATHS:
        return False
    if kind.startswith("socket "):
        family, _, type_ = kind.removeprefix("socket ").partition(" ")
        allowed = {"unix": ("stream", "dgram", "seqpacket")}
        return type_ not in allowed.get(family, ("stream", "dgram") if "inet" in family else ())
    return not kind.startswith(("/workspace", "/tmp", "/dev/shm", "/memfd:", "/proc/"))


def posture(pid, tid=None):
    """One task as the kernel describes it: all that a guest must not be able to change."""
    rows = status(pid, tid)
    root = os.stat(f"/proc/{pid}/root/")
    base = f"/proc/{pid}/task/{tid or pid}"
    return {
        **{name: rows.get(name) for name in _STATUS},
        **{f"{kind} namespace": os.readlink(f"{base}/ns/{kind}") for kind in NAMESPACES},
        "root": (root.st_dev, root.st_ino),
        "mounts": mounts(pid),
        "scheduling": (os.sched_getscheduler(tid or pid), _nice(pid, tid) < 0),
    }


def _nice(pid, tid):
    text = Path(f"/proc/{pid}/task/{tid or pid}/stat").read_text(errors="replace")
    return int(text.rpartition(")")[2].split()[16])


def tree(pid):
    """Every living process at and below `pid`."""
    return [p.pid for p in (census.process(pid), *census.descendants(pid)) if p and not p.dead]


def drift(reference, pids, *, known=()):
    """How any task of these processes differs from the reference. Empty: not at all."""
    return [line for pid in pids for line in _drift(reference, pid, known)]


def _drift(reference, pid, known):
    for _ in range(40):
        try:
            found = _differences(reference, pid, known)
            # A worker that init has just forked still has to let go of what is init's.
            if not any(line.endswith("is directory /workspace") for line in found):
                return found
            time.sleep(0.05)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            # A process that is just ending is nobody's, and a thread may be gone.
            if not census.alive(pid):
                return []
            time.sleep(0.05)
    return _differences(reference, pid, known)


def _differences(reference, pid, known):
    found = []
    for tid in threads(pid):
        now = posture(pid, tid)
        for name, value in reference.items():
            if now[name] != value:
                found.append(f"{name} of {pid}/{tid}: {value!r:.200} -> {now[name]!r:.200}")
    for number, kind in descriptors(pid).items():
        if unusual(kind) and kind not in known:
            found.append(f"descriptor {number} of {pid} is {kind}")
    return found


# --- guests ----------------------------------------------------------------------------------


def init_of(sandbox):
    return getattr(sandbox, "_sandbox", sandbox)._place.guest.pid


def worker_of(sandbox):
    """The process that runs the cells: the one child of init that is not a command. With gVisor,
    the host sees no more than gVisor's kernel, which is what `init_of` gives."""
    init = init_of(sandbox)
    if setting.GVISOR:
        return init

    def born():
        return [p for p in census.descendants(init) if p.parent == init]

    children = census.wait_until(born, what="a worker")
    return min(children, key=lambda p: p.started).pid


class Counters:
    """The control groups of a guest, read from the host's own mounts of them."""

    def __init__(self, pid):
        self._paths = {}
        mounted = {}
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            if after.split()[0] == "cgroup2":
                mounted[""] = before.split()[4]
            elif after.split()[0] == "cgroup":
                for controller in after.split()[2].split(","):
                    mounted[controller] = before.split()[4]
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for controller in controllers.split(","):
                if controller in mounted:
                    self._paths[controller] = Path(mounted[controller] + path)

    def _read(self, controller, v1, v2):
        if controller in self._paths:
            return (self._paths[controller] / v1).read_text()
        return (self._paths[""] / v2).read_text()

    @property
    def inside(self):
        made = re.compile("belljar|docker[/-][0-9a-f]{64}")
        return any(made.search(str(path)) for path in self._paths.values())

    @property
    def memory_limit(self):
        return int(self._read("memory", "memory.limit_in_bytes", "memory.max"))

    @property
    def memory_peak(self):
        return int(self._read("memory", "memory.max_usage_in_bytes", "memory.peak"))

    @property
    def processes(self):
        return int(self._read("pids", "pids.current", "pids.current"))

    @property
    def refused_forks(self):
        return int(self._read("pids", "pids.events", "pids.events").split()[1])

    @property
    def cpu_seconds(self):
        text = self._read("cpuacct", "cpuacct.usage", "cpu.stat")
        return int(text) / 1e9 if text.strip().isdigit() else int(text.split()[1]) / 1e6


def tasks_below(pid):
    return sum(len(threads(p)) for p in tree(pid))


def own_memory():
    """Resident bytes of this very process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


# --- controls --------------------------------------------------------------------------------

_RUNNER = """
import sys
source = sys.stdin.buffer.read(int(sys.stdin.buffer.readline())).decode()
print("@@ready", flush=True)
sys.stdin.buffer.readline()
exec(compile(source, "<guest>", "exec"), {"__name__": "__main__"})
print("@@done", flush=True)
sys.stdin.buffer.readline()
"""


class Control:
    """A hostile file run where nothing stops it: which oracles trip?"""

    def __init__(self, guest, canaries, kind):
        self._guest = guest
        self._canaries = canaries
        self._kind = kind
        self._output = bytearray()

    def trips(self):
        with tempfile.TemporaryDirectory(dir="/tmp", prefix="control-") as scratch:
            os.chmod(scratch, 0o777)
            shutil.copy(ESCAPES / "hostile.py", scratch)
            os.chmod(os.path.join(scratch, "hostile.py"), 0o644)
            self._start(scratch)
            try:
                return self._watch()
            finally:
                self._end()

    def _start(self, scratch):
        # A leaked directory, as a careless runner would have it.
        leaked = os.open(self._canaries.directory, os.O_RDONLY | os.O_DIRECTORY)
        command = [PYTHON, "-c", _RUNNER]
        if self._kind == "namespace":
            command = ["unshare", "--user", "--map-root-user", "--mount", *command]
        identity = UNPRIVILEGED
        if self._kind == "saved-root":
            leave = f"import os; os.setresuid({NOBODY}, {NOBODY}, 0)"
            command, identity = [PYTHON, "-c", leave + _RUNNER], {}
        environment = self._canaries.environment(confined=False)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=scratch,
                env={**environment, "BELLJAR_CANARY": ENVIRONMENT_SECRET, "PYTHONPATH": scratch},
                pass_fds=(leaked,),
                start_new_session=True,
                preexec_fn=_gentle,
                **identity,
            )
        finally:
            os.close(leaked)
        os.set_blocking(self._process.stdout.fileno(), False)
        source = self._guest.source.encode()
        self._process.stdin.write(f"{len(source)}\n".encode() + source)
        self._process.stdin.flush()
        if not self._read_until(b"@@ready", 10.0):
            raise AssertionError(f"the control did not start: {bytes(self._output)!r}")
        self._reference = posture(self._process.pid)
        self._known = set(descriptors(self._process.pid).values())

    def _watch(self):
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        done = self._read_until(b"@@done", self._guest.control_seconds)
        tripped = set()
        if self._process.poll() is None:
            if not done:
                tripped.add("hang")
            found = drift(self._reference, tree(self._process.pid), known=self._known)
            if found:
                tripped.add("posture")
        else:
            tripped.add(f"exit {self._process.returncode}")
        if len(self._output) > 200_000:
            tripped.add("output")
        text = self._output.decode("latin-1")
        tripped |= self._canaries.wrongs(text).keys()
        if "ACHIEVED" in text:
            tripped.add("achieved")
        return tripped

    def _read_until(self, mark, seconds):
        deadline = time.monotonic() + seconds
        while mark not in self._output[-200:] and time.monotonic() < deadline:
            if not select.select([self._process.stdout], [], [], 0.05)[0]:
                if self._process.poll() is not None:
                    return False
                continue
            data = os.read(self._process.stdout.fileno(), 65536)
            if not data:
                self._process.wait()
                return False
            self._output += data
            if len(self._output) > 1_000_000:
                return False
        return mark in self._output

    def _end(self):
        below = tree(self._process.pid) if self._process.poll() is None else []
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._canaries.revive()


def _gentle():
    """Limits of a control: it is hostile code, after all."""
    for kind, value in (
        (resource.RLIMIT_CPU, 5),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 16 << 20),
        (resource.RLIMIT_AS, 2 << 30),
    ):
        resource.setrlimit(kind, (value, value))
