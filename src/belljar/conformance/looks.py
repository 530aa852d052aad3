"""Further looks at a live guest, by the name that the head of a hostile program gives."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from belljar.blocking import Sandbox
from belljar.conformance.counters import Counters, own_memory, tasks_below
from belljar.conformance.posture import descriptors
from belljar.conformance.processes import alive, tree
from belljar.conformance.programs import Program
from belljar.conformance.results import Look
from belljar.execution import Execution
from belljar.limits import Limits

MIB = 1 << 20
GROWTH = 96 * MIB  # of the host's own memory, at most, whatever a guest writes
_FILES_MOST = 65536


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One attempt that has just been made."""

    program: Program
    sandbox: Sandbox
    init: int
    execution: Execution
    memory_before: int  # of this process, in bytes

    @property
    def allowed(self) -> Limits:
        """What was asked for, whatever the sandbox says of itself."""
        return self.program.allowed


def _memory(scene: Scene, look: Look) -> None:
    limit = scene.allowed.memory
    layer = scene.sandbox.isolation.layer("memory")
    if layer.state != "enforced":
        look.expect(
            layer.state == "best-effort" and layer.remedy,
            "memory is said to be best-effort here, with a remedy",
        )
        return
    if not alive(scene.init):
        look.saw("the guest ended for want of memory, and the host did not")
        return
    counters = Counters(scene.init)
    look.expect(counters.inside, "the guest is in a control group made for it")
    look.expect(
        counters.memory_limit == limit,
        f"the group's memory limit is {limit // MIB} MiB",
        counters.memory_limit,
    )
    peak = counters.memory_peak
    look.expect(peak <= limit, f"peak {peak / MIB:.1f} of {limit / MIB:g} MiB", peak)


def _tasks(scene: Scene, look: Look) -> None:
    most = scene.allowed.processes
    look.expect(
        scene.sandbox.isolation.layer("processes").state == "enforced",
        "the number of processes is said to be enforced",
    )
    found = tasks_below(scene.init)
    look.expect(found <= most + 1, f"{found} tasks, of which {most} and init are allowed")
    began = time.monotonic()
    subprocess.run(["true"], check=True)
    seconds = time.monotonic() - began
    look.expect(seconds < 2.0, f"a process of the host starts in {seconds * 1000:.0f} ms")


def _disk(scene: Scene, look: Look) -> None:
    limits = scene.allowed
    places = {"workspace": limits.workspace, "tmp": limits.tmp, "dev/shm": limits.tmp}
    for place, most in places.items():
        room = os.statvfs(f"/proc/{scene.init}/root/{place}")
        size = room.f_blocks * room.f_frsize
        used = size - room.f_bfree * room.f_frsize
        look.expect(used <= most and size <= most, f"/{place}: {used} bytes of {most} used", size)
        look.expect(0 < room.f_files <= _FILES_MOST, f"/{place}: {room.f_files} files at most")
        if scene.program.name == "r29_inodes":
            made = room.f_files - room.f_ffree
            look.control(made > 4000, f"{made} files were counted in /{place}")


def _descriptors(scene: Scene, look: Look) -> None:
    found = max(len(descriptors(pid)) for pid in tree(scene.init) if pid != scene.init)
    most = scene.allowed.open_files
    look.expect(found <= most, f"{found} descriptors in one process, of {most} allowed")


def _init(scene: Scene, look: Look) -> None:
    kinds = list(descriptors(scene.init).values())
    look.expect(len(kinds) <= 16, f"init has {len(kinds)} descriptors", kinds)
    look.expect(
        not [kind for kind in kinds if kind.startswith("directory")],
        "none of them is a directory of the host",
        kinds,
    )


def _flood(scene: Scene, look: Look) -> None:
    kept = len(scene.execution.stdout) + len(scene.execution.stderr)
    most = scene.allowed.output
    look.expect(kept <= most, f"{kept} characters of output were kept, of {most} allowed")
    grown = own_memory() - scene.memory_before
    look.expect(grown < GROWTH, f"the host's own process grew by {max(grown, 0) / MIB:.1f} MiB")


def _core(scene: Scene, look: Look) -> None:
    names = [info.name for info in scene.sandbox.files.list()]
    look.expect(not [n for n in names if "core" in n], "no core file in the workspace", names)


def _nowhere(scene: Scene, look: Look) -> None:
    """What is looked at after every attempt is enough."""


LOOKS: dict[str, Callable[[Scene, Look], None]] = {
    "memory": _memory,
    "tasks": _tasks,
    "disk": _disk,
    "descriptors": _descriptors,
    "init": _init,
    "flood": _flood,
    "core": _core,
    "none": _nowhere,
}
# Those that need not see the guest's processes.
FROM_THE_API = {"flood", "core", "none"}
