"""PID 1 of a container: the engine starts it, and it becomes the guest's init.

Its source came over standard input, which is the wire from then on. The engine has confined it
already, so it changes no rights; it only makes itself not dumpable, to hide from the code.
"""

import gc
import importlib
import importlib.util
import os
import traceback
from typing import Any, Dict, List, NoReturn, Tuple

from ..backends.linux import syscalls as sys_
from ..protocol import wire
from ..protocol.wire import KEY_SIZE, Seal
from . import init


class Pipes:
    """Two pipes with the methods of a socket that init uses. Descriptors cannot be sent."""

    def __init__(self, reading: int, writing: int) -> None:
        self.reading = reading
        self.writing = writing

    def setblocking(self, flag: bool) -> None:
        os.set_blocking(self.reading, flag)
        os.set_blocking(self.writing, flag)

    def recvmsg(self, size: int, *unused: int) -> "Tuple[bytes, List[Any], int, None]":
        return os.read(self.reading, size), [], 0, None

    def send(self, data: "memoryview") -> int:
        return os.write(self.writing, data)

    def sendall(self, data: bytes) -> None:
        """Only while the pipes block."""
        view = memoryview(data)
        while view:
            view = view[os.write(self.writing, view) :]


def main(config: Dict[str, Any]) -> NoReturn:
    seal = Seal(_take_key())
    channel = _take_pipes()
    try:
        facts = _prepare(config)
    except BaseException as error:
        last = "".join(traceback.format_exception_only(type(error), error)).strip()
        failure = {"failed": "preload", "message": last[-2000:]}
        channel.sendall(seal(wire.pack(wire.HELLO, 0, failure)))
        os._exit(1)
    if not os.path.exists(os.environ.get("SHELL", "")):  # an image without bash
        os.environ["SHELL"] = "/bin/sh"
    os.environ.update(config["env"])
    channel.sendall(seal(wire.pack(wire.HELLO, 0, facts)))
    hooks = {"seal": seal, "fork": sys_.fork, "worker_started": _worker_started}
    init.main(channel, {**config["setup"], **hooks})
    os._exit(1)


def _take_key() -> bytearray:
    """Read the key, which follows the bundle, into one buffer that can be erased."""
    key = bytearray(KEY_SIZE)
    view = memoryview(key)
    while view:
        taken = os.readv(0, [view])
        if not taken:
            os._exit(0)  # the host is gone
        view = view[taken:]
    return key


def _take_pipes() -> Pipes:
    """Move the wire away from descriptors 0 and 1, because modules may print at import."""
    pipes = Pipes(os.dup(0), os.dup(1))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return pipes


def _prepare(config: Dict[str, Any]) -> Dict[str, Any]:
    if os.getpid() != 1:
        raise RuntimeError("this is not the first process of its container")
    os.umask(0o022)
    os.chdir(config["setup"]["workspace"])
    sys_.prctl(sys_.PR_SET_DUMPABLE, 0)  # the code has the same uid, and must not read this memory
    skipped = _preload(config["preload"], config["warmup"], config["own_image"])
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:  # a fork copies one thread only; locks of others would stay locked
        raise RuntimeError(
            f"{threads - 1} threads run after the imports; remove the import that starts them"
        )
    sys_.run_fork_hooks()
    gc.collect()
    gc.freeze()
    return {"magic": importlib.util.MAGIC_NUMBER.hex(), "skipped": skipped}


def _preload(modules: List[str], warmup: str, own_image: bool) -> List[str]:
    """Import them. Skip those that the caller's image lacks, and then skip the warmup."""
    skipped = []
    for name in modules:
        if own_image and importlib.util.find_spec(name.partition(".")[0]) is None:
            skipped.append(name)
        else:
            importlib.import_module(name)
    if not skipped:
        exec(compile(warmup, "<warmup>", "exec"), {})
    return skipped


def _worker_started() -> None:
    # Init is not dumpable; the worker may read /proc of itself and of its children.
    sys_.prctl(sys_.PR_SET_DUMPABLE, 1)
