"""AsyncSandboxManager: named sandboxes up to a maximum, closed when they are idle or too old.

A creation takes its name and counts at once, and then starts its sandbox: there is no lock that
others would wait for. A sweep decides about all sandboxes at one moment, frees their names at the
same moment, and then closes them: none can become busy in between.
"""

from __future__ import annotations

import contextlib
import logging
import os
import weakref
from collections.abc import AsyncIterator, Mapping
from typing import Any, Self

import anyio

from belljar.backends.event_loop import spawn
from belljar.errors import ManagerClosed, ManagerFull, NameTaken, SandboxError, SandboxMissing
from belljar.pool.loop_binding import LoopBinding, close_or_kill, repeat
from belljar.pool.manager_table import Entry, Reason, Table, decide, missing_error
from belljar.pool.settings import Factory, ManagerSettings, check_seconds, merge_options
from belljar.pool.stats import ManagerStats
from belljar.results.execution import Execution
from belljar.sandbox.run import OnResult, OnText
from belljar.sandbox.sandbox import AsyncSandbox

CANCEL_TIMEOUT = 30.0  # seconds for a cancelled creation to end
POLL = 0.05  # seconds between two looks at which sandboxes are busy, while the manager closes

_log = logging.getLogger("belljar")


class AsyncSandboxManager:
    """Named sandboxes under asyncio or trio: a maximum, quotas, and idle ones are closed.

    async with AsyncSandboxManager(max_sandboxes=20, environment="python") as manager:
        name = await manager.create(owner="alice")
        execution = await manager.run_code(name, "6 * 7")
    """

    def __init__(
        self,
        *,
        max_sandboxes: int = ManagerSettings.max_sandboxes,
        idle_timeout: float | None = ManagerSettings.idle_timeout,
        cleanup_interval: float = ManagerSettings.cleanup_interval,
        lifetime: float | None = ManagerSettings.lifetime,
        max_per_owner: int | None = ManagerSettings.max_per_owner,
        factory: Factory | None = None,
        **defaults: Any,
    ) -> None:
        """Times are in seconds, None: no limit. `factory` is an async function that makes a sandbox
        from options; `defaults` are the options of every sandbox."""
        settings = ManagerSettings(
            max_sandboxes=max_sandboxes,
            idle_timeout=idle_timeout,
            cleanup_interval=cleanup_interval,
            lifetime=lifetime,
            max_per_owner=max_per_owner,
            factory=factory,
            defaults=defaults,
        )
        self._binding = LoopBinding("manager", "SandboxManager", ManagerClosed, os.getpid())
        self._table = Table(settings)
        self._sweeper: anyio.CancelScope | None = None
        self._closing: anyio.Event | None = None  # set when close() is done
        self._troubles: list[str] = []  # of sandboxes that close() closed

    async def __aenter__(self) -> Self:
        self._check_usable()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closing is not None else f"{len(self._table.there)} sandboxes"
        return f"<{type(self).__name__} ({state})>"

    # -- sandboxes --------------------------------------------------------------------------

    async def create(
        self,
        name: str | None = None,
        *,
        owner: str | None = None,
        wait: float | None = None,
        **options: Any,
    ) -> str:
        """Make a sandbox and start it; returns its name (None: a new one).

        Raises NameTaken; and ManagerFull or QuotaExceeded at the maximum, unless another sandbox
        ends within `wait` seconds. `options` are those of the sandbox.
        """
        await self._close_lost(name, owner)
        entry = self._reserve(name, owner, wait)
        await self._make(entry, wait, options)
        return entry.name

    async def get(self, name: str) -> AsyncSandbox:
        """The sandbox of this name; waits if it is being made.

        A sandbox in use is not swept. Between two uses only operation() protects it.
        """
        return self._use_sandbox(await self._find(name))

    async def get_or_create(
        self, name: str, *, owner: str | None = None, wait: float | None = None, **options: Any
    ) -> AsyncSandbox:
        """The sandbox of this name, made if it is missing. Concurrent callers get the same one.

        Raises NameTaken if `owner` is given, and the sandbox has another owner.
        """
        while True:
            await self._close_lost(name, owner)
            entry = self._table.named.get(name)
            if entry is None:
                entry = self._reserve(name, owner, wait)
                return await self._make(entry, wait, options)
            if owner is not None and entry.owner != owner:
                raise NameTaken(
                    f"the sandbox {name!r} does not belong to {owner!r}",
                    hint="all owners share the names of a manager: put the owner into the name",
                )
            if await self._is_there(entry):
                return self._use_sandbox(entry)
            if entry.error is not None and not isinstance(entry.error, SandboxMissing):
                self._table.counts["refused"] += isinstance(entry.error, ManagerFull)
                raise entry.error
            # The other creation was cancelled, or the sandbox was deleted: make it here.

    @contextlib.asynccontextmanager
    async def operation(self, name: str) -> AsyncIterator[AsyncSandbox]:
        """The sandbox of this name, which is not swept inside the `with` block."""
        entry = await self._find(name)
        entry.operations += 1
        try:
            yield self._use_sandbox(entry)
        finally:
            entry.operations -= 1
            entry.touch()

    async def run_code(
        self,
        name: str,
        code: str,
        *,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_result: OnResult | None = None,
        env: Mapping[str, str] | None = None,
        undo_on_error: bool = False,
        allow_return: bool = False,
    ) -> Execution:
        """Run code in the sandbox of this name, as an operation."""
        async with self.operation(name) as sandbox:
            return await sandbox.run_code(
                code,
                timeout=timeout,
                on_stdout=on_stdout,
                on_stderr=on_stderr,
                on_result=on_result,
                env=env,
                undo_on_error=undo_on_error,
                allow_return=allow_return,
            )

    async def delete(self, name: str) -> None:
        """Close the sandbox of this name, busy or not; cancel it if it is being made."""
        self._check_usable()
        entry = self._find_entry(name)
        if entry is None:
            raise missing_error(name)
        if entry.sandbox is None:
            entry.cancel("was deleted while it was being made")
            await entry.settled.wait()
            return
        self._begin_close(entry, "deleted")
        await entry.gone.wait()
        if entry.error is not None:
            raise entry.error

    async def sweep(self) -> dict[str, Reason]:
        """Close sandboxes that are idle, too old or lost, as the manager does by itself at each
        cleanup_interval. Returns their names, and why."""
        self._check_usable()
        found = decide(
            [entry.observe() for entry in self._table.there],
            idle_timeout=self._table.settings.idle_timeout,
            lifetime=self._table.settings.lifetime,
        )
        swept = [self._table.named[name] for name in found]
        for entry, reason in zip(swept, found.values(), strict=True):
            self._begin_close(entry, "lost" if reason is Reason.lost else f"swept_{reason}")
        for entry in swept:
            await entry.gone.wait()
            if entry.error is not None:
                _log.warning("closing the swept sandbox %r failed: %s", entry.name, entry.error)
        return found

    # -- numbers ----------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The names of the sandboxes that can be used."""
        return sorted(entry.name for entry in self._table.there)

    def stats(self) -> ManagerStats:
        return self._table.stats(is_shutting_down=self._closing is not None)

    # -- close ------------------------------------------------------------------------------

    async def close(self, *, grace: float = 0.0) -> None:
        """Close all sandboxes at once, in bounded time. May be called twice.

        Creations are refused or cancelled. Operations have `grace` seconds to finish, and are then
        stopped, as by the close of a sandbox.
        """
        if not self._binding.in_this_process:
            return  # a fork: the manager is the parent's
        check_seconds("grace", grace, zero=True)
        if self._closing is None:
            self._check_usable()
            self._closing = anyio.Event()
            spawn(lambda: self._close_all(grace))
        await self._closing.wait()
        troubles, self._troubles = self._troubles, []
        if troubles:
            raise SandboxError(f"closing sandboxes failed: {'; '.join(troubles)}")

    shutdown = close

    async def _close_all(self, grace: float) -> None:
        assert self._closing is not None
        table = self._table
        try:
            with anyio.CancelScope(shield=True):
                if self._sweeper is not None:
                    self._sweeper.cancel()
                unsettled = [each for each in table.named.values() if each.sandbox is None]
                for entry in unsettled:
                    entry.cancel("was cancelled, because the manager closes")
                with anyio.move_on_after(grace):
                    while any(entry.busy for entry in table.there):
                        await anyio.sleep(POLL)
                closed = table.there
                for entry in closed:
                    self._begin_close(entry, "closed")
                with anyio.move_on_after(CANCEL_TIMEOUT):  # a factory may resist cancellation
                    for entry in unsettled:
                        await entry.settled.wait()
                for entry in {*closed, *table.ending}:
                    await entry.gone.wait()
                self._troubles += [f"{each.name}: {each.error}" for each in closed if each.error]
        finally:
            self._closing.set()

    # -- create -----------------------------------------------------------------------------

    def _reserve(self, name: str | None, owner: str | None, wait: float | None) -> Entry:
        self._check_usable()
        if wait is not None:
            check_seconds("wait", wait, zero=True)
        entry = self._table.reserve(name, owner, may_wait=wait is not None)
        if self._sweeper is None:
            self._sweeper = anyio.CancelScope()
            # A weak reference: the sweeper must not keep a dropped manager alive.
            sweep, every = weakref.WeakMethod(self.sweep), self._table.settings.cleanup_interval
            repeat(sweep, "sweeping sandboxes", every=every, scope=self._sweeper)
        return entry

    async def _make(
        self, entry: Entry, wait: float | None, options: Mapping[str, Any]
    ) -> AsyncSandbox:
        made: AsyncSandbox | None = None
        try:
            with anyio.CancelScope() as entry.scope:
                await self._wait_admitted(entry, wait)
                made = await self._build(entry, options)
        except BaseException as error:
            self._table.remove_failed(entry, error if isinstance(error, Exception) else None)
            raise
        if made is not None and entry.cancelled is None:
            self._table.counts["created"] += 1
            entry.set_sandbox(made)
            return made
        kind = ManagerClosed if self._closing is not None else SandboxMissing
        cancelled = kind(f"the sandbox {entry.name!r} {entry.cancelled}")
        try:
            if made is not None:  # it was started just before it was cancelled
                await close_or_kill(made)
        finally:
            self._table.remove_failed(entry, cancelled)
        raise cancelled

    async def _wait_admitted(self, entry: Entry, wait: float | None) -> None:
        if entry.admitted.is_set():
            return
        with anyio.move_on_after(wait):
            await entry.admitted.wait()
        if not entry.admitted.is_set():
            self._table.counts["refused"] += 1
            refusal = self._table.refusal(entry.owner)
            assert refusal is not None  # otherwise it would have been admitted
            refusal.hint = f"no sandbox ended within {wait:g} s; {refusal.hint}"
            raise refusal

    async def _build(self, entry: Entry, given: Mapping[str, Any]) -> AsyncSandbox:
        settings = self._table.settings
        if settings.factory is not None:
            return await settings.factory(**{**settings.defaults, **given})
        options = merge_options(settings.defaults, given)
        names = {"name": entry.name} | ({"owner": entry.owner} if entry.owner is not None else {})
        options["metadata"] = {**names, **(options.get("metadata") or {})}
        sandbox = AsyncSandbox(**options)
        try:
            await sandbox.start()
        except BaseException:
            await sandbox.kill()
            raise
        return sandbox

    async def _close_lost(self, name: str | None, owner: str | None) -> None:
        """Called before a creation: close the sandbox of this name if it was lost; at the maximum,
        close all that were lost."""
        self._check_usable()
        full = self._table.refusal(owner) is not None
        lost = [each for each in self._table.there if each.lost and (full or each.name == name)]
        for entry in lost:
            self._begin_close(entry, "lost")
        for entry in lost:
            await entry.gone.wait()

    # -- find -------------------------------------------------------------------------------

    def _find_entry(self, name: str) -> Entry | None:
        """Closes a sandbox that was lost, and returns None for it."""
        entry = self._table.named.get(name)
        if entry is not None and entry.lost:
            self._begin_close(entry, "lost")
            return None
        return entry

    async def _find(self, name: str) -> Entry:
        self._check_usable()
        entry = self._find_entry(name)
        if entry is None or not await self._is_there(entry):
            raise missing_error(name, entry)
        return entry

    async def _is_there(self, entry: Entry) -> bool:
        """Waits if it is being made. The answer holds until the next await."""
        if entry.sandbox is None:
            await entry.settled.wait()
        return self._table.named.get(entry.name) is entry and entry.sandbox is not None

    def _use_sandbox(self, entry: Entry) -> AsyncSandbox:
        assert entry.sandbox is not None
        entry.touch()
        return entry.sandbox

    def _check_usable(self) -> None:
        self._binding.check_process()
        if self._closing is not None:
            raise ManagerClosed("the manager is closed", hint="make a new one")
        self._binding.check()

    # -- end --------------------------------------------------------------------------------

    def _begin_close(self, entry: Entry, count: str) -> None:
        self._table.begin_close(entry, count)

        async def close() -> None:
            assert entry.sandbox is not None
            error: SandboxError | None = SandboxError("closing it was interrupted")
            try:
                error = await close_or_kill(entry.sandbox)
            finally:
                self._table.remove_closed(entry, error)

        spawn(close)
