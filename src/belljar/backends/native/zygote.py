"""The zygote: has imported the Environment's preload modules, and forks guests.

PID 1 of its own namespaces, in the root that all its guests share. When it ends, for whatever
reason, the kernel ends every guest with it.
"""

import base64
import contextlib
import errno
import gc
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from typing import Any, Dict, List, NoReturn

from ...guest import fork_state, init
from ...protocol import wire
from ..linux import syscalls as sys_
from . import confine, shared_pages


def main(config: Dict[str, Any]) -> NoReturn:
    control = socket.socket(fileno=config["control"])
    os.close(config["bundle"])
    for name in ("steps", "parent", "uids", "gids"):
        del config[name]  # of the host: no business of guests, which inherit this memory
    sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is the host's
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # guests are reaped by the kernel
    try:
        _preload(config["preload"], config["warmup"])
    except BaseException as error:
        last = "".join(traceback.format_exception_only(type(error), error)).strip()
        _say(control, {"failed": "preload", "message": last})
        os._exit(1)
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        # A fork copies one thread only; locks the others held would stay locked for ever.
        _say(control, {"failed": "threads", "message": f"{threads - 1} threads are running"})
        os._exit(1)
    # Once, for all guests: libraries drop what forks must not share, descriptors above all.
    sys_.run_fork_hooks()
    config["seccomp"] = base64.b64decode(config["seccomp"])
    own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    gc.collect()
    gc.freeze()  # the collector would otherwise write to, and so copy, every shared page
    if config["preload"]:
        # Never let go. The second time fills what the first has used itself, and given back.
        held = [shared_pages.fill_holes(), shared_pages.fill_holes()]  # noqa: F841
        shared_pages.take_huge_pages()
    _say(control, {"ready": True, "data": _data_size()})
    while True:
        data, fds, _, _ = socket.recv_fds(control, 65536, 8)
        if not data:
            os._exit(0)  # the host process is gone
        _fork_guest(config, json.loads(data), fds, own_pids)


def _preload(modules: List[str], warmup: str) -> None:
    reserved = shared_pages.reserve_arenas() if modules else []
    for name in modules:
        importlib.import_module(name)
    exec(compile(warmup, "<warmup>", "exec"), {})
    del reserved  # arenas that were not needed go with it


def _data_size() -> int:
    with open("/proc/self/status") as file:
        sizes = (line.split()[1] for line in file if line.startswith("VmData:"))
        return int(next(sizes, 0)) * 1024


def _fork_guest(
    config: Dict[str, Any], request: Dict[str, Any], fds: List[int], own_pids: int
) -> None:
    """Make the next child PID 1 of a new pid namespace, and only that one."""
    try:
        if len(fds) != request["descriptors"]:  # those there was no number left for do not come
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        # Again before each: it may have failed after the one before, and then every unshare would.
        sys_.setns(own_pids, sys_.CLONE_NEWPID)
        sys_.unshare(sys_.CLONE_NEWPID)
        if sys_.fork() == 0:
            _guest(config, request, fds)
        with contextlib.suppress(OSError):
            sys_.setns(own_pids, sys_.CLONE_NEWPID)
    except OSError as error:
        # Out of processes or of namespaces: this guest's misfortune, not that of the others.
        failure = {"failed": "fork", "errno": error.errno, "message": str(error)}
        with contextlib.suppress(OSError, IndexError):  # who asked has given it up
            os.write(fds[0], wire.pack(wire.HELLO, 0, failure))
    for fd in fds:
        os.close(fd)


def _guest(config: Dict[str, Any], request: Dict[str, Any], fds: List[int]) -> NoReturn:
    channel = socket.socket(fileno=fds[0])
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        init.close_descriptors({0, 1, 2, *fds})
        os.setsid()
        os.umask(0o022)
        spec = {**request, "seccomp": config["seccomp"]}
        if request["deny_hidden_memory"]:
            spec["seccomp"] = base64.b64decode(config["seccomp_stricter"])
        facts = confine.confine(spec, fds[2:])
        if facts["escaped"]:
            raise confine.StepFailed("probe", OSError(f"it can still {facts['escaped']}"))
        store = facts.pop("store")
        channel.sendall(wire.pack(wire.HELLO, 0, facts))
        # Not in the request: what the zygote has read, all later guests find in their memory.
        with open(fds[1], "rb") as variables:
            os.environ.update(json.load(variables))  # the rest is as the zygote was started with
        setup = {
            **request["setup"],
            "store": store,
            "worker_started": _worker_started,
            "site": config["site"],
            "fork": sys_.fork,
        }
        init.main(channel, setup)
    except confine.StepFailed as error:
        failure = {"failed": error.step, "errno": error.errno, "message": str(error)}
        channel.sendall(wire.pack(wire.HELLO, 0, failure))
    except BaseException as error:
        traceback.print_exc(file=sys.stderr)
        code = getattr(error, "errno", None)
        failure = {"failed": "start", "errno": code, "message": repr(error)[:1000]}
        channel.sendall(wire.pack(wire.HELLO, 0, failure))
    finally:
        os._exit(1)


def _worker_started() -> None:
    # init is not dumpable; the worker may look at itself (/proc/self) and its children.
    sys_.prctl(sys_.PR_SET_DUMPABLE, 1)
    fork_state.renew_secrets()


def _say(control: socket.socket, message: Dict[str, Any]) -> None:
    control.send(json.dumps(message).encode())
