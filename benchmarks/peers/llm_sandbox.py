"""llm-sandbox on docker, with the local image so that nothing is pulled."""

from __future__ import annotations

import io
import logging
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any

from peers.contract import NOTHING_WAITS, Peer, Place
from peers.engine import image, shim_and_below

LOAD = "import pandas; frame = pandas.read_pickle('/sandbox/frame', compression=None)"


class Session(Place):
    def __init__(self) -> None:
        from llm_sandbox import SandboxSession

        # The image has its packages, so that its set-up of a venv has nothing to do.
        self._session: Any = SandboxSession(
            lang="python",
            image=image(),
            keep_template=True,
            skip_environment_setup=True,
            runtime_configs={"network_mode": "none", "environment": {"MPLCONFIGDIR": "/tmp"}},
        )
        self._session.open()

    def run(self, code: str) -> str:
        done = self._session.run(code)
        if done.exit_code:
            raise RuntimeError(done.stderr.strip()[-200:])
        return str(done.stdout)

    def stream(self, code: str, callback: Callable[[int], None]) -> None:
        self._session.run(code, on_stdout=lambda text: callback(len(text)))

    def put(self, frame: object) -> None:
        with tempfile.NamedTemporaryFile() as file:
            frame.to_pickle(file.name, compression=None)  # type: ignore[attr-defined]
            self._session.copy_to_runtime(file.name, "/sandbox/frame")
        self.run(LOAD)

    def get(self) -> object:
        import pandas

        self.run(f"{LOAD}\nframe.to_pickle('/sandbox/out', compression=None)")
        archive, _ = self._session.get_archive("/sandbox/out")
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            member = tar.extractfile("out")
            assert member is not None
            return pandas.read_pickle(member, compression=None)  # noqa: S301  written by us

    def processes(self) -> Iterable[int]:
        return shim_and_below(self._session.container.id)

    def close(self) -> None:
        # Its own close waits ten seconds for a shell that does not heed SIGTERM.
        self._session.container.kill()
        self._session.close()


class LlmSandbox(Peer):
    title = "llm-sandbox"
    settings = (
        "`SandboxSession(lang='python', image=…, skip_environment_setup=True)` on docker: a new "
        "python in its container for each run, code and frames (pickles) copied as archives; the "
        "container is killed before its `close()`, which else waits ten seconds"
    )
    isolation = "container"
    works = ("cold", "trip", "frames", "streaming", "outputs", "throughput")
    cannot = {"memory": NOTHING_WAITS, "*": "each run is a new interpreter in its container"}  # noqa: RUF012
    rounds = 0.5
    most_at_once = 8

    def prepare(self) -> None:
        image()
        logging.disable(logging.WARNING)

    def version(self) -> str:
        return f"llm-sandbox {version('llm-sandbox')}"

    def start(self, **wishes: object) -> Place:
        return Session()


PEER = LlmSandbox()
