"""Where attempts are made: the sandboxes of one setting, and the canaries on the host. And the
registry of checks: rows about the host's side, each with its oracle and its control."""

from __future__ import annotations

import contextlib
import importlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from belljar.conformance.canaries import Canaries
from belljar.conformance.posture import posture
from belljar.conformance.programs import Program, shared_source
from belljar.conformance.report_data import Look
from belljar.conformance.setting import Setting, temp_prefix
from belljar.errors import SandboxError
from belljar.results.execution import Execution
from belljar.sandbox.blocking import Sandbox

Make = Callable[..., Sandbox]


class Stage:
    """`make` starts a sandbox in this setting with the given options."""

    def __init__(self, *, setting: Setting, canaries: Canaries, make: Make) -> None:
        self.setting = setting
        self.canaries = canaries
        self._make = make
        self._opened: list[Sandbox] = []
        self._spare: Sandbox | None = None

    def open(self, **options: object) -> Sandbox:
        sandbox = self._make(**options)
        self._opened.append(sandbox)
        return sandbox

    def start(self, limits: Mapping[str, object] | None = None) -> Sandbox:
        """A sandbox that has the hostile programs' shared module."""
        spare, self._spare = self._spare, None
        if spare is not None and not limits:
            sandbox = spare
        else:
            sandbox = self.open(limits=limits or {}, strict=False)
        sandbox.files.write("hostile.py", shared_source())
        self.canaries.reset()
        return sandbox

    def run_program(self, program: Program, sandbox: Sandbox) -> tuple[Execution, float]:
        """Run the program there; returns the result and the seconds it took."""
        began = time.monotonic()
        execution = sandbox.run_code(
            program.source, timeout=program.timeout, env=self.canaries.environment(confined=True)
        )
        return execution, time.monotonic() - began

    def new_sandbox_answers(self) -> bool:
        """True if a new sandbox works after the attempt. The next attempt uses that sandbox."""
        sandbox = self._spare or self.open()
        self._spare = sandbox
        return sandbox.run_code("1 + 1").value == 2

    def close_all(self) -> None:
        """After an attempt: close every sandbox except the one kept for the next attempt."""
        for sandbox in self._opened:
            if sandbox is not self._spare:
                with contextlib.suppress(SandboxError):
                    sandbox.close()
        self._opened = [self._spare] if self._spare is not None else []

    def close(self) -> None:
        self._spare = None
        self.close_all()

    def check_canaries(self, look: Look, output: str = "") -> None:
        for text in self.canaries.find_damage(output).values():
            look.wrong(text)


def is_visible(pid: int) -> bool:
    """True if this process may inspect a guest: same machine, and the kernel permits it."""
    if pid <= 0:
        return False
    try:
        posture(pid)
    except PermissionError:
        return False
    return True


# -- checks ----------------------------------------------------------------------------------------

Body = Callable[[Stage, Look], None]

_MODULES = (
    *("checks_files", "checks_values", "checks_limits", "checks_lifecycle", "checks_newborn"),
    "checks_walls",
)


@dataclass(frozen=True, kw_only=True)
class Check:
    name: str
    rows: tuple[int, ...]
    what: str
    expected: str
    run: Body


_CHECKS: dict[str, Check] = {}


def check(*rows: int, what: str, expected: str) -> Callable[[Body], Body]:
    def register(body: Body) -> Body:
        name = body.__name__
        _CHECKS[name] = Check(name=name, rows=rows, what=what, expected=expected, run=body)
        return body

    return register


def checks() -> tuple[Check, ...]:
    for module in _MODULES:
        importlib.import_module(f"belljar.conformance.{module}")
    return tuple(_CHECKS.values())


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A temporary directory on the host for one check."""
    with tempfile.TemporaryDirectory(prefix=temp_prefix("check")) as directory:
        yield Path(directory)
