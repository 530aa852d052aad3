"""A dockerd of our own, beside the machine's: one that tests may kill, stop and fill up."""

import contextlib
import functools
import http.client
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import census
import docker_census

START_TIMEOUT = 60.0


@functools.cache
def why_none():
    """What this machine lacks for one; None: nothing."""
    if os.geteuid() != 0:
        return "only root can start a second dockerd"
    for program in ("dockerd", "containerd", "unshare"):
        if shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
            return f"there is no {program} on this machine"
    return None


class SecondEngine:
    """`size`: bytes of a tmpfs that its data root is on; None: a directory."""

    def __init__(self, size=None):
        # A short path: those of its sockets must be below 108 bytes. With our number, by which the
        # census of another run beside this one knows that it is not its own.
        prefix = f"{census.ENGINES}{os.getpid()}-"
        self.directory = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
        self.host = f"unix://{self.directory}/s"
        self.data = self.directory / "data"
        self.run = self.directory / "run"
        self.data.mkdir()
        self.run.mkdir()
        self.tmpfs = size is not None
        if self.tmpfs:
            options = ["-o", f"size={size}", "-t", "tmpfs"]
            subprocess.run(["mount", *options, "belljar-test", self.data], check=True)
        self._settings = self.directory / "daemon.json"
        self._settings.write_text(json.dumps({"runtimes": _runtimes()}))
        self._process = None
        self._pardoned = set()

    # -- its life ---------------------------------------------------------------------------

    def start(self):
        with open(self.directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    # In a network namespace of its own: without a bridge it would take away the
                    # machine's docker0 when it starts.
                    *("unshare", "--net", "--"),
                    *("dockerd", "--data-root", self.data, "--exec-root", self.run),
                    *("--pidfile", self.directory / "pid", "-H", self.host),
                    *("--config-file", self._settings),
                    *("--bridge=none", "--iptables=false", "--ip-forward=false"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A slow containerd is told to write its stacks, and does so among temporary files.
                env=os.environ | {"TMPDIR": str(self.directory)},
                start_new_session=True,
            )
        census.wait_until(self._is_up, timeout=START_TIMEOUT, what="the start of dockerd")

    def _is_up(self):
        if self._process.poll() is not None:
            raise AssertionError(f"dockerd ended: {self.log()[-2000:]}")
        return self.answers()

    def answers(self):
        try:
            docker_census.raw("GET", "/_ping", self.host, timeout=2)
        except (OSError, http.client.HTTPException):
            return False
        return True

    def kill(self):
        """As the kernel does it when memory is short. Its containers live on, for now."""
        self._process.kill()
        self._process.wait()
        # Its containerd dies with it. As a zombie, which nobody but us would reap, it would be
        # taken for alive by the next dockerd.
        note = self.run / "containerd" / "containerd.pid"
        if note.exists():
            pid = int(note.read_text())
            census.wait_until(lambda: not census.alive(pid), what="the end of containerd")
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            note.unlink()

    def stop(self):
        """It hangs from now on."""
        os.kill(self._process.pid, signal.SIGSTOP)
        stopped = census.process(self._process.pid)
        census.wait_until(lambda: census.process(stopped.pid).state == "T", what="the stop")

    def go_on(self):
        os.kill(self._process.pid, signal.SIGCONT)
        census.wait_until(self.answers, timeout=30, what="an answer")

    def ensure_up(self):
        if self._process is None or self._process.poll() is not None:
            (self.directory / "pid").unlink(missing_ok=True)
            self.start()
        elif census.process(self._process.pid).state == "T":
            self.go_on()

    def log(self):
        return (self.directory / "log").read_text(errors="replace")

    def close(self):
        """Leave nothing, whatever state it is in."""
        if self._process is not None:
            self._process.kill()  # an orderly end takes ten seconds
            self._process.wait()
        left = self.processes()
        for process in [below for shim in left for below in census.descendants(shim.pid)] + left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        census.wait_until(lambda: not self.processes(), what="the end of its processes")
        for point in sorted(self.mounts(), key=len, reverse=True):
            subprocess.run(["umount", "-l", point], check=True)
        shutil.rmtree(self.directory)

    # -- what it has ------------------------------------------------------------------------

    def processes(self):
        """containerd and the shims: whoever was told of its directories. Not the containers'."""
        mark = str(self.directory)
        found = []
        for process in census.processes().values():
            if process.pid != os.getpid() and not process.dead and mark in _arguments(process.pid):
                found.append(process)
        return found

    def mounts(self):
        """Below its directories."""
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        points = [line.split()[4] for line in lines]
        return [point for point in points if point.startswith(f"{self.directory}/")]

    def shims(self):
        found = [process for process in self.processes() if "shim" in _arguments(process.pid)]
        return [process for process in found if process.pid not in self._pardoned]

    def pardon_shims(self):
        """Forget those that are there: the engine leaves them, whoever used it."""
        self._pardoned |= {process.pid for process in self.shims()}

    def remains(self):
        """What a container leaves on the disk and among the mounts, as names."""
        found = [f"shim {process.pid}" for process in self.shims()]
        found += [f"mount {p}" for p in self.mounts() if p.endswith("/merged") or "/netns/" in p]
        found += [f"directory {path}" for path in (self.data / "containers").glob("*")]
        return found

    def load(self, image):
        """Give it an image of the machine's engine."""
        source = docker_census.connect()
        target = docker_census.connect(self.host)
        try:
            source.request("GET", f"/images/{image}/get")
            archive = source.getresponse()
            if archive.status != 200:
                raise docker_census.Refused(archive.status, archive.read().decode())
            target.request(
                "POST",
                "/images/load?quiet=1",
                body=iter(lambda: archive.read(1 << 20), b""),
                headers={"Content-Type": "application/x-tar", "Transfer-Encoding": "chunked"},
                encode_chunked=True,
            )
            answer = target.getresponse()
            said = answer.read()
        finally:
            source.close()
            target.close()
        if answer.status != 200 or b'"error' in said:
            raise docker_census.Refused(answer.status, said.decode())

    def import_tree(self, archive, name):
        """Make an image of a tar archive's bytes."""
        target = docker_census.connect(self.host)
        try:
            target.request(
                "POST",
                f"/images/create?fromSrc=-&repo={name}&tag=latest",
                body=archive,
                headers={"Content-Type": "application/x-tar"},
            )
            answer = target.getresponse()
            said = answer.read()
        finally:
            target.close()
        if answer.status != 200 or b'"error' in said:
            raise docker_census.Refused(answer.status, said.decode())

    def running(self):
        """Ids of the containers that run."""
        return [each["Id"] for each in docker_census.ask("GET", "/containers/json", self.host)]

    def settle(self, before, timeout=20.0):
        """What stays of the containers since `before`, in the engine and on the disk."""
        deadline = time.monotonic() + timeout
        while True:
            found = docker_census.leaks(before, docker_census.take(self.host)) + self.remains()
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.05)


def _runtimes():
    """Those that the machine's engine has, but for its own."""
    found = docker_census.ask("GET", "/info")["Runtimes"]
    return {
        name: {"path": settings["path"], "runtimeArgs": settings.get("runtimeArgs") or []}
        for name, settings in found.items()
        if name != "runc" and not name.startswith("io.containerd.")
    }


def _arguments(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
