"""Keeps the limits `lifetime` and `idle` of a sandbox; looked at by the runtime."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from belljar.sandbox.lifecycle import Life


class Clock:
    def __init__(self, sandbox: Life) -> None:
        self._sandbox = sandbox
        self._born = self._used = time.monotonic()
        self.stopped = False

    def used(self) -> None:
        self._used = time.monotonic()

    def look(self) -> None:
        limits, now = self._sandbox.limits, time.monotonic()
        if limits.lifetime is not None and now - self._born > limits.lifetime:
            self._end(f"has reached its lifetime of {limits.lifetime:g} s")
        idle = now - self._used if not self._sandbox.busy else 0.0
        if limits.idle is not None and idle > limits.idle:
            self._end(f"was idle for more than {limits.idle:g} s")

    def _end(self, why: str) -> None:
        self.stopped = True
        self._sandbox.end(why)
