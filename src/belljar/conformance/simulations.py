"""Controls that are played, because the real thing would hurt the machine, or nothing could show
it but the oracle itself: each does on purpose what a guest must not, and the oracle must see it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable

from belljar.conformance.counters import own_memory
from belljar.conformance.looks import GROWTH, MIB
from belljar.conformance.processes import TooLate, processes, wait_until
from belljar.conformance.results import ControlResult
from belljar.conformance.stage import Stage


def _verdict(stage: Stage) -> tuple[bool, str]:
    """An honest cell, an honest error and an honest end are told apart."""
    sandbox = stage.open(strict=False)
    ok, error = sandbox.run_code("1"), sandbox.run_code("1/0")
    died = sandbox.run_code("import os; os._exit(1)")
    found = (ok.outcome.value, error.outcome.value, died.outcome.value, died.exit_code)
    holds = found == ("ok", "error", "killed", 1) and not died.state_preserved
    return holds, f"an honest cell, error and end are told apart: {found}"


def _flood(stage: Stage) -> tuple[bool, str]:
    """The host's memory does grow if something is kept in it."""
    before = own_memory()
    grown = bytearray(GROWTH + 32 * MIB)
    grown[::4096] = b"x" * len(grown[::4096])
    more = own_memory() - before
    del grown
    return more > GROWTH, f"{more // MIB} MiB that are kept on purpose are seen"


def _host(stage: Stage) -> tuple[bool, str]:
    """A changed host is seen, whichever value it is."""
    canaries = stage.canaries
    canaries.reset()
    missed = []
    for name in list(canaries._host):
        remembered = canaries._host[name]
        canaries._host[name] = object()
        if "host" not in canaries.wrongs():
            missed.append(name)
        canaries._host[name] = remembered
    canaries._clock += 1.0
    if "host" not in canaries.wrongs():
        missed.append("clock")
    canaries.reset()
    count = len(canaries._host) + 1
    return not missed, f"{count - len(missed)} of {count} pretended changes of the host are seen"


def _census(stage: Stage) -> tuple[bool, str]:
    """A daemon on the host outlives the end of its group, and is seen."""
    mark = f"60.{os.getpid():08}"  # part of no other suite's
    program = f"setsid sh -c 'sleep {mark} & exit 0' & wait"
    process = subprocess.Popen(["sh", "-c", program], start_new_session=True)
    process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        daemon, *_ = wait_until(lambda: _sleeping(mark), timeout=20.0)
    except TooLate:
        return False, "a daemon of the host is not seen"
    os.kill(daemon, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(daemon, 0)  # ours, if orphans come to us
    return True, "a daemon that left its session and group is seen"


def _sleeping(mark: str) -> list[int]:
    return [p.pid for p in processes().values() if p.name == "sleep" and mark in str(p)]


SIMULATIONS: dict[str, Callable[[Stage], tuple[bool, str]]] = {
    "verdict": _verdict,
    "flood": _flood,
    "host": _host,
    "census": _census,
}


def simulate(name: str, stage: Stage) -> ControlResult:
    tripped, showed = SIMULATIONS[name](stage)
    return ControlResult(kind="simulated", tripped=tripped, showed=showed)
