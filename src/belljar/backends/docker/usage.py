"""What a container has used: from its control group where that is this machine's, else from the
engine, never from the guest."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import anyio

from belljar.backends.base import UsageSample
from belljar.backends.docker.client.engine import Engine, EngineError, proper
from belljar.backends.linux.cgroup import plan
from belljar.backends.linux.cgroup.group import Meters

TIMEOUT = 5.0
MOST_KILLS = 10_000
NOT_FOUND, CONFLICT = 404, 409
KILLED = 128 + signal.SIGKILL  # as engines write it
REASON = 3.0  # seconds in which the engine hears why


def process_of(container: str, pid: int) -> bool:
    """Whether this pid of the engine's is the container's here too: the engine may be on another
    machine, or count processes in another namespace."""
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            parts = re.split(r"[/\n.-]", file.read())  # /ID, docker-ID.scope, libpod-ID.scope
    except OSError:
        return False
    return container in parts


def meters_of(pid: int) -> Meters | None:
    """The control group that the engine has made for a process of this machine."""
    try:
        with open("/proc/self/mountinfo") as mounts, open(f"/proc/{pid}/cgroup") as groups:
            found = list(plan.places(mounts.read(), groups.read(), os.path.exists))
    except OSError:
        return None
    controllers = {name for hierarchy, _ in found for name in hierarchy.controllers}
    return Meters(found) if {"memory", "cpuacct"} <= controllers else None


class Local:
    """Readings of a container whose control group can be read."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._last = UsageSample(cpu=None, peak_memory=None, memory_kills=0)
        self._counts_kills = False  # as some kernels do not
        self.gone = False  # with its control group

    @property
    def paths(self) -> tuple[str, ...]:
        return self._meters.paths

    def read(self, *, from_now: bool, now: bool = False) -> UsageSample:
        if from_now:
            self._meters.reset_peak()
        cpu, peak, kills = self._meters.read("cpu", "peak", "oom_kills")
        # The engine removes one hierarchy after the other: a part that is missing is the end.
        self.gone = cpu is None or (kills is None and self._counts_kills)
        self._counts_kills = self._counts_kills or kills is not None
        if cpu is not None and not self.gone:
            self._last = UsageSample(cpu=cpu / 1e9, peak_memory=peak, memory_kills=kills or 0)
        if not now or self.gone:
            return self._last
        memory, tasks = self._meters.read("current", "tasks")
        return replace(self._last, memory=memory, processes=tasks)

    def close(self) -> None:
        self._meters.close()


class Remote:
    """Readings by the engine's word, for a container on another machine."""

    def __init__(self, engine: Engine, container: str) -> None:
        self._engine = engine
        self._container = container
        self._since = time.time() - 3600  # the clocks of the two may differ
        self._seen: set[str] = set()
        self.gone = False

    async def read(self) -> UsageSample:
        cpu, peak, current, tasks = None, None, None, None
        path = f"/containers/{self._container}/stats"
        try:
            stats = await self._engine.request(
                "GET", path, query={"stream": False, "one-shot": True}, timeout=TIMEOUT
            )
        except EngineError as error:
            self.gone = error.status in (NOT_FOUND, CONFLICT)  # else it is slow, or out of reach
        else:
            nanoseconds = _whole(stats, "cpu_stats", "cpu_usage", "total_usage")
            cpu = None if nanoseconds is None else nanoseconds / 1e9
            current = _whole(stats, "memory_stats", "usage")
            peak = _whole(stats, "memory_stats", "max_usage") or current
            tasks = _whole(stats, "pids_stats", "current")
        await self._count_kills()
        return UsageSample(
            cpu=cpu,
            peak_memory=peak,
            memory_kills=len(self._seen),
            memory=current,
            processes=tasks,
        )

    async def _count_kills(self) -> None:
        query = {
            "since": int(self._since),
            "until": int(time.time() + 1),
            "filters": {"container": [self._container], "event": ["oom"]},
        }
        # Gone, or silent: then the reading says what is known.
        with contextlib.suppress(EngineError), anyio.move_on_after(TIMEOUT):
            async with self._engine.lines("GET", "/events", query=query) as events:
                async for event in events:
                    self._seen.add(f"{event.get('timeNano')} {event.get('time')}")
                    if len(self._seen) > MOST_KILLS:
                        return


def _whole(stats: object, *names: str) -> int | None:
    """A number in what the engine says, if it says one."""
    for name in names:
        stats = stats.get(name) if isinstance(stats, dict) else None
    return stats if type(stats) is int and 0 <= stats < 2**63 else None


async def ran_out_of_memory(engine: Engine, container: str, pid: int = 0) -> bool:
    """Of a container that is no more: whether its whole memory was gone."""
    with contextlib.suppress(EngineError), anyio.move_on_after(4 * TIMEOUT):
        state = await ending(engine, container, pid)
        return await for_want_of_memory(engine, container, state)
    return False


async def ending(engine: Engine, container: str, pid: int = 0) -> Mapping[str, Any]:
    """Its state, as soon as the engine has heard of its end; for how long is up to the caller.

    `pid`: of its first process, if known: one that somebody started again has another.
    """
    while True:
        state = await _state(engine, container)
        again = pid and state.get("Pid") not in (0, None, pid)
        if again or state.get("OOMKilled") or not state.get("Running"):
            return state
        await anyio.sleep(0.05)


async def for_want_of_memory(engine: Engine, container: str, state: Mapping[str, Any]) -> bool:
    """Whether that is why it is in this state, in which it does not run any more."""
    if state.get("OOMKilled"):
        return True
    if state.get("ExitCode") != KILLED:
        return False
    # The engine hears of the end and of the reason in any order. What comes late is an event, and
    # only in newer ones (Docker 24) part of the state, too.
    now = time.time()
    query = {
        "since": int(now - 60),
        "until": f"{now + REASON:.3f}",
        "filters": {"container": [container], "event": ["oom"]},
    }
    with contextlib.suppress(EngineError), anyio.move_on_after(REASON + TIMEOUT):
        async with engine.lines("GET", "/events", query=query) as events:
            async for _ in events:
                return True
    return bool((await _state(engine, container)).get("OOMKilled"))


async def _state(engine: Engine, container: str) -> Mapping[str, Any]:
    seen = await engine.request("GET", f"/containers/{container}/json", timeout=4 * TIMEOUT)
    with proper(engine, "about the container"):
        return dict(seen["State"])
