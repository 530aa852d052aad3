"""Positive controls: the same hostile program where nothing stops it. There the oracles must trip;
an oracle that does not trip proves nothing.

A control runs the program as an unprivileged process, as root of a bare namespace, or as a process
that may become root again, under limits that protect this machine. A program that would hurt the
machine is simulated instead: the simulation does on purpose what a guest must not do.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from belljar.conformance.attempts import GROWTH, MIB
from belljar.conformance.canaries import (
    ENVIRONMENT_SECRET,
    UNPRIVILEGED,
    VARIABLE,
    Canaries,
    find_python,
)
from belljar.conformance.posture import descriptors, drift, posture
from belljar.conformance.processes import (
    Counters,
    TooLate,
    init_of,
    own_memory,
    processes,
    tasks_below,
    tree,
    wait_until,
    worker_of,
)
from belljar.conformance.programs import Program, find_program, shared_source
from belljar.conformance.report_data import ControlResult
from belljar.conformance.setting import NOBODY, ROOT, machine_lock, temp_prefix
from belljar.conformance.stage import Stage, is_visible

_RUNNER = """
import sys
source = sys.stdin.buffer.read(int(sys.stdin.buffer.readline())).decode()
print("@@ready", flush=True)
sys.stdin.buffer.readline()
exec(compile(source, "<guest>", "exec"), {"__name__": "__main__"})
print("@@done", flush=True)
sys.stdin.buffer.readline()
"""
_FLOOD = 200_000  # bytes of output that only a flood has


class ControlUnavailable(Exception):
    """This machine cannot run the control; that says nothing about the oracle."""


class Control:
    """Runs a hostile program where nothing stops it, and finds the oracles that trip."""

    _process: subprocess.Popen[bytes]

    def __init__(self, program: Program, canaries: Canaries) -> None:
        self._program = program
        self._canaries = canaries
        self._output = bytearray()
        self.tripped: dict[str, str] = {}  # oracle -> what it saw

    def run(self) -> dict[str, str]:
        """The oracles that tripped, and what each saw."""
        with tempfile.TemporaryDirectory(dir="/tmp", prefix=temp_prefix("control")) as scratch:
            os.chmod(scratch, 0o777)
            with open(os.path.join(scratch, "hostile.py"), "w") as file:
                file.write(shared_source())
            os.chmod(os.path.join(scratch, "hostile.py"), 0o644)
            self._start(scratch)
            try:
                self._watch()
            finally:
                self._kill()
        return self.tripped

    def _command(self) -> tuple[list[str], dict[str, Any]]:
        """The command, and the arguments of Popen that set its user."""
        interpreter = find_python()
        if interpreter is None:
            raise ControlUnavailable("there is no Python that an unprivileged user may run")
        if self._program.control == "saved-root":
            uid = NOBODY
            leave = f"import os; os.setresuid({uid}, {uid}, 0)"
            return [interpreter, "-c", leave + _RUNNER], {}
        if self._program.control == "namespace":
            if (unshare := shutil.which("unshare")) is None:
                raise ControlUnavailable("the program `unshare` is not installed")
            bare = [unshare, "--user", "--map-root-user", "--mount"]
            return [*bare, interpreter, "-c", _RUNNER], UNPRIVILEGED
        return [interpreter, "-c", _RUNNER], UNPRIVILEGED

    def _start(self, scratch: str) -> None:
        command, identity = self._command()
        # Leak a directory, as a careless runner would.
        leaked = os.open(self._canaries.directory, os.O_RDONLY | os.O_DIRECTORY)
        environment = self._canaries.environment(confined=False)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=scratch,
                env={**environment, VARIABLE: ENVIRONMENT_SECRET, "PYTHONPATH": scratch},
                pass_fds=(leaked,),
                start_new_session=True,
                preexec_fn=_limit_control,
                **identity,
            )
        finally:
            os.close(leaked)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdout.fileno(), False)
        source = self._program.source.encode()
        with contextlib.suppress(BrokenPipeError):
            self._send(f"{len(source)}\n".encode() + source)
        if not self._read_until(b"@@ready", 60.0):
            said = self._output.decode("latin-1")
            self._kill()
            raise ControlUnavailable(f"the control did not start: {said.strip()[-300:]}")
        self._reference = posture(self._process.pid)
        self._known = set(descriptors(self._process.pid).values())

    def _watch(self) -> None:
        self._send(b"\n")
        done = self._read_until(b"@@done", self._program.control_seconds)
        if self._process.poll() is None:
            if not done:
                self.tripped["hang"] = f"still running after {self._program.control_seconds:g} s"
            found = drift(self._reference, tree(self._process.pid), known=self._known)
            if found:
                self.tripped["posture"] = "; ".join(found)[:500]
        else:
            code = self._process.returncode
            self.tripped[f"exit {code}"] = f"its process ended with {code}"
        if len(self._output) > _FLOOD:
            self.tripped["output"] = f"{len(self._output)} bytes of output, and more to come"
        text = self._output.decode("latin-1")
        self.tripped |= self._canaries.find_damage(text)
        if (at := text.find("ACHIEVED")) >= 0:
            self.tripped["achieved"] = text[at:].splitlines()[0][:200]

    def _send(self, data: bytes) -> None:
        self._stdin.write(data)
        self._stdin.flush()

    def _read_until(self, mark: bytes, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while mark not in self._output[-200:] and time.monotonic() < deadline:
            if not select.select([self._stdout], [], [], 0.05)[0]:
                if self._process.poll() is not None:
                    return False
                continue
            data = os.read(self._stdout.fileno(), 65536)
            if not data:
                self._process.wait()
                return False
            self._output += data
            if len(self._output) > 1_000_000:
                return False
        return mark in self._output

    def _kill(self) -> None:
        below = tree(self._process.pid) if self._process.poll() is None else []
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._canaries.restore()


def _limit_control() -> None:
    """A control is hostile code: limit what it can do to this machine."""
    for kind, value in (
        (resource.RLIMIT_CPU, 5),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 16 << 20),
        (resource.RLIMIT_AS, 2 << 30),
    ):
        resource.setrlimit(kind, (value, value))


def _verdict(stage: Stage) -> tuple[bool, str]:
    sandbox = stage.open(strict=False)
    ok, error = sandbox.run_code("1"), sandbox.run_code("1/0")
    died = sandbox.run_code("import os; os._exit(1)")
    found = (ok.outcome.value, error.outcome.value, died.outcome.value, died.exit_code)
    holds = found == ("ok", "error", "killed", 1) and not died.state_preserved
    return holds, f"a normal cell, an exception and an exit have different outcomes: {found}"


def _flood(stage: Stage) -> tuple[bool, str]:
    before = own_memory()
    grown = bytearray(GROWTH + 32 * MIB)
    grown[::4096] = b"x" * len(grown[::4096])
    more = own_memory() - before
    del grown
    return more > GROWTH, f"{more // MIB} MiB that the host keeps on purpose are seen"


def _host(stage: Stage) -> tuple[bool, str]:
    canaries = stage.canaries
    canaries.reset()
    missed = []
    for name in list(canaries._host):
        remembered = canaries._host[name]
        canaries._host[name] = object()
        if "host" not in canaries.find_damage():
            missed.append(name)
        canaries._host[name] = remembered
    canaries._clock += 1.0
    if "host" not in canaries.find_damage():
        missed.append("clock")
    canaries.reset()
    count = len(canaries._host) + 1
    return not missed, f"{count - len(missed)} of {count} simulated changes of the host are seen"


def _census(stage: Stage) -> tuple[bool, str]:
    mark = f"60.{os.getpid():08}"  # unique to this suite
    program = f"setsid sh -c 'sleep {mark} & exit 0' & wait"
    process = subprocess.Popen(["sh", "-c", program], start_new_session=True)
    process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        daemon, *_ = wait_until(
            lambda: [p.pid for p in processes().values() if p.name == "sleep" and mark in str(p)],
            timeout=20.0,
        )
    except TooLate:
        return False, "a daemon on the host is not seen"
    os.kill(daemon, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(daemon, 0)  # this process may be a subreaper
    return True, "a daemon that left its session and group is seen"


SIMULATIONS: dict[str, Callable[[Stage], tuple[bool, str]]] = {
    "verdict": _verdict,
    "flood": _flood,
    "host": _host,
    "census": _census,
}


def run_simulation(name: str, stage: Stage) -> ControlResult:
    tripped, showed = SIMULATIONS[name](stage)
    return ControlResult(where="simulated", tripped=tripped, showed=showed)


UNSTOPPED = {  # controls that run the program itself, and where
    "plain": "an unprivileged process",
    "namespace": "root of a bare namespace",
    "saved-root": "a process that may become root again",
}


class ControlRuns:
    """The controls of one run; each runs once, however many programs refer to it."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._done: dict[str, ControlResult] = {}

    def run(self, program: Program) -> ControlResult:
        if program.name not in self._done:
            self._done[program.name] = self._run(program)
        return self._done[program.name]

    def _run(self, program: Program) -> ControlResult:
        if program.control in UNSTOPPED:
            return run_unstopped(program, self._stage.canaries)
        if program.control == "larger":
            return run_with_larger_limits(program, self._stage)
        by, remark = simulated_by(program)
        if by in SIMULATIONS:
            if by not in self._done:
                self._done[by] = run_simulation(by, self._stage)
            found = self._done[by]
            return replace(found, showed=f"{found.showed} ({remark})") if remark else found
        if re.match(r"[rx]\d*_", by):
            found = self.run(find_program(by))
            return replace(found, where=f"as {by}", showed=f"{found.showed} ({remark})")
        known = {"itself": "within the attempt", "nothing": "none possible"}
        where = known.get(by, f"that of the check {by}")
        return ControlResult(where=where, tripped=None, showed=remark)


def simulated_by(program: Program) -> tuple[str, str]:
    """The name of the simulation, and a remark."""
    text = program.head["control"].removeprefix("simulated by ")
    by, _, remark = text.partition(": ")
    return by, remark


def run_unstopped(program: Program, canaries: Canaries) -> ControlResult:
    """The program itself, where nothing stops it."""
    where, wanted = UNSTOPPED[program.control], program.head["trips"]
    if program.control == "saved-root" and not ROOT:
        return _not_run(where, "only root can start such a process")
    try:
        with machine_lock(control=program.marks_the_machine):
            canaries.reset()
            tripped = Control(program, canaries).run()
    except ControlUnavailable as error:
        return _not_run(where, str(error))
    showed = f"{wanted}: {tripped.get(wanted)}"
    if wanted not in tripped:
        others = ", ".join(sorted(tripped)) or "none"
        showed = f"the oracle {wanted!r} did not trip; others that did: {others}"
    return ControlResult(where=where, tripped=wanted in tripped, showed=showed)


def _not_run(where: str, why: str) -> ControlResult:
    return ControlResult(where=where, tripped=None, showed=f"not run: {why}")


def run_with_larger_limits(program: Program, stage: Stage) -> ControlResult:
    """With larger limits, the counter must exceed the small limit."""
    limits = ", ".join(f"{name}={value}" for name, value in program.larger.items())
    where = f"the same with larger limits ({limits})"
    if program.oracle == "memory" and not stage.setting.counted:
        return _not_run(where, "no control group counts the guest's memory")
    if stage.setting.gvisor and program.oracle not in ("memory", "none"):
        return _not_run(where, "the host sees gVisor's kernel, not the guest's processes and files")
    sandbox = stage.start(program.larger)
    execution, _ = stage.run_program(program, sandbox)
    init = init_of(sandbox)
    if not is_visible(init):
        return _not_run(where, "this user may not inspect the guest")
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
    showed = f"{program.oracle}: {found}; the small limit is {least}; outcome {execution.outcome}"
    return ControlResult(where=where, tripped=execution.ok and found > least, showed=showed)
