"""Further looks at a live guest, by the name that the head of a hostile program gives."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from belljar.conformance.counters import Counters, own_memory, tasks_below
from belljar.conformance.posture import descriptors
from belljar.conformance.processes import TooLate, alive, is_ending, tree, wait_until
from belljar.conformance.programs import Program
from belljar.conformance.results import Look
from belljar.limits import Limits
from belljar.results.execution import Execution
from belljar.sandbox.blocking import Sandbox

MIB = 1 << 20
GROWTH = 96 * MIB  # of the host's own memory, at most, whatever a guest writes
_FILES_MOST = 65536
_INITS_MOST = 16  # descriptors


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
    found = wait_until(lambda: _counted(scene.init), what="a look at the guest's control group")
    if not isinstance(found, _Group):
        look.saw("the guest ended for want of memory, and the host did not")
        return
    inside, its_limit, peak = found
    look.expect(inside, "the guest is in a control group made for it")
    look.expect(its_limit == limit, f"the group's memory limit is {limit // MIB} MiB", its_limit)
    look.expect(peak <= limit, f"peak {peak / MIB:.1f} of {limit / MIB:g} MiB", peak)


class _Group(NamedTuple):
    inside: bool  # it is the guest's own
    limit: int
    peak: int


def _counted(init: int) -> _Group | Literal["ended"] | None:
    """None: it is just ending, and its group with it: the kernel already says it is in none."""
    found = None
    ending = is_ending(init)
    with contextlib.suppress(OSError):
        counters = Counters(init)
        found = _Group(counters.inside, counters.memory_limit, counters.memory_peak)
    if not alive(init):
        return "ended"
    return None if ending or is_ending(init) else found


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
    look.expect(seconds < 5.0, f"a process of the host starts in {seconds * 1000:.0f} ms")


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
    found = max(wait_until(lambda: _numbers(scene.init), what="a process of the guest"))
    most = scene.allowed.open_files
    look.expect(found <= most, f"{found} descriptors in one process, of {most} allowed")


def _numbers(init: int) -> list[int]:
    """Of descriptors, for each process but init. A worker that was lost is replaced in a moment."""
    found = []
    for pid in [each for each in tree(init) if each != init]:
        try:
            found.append(len(descriptors(pid)))
        except OSError:
            if not is_ending(pid):
                raise
    return found


def _init(scene: Scene, look: Look) -> None:
    # While it replaces a worker it has some more.
    with contextlib.suppress(TooLate):
        wait_until(lambda: len(descriptors(scene.init)) <= _INITS_MOST)
    kinds = list(descriptors(scene.init).values())
    look.expect(len(kinds) <= _INITS_MOST, f"init has {len(kinds)} descriptors", kinds)
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
