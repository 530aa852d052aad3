"""Where attempts are made: sandboxes of one setting, and the canaries around them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping

from belljar.conformance.canaries import Canaries
from belljar.conformance.posture import posture
from belljar.conformance.programs import Program, shared
from belljar.conformance.setting import Setting
from belljar.errors import SandboxError
from belljar.results.execution import Execution
from belljar.sandbox.blocking import Sandbox

Make = Callable[..., Sandbox]


class Stage:
    """`make` starts a sandbox in this setting, with whatever options are asked for."""

    def __init__(
        self,
        *,
        setting: Setting,
        canaries: Canaries,
        make: Make,
        options: Mapping[str, str] | None = None,
        controls: bool = True,
    ) -> None:
        self.setting = setting
        self.canaries = canaries
        self.controls = controls  # whether controls are wanted
        self.options = dict(options or {})  # what `make` gives every sandbox
        self._make = make
        self._opened: list[Sandbox] = []
        self._spare: Sandbox | None = None

    def open(self, **options: object) -> Sandbox:
        sandbox = self._make(**options)
        self._opened.append(sandbox)
        return sandbox

    def start(self, limits: Mapping[str, object] | None = None) -> Sandbox:
        """One for a hostile program: what the programs share is in it."""
        spare, self._spare = self._spare, None
        if spare is not None and not limits:
            sandbox = spare
        else:
            sandbox = self.open(limits=limits or {}, strict=False)
        sandbox.files.write("hostile.py", shared())
        self.canaries.reset()
        return sandbox

    def release(self, program: Program, sandbox: Sandbox) -> tuple[Execution, float]:
        """Run the program there; and for how long it ran."""
        began = time.monotonic()
        execution = sandbox.run_code(
            program.source,
            timeout=program.timeout,
            env=self.canaries.environment(confined=True),
        )
        return execution, time.monotonic() - began

    def newborn_answers(self) -> bool:
        """Whether a new sandbox works, whatever the last one did. It serves the next attempt."""
        sandbox = self._spare or self.open()
        self._spare = sandbox
        return sandbox.run_code("1 + 1").value == 2

    def close_all(self) -> None:
        """After an attempt: every sandbox but the one that waits for the next."""
        for sandbox in self._opened:
            if sandbox is not self._spare:
                with contextlib.suppress(SandboxError):
                    sandbox.close()
        self._opened = [self._spare] if self._spare is not None else []

    def close(self) -> None:
        self._spare = None
        self.close_all()


def is_visible(pid: int) -> bool:
    """Whether this process may look at a guest: it is on this machine, and ours to see."""
    if pid <= 0:
        return False
    try:
        posture(pid)
    except PermissionError:
        return False
    return True
