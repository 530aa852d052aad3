"""A Jupyter kernel: ipykernel, driven by jupyter_client."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from importlib.metadata import version

from peers.contract import Peer, Place


class Kernel(Place):
    def __init__(self) -> None:
        from jupyter_client.manager import KernelManager

        self._folder = tempfile.TemporaryDirectory()
        self._manager = KernelManager(kernel_name="python3")
        self._manager.start_kernel(env=os.environ | {"MPLBACKEND": "Agg"})
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=60)

    def run(self, code: str) -> str:
        parts: list[str] = []
        self._run(code, parts.append)
        return "".join(parts)

    def _run(self, code: str, write: Callable[[str], object]) -> None:
        """Until the kernel is idle again, after which nothing more comes."""
        asked = self._client.execute(code, store_history=False)
        while True:
            message = self._client.get_iopub_msg(timeout=120)
            if message["parent_header"].get("msg_id") != asked:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                write(content["text"])
            elif kind == "execute_result":
                write(content["data"]["text/plain"])
            elif kind == "error":
                raise RuntimeError(f"{content['ename']}: {content['evalue']}")
            elif kind == "status" and content["execution_state"] == "idle":
                break
        self._client.get_shell_msg(timeout=120)

    def trip(self) -> None:
        if self.run("1+1").strip() != "2":
            raise RuntimeError("1+1 was not 2")

    def stream(self, code: str, callback: Callable[[int], None]) -> None:
        self._run(code, lambda text: callback(len(text)))

    def put(self, frame: object) -> None:
        path = os.path.join(self._folder.name, "in")
        frame.to_pickle(path, compression=None)  # type: ignore[attr-defined]
        self.run(f"import pandas; frame = pandas.read_pickle({path!r}, compression=None)")

    def get(self) -> object:
        import pandas

        path = os.path.join(self._folder.name, "out")
        self.run(f"frame.to_pickle({path!r}, compression=None)")
        return pandas.read_pickle(path, compression=None)  # noqa: S301  written by us

    def processes(self) -> Iterable[int]:
        return [self._manager.provisioner.pid]

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._folder.cleanup()


class Jupyter(Peer):
    title = "Jupyter kernel"
    settings = (
        "ipykernel, `KernelManager` and `BlockingKernelClient`, defaults; a round trip ends with "
        "the kernel idle and its reply read; a frame goes as a pickle in a file that both can see"
    )
    isolation = "none"
    works = ("cold", "trip", "frames", "throughput", "memory", "streaming", "cells", "outputs")
    cannot = {"many": "500 kernels do not fit"}  # noqa: RUF012
    rounds = 0.7
    most_at_once = 8

    def version(self) -> str:
        return f"ipykernel {version('ipykernel')}, jupyter_client {version('jupyter_client')}"

    def start(self, **wishes: object) -> Place:
        return Kernel()


PEER = Jupyter()
