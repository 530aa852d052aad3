"""Where the suite runs: which backend and runtime, by whom, and whether guests are counted."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from belljar.backends.docker.isolation import guest_kernel
from belljar.conformance.processes import alive

ROOT = os.geteuid() == 0
NOBODY = 65534


def temporary(kind: str) -> str:
    """How the names of this process's own temporary directories begin."""
    return f"belljar-{kind}-{os.getpid()}-"


def sweep() -> None:
    """Remove such directories of suites that were killed."""
    for path in Path("/tmp").glob("belljar-c*-*-*"):
        found = re.fullmatch(r"belljar-(?:canary|control|check)-(\d+)-\w+", path.name)
        with contextlib.suppress(OSError):
            if found and path.lstat().st_uid == os.getuid() and not alive(int(found[1])):
                shutil.rmtree(path)


@dataclass(frozen=True, kw_only=True)
class Setting:
    backend: str  # native or docker
    runtime: str | None = None  # of containers: runc, runsc, ...
    counted: bool = True  # guests are in control groups that limit their memory

    @property
    def docker(self) -> bool:
        return self.backend == "docker"

    @property
    def gvisor(self) -> bool:
        """Its kernel answers the guest; the host sees that kernel, not the guest's processes."""
        return self.docker and guest_kernel(self.runtime or "") == "gVisor"

    @property
    def name(self) -> str:
        if self.docker:
            return f"docker with {self.runtime}"
        return "native, by root" if ROOT else "native, by an ordinary user"

    @property
    def kind(self) -> str:
        """What decides which mechanisms hold a guest: native, docker or gvisor."""
        return "gvisor" if self.gvisor else self.backend
