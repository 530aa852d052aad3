"""Faults at a step of a process, from outside: strace lets the n-th call of a kind fail, or kills.

A step is (stage, call, n). The stages differ in who is traced, and from when on:

    host     the host process itself, from before its first sandbox
    start    launcher, zygote, first guest, from their first instruction
    guest    a zygote that runs, and the next guest from its fork on
    inside   a guest that runs: init, worker and what they start

strace counts in each thread for itself, so a fault may meet several of them, each once.
"""

import contextlib
import dataclasses
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import census
import setting
from belljar.backends.linux import cgroup

STRACE = shutil.which("strace")
ABSENT = STRACE is None and "strace" not in setting.REQUIRED
STAGES = ("host", "start", "guest", "inside")
PATIENCE = 200.0  # seconds for one story; the longest time-outs in it are of 30 s
SETTLE = 10.0
DYING = 60.0  # seconds for what was killed to be gone, on a busy machine
LATER = ("again", "last")  # steps with sandboxes of their own

# What each call says when a machine is full, or broken.
ERRORS = {
    "EMFILE": "openat socket socketpair pipe2 memfd_create dup dup3 eventfd2 epoll_create1 "
    "pidfd_open accept4 inotify_init1",
    "ENOMEM": "mmap mremap execve setns mount pivot_root sendmsg recvmsg recvfrom getdents64 "
    "readlink readlinkat newfstatat ioctl landlock_create_ruleset landlock_add_rule "
    "landlock_restrict_self seccomp setgroups poll prlimit64 unshare",
    "EAGAIN": "clone clone3 fork vfork setresuid",
    "ENOSPC": "write pwrite64 ftruncate mkdir mkdirat rename renameat renameat2 link "
    "linkat symlink symlinkat inotify_add_watch fallocate unshare",
    "EIO": "read pread64 fsync fdatasync unlink unlinkat fchmod fchmodat utimensat fchown "
    "fchownat lseek flock statfs",
    "EBUSY": "rmdir umount2",
    "EPERM": "setresgid capset prctl sethostname setsid sched_setaffinity",
}
# Whose end is much the same without being killed.
NOT_KILLED_AT = {"exit", "exit_group", "rt_sigreturn", "restart_syscall"}


@dataclasses.dataclass(frozen=True)
class Point:
    stage: str
    fault: str  # "KILL", an error's name, "SLOW"; "" to trace only, "NONE" not even that
    call: str = ""
    number: int = 0

    def __str__(self):
        return f"{self.stage} {self.call}#{self.number} {self.fault}"

    @property
    def arguments(self):
        if not self.fault:
            return ["-e", "trace=all"]
        if self.fault == "SLOW":
            return ["-e", f"trace={self.call}", "-e", f"inject={self.call}:delay_enter=20000"]
        # Another call takes its place, one that a guest's filter lets pass.
        error = f"error={self.fault}:syscall=getpid"
        what = "signal=KILL" if self.fault == "KILL" else error
        trace = ["-e", f"trace={self.call}"]
        return [*trace, "-e", f"inject={self.call}:{what}:when={self.number}"]


@dataclasses.dataclass(frozen=True)
class Told:
    """What came of a story: the journal, and what is wrong with it."""

    point: Point
    journal: tuple
    problems: tuple
    seconds: float
    faults: int  # how many processes met it
    log: str = ""

    @property
    def how(self):
        """In a few words, the first thing that was not right."""
        for line in self.journal:
            if line["how"] != "right":
                reason = line["why"] or line.get("left", "")
                return f"{line['step']}: {line['how']}: {reason}".replace("\n", " ")[:160]
        return "all right" if self.journal and self.journal[-1]["step"] == "end" else "it ended"


class Nursery:
    """Gives birth to host processes, with everything imported, and is the heir of their orphans."""

    def __init__(self, cache):
        self._directory = Path(tempfile.mkdtemp(prefix="faults-"))
        self._cache = cache
        self._count = 0
        address = str(self._directory / "line")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(address)
            listening.listen()
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            driver = Path(__file__).with_name("faults_driver.py")
            # What interpreters say that were refused something is of no interest.
            with open(self._directory / "words", "wb") as words:
                self._process = subprocess.Popen(
                    [sys.executable, str(driver), address],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stderr=words,
                )
            listening.settimeout(PATIENCE)
            self._line, _ = listening.accept()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._line.close()
        self._process.wait(PATIENCE)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _ask(self, **words):
        self._line.send(json.dumps(words).encode())
        return json.loads(self._line.recv(65536))

    def below(self):
        return census.descendants(self._process.pid)

    # -- one story --------------------------------------------------------------------------

    def tell(self, point, *, rlimits=None, during=None, recovers=True):
        """Let a host process live through a fault. `during` is called with its pid and that of
        its guest when it has come to the point's stage; what it gives is called at the end.
        `recovers`: the fault passes, and then all is as before."""
        self._count += 1
        directory = self._directory / str(self._count)
        directory.mkdir()
        (directory / "tmp").mkdir()
        (directory / "runtime").mkdir(mode=0o700)
        (directory / "kept").mkdir()
        os.mkfifo(directory / "go")
        began = time.monotonic()
        with contextlib.ExitStack() as stack:
            token = f"{self._count}-{os.urandom(4).hex()}"
            job = {
                "token": token,
                "pause": "host" if not point.stage else _pause(point.stage),
                "directory": str(directory),
                "executable": _wrapper(directory, point) if point.stage == "start" else "",
                "rlimits": rlimits or {},
                "env": {
                    "TMPDIR": str(directory / "tmp"),
                    "BELLJAR_RUNTIME_DIR": str(directory / "runtime"),
                    "BELLJAR_CACHE": str(self._cache),
                    "BELLJAR_BACKEND": "native",
                },
            }
            pid = self._ask(**job)
            pidfd = os.pidfd_open(pid)
            stack.callback(os.close, pidfd)
            hung = not self._live(point, pid, pidfd, directory, stack, during)
            if hung:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            status = self._ask(wait=pid)
            problems = [f"hangs: {_stacks(directory)}"] if hung else []
            problems += self._left(pid, directory, killed=status == -9)
        log = directory / "trace"
        text = log.read_text(errors="replace") if log.exists() else ""
        faults = _hits(point, text)
        journal = _journal(directory)
        once = recovers and faults <= 1
        problems += _wrongs(journal, token, directory, status, once)
        told = Told(point, tuple(journal), tuple(problems), time.monotonic() - began, faults, text)
        shutil.rmtree(directory)
        return told

    def _live(self, point, pid, pidfd, directory, stack, during):
        """Whether it came to its end."""
        line = _await_pause(directory, pidfd)
        if line is not None:
            if point.stage != "start" and point.fault != "NONE":
                stack.enter_context(_attached(point, pid, line["guest"], directory))
            if during:
                stack.callback(during(pid, line["guest"]) or (lambda: None))
            (directory / "go").write_text("")
        return bool(select.select([pidfd], [], [], PATIENCE)[0])

    def _left(self, pid, directory, *, killed):
        """What it left behind. Control groups and notes of one that was killed are for the next
        sweep, everything else ends with it."""
        try:
            census.wait_until(lambda: not self.below(), DYING)
        except AssertionError:
            left = [str(process) for process in self.below()]
            for process in self.below():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            return [f"leaves processes: {left}"]
        found = _groups_left(pid)
        found += [str(path) for path in (directory / "tmp").iterdir()]
        if not killed:
            found += [str(path) for path in (directory / "runtime").glob("*.json")]
        return [f"leaves {found}"] if found else []


def _groups_left(pid):
    """After a sweep, as the next host does it. Tracing is slow: even one that closes its own may
    not see them go; and another host that sweeps them too may be in the middle of it."""
    deadline = time.monotonic() + DYING
    while True:
        cgroup.sweep()
        mine = [path for path in census.cgroup_directories() if f"/belljar-{pid}-" in path]
        # Those in a group of the host's own are swept by who comes into that group next.
        found = [path for path in mine if "/faults-" not in path]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def _pause(stage):
    return {"host": "start", "start": "start"}.get(stage, stage)


def _wrapper(directory, point):
    """A Python that is traced from its first instruction on. -D: it stays the host's child."""
    path = directory / "python"
    words = [STRACE, "-D", "-f", "-q", "-o", str(directory / "trace"), *point.arguments]
    # Once: the next zygote of the same host is as any other.
    traced, plain = f'{" ".join(words)} {sys.executable} "$@"', f'{sys.executable} "$@"'
    path.write_text(
        f"#!/bin/sh\nmkdir {directory}/begun 2>/dev/null && exec {traced}\nexec {plain}\n"
    )
    path.chmod(0o700)
    return str(path)


@contextlib.contextmanager
def _attached(point, pid, guest, directory):
    """Trace the processes of the stage, and what they start."""
    options = ["-b", "execve"] if point.stage == "host" else []
    targets = _targets(point.stage, pid, guest)
    command = [STRACE, "-f", "-q", *options, "-o", str(directory / "trace"), *point.arguments]
    for target in targets:
        command += ["-p", str(target)]
    tracer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        census.wait_until(lambda: all(map(_is_traced, targets)), DYING, "that strace attaches")
        yield
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            tracer.wait(SETTLE)
        tracer.kill()
        tracer.wait()


def _targets(stage, pid, guest):
    if stage == "host":
        return [pid]
    if stage == "inside":
        return [guest, *(process.pid for process in census.descendants(guest))]
    everything = census.descendants(pid)
    (launcher,) = [process.pid for process in everything if process.parent == pid]
    return [process.pid for process in everything if process.parent == launcher]


def _is_traced(pid):
    with contextlib.suppress(OSError):
        return "TracerPid:\t0\n" not in Path(f"/proc/{pid}/status").read_text()
    return True


def _await_pause(directory, pidfd):
    """The journal's line, None if it ended before."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for line in _journal(directory):
            if line["step"] == "pause":
                return line
        if select.select([pidfd], [], [], 0.005)[0]:
            return None
    return None


def _journal(directory):
    path = directory / "journal"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _stacks(directory):
    lines = _journal(directory)
    return f"after {lines[-1]['step']}" if lines else "at its start"


def _wrongs(journal, token, directory, status, once):
    """What the journal should not say. After one fault, the first or the second new sandbox is
    as any other: which of them depends on where the fault was."""
    problems = []
    for line in journal:
        if line["how"] in ("LIE", "LEAK", "raw"):
            problems.append(f"{line['how']} in {line['step']}: {line}")
    kept = directory / "kept" / "out.txt"
    if kept.exists() and kept.read_text() != token * 5000:
        problems.append("LIE: half of a file was kept")
    by_step = {line["step"]: line for line in journal}
    if status == -9:
        return problems
    if status:
        problems.append(f"ended with status {status}")
    if "end" not in by_step:
        problems.append("did not come to its end")
    elif once and not {"right"} & {by_step.get(name, {}).get("how") for name in LATER}:
        problems.append(f"did not recover: {by_step.get('last')}")
    return problems


# -- which points there are -----------------------------------------------------------------

_LINE = re.compile(r"^(\d+) +(\w+)\(")


def _per_process(log):
    found = Counter()
    for line in log.splitlines():
        if match := _LINE.match(line):
            found[match.group(1), match.group(2)] += 1
    return found


def _hits(point, log):
    counts = _per_process(log).items()
    return sum(call == point.call and count >= point.number for (_, call), count in counts)


def calls_in(log):
    """{call: the most that one thread made of it}, out of a log of strace."""
    most = {}
    for (_, call), count in _per_process(log).items():
        most[call] = max(most.get(call, 0), count)
    return most


def points(stage, log):
    """Every step of a stage, with each fault it may meet: errors first, then kills."""
    counts = calls_in(log)
    for fault, names in ERRORS.items():
        for call in names.split():
            for number in range(1, counts.get(call, 0) + 1):
                yield Point(stage, fault, call, number)
    for call in sorted(counts.keys() - NOT_KILLED_AT):
        for number in range(1, counts[call] + 1):
            yield Point(stage, "KILL", call, number)
