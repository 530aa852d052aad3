"""A sandbox that starts in the background when its adapter is made, so that the first answer waits
for less. Whoever makes one ends it: `take` it, or `close` or `discard` it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from belljar import runtime
from belljar.compat import where
from belljar.errors import EnvironmentBuildError, SandboxError
from belljar.sandbox.blocking import Sandbox, Work, wait

logger = logging.getLogger("belljar")


class HeadStart:
    def __init__(self, places: Sequence[Mapping[str, Any]]) -> None:
        """`places`: the options of Sandbox, in the order in which they are tried. The next is tried
        where the one before cannot have the Environment: its image is neither there nor to be had.

        Raises InvalidOption now. What else goes wrong is raised by `take`.
        """
        self._sandboxes = [Sandbox(**options) for options in places]
        where.import_ahead()
        self.failed = False  # so far
        self._pid = os.getpid()
        self._runtime = runtime.current()
        self._work: Work[Sandbox] = Work(self._start)
        self._work.begin()

    async def _start(self) -> Sandbox:
        failed: list[SandboxError] = []
        for sandbox in self._sandboxes:
            try:
                await sandbox._sandbox.start()
            except SandboxError as error:
                failed.append(error)
                if not isinstance(error, EnvironmentBuildError):
                    break
                continue
            if failed:
                logger.warning("%s; so this sandbox is native", failed[0].message)
            return sandbox
        for other in failed[1:]:
            failed[0].add_note(f"and without it: {other}")
        self.failed = True
        raise failed[0]

    def take(self) -> Sandbox | None:
        """The sandbox, when it has started; None if it has ended, or belongs to the process that
        this one was forked from. Raises what kept it from starting."""
        if self._runtime is not runtime.current():
            return None
        sandbox = self._work.finish()
        return sandbox if sandbox.alive else None

    def close(self) -> None:
        """End it, also while it starts; nothing is left when this returns."""
        if self._pid == os.getpid():
            wait(self._kill)

    def discard(self) -> None:
        """The same without waiting, from any thread."""
        if self._pid == os.getpid():
            runtime.current().submit(self._kill)

    async def _kill(self) -> None:
        self._work.cancel()
        for sandbox in self._sandboxes:
            await sandbox._sandbox.kill()
