"""Runs one hostile program in a sandbox and judges it from outside.

`LOOKS` are further checks of the live guest, by the name in the program's head (`oracle`).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from belljar.conformance.canaries import collect_output
from belljar.conformance.posture import Posture, descriptors, drift, posture, summary
from belljar.conformance.processes import (
    Counters,
    alive,
    family,
    init_of,
    is_ending,
    own_memory,
    settle,
    tasks_below,
    tree,
    wait_until,
    worker_of,
)
from belljar.conformance.programs import ANSWERED_INSIDE, Program
from belljar.conformance.report_data import Look
from belljar.conformance.stage import Stage, is_visible
from belljar.results.execution import Execution
from belljar.sandbox.blocking import Sandbox
from belljar.text import printable

ELSEWHERE = "this user may not inspect the guest's processes, or they are on another machine"


def try_program(program: Program, stage: Stage, look: Look) -> str:
    """Make the attempt and check everything; returns the outcome in words."""
    sandbox = stage.start(program.limits)
    sandbox.files.write("kept.txt", "kept")
    init = init_of(sandbox)
    visible = is_visible(init)
    gvisor = stage.setting.gvisor
    reference = posture(worker_of(sandbox, gvisor=gvisor)) if visible else {}
    memory = own_memory()
    execution, seconds = stage.run_program(program, sandbox)

    inside = not (gvisor and program.name in ANSWERED_INSIDE)
    if inside:
        _compare(program, execution, look, counted=stage.setting.counted)
    else:
        look.saw("gVisor's kernel answers this program; only effects on the host are judged")
    look.in_time(seconds, program.within)
    stage.check_canaries(look, collect_output(execution))
    if not look.problems:
        look.evidence += stage.canaries.describe()
    if visible:
        _compare_posture(init, reference, look, gvisor=gvisor)
    else:
        look.saw(f"posture not read: {ELSEWHERE}")
    if inside and (visible or program.oracle in FROM_THE_API):
        scene = Scene(
            program=program, sandbox=sandbox, init=init, execution=execution, memory_before=memory
        )
        LOOKS[program.oracle](scene, look)
    if inside and program.head.get("keeps") == "files":
        look.expect(sandbox.files.read("kept.txt") == "kept", "an earlier file is still there")
    _check_aftermath(program, stage, sandbox, init, look)
    return _describe_outcome(execution, seconds)


def _compare(program: Program, execution: Execution, look: Look, *, counted: bool) -> None:
    """The result that the caller gets must be the expected one."""
    for name, value in program.expect(counted=counted).items():
        found = getattr(execution, name)
        if name == "error":
            found = found and found.name
        if found not in (str(value).split("|") if name == "outcome" else [value]):
            look.wrong(f"{name} is {str(found)!r}, not {value!r}; notes: {execution.notes!r:.300}")
    if "ACHIEVED" in execution.stdout:
        at = execution.stdout.index("ACHIEVED")
        look.wrong(f"the program says: {printable(execution.stdout[at : at + 200])}")


def _compare_posture(init: int, reference: Posture, look: Look, *, gvisor: bool) -> None:
    """Every task of the guest must have the privileges it had before the attempt."""
    pids = [pid for pid in tree(init) if pid != init]
    found = [] if gvisor else drift(reference, pids)
    look.problems += found
    first = look.happens(lambda: _read_init_posture(init), "a look at the guest's first process")
    if first is None:
        return
    if isinstance(first, str):
        look.saw(first)
        return
    now, line = first
    if gvisor:
        look.expect(now == reference, f"posture of gVisor's kernel: {line}")
    elif not found:
        look.saw(f"posture of all {len(pids)} processes unchanged: {line}")


def _read_init_posture(init: int) -> tuple[Posture, str] | str | None:
    """The posture of init and a summary of it, or a note that it ended. None: it is ending."""
    found: tuple[Posture, str] | None = None
    with contextlib.suppress(OSError):
        found = posture(init), summary(init)
    return found if alive(init) else "the whole guest has ended"


def _check_aftermath(
    program: Program, stage: Stage, sandbox: Sandbox, init: int, look: Look
) -> None:
    """The sandbox still answers, closing it leaves no process, and a new sandbox works."""
    # Without a control group, memory that a cell still holds may cost the next cell its worker.
    patient = program.oracle == "memory" and not stage.setting.counted
    look.happens(
        lambda: sandbox.run_code("1 + 1", timeout=30).value == 2,
        "an answer of the next cell",
        timeout=60.0 if patient or program.head.get("next") == "later" else 0.0,
    )
    processes = family(init) if init else []
    sandbox.close()
    look.happens(
        lambda: not [p for p in processes if alive(p.pid, p.started)],
        f"the end of {len(processes)} processes of the closed sandbox",
    )
    look.expect(stage.new_sandbox_answers(), "a new sandbox works")
    for text in stage.canaries.find_damage().values():
        look.wrong(f"after the sandbox was closed: {text}")
    if not look.problems:
        look.saw(f"the next cell answered; closing ended all {len(processes)} processes")


def _describe_outcome(execution: Execution, seconds: float) -> str:
    words = {
        "outcome": execution.outcome.value,
        "error": execution.error and printable(execution.error.name),
        "exit code": execution.exit_code,
        "signal": execution.signal,
    }
    told = [f"{name} {value}" for name, value in words.items() if value is not None]
    return f"{', '.join(told)}, after {seconds:.1f} s"


def describe_expectation(program: Program, *, counted: bool) -> str:
    """The expected result in words, for a report."""
    words = []
    for name, value in program.expect(counted=counted).items():
        words.append(f"{name.replace('_', ' ')} {printable(str(value)).replace('|', ' or ')}")
    limits = ", ".join(f"{name}={value}" for name, value in program.limits.items())
    with_limits = f" (limits: {limits})" if limits else ""
    return (
        f"{', '.join(words)} within {program.within:g} s{with_limits}; the host is untouched, "
        "no task gains privileges, the next cell answers, nothing is left behind"
    )


MIB = 1 << 20
GROWTH = 96 * MIB  # how much the host process may grow, whatever a guest writes
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


def _memory(scene: Scene, look: Look) -> None:
    limit = scene.program.allowed.memory
    layer = scene.sandbox.isolation.layer("memory")
    if layer.state != "enforced":
        look.expect(
            layer.state == "best-effort" and layer.remedy,
            "isolation reports memory as best-effort, with a remedy",
        )
        return
    found = wait_until(lambda: _read_group(scene.init), what="a look at the guest's control group")
    if not isinstance(found, tuple):
        look.saw("the guest ended when it ran out of memory; the host did not")
        return
    inside, its_limit, peak = found
    look.expect(inside, "the guest has its own control group")
    look.expect(its_limit == limit, f"the group's memory limit is {limit // MIB} MiB", its_limit)
    look.expect(peak <= limit, f"peak {peak / MIB:.1f} of {limit / MIB:g} MiB", peak)


def _read_group(init: int) -> tuple[bool, int, int] | Literal["ended"] | None:
    """True if the group belongs to the guest, its memory limit and its peak. None: init is ending,
    and the kernel has already removed it from its group."""
    found = None
    ending = is_ending(init)
    with contextlib.suppress(OSError):
        counters = Counters(init)
        found = counters.inside, counters.memory_limit, counters.memory_peak
    if not alive(init):
        return "ended"
    return None if ending or is_ending(init) else found


def _tasks(scene: Scene, look: Look) -> None:
    most = scene.program.allowed.processes
    look.expect(
        scene.sandbox.isolation.layer("processes").state == "enforced",
        "isolation reports the process limit as enforced",
    )
    found = tasks_below(scene.init)
    look.expect(found <= most + 1, f"{found} tasks; {most} and init are allowed")
    began = time.monotonic()
    subprocess.run(["true"], check=True)
    seconds = time.monotonic() - began
    look.expect(seconds < 5.0, f"a process of the host starts in {seconds * 1000:.0f} ms")


def _disk(scene: Scene, look: Look) -> None:
    limits = scene.program.allowed
    places = {"workspace": limits.workspace}
    places |= dict.fromkeys(("tmp", "dev/shm", "home/user", "var/tmp"), limits.tmp)
    for place, most in places.items():
        room = os.statvfs(f"/proc/{scene.init}/root/{place}")
        size = room.f_blocks * room.f_frsize
        used = size - room.f_bfree * room.f_frsize
        look.expect(used <= most and size <= most, f"/{place}: {used} bytes of {most} used", size)
        look.expect(0 < room.f_files <= _FILES_MOST, f"/{place}: {room.f_files} files at most")
        if scene.program.name == "r29_inodes" and place not in ("home/user", "var/tmp"):
            made = room.f_files - room.f_ffree
            look.control(made > 4000, f"{made} files were counted in /{place}")


def _descriptors(scene: Scene, look: Look) -> None:
    found = max(wait_until(lambda: _count_descriptors(scene.init), what="a process of the guest"))
    most = scene.program.allowed.open_files
    look.expect(found <= most, f"{found} descriptors in one process; {most} are allowed")


def _count_descriptors(init: int) -> list[int]:
    """Open descriptors of each process except init. (init soon replaces a lost worker.)"""
    found = []
    for pid in [each for each in tree(init) if each != init]:
        try:
            found.append(len(descriptors(pid)))
        except OSError:
            if not is_ending(pid):
                raise
    return found


def _init(scene: Scene, look: Look) -> None:
    # While init replaces a worker it has a few more.
    settle(lambda: len(descriptors(scene.init)) > _INITS_MOST)
    kinds = list(descriptors(scene.init).values())
    look.expect(len(kinds) <= _INITS_MOST, f"init has {len(kinds)} descriptors", kinds)
    look.expect(
        not [kind for kind in kinds if kind.startswith("directory")],
        "no descriptor of init is a directory of the host",
        kinds,
    )


def _flood(scene: Scene, look: Look) -> None:
    kept = len(scene.execution.stdout) + len(scene.execution.stderr)
    most = scene.program.allowed.output
    look.expect(kept <= most, f"{kept} characters of output were kept; {most} are allowed")
    grown = own_memory() - scene.memory_before
    look.expect(grown < GROWTH, f"the host's own process grew by {max(grown, 0) / MIB:.1f} MiB")


def _core(scene: Scene, look: Look) -> None:
    names = [info.name for info in scene.sandbox.files.list()]
    look.expect(not [n for n in names if "core" in n], "no core file in the workspace", names)


LOOKS: dict[str, Callable[[Scene, Look], None]] = {
    "memory": _memory,
    "tasks": _tasks,
    "disk": _disk,
    "descriptors": _descriptors,
    "init": _init,
    "flood": _flood,
    "core": _core,
    "none": lambda scene, look: None,  # the checks after every attempt are enough
}
# Looks that do not inspect the guest's processes.
FROM_THE_API = {"flood", "core", "none"}
