"""One guest in a container, from the host's side: its stream, its readings, its end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace

import anyio

from belljar.backends.base import Host, Location, UsageSample
from belljar.backends.docker import detached, usage
from belljar.backends.docker.client.engine import Engine, EngineError
from belljar.backends.docker.stream import AttachedStream
from belljar.backends.isolation import Isolation

KILL_TIMEOUT = 5.0


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
        self.pid = 0  # of its first process, where that is one of this machine's
        self.isolation = Isolation(backend="docker", layers=(), limits=())
        self._host = host
        self._engine = engine
        self._remove = remove
        self._pidfd = -1
        self._signalling = threading.RLock()  # the number is another's when it has been closed
        self._local: usage.Local | None = None
        self._remote = usage.Remote(engine, container)
        self._killed = False
        self.closed = False
        self.left: Callable[[], object] | None = None  # called when it has gone
        self._ran_out: bool | None = None  # its whole memory was gone; None: it has not ended

    def meet(self, pid: int) -> bool:
        """Whether the process that the engine calls by this number is one of this machine's."""
        if self._engine.endpoint.kind != "unix" or pid <= 1:
            return False
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        # Asked when the pidfd is open: the number may have been given to another before.
        if not usage.process_of(self.container, pid):
            os.close(pidfd)
            return False
        self._pidfd = pidfd
        self.pid = pid
        meters = usage.meters_of(pid)
        if meters is not None:
            self._local = usage.Local(meters)
            self._local.read(from_now=False)  # while all of it is there
        return True

    @property
    def whereabouts(self) -> Location:
        return Location(
            pid=self.pid or None,
            cgroups=self._local.paths if self._local is not None else (),
            container=self.container,
            engine=str(self._engine.endpoint),
        )

    async def reading(self, *, from_now: bool = False, now: bool = False) -> UsageSample:
        if self._local is not None:
            seen = self._local.read(from_now=from_now, now=now)
            gone = self._local.gone
        else:
            seen = await self._remote.read()
            gone = self._remote.gone
        if gone and self._ran_out is None and not self._killed:
            self._ran_out = await usage.ran_out_of_memory(self._engine, self.container, self.pid)
        if not self._ran_out:
            return seen
        return replace(seen, memory_kills=seen.memory_kills + 1)

    def kill(self) -> None:
        """Hang up, which its init takes as the end, and do not rely on it. Never waits."""
        if self._killed:
            return
        self._killed = True
        self.stream.hang_up()
        if not self._signal():
            self._host.submit(self._ask_to_kill)

    def lose(self) -> None:
        """The engine hangs: whoever waits for this guest shall not wait for it."""
        self.kill()

    def _signal(self) -> bool:
        with self._signalling:
            if self._pidfd < 0:
                return False
            try:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            except ProcessLookupError:
                return True
            except PermissionError:
                return False  # the engine may, this user may not
            return True

    async def _ask_to_kill(self) -> None:
        path = f"/containers/{self.container}/kill"
        try:
            await self._engine.request("POST", path, timeout=KILL_TIMEOUT)
        except EngineError:
            return  # it has ended already, or close() will meet the same engine

    async def close(self) -> None:
        if self.closed:
            return
        self.kill()
        self._let_go()
        await detached.run(self._host, self._removed)

    def discard(self) -> None:
        if self.closed:
            return
        self.kill()
        self._let_go()
        self._host.submit(self._removed)

    async def _removed(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._remove(self._engine, self.container)
        if self.left is not None:
            self.left()

    def abandon(self) -> None:
        """Let go without ending it: in a fork it is the parent's, whose end must not wait for
        this process's; and what failed to start is removed by who started it."""
        self._killed = True
        self.stream.abandon()
        self._let_go()

    def _let_go(self) -> None:
        self.closed = True
        self.stream.close()
        if self._local is not None:
            self._local.close()
        with self._signalling:
            if self._pidfd >= 0:
                os.close(self._pidfd)
                self._pidfd = -1
