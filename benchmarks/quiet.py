"""Waiting until nothing else runs on the machine, and what others did while a benchmark ran.

Others are seen while the benchmark does nothing: as processors that are busy then. The load average
at the end of a run says nothing of them, because the benchmark's own work is in it.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

LOAD = 1.0  # one-minute average below which a run begins
BUSY = 0.5  # processors that others may use: one process that never waits would be 1
LOOK = 2.0  # seconds
TICKS = os.sysconf("SC_CLK_TCK")


class Quiet:
    """What others did around and during a run; `found` is plain data."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {"before": os.getloadavg()[0], "waited": 0.0, "others": []}

    def wait(self, minutes: float) -> bool:
        """Until load and busy processors are low; False if they were not in time."""
        began = said = time.monotonic()
        while True:
            load, (busy, who) = os.getloadavg()[0], look()
            now = time.monotonic()
            if load < LOAD and busy < BUSY:
                break
            words = f"load {load:.2f}, {busy:.1f} processors busy{': ' if who else ''}{who}"
            if now - began >= minutes * 60:
                print(f"the machine is not quiet: {words}", file=sys.stderr)
                break
            if said == began or now - said > 30:
                left = minutes - (now - began) / 60
                wanted = f"load < {LOAD:g} and < {BUSY:g} processors busy, {left:.0f} minutes"
                print(f"waiting for {wanted} at most; now {words}", file=sys.stderr)
                said = now
        self.found |= {"before": load, "waited": round(now - began, 1), "others": [busy]}
        return load < LOAD and busy < BUSY

    def look(self) -> None:
        """Between two kinds of work."""
        self.found["others"].append(look()[0])

    def end(self) -> None:
        """When everything of the benchmark has ended."""
        self.found["after"] = os.getloadavg()[0]
        # An engine may still clear up for us; what others do all the time is in every look.
        self.found["others"].append(min(look()[0] for _ in range(5)))


def is_quiet(found: dict[str, Any]) -> bool:
    """Whether nothing else ran at the beginning, at the end, and mostly between."""
    others = found["others"]
    return bool(
        found["before"] < LOAD and max(others[0], others[-1]) < BUSY and median(others) < BUSY
    )


def busy_seconds() -> float:
    """Processor time of everything on this machine since it started, as the kernel counts it."""
    user, nice, system, _idle, _iowait, irq, softirq = (
        int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:8]
    )
    return (user + nice + system + irq + softirq) / TICKS


def look() -> tuple[float, str]:
    """How many processors were busy for a moment in which this process slept; and the busiest."""
    began, busy, before = time.monotonic(), busy_seconds(), _ticks()
    time.sleep(LOOK)
    busy, took, after = busy_seconds() - busy, time.monotonic() - began, _ticks()
    each = [(now - before.get(key, 0), *key) for key, now in after.items()]
    most = [f"{name} ({pid})" for used, pid, name in sorted(each, reverse=True)[:3] if used > 4]
    return round(busy / took, 2), ", ".join(most)


def _ticks() -> dict[tuple[int, str], int]:
    """Processor time of each process and of its children that have ended, by number and name."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                head, _, rest = (entry / "stat").read_text().rpartition(")")
            except OSError:  # it has ended
                continue
            found[int(entry.name), head.partition("(")[2]] = sum(map(int, rest.split()[11:15]))
    return found


def quiet_words(found: dict[str, Any]) -> str:
    words = (
        f"load {found['before']:.2f} before and {found['after']:.2f} after the run; others used "
        f"{median(found['others']):.2f} processors (at most {max(found['others']):.2f}) meanwhile"
    )
    return words if is_quiet(found) else f"{words}: **the machine was not quiet**"
