"""The zygote: two processes in their own namespaces, in the root that all their guests share.

The first, the preloader, imports the Environment's preload modules and forks the workers. It is
PID 1: no worker can have the same pid, by which libraries notice that they were forked. Its child
stays small, and forks the init of each guest. When either ends, for whatever reason, the other and
every guest end with it.
"""

import base64
import contextlib
import errno
import json
import os
import resource
import select
import signal
import socket
import sys
import traceback
from typing import Any, Dict, List, NoReturn

from ...guest import init
from ...guest.worker_process import WorkerSource
from ...protocol import wire
from ...protocol.buffers import close_others
from ..linux import syscalls as sys_
from . import confine, preloader, shared_pages

MAX_REQUEST = 65536  # bytes
MAX_DESCRIPTORS = 16
MAX_OPEN = 65536


def main(config: Dict[str, Any]) -> NoReturn:
    control = socket.socket(fileno=config["control"])
    os.close(config["bundle"])
    for name in ("steps", "parent", "uids", "gids"):
        del config[name]  # of the host: no business of guests, which inherit this memory
    sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is the host's
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # the preloader holds some for each guest
    most = MAX_OPEN if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    for name in ("seccomp", "seccomp_stricter"):
        config[name] = base64.b64decode(config[name])
    link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    if sys_.fork():
        link.close()
        preloader.main(config, control, theirs, own_pids)
    theirs.close()
    _serve(config, control, link, own_pids)


def _serve(
    config: Dict[str, Any], control: socket.socket, link: socket.socket, own_pids: int
) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # inits are reaped by the kernel
    held = shared_pages.settle(thoroughly=bool(config["preload"]))  # noqa: F841
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(link, 0)
    while True:
        if link.fileno() in dict(poll.poll()):
            os._exit(1)  # the preloader has failed
        data, fds, _, _ = socket.recv_fds(control, MAX_REQUEST, MAX_DESCRIPTORS)
        if not data:
            os._exit(0)  # the host process is gone
        _fork_init(config, data, fds, link, own_pids)


def _fork_init(
    config: Dict[str, Any], request: bytes, fds: List[int], link: socket.socket, own_pids: int
) -> None:
    """Make the next child PID 1 of a new pid namespace, and only that one."""
    try:
        # Again before each: it may have failed after the one before, and then every unshare would.
        sys_.setns(own_pids, sys_.CLONE_NEWPID)
        sys_.unshare(sys_.CLONE_NEWPID)
        if sys_.fork() == 0:
            try:
                _become_init(config, request, fds, link)
            finally:
                os._exit(1)
        with contextlib.suppress(OSError):
            sys_.setns(own_pids, sys_.CLONE_NEWPID)
    except OSError as error:
        # Out of processes or of namespaces: this guest's misfortune, not that of the others.
        with contextlib.suppress(OSError, IndexError):  # who asked has given it up
            os.write(fds[0], _failure("fork", error))
    for fd in fds:
        os.close(fd)


def _become_init(
    config: Dict[str, Any], data: bytes, fds: List[int], link: socket.socket
) -> NoReturn:
    channel = socket.socket(fileno=fds[0])
    try:
        request = json.loads(data)
        if len(fds) != request["descriptors"]:  # those there was no number left for do not come
            raise confine.StepFailed("fork", OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
        births, variables, *join = fds[1:]
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        close_others({0, 1, 2, *fds, link.fileno()})
        os.setsid()
        os.umask(0o022)
        # First: while this process makes the namespaces, the preloader forks the worker.
        own = sys_.pidfd_open(os.getpid())
        source = WorkerSource(link, data, [own, births, variables, *join])
        os.close(own)
        link.close()
        os.close(births)
        facts = confine.confine_init(confine.specification(config, request), join)
        store = facts.pop("store")
        channel.sendall(wire.pack(wire.HELLO, 0, facts))
        os.environ.update(confine.read_variables(variables))
        setup = {**request["setup"], "store": store, "source": source}
        init.main(channel, setup)
    except confine.StepFailed as error:
        channel.sendall(_failure(error.step, error))
    except BaseException as error:
        traceback.print_exc(file=sys.stderr)
        channel.sendall(_failure("start", error))
    finally:
        os._exit(1)


def _failure(step: str, error: BaseException) -> bytes:
    return wire.pack(wire.HELLO, 0, json.loads(preloader.failure(step, error)))
