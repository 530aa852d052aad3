"""The positive control of a hostile program: that the oracles see it where nothing stops it."""

from __future__ import annotations

import os
import re

from belljar.conformance.alone import undisturbed
from belljar.conformance.canaries import Canaries
from belljar.conformance.controls import Control, ControlUnavailable
from belljar.conformance.counters import Counters, tasks_below
from belljar.conformance.guests import init_of, worker_of
from belljar.conformance.posture import descriptors
from belljar.conformance.programs import UNSTOPPED, Program, named
from belljar.conformance.results import ControlResult
from belljar.conformance.setting import ROOT
from belljar.conformance.simulations import SIMULATIONS, simulate
from belljar.conformance.stage import Stage, is_visible

_WHERE = {
    "plain": "an unprivileged process",
    "namespace": "root of a bare namespace",
    "saved-root": "a process that root left a way back",
}


class Proofs:
    """Controls of one run; each is run once, however many programs refer to it."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._done: dict[str, ControlResult] = {}

    def of(self, program: Program) -> ControlResult:
        if program.name not in self._done:
            self._done[program.name] = self._run(program)
        return self._done[program.name]

    def _run(self, program: Program) -> ControlResult:
        if program.control in UNSTOPPED:
            return unstopped(program, self._stage.canaries)
        if program.control == "larger":
            return larger(program, self._stage)
        by, remark = simulated_by(program)
        if by in SIMULATIONS:
            if by not in self._done:
                self._done[by] = simulate(by, self._stage)
            found = self._done[by]
            remark = f" ({remark})" if remark else ""
            return ControlResult(
                kind=found.kind, tripped=found.tripped, showed=found.showed + remark
            )
        if re.match(r"[rx]\d*_", by):
            found = self.of(named(by))
            return ControlResult(
                kind=f"as {by}", tripped=found.tripped, showed=f"{found.showed} ({remark})"
            )
        kind = "within the attempt" if by == "itself" else "none possible"
        if by not in ("itself", "nothing"):
            kind = f"that of the check {by}"
        return ControlResult(kind=kind, tripped=None, showed=remark)


def simulated_by(program: Program) -> tuple[str, str]:
    """The name of the simulation, and a remark."""
    text = program.head["control"].removeprefix("simulated by ")
    by, _, remark = text.partition(": ")
    return by, remark


def unstopped(program: Program, canaries: Canaries) -> ControlResult:
    """The program itself, where nothing stops it."""
    kind, wanted = program.control, program.head["trips"]
    if kind == "saved-root" and not ROOT:
        return ControlResult(
            kind=_WHERE[kind], tripped=None, showed="not run: only root can leave a way back"
        )
    control = Control(program, canaries, kind)
    try:
        with undisturbed(control=program.marks_the_machine):
            canaries.reset()
            tripped = control.trips()
    except ControlUnavailable as error:
        return ControlResult(kind=_WHERE[kind], tripped=None, showed=f"not run: {error}")
    if wanted in tripped:
        return ControlResult(
            kind=_WHERE[kind], tripped=True, showed=f"{wanted}: {control.told[wanted]}"
        )
    others = ", ".join(sorted(tripped)) or "none"
    return ControlResult(
        kind=_WHERE[kind],
        tripped=False,
        showed=f"the oracle {wanted!r} did not trip; others that did: {others}",
    )


def larger(program: Program, stage: Stage) -> ControlResult:
    """Under larger limits the counter must pass the small one."""
    limits = ", ".join(f"{name}={value}" for name, value in program.larger.items())
    kind = f"the same with larger limits ({limits})"
    if program.oracle == "memory" and not stage.setting.counted:
        return ControlResult(
            kind=kind, tripped=None, showed="not run: without a control group nothing counts"
        )
    if stage.setting.gvisor and program.oracle not in ("memory", "none"):
        return ControlResult(
            kind=kind,
            tripped=None,
            showed="not run: the host sees gVisor's kernel, not the guest's processes and files",
        )
    sandbox = stage.start(program.larger)
    execution, _ = stage.release(program, sandbox)
    init = init_of(sandbox)
    if not is_visible(init):
        return ControlResult(kind=kind, tripped=None, showed="not run: the guest cannot be seen")
    small = program.allowed
    if program.oracle == "memory":
        found, least = Counters(init).memory_peak, small.memory
    elif program.oracle == "tasks":
        found, least = tasks_below(init), small.processes + 1
    elif program.oracle == "descriptors":
        found = len(descriptors(worker_of(sandbox, gvisor=stage.setting.gvisor)))
        least = small.open_files
    else:
        room = os.statvfs(f"/proc/{init}/root/workspace")
        found, least = (room.f_blocks - room.f_bfree) * room.f_frsize, small.workspace
    sandbox.close()
    showed = f"{program.oracle}: {found}, where {least} are allowed; outcome {execution.outcome}"
    return ControlResult(kind=kind, tripped=execution.ok and found > least, showed=showed)
