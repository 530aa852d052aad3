"""What the docker command gives: a container a run, or one that waits and is entered."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from peers.contract import (
    NO_FRAMES,
    NO_SESSION,
    NOTHING_WAITS,
    Missing,
    Peer,
    Place,
    command,
    read_all,
)

SETTINGS = ("--network=none", "--tmpfs=/tmp:size=512m", "--env=MPLCONFIGDIR=/tmp")
PYTHON = "/opt/env/bin/python"


def image() -> str:
    """The image of the Environment "data", which the benchmark has built."""
    found = json.loads(os.environ["BELLJAR_BENCH"])
    if not found.get("image"):
        raise Missing(found.get("no_image", "no docker engine answers"))
    return str(found["image"])


def engine_version() -> str:
    """Of the engine, and of Python and pandas in the image, which Belljar's guests use too."""
    engine = command("docker", "version", "--format", "{{.Server.Version}}")
    return f"docker {engine}, {json.loads(os.environ['BELLJAR_BENCH'])['image_versions']}"


def shim_and_below(container: str) -> list[int]:
    """The processes of a container, and the shim that is there for it."""
    from work.memory import below

    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if b"containerd-shim" in words and container.encode() in words:
            return [int(entry.name), *below([int(entry.name)])]
    raise LookupError(f"there is no shim of {container}")


class Fresh(Place):
    def __init__(self, runtime: str) -> None:
        self._command = ["docker", "run", "--rm", f"--runtime={runtime}", *SETTINGS, image()]

    def run(self, code: str) -> str:
        arguments = [*self._command, PYTHON, "-c", code]
        return subprocess.run(arguments, check=True, capture_output=True, text=True).stdout

    def stream(self, code: str, callback: Callable[[int], None]) -> None:
        read_all([*self._command, PYTHON, "-c", code], callback)


class Waiting(Place):
    """A container that sleeps; each run is `docker exec`."""

    def __init__(self, runtime: str) -> None:
        run = ("docker", "run", "-d", "--init", f"--runtime={runtime}", *SETTINGS)
        self.container = command(*run, image(), "sleep", "3600")
        self._command = ["docker", "exec", self.container, PYTHON, "-c"]

    def run(self, code: str) -> str:
        arguments = [*self._command, code]
        return subprocess.run(arguments, check=True, capture_output=True, text=True).stdout

    def stream(self, code: str, callback: Callable[[int], None]) -> None:
        read_all([*self._command, code], callback)

    def put(self, frame: object) -> None:
        """Both ways through `docker exec -i`: docker cp cannot reach a tmpfs."""
        into = f"import sys; open('/tmp/frame', 'wb').write(sys.stdin.buffer.read())\n{LOAD}"
        with tempfile.TemporaryFile() as file:
            frame.to_pickle(file, compression=None)  # type: ignore[attr-defined]
            file.seek(0)
            arguments = ["docker", "exec", "-i", self.container, PYTHON, "-c", into]
            subprocess.run(arguments, check=True, stdin=file)

    def get(self) -> object:
        import pandas

        out = f"{LOAD}\nimport sys; frame.to_pickle(sys.stdout.buffer, compression=None)"
        with tempfile.TemporaryFile() as file:
            subprocess.run([*self._command, out], check=True, stdout=file)
            file.seek(0)
            return pandas.read_pickle(file, compression=None)  # noqa: S301  written by us

    def processes(self) -> Iterable[int]:
        return shim_and_below(self.container)

    def close(self) -> None:
        command("docker", "rm", "-f", self.container)


LOAD = "import pandas; frame = pandas.read_pickle('/tmp/frame', compression=None)"


class DockerRun(Peer):
    """`docker run --rm` of the image with the same packages."""

    isolation = "container"
    works = ("cold", "throughput", "streaming", "outputs")
    cannot = {"trip": NO_SESSION, "frames": NO_FRAMES, "*": NO_SESSION}  # noqa: RUF012

    def __init__(self, runtime: str = "runc") -> None:
        self._runtime = runtime
        self.title = "docker run" if runtime == "runc" else "docker run, gVisor"
        self.isolation = "container" if runtime == "runc" else "gVisor"
        self.rounds = 1.0 if runtime == "runc" else 0.5
        self.settings = (
            f"`docker run --rm --runtime={runtime} {' '.join(SETTINGS)}` of the image that "
            "Belljar's docker backend uses; the engine's own seccomp profile, no limits"
        )

    def prepare(self) -> None:
        image()
        if self._runtime not in json.loads(
            command("docker", "info", "--format={{json .Runtimes}}")
        ):
            raise Missing(f"the engine has no runtime {self._runtime}")

    def version(self) -> str:
        if self._runtime == "runc":
            return engine_version()
        return command(self._runtime, "--version").splitlines()[0]

    def start(self, **wishes: object) -> Place:
        return Fresh(self._runtime)


class DockerExec(Peer):
    title = "docker exec"
    settings = (
        "`docker exec` of a new python in a container that sleeps, made before the clock starts; "
        "a frame goes as a pickle through stdin or stdout of an exec, read or written there"
    )
    isolation = "container, shared by all runs"
    works = ("cold", "trip", "frames", "streaming", "outputs", "throughput")
    cannot = {"memory": NOTHING_WAITS, "*": NO_SESSION}  # noqa: RUF012

    def __init__(self) -> None:
        self._shared: Waiting | None = None

    def prepare(self) -> None:
        image()

    def version(self) -> str:
        return engine_version()

    def start(self, **wishes: object) -> Place:
        if wishes.get("session") and not wishes.get("streams"):
            return Waiting("runc")
        if self._shared is None:
            self._shared = Waiting("runc")
        return Entered(self._shared)

    def close(self) -> None:
        if self._shared is not None:
            self._shared.close()


class Entered(Place):
    """A run in the container that all share."""

    def __init__(self, container: Waiting) -> None:
        self.run = container.run  # type: ignore[method-assign]
        self.stream = container.stream  # type: ignore[method-assign]
