"""PID 1 of a container: what the engine starts, before it becomes the guest's init.

It has come over standard input, which from then on is the wire. The engine has confined it
already: nothing here grants or takes a right, but that init hides from the code it runs.
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
    """As much of a socket as Inbox, Outbox and init use; descriptors cannot be handed over."""

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
        """While they still block."""
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
    os.environ.update(config["env"])
    channel.sendall(seal(wire.pack(wire.HELLO, 0, facts)))
    hooks = {"seal": seal, "fork": sys_.fork, "worker_started": _worker_started}
    init.main(channel, {**config["setup"], **hooks})
    os._exit(1)


def _take_key() -> bytearray:
    """It follows the bundle, and is read to one place only."""
    key = bytearray(KEY_SIZE)
    view = memoryview(key)
    while view:
        taken = os.readv(0, [view])
        if not taken:
            os._exit(0)  # the host is gone
        view = view[taken:]
    return key


def _take_pipes() -> Pipes:
    """The wire away from the standard descriptors: what modules print at import is not for it."""
    pipes = Pipes(os.dup(0), os.dup(1))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return pipes


def _prepare(config: Dict[str, Any]) -> Dict[str, Any]:
    if os.getpid() != 1:
        raise RuntimeError("it is not the first process of its container")
    os.umask(0o022)
    os.chdir(config["setup"]["workspace"])
    sys_.prctl(sys_.PR_SET_DUMPABLE, 0)  # the code has the same uid, and must not look in here
    skipped = _preload(config["preload"], config["warmup"], config["own_image"])
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:  # a fork copies one thread only; locks of the others would stay locked
        raise RuntimeError(
            f"{threads - 1} threads run after the imports; leave out what starts them"
        )
    sys_.run_fork_hooks()
    gc.collect()
    gc.freeze()
    return {"magic": importlib.util.MAGIC_NUMBER.hex(), "skipped": skipped}


def _preload(modules: List[str], warmup: str, own_image: bool) -> List[str]:
    """Those that an image of the caller's does not have are left out, and the warmup with them."""
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
    # init is not dumpable; the worker may look at itself (/proc/self) and its children.
    sys_.prctl(sys_.PR_SET_DUMPABLE, 1)
