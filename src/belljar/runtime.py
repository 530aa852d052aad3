"""What belongs to the process, not to one sandbox: zygotes, cgroups, the portal, the minder.

Started on first use, closed at exit. After a fork of the host process the child starts its own
and never touches the parent's.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio
import anyio.from_thread
import anyio.to_thread
from anyio.abc import TaskGroup

from belljar import environment as environments
from belljar.backends.base import Backend, GuestSpec
from belljar.environment import Environment
from belljar.errors import unknown_option

MIND_INTERVAL = 0.1


class Minded(Protocol):
    """Something the runtime looks at ten times a second until it is `stopped`."""

    stopped: bool

    def look(self) -> None: ...


class Runtime:
    def __init__(self) -> None:
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._zygotes: dict[Environment, concurrent.futures.Future[object]] = {}
        self._backends: dict[str, Backend] = {}
        self._minded: list[Minded] = []
        self._minding = False
        self._ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        # A daemon, because the interpreter waits for other threads before it runs atexit.
        self._thread = threading.Thread(target=self._run, name="belljar", daemon=True)
        self._thread.start()
        self._ready.result()

    # -- the thread -------------------------------------------------------------------------

    portal: anyio.from_thread.BlockingPortal
    _tasks: TaskGroup

    def _run(self) -> None:
        try:
            anyio.run(self._main)
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            raise

    async def _main(self) -> None:
        async with (
            anyio.create_task_group() as self._tasks,
            anyio.from_thread.BlockingPortal() as self.portal,
        ):
            self._ready.set_result(None)
            await self.portal.sleep_until_stopped()
            self._tasks.cancel_scope.cancel()

    def _spawn(self, function: Callable[..., Awaitable[None]], *args: object) -> None:
        """Start a task on the runtime's loop, from whichever thread."""
        if threading.get_ident() == self._thread.ident:
            self._tasks.start_soon(function, *args)
        else:
            self.portal.start_task_soon(self._tasks.start_soon, function, *args)

    # -- zygotes ----------------------------------------------------------------------------

    async def zygote(self, spec: GuestSpec) -> object:
        """The warm zygote of an Environment; the first caller starts it, others wait for it."""
        from belljar.backends.native.zygotes import Zygote

        environment = spec.environment
        with self._lock:
            started = self._zygotes.get(environment)
            if started is not None and started.done():
                found = None if started.exception() else started.result()
                if isinstance(found, Zygote) and found.alive:
                    return found
                started = None  # it failed, or was killed: a new one
            if started is None:
                started = concurrent.futures.Future()
                self._zygotes[environment] = started
                self._spawn(self._start_zygote, environment, started)
        return await anyio.to_thread.run_sync(started.result, abandon_on_cancel=True)

    async def _start_zygote(
        self, environment: Environment, started: concurrent.futures.Future[object]
    ) -> None:
        from belljar.backends.native.zygotes import Zygote

        try:
            built = await anyio.to_thread.run_sync(environments.build, environment)
            zygote = Zygote(built)  # in this thread: the kernel binds its life to it
            await anyio.to_thread.run_sync(zygote.wait_ready)
        except BaseException as error:
            started.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            started.set_result(zygote)

    # -- backends ---------------------------------------------------------------------------

    def backend(self, name: str) -> Backend:
        """`auto` is native where the host allows it. Never a less safe one without a word."""
        if name not in ("auto", "native"):
            raise unknown_option("backend", name, ("auto", "native"))
        with self._lock:
            if "native" not in self._backends:
                self._backends["native"] = self._make_native()
            return self._backends["native"]

    def _make_native(self) -> Backend:
        from belljar.backends.native import cgroup
        from belljar.backends.native.backend import NativeBackend, check_host

        check_host()
        cgroup.sweep()  # what earlier processes left when they were killed
        self._cgroups = cgroup.detect()
        return NativeBackend(self.zygote, self._cgroups, self.mind)

    # -- the minder -------------------------------------------------------------------------

    def mind(self, minded: Minded) -> None:
        with self._lock:
            self._minded.append(minded)
            if not self._minding:
                self._minding = True
                self._spawn(self._mind)

    async def _mind(self) -> None:
        while True:
            await anyio.sleep(MIND_INTERVAL)
            with self._lock:
                self._minded = [minded for minded in self._minded if not minded.stopped]
                if not self._minded:
                    self._minding = False
                    return
                now = list(self._minded)
            for minded in now:
                minded.look()

    # -- the end ----------------------------------------------------------------------------

    def close(self) -> None:
        """End every guest and leave nothing behind."""
        with self._lock:
            zygotes = [z.result() for z in self._zygotes.values() if z.done() and not z.exception()]
            self._zygotes.clear()
        for zygote in zygotes:
            zygote.close()  # type: ignore[attr-defined]
        self.portal.call(self.portal.stop, True)
        self._thread.join(5.0)
        if hasattr(self, "_cgroups"):
            self._cgroups.close()

    def abandon(self) -> None:
        """In a fork: the threads are not here, and the rest is the parent's."""
        for zygote in self._zygotes.values():
            if zygote.done() and not zygote.exception():
                zygote.result().abandon()  # type: ignore[attr-defined]


_runtime: Runtime | None = None
_starting = threading.Lock()


def current() -> Runtime:
    """The runtime of this process, started if need be."""
    global _runtime
    with _starting:
        if _runtime is None:
            _runtime = Runtime()
        return _runtime


def shutdown() -> None:
    """Close the runtime now instead of at exit; the next sandbox starts a new one."""
    global _runtime
    with _starting:
        runtime, _runtime = _runtime, None
    if runtime is not None and runtime.pid == os.getpid():
        runtime.close()


def _after_fork() -> None:
    global _runtime, _starting
    _starting = threading.Lock()
    runtime, _runtime = _runtime, None
    if runtime is not None:
        runtime.abandon()


atexit.register(shutdown)
os.register_at_fork(after_in_child=_after_fork)
