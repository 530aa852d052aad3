"""The preloader: the process of the zygote that has imported the Environment's preload modules. It
forks the workers, so that only they, and not init, have a copy of its memory.

An init asks for a worker over a socket of its own. The worker enters the pid namespace of that init
by its birth and the other namespaces by itself. The preloader stays its parent: the kernel tells it
how the worker ended, and it tells init. When init ends, the kernel kills the worker too.
"""

import contextlib
import errno
import importlib
import json
import os
import resource
import signal
import socket
import time
import traceback
from typing import Any, Dict, List, NoReturn, Tuple

from ...guest import fork_state, init, worker_process
from ...guest.poller import READ, Poller
from ...guest.worker import Worker
from ...protocol.buffers import close_all, close_others
from ..linux import syscalls as sys_
from . import confine, shared_pages

MAX_REQUEST = 65536  # bytes
MAX_DESCRIPTORS = 16
FORKS, FORKS_PER_SECOND = 50, 50.0  # for one guest: a fork is paid by all who share the preloader
SIGNALS = (signal.SIGINT, signal.SIGKILL, signal.SIGCONT)  # that init has sent


def main(
    config: Dict[str, Any], control: socket.socket, link: socket.socket, own_pids: int
) -> NoReturn:
    try:
        _preload(config["preload"], config["warmup"])
    except BaseException as error:
        last = "".join(traceback.format_exception_only(type(error), error)).strip()
        _fail(control, "preload", last)
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        # A fork copies one thread only; locks the others held would stay locked for ever.
        _fail(control, "threads", f"{threads - 1} threads are running")
    # Once, for all workers: libraries drop what forks must not share, descriptors above all.
    sys_.run_fork_hooks()
    preloader = Preloader(config, link, own_pids)
    held = shared_pages.settle(thoroughly=bool(config["preload"]))  # noqa: F841
    if config["preload"]:
        shared_pages.take_huge_pages()
    control.send(json.dumps({"ready": True, "data": _data_size()}).encode())
    control.close()
    # The code of a guest may run already when a new worker is born, in commands. It sees that by
    # its pid, and must not reach into it before the last layer is on: nor into a dump of it.
    sys_.prctl(sys_.PR_SET_DUMPABLE, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))  # 0 would not stop a dump into a program
    preloader.serve()


def _preload(modules: List[str], warmup: str) -> None:
    reserved = shared_pages.reserve_arenas() if modules else []
    for name in modules:
        importlib.import_module(name)
    exec(compile(warmup, "<warmup>", "exec"), {})
    del reserved  # arenas that were not needed go with it


def _fail(control: socket.socket, step: str, message: str) -> NoReturn:
    control.send(json.dumps({"failed": step, "message": message}).encode())
    os._exit(1)


def _data_size() -> int:
    with open("/proc/self/status") as file:
        sizes = (line.split()[1] for line in file if line.startswith("VmData:"))
        return int(next(sizes, 0)) * 1024


class Guest:
    """An init, and what its workers need."""

    def __init__(self, request: Dict[str, Any], fds: List[int]) -> None:
        self.request = request
        self.socket = socket.socket(fileno=fds[0])
        self.init, self.births, self.variables, *self.join = self.fds = fds[1:]
        self.workers = 0  # alive
        self._forks, self._since = float(FORKS), time.monotonic()

    def may_fork(self) -> bool:
        """Code that kills each new worker gets the next one only after a pause."""
        now = time.monotonic()
        self._forks = min(FORKS, self._forks + (now - self._since) * FORKS_PER_SECOND)
        self._since = now
        if self._forks < 1:
            return False
        self._forks -= 1
        return True

    def close(self) -> None:
        self.socket.close()
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()


class Preloader:
    def __init__(self, config: Dict[str, Any], link: socket.socket, own_pids: int) -> None:
        self._config = config
        self._link = link
        self._own_pids = own_pids
        self._poller = Poller()
        self._workers: Dict[int, Tuple[int, Guest, int]] = {}  # pidfd -> pid, guest, number
        self._last = 0
        self._prepared = Worker()

    def serve(self) -> NoReturn:
        self._poller.register(self._link, READ, self._on_guest)
        init.reset_signals()
        # For workers: it notes an interrupt that comes before the first cell.
        signal.signal(signal.SIGINT, self._prepared.on_interrupt)
        while True:
            self._poller.wait()

    def _on_guest(self, link: socket.socket, events: int) -> None:
        data, fds, _, _ = socket.recv_fds(link, MAX_REQUEST, MAX_DESCRIPTORS)
        if not data:
            os._exit(0)  # the process that forks inits is gone, or the host
        request = json.loads(data)
        if len(fds) != request["descriptors"] + 2:  # there was no number left for some
            for fd in fds:
                os.close(fd)  # init reads the end of its socket, and ends
            return
        control, guest = fds.pop(0), Guest(request, fds)
        self._poller.register(guest.socket, READ, lambda _, events: self._on_request(guest))
        self._fork(guest, control)

    def _on_request(self, guest: Guest) -> None:
        """From here on, init may be in the hands of the code: never wait for it."""
        try:
            data, fds, _, _ = socket.recv_fds(guest.socket, 16, 1)
        except OSError:
            data, fds = b"", []
        if data == worker_process.FORK:
            self._fork(guest, fds[0] if fds else -1)
            return
        close_all(fds)
        if len(data) == worker_process.SIGNAL.size:
            worker, number = worker_process.SIGNAL.unpack(data)
            if number in SIGNALS:
                for pid, owner, found in self._workers.values():
                    if owner is guest and found == worker:
                        os.kill(pid, number)
                return
        # Init has ended, or says what it never says.
        self._poller.unregister(guest.socket)
        guest.close()

    def _fork(self, guest: Guest, control: int) -> None:
        if not guest.may_fork():
            worker_process.report(guest.socket, worker_process.FAILED, 0, errno.EAGAIN)
            close_all([control] if control >= 0 else [])
            return
        pid = 0
        try:
            if control < 0 or guest.workers >= guest.request["rlimits"]["RLIMIT_NPROC"]:
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            sys_.setns(guest.init, sys_.CLONE_NEWPID)
            self._prepared.forget_interrupt()
            pid = sys_.fork()
            if pid == 0:
                try:
                    self._become_worker(guest, control)
                finally:
                    os._exit(1)
            # Not SIGCHLD, which also comes when the code stops a worker, as often as it likes.
            pidfd = sys_.pidfd_open(pid)
            self._poller.register(pidfd, READ, self._on_end)
            guest.workers += 1
            self._last += 1
            self._workers[pidfd] = pid, guest, self._last
        except OSError as error:
            if pid:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            said = failure("fork", error)
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(guest.births)) as births:
                births.send(said, socket.MSG_DONTWAIT)
            worker_process.report(guest.socket, worker_process.FAILED, 0, error.errno or 0)
        else:
            worker_process.report(guest.socket, worker_process.FORKED, self._last, 0, pid, pidfd)
        finally:
            close_all([control] if control >= 0 else [])
            with contextlib.suppress(OSError):  # it only keeps a namespace longer
                sys_.setns(self._own_pids, sys_.CLONE_NEWPID)

    def _on_end(self, pidfd: int, events: int) -> None:
        self._poller.unregister(pidfd)
        os.close(pidfd)
        pid, guest, number = self._workers.pop(pidfd)
        _, status = os.waitpid(pid, 0)
        guest.workers -= 1
        if guest.fds:
            worker_process.report(guest.socket, worker_process.ENDED, number, status)

    def _become_worker(self, guest: Guest, control: int) -> NoReturn:
        births = socket.socket(fileno=guest.births)
        try:
            signal.set_wakeup_fd(-1)
            close_others({0, 1, 2, control, *guest.fds})
            os.umask(0o022)
            sock = socket.socket(fileno=control)
            if sock.recv(1) != worker_process.GO:  # sent when init is confined
                os._exit(0)
            spec = confine.specification(self._config, guest.request)
            facts = confine.confine_worker(spec, guest.init, guest.join)
            os.environ.update(confine.read_variables(guest.variables))
            with contextlib.suppress(BlockingIOError):  # of hundreds since the last cell
                births.send(json.dumps(facts).encode(), socket.MSG_DONTWAIT)
            births.close()
            setup = {**guest.request["setup"], "site": self._config["site"]}
            setup["worker_started"] = _worker_started
            worker_process.become_worker(sock, setup, self._prepared)
        except BaseException as error:
            step = error.step if isinstance(error, confine.StepFailed) else "start"
            births.send(failure(step, error), socket.MSG_DONTWAIT)
        finally:
            os._exit(1)


def _worker_started() -> None:
    # Init is not dumpable; the worker may look at itself (/proc/self) and its children.
    sys_.prctl(sys_.PR_SET_DUMPABLE, 1)
    fork_state.renew_secrets()


def failure(step: str, error: BaseException) -> bytes:
    message = str(error) if isinstance(error, (OSError, confine.StepFailed)) else repr(error)
    said = {"failed": step, "errno": getattr(error, "errno", None), "message": message[:1000]}
    return json.dumps(said).encode()
