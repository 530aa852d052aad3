"""The launcher: from an ordinary process to a zygote inside its own namespaces.

    host process ── spawns ──> launcher ── clone ──> child: new root, then the Environment's Python

It runs on the host's interpreter, in the host's user namespace, so that it may write the
child's uid map; it stays as the zygote's parent and dies with the host process, and the zygote
(PID 1 of its namespace) with it.
"""

import json
import os
import signal
import socket
from typing import Any, Dict, NoReturn

from ..linux import syscalls as sys_
from . import rootfs

_NAMESPACES = (
    sys_.CLONE_NEWUSER
    | sys_.CLONE_NEWNS
    | sys_.CLONE_NEWPID
    | sys_.CLONE_NEWNET
    | sys_.CLONE_NEWIPC
    | sys_.CLONE_NEWUTS
)


def main(config: Dict[str, Any]) -> NoReturn:
    control = socket.socket(fileno=config["control"])
    step = "start"
    os.umask(0o022)  # the new root is entered by another user than the caller
    try:
        sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != config["parent"]:
            os._exit(0)  # the host process ended before the line above
        if config["scope"] and not control.recv(1):  # sent when this process is in its scope
            os._exit(0)
        if config["root"]:
            # Sources below directories that only root may enter must be bound first: in the user
            # namespace root has no rights on them.
            step = "mount namespace"
            sys_.unshare(sys_.CLONE_NEWNS)
            step = "root file system"
            rootfs.build(config["steps"])
        step = "user namespace"
        mapped, proceed = os.pipe()
        pid = sys_.clone(_NAMESPACES)
        if pid == 0:
            os.close(proceed)
            _child(config, mapped)
        os.close(mapped)
        step = "uid map"
        _write_maps(pid, config)
        os.write(proceed, b"1")
        control.close()
        _, status = os.waitpid(pid, 0)
        os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1)
    except OSError as error:
        _report(control, step, error)
        os._exit(1)


def _write_maps(pid: int, config: Dict[str, Any]) -> None:
    """As root: a range of unused host uids, one for each guest. Else: our own uid alone."""
    proc = f"{rootfs.OLD}/proc/{pid}" if config["root"] else f"/proc/{pid}"
    if not config["root"]:
        _write(f"{proc}/setgroups", "deny")
    first, count = config["uids"]
    _write(f"{proc}/uid_map", f"0 {first} {count}")
    first, count = config["gids"]
    _write(f"{proc}/gid_map", f"0 {first} {count}")


def _child(config: Dict[str, Any], mapped: int) -> NoReturn:
    control = socket.socket(fileno=config["control"])
    step = "uid map"
    try:
        if os.read(mapped, 1) != b"1":
            os._exit(1)
        if config["root"]:
            step = "identity"
            os.setgroups([])
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
        _die_with_parent(mapped)
        if not config["root"]:
            step = "root file system"
            rootfs.build(config["steps"])
        step = "pivot"
        rootfs.enter()
        sys_.sethostname("belljar")
        step = "execute the Environment's Python"
        os.set_inheritable(config["control"], True)
        os.set_inheritable(config["bundle"], True)
        os.lseek(config["bundle"], 0, os.SEEK_SET)
        flags = ["-I"] if config["site"] else ["-I", "-S"]
        arguments = [*flags, "-c", config["bootstrap"], str(config["bundle"]), config["entry"]]
        os.execve(config["python"], ["python", *arguments], config["env"])
    except OSError as error:
        _report(control, step, error)
    os._exit(1)


def _die_with_parent(mapped: int) -> None:
    """Asked for after the last change of credentials, which would undo it. A parent that ended
    before has closed its end of the pipe."""
    sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.set_blocking(mapped, False)
    try:
        if os.read(mapped, 1) == b"":
            os._exit(1)
    except BlockingIOError:
        os.close(mapped)  # it lives


def _report(control: socket.socket, step: str, error: OSError) -> None:
    message = {"failed": step, "errno": error.errno, "message": str(error)}
    control.send(json.dumps(message).encode())


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
