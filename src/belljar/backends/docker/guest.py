"""One guest in a container, seen from the host: its stream, what it has used, its end.

What it has used is read from its control group if the container runs on this machine, else from
the engine, and never from the guest.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio

from belljar.backends.base import Host, Location, UsageSample
from belljar.backends.docker import health
from belljar.backends.docker.client.engine import Engine, EngineError, parsing_answer
from belljar.backends.docker.stream import AttachedStream
from belljar.backends.isolation import Isolation
from belljar.backends.linux.cgroup import plan
from belljar.backends.linux.cgroup.group import Meters
from belljar.errors import StartError
from belljar.text import printable

if TYPE_CHECKING:
    from belljar.backends.docker.images.resolve import Image

KILL_TIMEOUT = 5.0
FREEZE_TIMEOUT = 30.0
END_TIMEOUT = 20.0


class DockerGuest:
    def __init__(
        self,
        host: Host,
        engine: Engine,
        container: str,
        stream: AttachedStream,
        remove: Callable[[Engine, str], Awaitable[None]],
    ) -> None:
        self.stream = stream
        self.container = container
        self.pid = 0  # of its first process, if the container is on this machine
        self.isolation = Isolation(backend="docker", layers=(), limits=())
        self._host = host
        self._engine = engine
        self._remove = remove
        self._pidfd = -1
        self._signalling = threading.RLock()  # a closed descriptor's number may be in use again
        self._local: LocalUsage | None = None
        self._remote = RemoteUsage(engine, container)
        self._killed = False
        self.closed = False
        self.on_removed: Callable[[], object] | None = None
        self._out_of_memory: bool | None = None  # why it ended; None: it has not ended

    def find_process(self, pid: int) -> bool:
        """Take over the process that the engine calls `pid`; False if it is not on this machine."""
        if self._engine.endpoint.kind != "unix" or pid <= 1:
            return False
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        # Checked when the pidfd is open: before, the number may have passed to another process.
        if not is_container_process(self.container, pid):
            os.close(pidfd)
            return False
        self._pidfd = pidfd
        self.pid = pid
        meters = open_meters(pid)
        if meters is not None:
            self._local = LocalUsage(meters)
            self._local.read(from_now=False)  # while all its files exist
        return True

    @property
    def location(self) -> Location:
        return Location(
            pid=self.pid or None,
            cgroups=self._local.meters.paths if self._local is not None else (),
            container=self.container,
            engine=str(self._engine.endpoint),
        )

    async def read_usage(self, *, from_now: bool = False, now: bool = False) -> UsageSample:
        if self._local is not None:
            seen = self._local.read(from_now=from_now, now=now)
            gone = self._local.gone
        else:
            seen = await self._remote.read()
            gone = self._remote.gone
        if gone and self._out_of_memory is None and not self._killed:
            self._out_of_memory = await ran_out_of_memory(self._engine, self.container, self.pid)
        if not self._out_of_memory:
            return seen
        return replace(seen, memory_kills=seen.memory_kills + 1)

    def find_mapped(self) -> None:
        return None

    async def freeze(self) -> None:
        await health.run_detached(self._host, functools.partial(self._ask, "pause"))

    async def thaw(self) -> None:
        await health.run_detached(self._host, functools.partial(self._ask, "unpause"))

    async def _ask(self, what: str) -> None:
        path = f"/containers/{self.container}/{what}"
        await self._engine.request("POST", path, timeout=FREEZE_TIMEOUT)

    def kill(self) -> None:
        """Shut the stream down, at which its init ends, and also send SIGKILL. Never waits."""
        if self._killed:
            return
        self._killed = True
        self.stream.shutdown()
        if not self._send_sigkill():
            self._host.submit(self._request_kill)

    def _send_sigkill(self) -> bool:
        with self._signalling:
            if self._pidfd < 0:
                return False
            try:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            except ProcessLookupError:
                return True
            except PermissionError:
                return False  # the engine may do it, this user may not
            return True

    async def _request_kill(self) -> None:
        path = f"/containers/{self.container}/kill"
        try:
            await self._engine.request("POST", path, timeout=KILL_TIMEOUT)
        except EngineError:
            return  # it has ended already, or close() gets the same error

    async def close(self) -> None:
        if self.closed:
            return
        self.kill()
        self._release()
        await health.run_detached(self._host, self._remove_container)

    def discard(self) -> None:
        if self.closed:
            return
        self.kill()
        self._release()
        self._host.submit(self._remove_container)

    async def _remove_container(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._remove(self._engine, self.container)
        if self.on_removed is not None:
            self.on_removed()

    def abandon(self) -> None:
        """Close descriptors without ending the guest: in a fork of the process, where it belongs
        to the parent, and after a failed start, where the caller removes the container."""
        self._killed = True
        self.stream.abandon()
        self._release()

    def _release(self) -> None:
        self.closed = True
        self.stream.close()
        if self._local is not None:
            self._local.close()
        with self._signalling:
            if self._pidfd >= 0:
                os.close(self._pidfd)
                self._pidfd = -1


USAGE_TIMEOUT = 5.0
MAX_KILLS = 10_000
KILLED_STATUS = 128 + signal.SIGKILL  # as engines report it
REASON_TIMEOUT = 3.0  # seconds in which the engine learns why a container ended


def is_container_process(container: str, pid: int) -> bool:
    """True if the process of this pid belongs to the container. The engine may be on another
    machine, or in another pid namespace."""
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            parts = re.split(r"[/\n.-]", file.read())  # /ID, docker-ID.scope, libpod-ID.scope
    except OSError:
        return False
    return container in parts


def open_meters(pid: int) -> Meters | None:
    """The meters of the control group that the engine made for a process of this machine."""
    try:
        with open("/proc/self/mountinfo") as mounts, open(f"/proc/{pid}/cgroup") as groups:
            found = list(plan.places(mounts.read(), groups.read(), os.path.exists))
    except OSError:
        return None
    controllers = {name for hierarchy, _ in found for name in hierarchy.controllers}
    return Meters(found) if {"memory", "cpuacct"} <= controllers else None


class LocalUsage:
    """Usage of a container whose control group can be read."""

    def __init__(self, meters: Meters) -> None:
        self.meters = meters
        self._last = UsageSample(cpu=None, peak_memory=None, memory_kills=0)
        self._counts_kills = False  # some kernels do not
        self.gone = False  # the control group was removed

    def read(self, *, from_now: bool, now: bool = False) -> UsageSample:
        if from_now:
            self.meters.reset_peak()
        cpu, peak, kills = self.meters.read("cpu", "peak", "oom_kills")
        # The engine removes one hierarchy after the other: once one is missing, all is over.
        self.gone = cpu is None or (kills is None and self._counts_kills)
        self._counts_kills = self._counts_kills or kills is not None
        if cpu is not None and not self.gone:
            self._last = UsageSample(cpu=cpu / 1e9, peak_memory=peak, memory_kills=kills or 0)
        if not now or self.gone:
            return self._last
        memory, tasks = self.meters.read("current", "tasks")
        return replace(self._last, memory=memory, processes=tasks)

    def close(self) -> None:
        self.meters.close()


class RemoteUsage:
    """Usage as the engine reports it, for a container on another machine."""

    def __init__(self, engine: Engine, container: str) -> None:
        self._engine = engine
        self._container = container
        self._since = time.time() - 3600  # the clocks of the two machines may differ
        self._seen: set[str] = set()
        self.gone = False

    async def read(self) -> UsageSample:
        stats: object = None
        path = f"/containers/{self._container}/stats"
        try:
            stats = await self._engine.request(
                "GET", path, query={"stream": False, "one-shot": True}, timeout=USAGE_TIMEOUT
            )
        except EngineError as error:
            self.gone = error.status in (404, 409)  # else the engine is slow or away
        await self._count_kills()
        nanoseconds = _read_count(stats, "cpu_stats", "cpu_usage", "total_usage")
        current = _read_count(stats, "memory_stats", "usage")
        return UsageSample(
            cpu=None if nanoseconds is None else nanoseconds / 1e9,
            peak_memory=_read_count(stats, "memory_stats", "max_usage") or current,
            memory_kills=len(self._seen),
            memory=current,
            processes=_read_count(stats, "pids_stats", "current"),
        )

    async def _count_kills(self) -> None:
        until = int(time.time() + 1)  # the engine keeps the answer open until then
        # If the engine is gone or silent, the sample has what is known.
        with contextlib.suppress(EngineError), anyio.move_on_after(USAGE_TIMEOUT):
            async with _list_kills(self._engine, self._container, self._since, until) as events:
                async for event in events:
                    self._seen.add(f"{event.get('timeNano')} {event.get('time')}")
                    if len(self._seen) > MAX_KILLS:
                        return


def _list_kills(
    engine: Engine, container: str, since: float, until: float
) -> AbstractAsyncContextManager[AsyncIterator[dict[str, Any]]]:
    """The engine's events about kills for lack of memory."""
    filters = {"container": [container], "event": ["oom"]}
    query = {"since": int(since), "until": f"{until:.3f}", "filters": filters}
    return engine.lines("GET", "/events", query=query)


def _read_count(stats: object, *names: str) -> int | None:
    """The number under these keys of the engine's statistics, if it is one."""
    for name in names:
        stats = stats.get(name) if isinstance(stats, dict) else None
    return stats if type(stats) is int and 0 <= stats < 2**63 else None


async def ran_out_of_memory(engine: Engine, container: str, pid: int = 0) -> bool:
    """True if a container that has ended was killed because its memory was used up."""
    with contextlib.suppress(EngineError), anyio.move_on_after(4 * USAGE_TIMEOUT):
        state = await wait_for_end(engine, container, pid)
        return await was_out_of_memory(engine, container, state)
    return False


async def wait_for_end(engine: Engine, container: str, pid: int = 0) -> Mapping[str, Any]:
    """The container's state, as soon as the engine says that it has ended. Has no time limit.

    `pid`: of its first process, if known; a container that was started again has another one.
    """
    while True:
        state = await _read_state(engine, container)
        again = pid and state.get("Pid") not in (0, None, pid)
        if again or state.get("OOMKilled") or not state.get("Running"):
            return state
        await anyio.sleep(0.05)


async def was_out_of_memory(engine: Engine, container: str, state: Mapping[str, Any]) -> bool:
    """True if lack of memory is why the container is in this state, in which it has ended."""
    if state.get("OOMKilled"):
        return True
    if state.get("ExitCode") != KILLED_STATUS:
        return False
    # The engine learns of the end and of its reason in any order. A late reason comes as an event;
    # only newer engines (Docker 24) add it to the state.
    now = time.time()
    with contextlib.suppress(EngineError), anyio.move_on_after(REASON_TIMEOUT + USAGE_TIMEOUT):
        async with _list_kills(engine, container, now - 60, now + REASON_TIMEOUT) as events:
            async for _ in events:
                return True
    return bool((await _read_state(engine, container)).get("OOMKilled"))


async def _read_state(engine: Engine, container: str) -> Mapping[str, Any]:
    seen = await engine.request("GET", f"/containers/{container}/json", timeout=4 * USAGE_TIMEOUT)
    with parsing_answer(engine, "about the container"):
        return dict(seen["State"])


# -- a start that failed ------------------------------------------------------------------------


# Part of an engine's message -> the hint.
_START_HINTS = {
    "gathering device information": "devices= are of the engine's machine",
    "unknown runtime": "`belljar doctor` lists the runtimes that the engine has",
    "could not select device driver": "the engine's machine needs the driver's container toolkit "
    "(NVIDIA's, for gpus=)",
    # Versions of gVisor that do not know newer kernels.
    "root network namespace": "register gVisor with the engine with runtimeArgs --network=none",
}


def explain_start_error(error: EngineError, made: Image) -> StartError:
    """The error for a container that the engine did not start, with a hint for known messages."""
    words = error.message
    hint = next((hint for part, hint in _START_HINTS.items() if part in words.lower()), None)
    # Each runtime has its own message; one about a missing file may be about a mount.
    missing = "no such file or directory" in words.lower() and made.python in words
    if hint is None and ("executable file not found" in words or missing):
        return StartError(
            f"image {made.reference!r} has no {made.python!r}: {words}",
            hint="any image with a python3 of 3.9 or later works, such as python:3.12-slim",
        )
    return StartError(f"the container did not start: {words}", hint=hint or error.hint)


async def explain_early_end(
    engine: Engine, container: str, made: Image, stream: AttachedStream
) -> StartError:
    """Why the container ended without a greeting; waits until the engine knows of the end."""
    words = printable(stream.last_words).strip()[-1000:]
    state: Mapping[str, Any] = {}
    try:
        with anyio.move_on_after(END_TIMEOUT):
            state = await wait_for_end(engine, container)
        out_of_memory = await was_out_of_memory(engine, container, state)
    except EngineError as error:
        return StartError(f"the container is gone: {error.message}")
    if out_of_memory:
        return StartError(
            f"the guest of image {made.reference!r} needs more memory to start than its limit",
            hint="Limits(memory=...)",
        )
    ended = f"ended with status {state.get('ExitCode')}" if state else "closed its stream"
    detail = words or str(state.get("Error") or "") or "it printed nothing"
    return StartError(
        f"the guest of image {made.reference!r} {ended} before it was ready: {detail}",
        hint=f"the image needs a `{made.python}` of 3.9 or later with its standard library",
    )
