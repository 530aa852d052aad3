"""Canaries: things on the host that a guest must not reach, and the damage done to them."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
import os
import platform
import pwd
import secrets
import select
import shutil
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
from typing import Any, Self

from belljar.conformance.footprint import host_values, list_sysv, remove_sysv
from belljar.conformance.setting import NOBODY, ROOT, Setting, temp_prefix
from belljar.results.execution import CommandResult, Execution

# Set in the host's environment before any guest starts: a guest that inherits it is noticed.
ENVIRONMENT_SECRET = secrets.token_hex(16)
VARIABLE = "BELLJAR_CANARY"
# Canaries and controls run without privileges, also when root runs the suite.
UNPRIVILEGED: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if ROOT else {}
_INTERPRETERS = ("/usr/bin/python3", "/usr/local/bin/python3", "/bin/python3")
_CLOCK_STEP = 0.5  # seconds by which the system may correct the clock during an attempt

_PROCESS = """
import ctypes, os, sys
secret = sys.stdin.readline().strip().encode()
buffer = ctypes.create_string_buffer(secret)
print(ctypes.addressof(buffer), flush=True)
for line in sys.stdin:
    print(buffer.raw[:-1].decode("latin-1"), flush=True)
"""


@functools.cache
def find_python() -> str | None:
    """A Python that an unprivileged user may execute, for canaries and controls."""
    for path in (*_INTERPRETERS, sys.executable) if ROOT else (sys.executable,):
        with contextlib.suppress(OSError):
            command = [path, "-I", "-c", "import ctypes"]
            tried = subprocess.run(command, check=False, capture_output=True, **UNPRIVILEGED)
            if tried.returncode == 0:
                return path
    return None


class Canaries:
    """A secret file, a writable file, listeners and a live process on the host."""

    process: subprocess.Popen[str]

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.secret = secrets.token_hex(16)
        # In /tmp, not in a private directory: an unprivileged control must reach it.
        self.directory = Path(tempfile.mkdtemp(prefix=temp_prefix("canary"), dir="/tmp"))
        self.directory.chmod(0o777)
        self.secret_file = self.directory / "secret.txt"
        self.victim = self.directory / "victim"
        self.hits: Counter[str] = Counter()
        self._sockets: dict[socket.socket, str] = {}
        self._answering = threading.Lock()
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        self.secret_file.write_text(self.secret)
        self.secret_file.chmod(0o644)
        self._write_victim()
        self._listen()
        self._start_process()
        self._thread = threading.Thread(target=self._serve, name="canaries", daemon=True)
        self._thread.start()
        self.reset()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        self._close_sockets()
        self._end_process()
        shutil.rmtree(self.directory)

    def _write_victim(self) -> None:
        self.victim.write_text("untouched")
        self.victim.chmod(0o666)

    # -- listeners ------------------------------------------------------------------------------

    def _listen(self) -> None:
        for chance in range(10):
            try:
                self._listen_on_one_port()
                break
            except OSError:  # another program uses that port in one address family
                self._close_sockets()
                if chance == 9:
                    raise
        self.unix_path = str(self.directory / "socket")
        self.abstract = f"belljar-canary-{secrets.token_hex(6)}"
        for name, address in (("unix", self.unix_path), ("abstract", "\0" + self.abstract)):
            sock = socket.socket(socket.AF_UNIX)
            sock.bind(address)
            self._add(name, sock)
        os.chmod(self.unix_path, 0o777)

    def _listen_on_one_port(self) -> None:
        self.port = 0
        families = [("", socket.AF_INET, "0.0.0.0")]
        families += [("6", socket.AF_INET6, "::")] if Path("/proc/net/if_inet6").exists() else []
        for suffix, family, address in families:
            for name, kind in (("tcp", socket.SOCK_STREAM), ("udp", socket.SOCK_DGRAM)):
                sock = socket.socket(family, kind)
                self._sockets[sock] = name + suffix
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind((address, self.port))
                self.port = sock.getsockname()[1]
                self._add(name + suffix, sock)

    def _close_sockets(self) -> None:
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()

    def _add(self, name: str, sock: socket.socket) -> None:
        if sock.type == socket.SOCK_STREAM:
            sock.listen(16)
        sock.setblocking(False)
        self._sockets[sock] = name

    def _serve(self) -> None:
        while not self._stop.is_set():
            select.select(list(self._sockets), [], [], 0.05)
            self._answer()

    def _answer(self) -> None:
        """Answer all callers that are waiting."""
        with self._answering:
            while ready := select.select(list(self._sockets), [], [], 0)[0]:
                for sock in ready:
                    self._answer_one(sock)

    def _answer_one(self, sock: socket.socket) -> None:
        self.hits[self._sockets[sock]] += 1
        with contextlib.suppress(OSError):  # the caller hung up
            if sock.type == socket.SOCK_DGRAM:
                sock.recv(4096)
                return
            with sock.accept()[0] as peer:
                peer.sendall(self.secret.encode())

    # -- a process ------------------------------------------------------------------------------

    def _start_process(self) -> None:
        self.process = subprocess.Popen(
            [find_python() or sys.executable, "-I", "-c", _PROCESS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PROCESS_SECRET": self.secret},
            start_new_session=True,  # Ctrl-C on a terminal must not end it
            **(UNPRIVILEGED if find_python() else {}),
        )
        self.address = int(self._ask(self.secret))

    def _end_process(self) -> None:
        self.process.kill()
        self.process.communicate()

    def _ask(self, line: str) -> str:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(line + "\n")
            stdin.flush()
            return stdout.readline()
        except BrokenPipeError:  # it has just died
            return ""

    def environment(self, *, confined: bool) -> dict[str, str]:
        """Variables that tell a guest where the canaries are, but not the secret."""
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
        path = resources.files("belljar").joinpath("backends/linux/syscall_numbers.json")
        numbers = json.loads(path.read_text())[platform.machine()]
        variables = {"TARGETS": json.dumps(targets), "SYSCALLS": json.dumps(numbers)}
        variables |= {"CONFINED": "1"} if confined else {}
        return variables | ({"IMAGE": "1"} if confined and self._setting.docker else {})

    # -- the verdict ----------------------------------------------------------------------------

    def reset(self) -> None:
        self._answer()
        self.hits.clear()
        self._before = self._files()
        self._host = host_values()
        self._clock = _clock()

    def _files(self) -> dict[str, tuple[int, int, int, str]]:
        found = {}
        for path in sorted(self.directory.rglob("*")):
            status = path.lstat()
            content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
            digest = hashlib.sha256(content).hexdigest()[:16]
            found[path.name] = (status.st_ino, status.st_nlink, status.st_mtime_ns, digest)
        return found

    def find_damage(self, output: str = "") -> dict[str, str]:
        """What a guest did to the host: oracle -> what it saw."""
        found = {}
        for secret in (self.secret, ENVIRONMENT_SECRET):
            if secret in output or secret[::-1] in output:
                found["secret"] = "a secret of the host is in the output"
        if (files := self._files()) != self._before:
            found["files"] = f"files on the host changed: {self._before} -> {files}"
        self._answer()  # now, not when the thread gets its turn
        if +self.hits:
            found["hits"] = f"listeners on the host were reached: {dict(self.hits)}"
        if not (answer := self._ask("?")):  # its pipes are closed: it is dead or dying
            found["process"] = f"a process on the host died: {self.process.wait(10)}"
        elif answer != self.secret + "\n":
            found["memory"] = "the memory of a process on the host was changed"
        if (values := host_values()) != self._host:
            changed = {k: (self._host.get(k), v) for k, v in values.items()}
            changed = {k: both for k, both in changed.items() if both[0] != both[1]}
            found["host"] = f"the host changed: {changed}"
        if abs(_clock() - self._clock) > _CLOCK_STEP:
            found["host"] = "the host's clock was set"
        return found

    def describe(self) -> tuple[str, ...]:
        """What was checked, with figures, for a report."""
        listeners = ", ".join(self._sockets.values())
        return (
            f"{len(self._before)} canary files: content, inode, links and time unchanged",
            f"{len(self._sockets)} listeners ({listeners}): {sum(self.hits.values())} hits",
            f"canary process {self.process.pid}: alive, its memory unchanged",
            f"{len(self._host)} settings of the machine and its clock: unchanged",
            "2 secrets: not in any output",
        )

    def restore(self) -> None:
        """Repair the damage that a control has done."""
        self._end_process()
        self._start_process()
        for path in self.directory.iterdir():
            if path.name not in self._before:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.victim.unlink(missing_ok=True)
        self._write_victim()
        before = self._host["sysv"]
        if isinstance(before, frozenset):
            remove_sysv(list_sysv() - before)
        self.reset()


def _clock() -> float:
    """Changes only if the clock is set; both clocks count while the machine sleeps."""
    while True:
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        now = time.time()
        # Otherwise this process was interrupted between the two readings: read again.
        if time.clock_gettime(time.CLOCK_BOOTTIME) - before < _CLOCK_STEP / 10:
            return now - before


def lan_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))
            return str(sock.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def collect_output(run: Execution | CommandResult) -> str:
    """All output of a run as one text to search."""
    parts = [run.stdout, run.stderr, repr(run)]
    for name in ("text", "value", "error", "logs", "notes"):
        parts.append(str(getattr(run, name, "")))
    for result in getattr(run, "results", ()):
        for content in result.raw.values():
            raw = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
            parts.append(raw.decode("latin-1"))
            with contextlib.suppress(ValueError):
                parts.append(base64.b64decode(raw, validate=True).decode("latin-1"))
    return "\n".join(parts)
