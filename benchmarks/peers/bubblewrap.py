"""bubblewrap around python: namespaces, a read-only root, no network."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable

from peers.contract import NO_FRAMES, NO_SESSION, Missing, Peer, Place, command, read_all
from peers.plain import interpreter


def wrapped() -> list[str]:
    """The command without the code; what the interpreter needs is bound read-only."""
    python, environ = interpreter()
    arguments = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"]
    bound = ["/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache"]
    bound += [os.path.dirname(os.path.dirname(os.path.realpath(python))), environ["PYTHONPATH"]]
    for path in dict.fromkeys(bound):
        if os.path.exists(path):
            arguments += ["--ro-bind", path, path]
    arguments += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--chdir", "/tmp"]
    for name, value in (environ | {"HOME": "/tmp", "MPLCONFIGDIR": "/tmp"}).items():
        arguments += ["--setenv", name, value]
    return [*arguments, "--cap-drop", "ALL", os.path.realpath(python), "-c"]


class Wrapped(Place):
    def __init__(self) -> None:
        self._command = wrapped()

    def run(self, code: str) -> str:
        return subprocess.run(
            [*self._command, code], check=True, capture_output=True, text=True
        ).stdout

    def stream(self, code: str, callback: Callable[[int], None]) -> None:
        read_all([*self._command, code], callback)


class Bubblewrap(Peer):
    title = "bubblewrap + python"
    settings = (
        "`bwrap --unshare-all --cap-drop ALL`, read-only binds, tmpfs on /tmp; no seccomp filter "
        "and no limits, because bwrap makes neither by itself"
    )
    isolation = "namespaces"
    works = ("cold", "throughput", "streaming", "outputs")
    cannot = {"trip": NO_SESSION, "frames": NO_FRAMES, "*": NO_SESSION}  # noqa: RUF012

    def prepare(self) -> None:
        if shutil.which("bwrap") is None:
            raise Missing("there is no bwrap here (apt install bubblewrap)")
        done = subprocess.run([*wrapped(), "print(1)"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise Missing(f"bwrap fails here: {done.stderr.strip()[:120]}")

    def version(self) -> str:
        return command("bwrap", "--version")

    def start(self, **wishes: object) -> Place:
        return Wrapped()


PEER = Bubblewrap()
