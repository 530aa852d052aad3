"""One hostile program, released into a sandbox and judged from outside."""

from __future__ import annotations

import contextlib

from belljar.conformance.canaries import everything
from belljar.conformance.counters import own_memory
from belljar.conformance.guests import init_of, worker_of
from belljar.conformance.looks import FROM_THE_API, LOOKS, Scene
from belljar.conformance.posture import Posture, drift, posture, summary
from belljar.conformance.processes import (
    Process,
    TooLate,
    alive,
    descendants,
    process,
    tree,
    wait_until,
)
from belljar.conformance.programs import ANSWERED_INSIDE, Program
from belljar.conformance.results import Look
from belljar.conformance.stage import Stage, is_visible
from belljar.results.execution import Execution
from belljar.sandbox.blocking import Sandbox
from belljar.text import printable

_ENDING = 30.0  # seconds for the processes of a closed sandbox to be gone
ELSEWHERE = "the guest's processes are not this user's to see, or on another machine"


def release(program: Program, stage: Stage, look: Look) -> str:
    """Make the attempt and look at everything; gives what the caller was told."""
    sandbox = stage.start(program.limits)
    sandbox.files.write("kept.txt", "kept")
    init = init_of(sandbox)
    visible = is_visible(init)
    gvisor = stage.setting.gvisor
    reference = posture(worker_of(sandbox, gvisor=gvisor)) if visible else {}
    memory = own_memory()
    execution, seconds = stage.release(program, sandbox)

    inside = not (gvisor and program.name in ANSWERED_INSIDE)
    if inside:
        _compare(program, execution, look, counted=stage.setting.counted)
    else:
        look.saw("gVisor's own kernel answers this; only what reached the host is judged")
    look.in_time(seconds, program.within)
    for text in stage.canaries.wrongs(everything(execution)).values():
        look.wrong(text)
    if not look.problems:
        look.evidence += stage.canaries.seen()
    if visible:
        _compare_posture(init, reference, look, gvisor=gvisor)
    else:
        look.saw(f"posture not read: {ELSEWHERE}")
    if inside and (visible or program.oracle in FROM_THE_API):
        scene = Scene(
            program=program,
            sandbox=sandbox,
            init=init,
            execution=execution,
            memory_before=memory,
        )
        LOOKS[program.oracle](scene, look)
    if inside and program.head.get("keeps") == "files":
        look.expect(sandbox.files.read("kept.txt") == "kept", "a file of before is still there")
    _go_on(program, stage, sandbox, init, look)
    return _told(execution, seconds)


def _compare(program: Program, execution: Execution, look: Look, *, counted: bool) -> None:
    """What the caller is told is the host's own observation: it must be what was expected."""
    for name, value in program.expect(counted=counted).items():
        found: object
        if name == "outcome":
            found = execution.outcome.value
            holds = found in str(value).split("|")
        elif name == "error":
            found = execution.error.name if execution.error else None
            holds = found == value
        else:
            found = getattr(execution, name)
            holds = found == value
        if not holds:
            look.wrong(f"{name} is {found!r} and not {value!r}; notes: {execution.notes!r:.300}")
    if "ACHIEVED" in execution.stdout:
        at = execution.stdout.index("ACHIEVED")
        look.wrong(f"the program says: {printable(execution.stdout[at : at + 200])}")


def _compare_posture(init: int, reference: Posture, look: Look, *, gvisor: bool) -> None:
    """Every task of the guest is what it was before the attempt."""
    pids = [pid for pid in tree(init) if pid != init]
    found = [] if gvisor else drift(reference, pids)
    look.problems += found
    try:
        first = wait_until(lambda: _first(init), what="a look at the guest's first process")
    except TooLate as error:
        look.wrong(str(error))
        return
    if isinstance(first, str):
        look.saw(first)
        return
    now, line = first
    if gvisor:
        look.expect(now == reference, f"posture of gVisor's kernel: {line}")
    elif not found:
        look.saw(f"posture of all {len(pids)} processes unchanged: {line}")


def _first(init: int) -> tuple[Posture, str] | str | None:
    """Its posture, and that in a line; or that it has ended. None: it is just ending."""
    found: tuple[Posture, str] | None = None
    with contextlib.suppress(OSError):
        found = posture(init), summary(init)
    return found if alive(init) else "the whole guest has ended"


def _go_on(program: Program, stage: Stage, sandbox: Sandbox, init: int, look: Look) -> None:
    """The sandbox answers, its file or variables of before notwithstanding; it ends without a
    trace; and a new one works."""
    # Without a control group, what a cell still holds may cost the next one its worker.
    patient = program.oracle == "memory" and not stage.setting.counted
    patience = 60.0 if patient or program.head.get("next") == "later" else 0.0
    try:
        wait_until(lambda: _answers(sandbox), timeout=patience, what="an answer of the next cell")
    except TooLate as error:
        look.wrong(str(error))
    processes = _everyone(init) if init else []
    sandbox.close()
    try:
        wait_until(
            lambda: not [p for p in processes if alive(p.pid, p.started)],
            timeout=_ENDING,
            what=f"the end of {len(processes)} processes of the closed sandbox",
        )
    except TooLate as error:
        look.wrong(str(error))
    look.expect(stage.newborn_answers(), "a new sandbox works")
    for text in stage.canaries.wrongs().values():
        look.wrong(f"after the end: {text}")
    if not look.problems:
        look.saw(f"the next cell answered; closed, {len(processes)} processes were gone")


def _everyone(init: int) -> list[Process]:
    return [p for p in (process(init), *descendants(init)) if p and not p.dead]


def _answers(sandbox: Sandbox) -> bool:
    return sandbox.run_code("1 + 1", timeout=30).value == 2


def _told(execution: Execution, seconds: float) -> str:
    words = [f"outcome {execution.outcome.value}"]
    if execution.error is not None:
        words.append(f"error {printable(execution.error.name)}")
    if execution.exit_code is not None:
        words.append(f"exit code {execution.exit_code}")
    if execution.signal is not None:
        words.append(f"signal {execution.signal}")
    return ", ".join(words) + f", after {seconds:.1f} s"


def expectation(program: Program, *, counted: bool) -> str:
    """In words, for a report."""
    words = []
    for name, value in program.expect(counted=counted).items():
        words.append(f"{name.replace('_', ' ')} {printable(str(value)).replace('|', ' or ')}")
    limits = ", ".join(f"{name}={value}" for name, value in program.limits.items())
    with_limits = f" (limits: {limits})" if limits else ""
    return (
        f"{', '.join(words)} within {program.within:g} s{with_limits}; nothing of the host "
        "reached, no task changed, the next cell answers, nothing left"
    )
