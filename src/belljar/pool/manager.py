"""AsyncSandboxManager: many named sandboxes, not more than so many, none forgotten.

A creation first takes its name and its place, at one moment, and then takes its time: there is no
lock that others would wait for. Who sweeps looks at all of them at one moment (`decide`), takes
the names away at that same moment, and then ends them: nothing can become busy in between.
"""

from __future__ import annotations

import contextlib
import logging
import os
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Self

import anyio

from belljar.backends.event_loop import here
from belljar.errors import (
    ManagerClosed,
    ManagerFull,
    NameTaken,
    SandboxClosed,
    SandboxError,
    SandboxMissing,
)
from belljar.pool.loop_binding import close_or_kill, repeat, spawn
from belljar.pool.manager_table import Entry, Reason, Table, decide
from belljar.pool.settings import (
    Factory,
    ManagerSettings,
    check_name,
    check_seconds,
    merge_options,
    new_name,
)
from belljar.pool.stats import ManagerStats
from belljar.results.execution import Execution
from belljar.sandbox.run import OnResult, OnText
from belljar.sandbox.sandbox import AsyncSandbox

PATIENCE = 30.0  # seconds for a creation to be given up
LOOK = 0.05  # seconds between two looks at who is still busy, while the manager closes

_log = logging.getLogger("belljar")


class AsyncSandboxManager:
    """Named sandboxes under asyncio or trio: a maximum, quotas, idle ones swept, an orderly end.

    async with AsyncSandboxManager(max_sandboxes=20, environment="python") as manager:
        name = await manager.create(owner="alice")
        execution = await manager.run_code(name, "6 * 7")
    """

    def __init__(
        self,
        *,
        max_sandboxes: int = 100,
        idle_timeout: float | None = 3600.0,
        cleanup_interval: float = 300.0,
        lifetime: float | None = None,
        max_per_owner: int | None = None,
        factory: Factory | None = None,
        **defaults: Any,
    ) -> None:
        """Times are in seconds, None: no such limit. `factory` is an async function that makes a
        sandbox from options; `defaults` are the options that every sandbox has."""
        self._settings = ManagerSettings(
            max_sandboxes=max_sandboxes,
            idle_timeout=idle_timeout,
            cleanup_interval=cleanup_interval,
            lifetime=lifetime,
            max_per_owner=max_per_owner,
            factory=factory,
            defaults=MappingProxyType(dict(defaults)),
        )
        self._pid = os.getpid()
        self._loop: object | None = None  # that of its first use
        self._table = Table(max_sandboxes, max_per_owner)
        self._counts: Counter[str] = Counter()
        self._sweeper: anyio.CancelScope | None = None
        self._closing: anyio.Event | None = None  # set when it is closed
        self._troubles: list[str] = []  # of the ends that close() has asked for

    async def __aenter__(self) -> Self:
        self._check_usable()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
        """Make a sandbox and start it; gives its name (None: a new one).

        Raises NameTaken, and ManagerFull or QuotaExceeded when there is no place, unless one
        becomes free within `wait` seconds. `options` are those of the sandbox.
        """
        await self._bury(name, owner)
        entry = self._enter(name, owner, wait)
        await self._make(entry, wait, options)
        return entry.name

    async def get(self, name: str) -> AsyncSandbox:
        """The sandbox of this name; one that is being made is waited for.

        What is done with it counts as use, and keeps it from being swept. Between two uses only
        operation() does.
        """
        return self._sandbox_of(await self._find(name))

    async def get_or_create(
        self,
        name: str,
        *,
        owner: str | None = None,
        wait: float | None = None,
        **options: Any,
    ) -> AsyncSandbox:
        """The sandbox of this name, made if there is none. Who asks at once gets the same one.

        Raises NameTaken if `owner` is given, and the sandbox is another's.
        """
        while True:
            await self._bury(name, owner)
            entry = self._table.named.get(name)
            if entry is None:
                entry = self._enter(name, owner, wait)
                return await self._make(entry, wait, options)
            if owner is not None and entry.owner != owner:
                raise NameTaken(
                    f"the sandbox {name!r} is not of the owner {owner!r}",
                    hint="names are those of the manager: put the owner into the name",
                )
            if await self._is_there(entry):
                return self._sandbox_of(entry)
            if entry.error is not None and not isinstance(entry.error, SandboxMissing):
                self._counts["refused"] += isinstance(entry.error, ManagerFull)
                raise entry.error
            # Whoever made it was cancelled, or it was deleted: now it is for us.

    @contextlib.asynccontextmanager
    async def operation(self, name: str) -> AsyncIterator[AsyncSandbox]:
        """The sandbox of this name, which is not swept while this lasts."""
        entry = await self._find(name)
        entry.operations += 1
        try:
            yield self._sandbox_of(entry)
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
            )

    async def delete(self, name: str) -> None:
        """End the sandbox of this name, busy or not; one that is being made is given up."""
        self._check_usable()
        entry = self._present(name)
        if entry is None:
            raise _missing(name)
        if entry.sandbox is None:
            entry.doom("was deleted while it was being made")
            await entry.settled.wait()
            return
        self._begin_end(entry, "deleted")
        await entry.gone.wait()
        if entry.error is not None:
            raise entry.error

    async def sweep(self) -> dict[str, Reason]:
        """End now what is idle, too old or lost, as the sweeper does at each cleanup_interval.
        Gives the names, and why."""
        self._check_usable()
        found = decide(
            [entry.seen() for entry in self._table.there],
            idle_timeout=self._settings.idle_timeout,
            lifetime=self._settings.lifetime,
        )
        swept = [self._table.named[name] for name in found]
        for entry, reason in zip(swept, found.values(), strict=True):
            self._begin_end(entry, "lost" if reason is Reason.lost else f"swept_{reason}")
        for entry in swept:
            await entry.gone.wait()
            if entry.error is not None:
                _log.warning("sandbox %r was swept: %s", entry.name, entry.error)
        return found

    # -- what there is ----------------------------------------------------------------------

    def names(self) -> list[str]:
        """Of the sandboxes that can be used."""
        return sorted(entry.name for entry in self._table.there)

    def stats(self) -> ManagerStats:
        table, settings, counts = self._table, self._settings, self._counts
        there = len(table.there)
        active = sum(entry.operations for entry in (*table.named.values(), *table.ending))
        return ManagerStats(
            total=there,
            waiting=len(table.queue),
            starting=len(table.named) - there - len(table.queue),
            ending=len(table.ending),
            active_operations=active,
            by_owner=MappingProxyType(dict(table.by_owner())),
            created=counts["created"],
            deleted=counts["deleted"],
            swept_idle=counts["swept_idle"],
            swept_lifetime=counts["swept_lifetime"],
            lost=counts["lost"],
            closed=counts["closed"],
            refused=counts["refused"],
            failed=counts["failed"],
            max_sandboxes=settings.max_sandboxes,
            max_per_owner=settings.max_per_owner,
            idle_timeout=settings.idle_timeout,
            cleanup_interval=settings.cleanup_interval,
            lifetime=settings.lifetime,
            is_shutting_down=self._closing is not None,
        )

    # -- the end ----------------------------------------------------------------------------

    async def close(self, *, grace: float = 0.0) -> None:
        """End everything, all at once, and be done in bounded time. May be called twice.

        Nothing new is made; what is being made is given up. Operations under way have `grace`
        seconds to come to their end, and are then cut short, as by the close of a sandbox.
        """
        if os.getpid() != self._pid:
            return  # a fork: it is the parent's
        check_seconds("grace", grace, zero=True)
        if self._closing is None:
            self._check_usable()
            self._closing = anyio.Event()
            spawn(lambda: self._shut(grace))
        await self._closing.wait()
        troubles, self._troubles = self._troubles, []
        if troubles:
            raise SandboxError(f"not every sandbox ended as it should: {'; '.join(troubles)}")

    shutdown = close

    async def _shut(self, grace: float) -> None:
        assert self._closing is not None
        try:
            with anyio.CancelScope(shield=True):
                await self._end_all(grace)
        finally:
            self._closing.set()

    async def _end_all(self, grace: float) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        unsettled = self._table.unsettled
        for entry in unsettled:
            entry.doom("was given up, because the manager closes")
        with anyio.move_on_after(grace):
            while any(entry.busy for entry in self._table.there):
                await anyio.sleep(LOOK)
        ended = self._table.there
        for entry in ended:
            self._begin_end(entry, "closed")
        with anyio.move_on_after(PATIENCE):  # a factory may refuse to be cancelled
            for entry in unsettled:
                await entry.settled.wait()
        for entry in {*ended, *self._table.ending}:
            await entry.gone.wait()
        for entry in ended:
            if entry.error is not None:
                self._troubles.append(f"{entry.name}: {entry.error}")

    # -- making -----------------------------------------------------------------------------

    def _enter(self, name: str | None, owner: str | None, wait: float | None) -> Entry:
        """Take the name and a place, at one moment; or a turn in the queue."""
        self._check_usable()
        chosen = new_name() if name is None else name
        check_name("name", chosen)
        if owner is not None:
            check_name("owner", owner)
        if wait is not None:
            check_seconds("wait", wait, zero=True)
        if chosen in self._table.named:
            raise NameTaken(
                f"there is a sandbox {chosen!r} already", hint="get_or_create() takes what is there"
            )
        entry = Entry(chosen, owner)
        try:
            self._table.enter(entry, may_wait=wait is not None)
        except SandboxError:
            self._counts["refused"] += 1
            raise
        self._start_sweeper()
        return entry

    async def _make(
        self, entry: Entry, wait: float | None, options: Mapping[str, Any]
    ) -> AsyncSandbox:
        made: AsyncSandbox | None = None
        try:
            with anyio.CancelScope() as entry.scope:
                await self._place_for(entry, wait)
                made = await self._build(entry, options)
        except BaseException as error:
            self._counts["failed"] += entry.admitted.is_set()
            self._table.drop(entry, error if isinstance(error, Exception) else None)
            raise
        if made is not None and entry.doomed is None:
            self._counts["created"] += 1
            entry.ready(made)
            return made
        kind = ManagerClosed if self._closing is not None else SandboxMissing
        given_up = kind(f"the sandbox {entry.name!r} {entry.doomed}")
        self._counts["failed"] += entry.admitted.is_set()
        try:
            if made is not None:  # it was there just before it was given up
                await close_or_kill(made)
        finally:
            self._table.drop(entry, given_up)
        raise given_up

    async def _place_for(self, entry: Entry, wait: float | None) -> None:
        if entry.admitted.is_set():
            return
        with anyio.move_on_after(wait):
            await entry.admitted.wait()
        if not entry.admitted.is_set():
            self._counts["refused"] += 1
            refusal = self._table.refusal(entry.owner)
            assert refusal is not None  # else it would have been handed the place
            refusal.hint = f"none became free within {wait:g} s; {refusal.hint}"
            raise refusal

    async def _build(self, entry: Entry, given: Mapping[str, Any]) -> AsyncSandbox:
        settings = self._settings
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

    async def _bury(self, name: str | None, owner: str | None) -> None:
        """Before one is made: the dead give back their names and places. The one of this name;
        and, if there is no place, all of them."""
        self._check_usable()
        full = self._table.refusal(owner) is not None
        dead = [each for each in self._table.there if each.lost and (full or each.name == name)]
        for entry in dead:
            self._begin_end(entry, "lost")
        for entry in dead:
            await entry.gone.wait()

    # -- finding ----------------------------------------------------------------------------

    def _present(self, name: str) -> Entry | None:
        """One that was lost is noticed here."""
        entry = self._table.named.get(name)
        if entry is not None and entry.lost:
            self._begin_end(entry, "lost")
            return None
        return entry

    async def _find(self, name: str) -> Entry:
        self._check_usable()
        entry = self._present(name)
        if entry is None or not await self._is_there(entry):
            raise _missing(name, entry)
        return entry

    async def _is_there(self, entry: Entry) -> bool:
        """Waits for one that is being made. What is said holds until the next await."""
        if entry.sandbox is None:
            await entry.settled.wait()
        return self._table.named.get(entry.name) is entry and entry.sandbox is not None

    def _sandbox_of(self, entry: Entry) -> AsyncSandbox:
        assert entry.sandbox is not None
        entry.touch()
        return entry.sandbox

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise SandboxClosed(
                "this manager belongs to the process that made it",
                hint="make a new one after the fork",
            )
        if self._closing is not None:
            raise ManagerClosed("the manager is closed", hint="make a new one")
        loop = here()
        self._loop = self._loop or loop
        if self._loop is not loop:
            raise SandboxError(
                "this manager belongs to the event loop that used it first",
                hint="one manager for each loop; or SandboxManager, which any thread may use",
            )

    # -- ending -----------------------------------------------------------------------------

    def _begin_end(self, entry: Entry, count: str) -> None:
        self._counts[count] += 1
        self._table.begin_end(entry)
        spawn(lambda: self._finish(entry))

    async def _finish(self, entry: Entry) -> None:
        assert entry.sandbox is not None
        error: SandboxError | None = SandboxError("its end was interrupted")
        try:
            error = await close_or_kill(entry.sandbox)
        finally:
            self._table.ended(entry, error)

    def _start_sweeper(self) -> None:
        if self._sweeper is None:
            self._sweeper = anyio.CancelScope()
            # A manager that everybody forgot is not kept alive by its sweeper.
            sweep = weakref.WeakMethod(self.sweep)
            repeat(
                sweep,
                "sweeping sandboxes",
                every=self._settings.cleanup_interval,
                scope=self._sweeper,
            )


def _missing(name: str, entry: Entry | None = None) -> SandboxMissing:
    if entry is not None and entry.error is not None:
        return SandboxMissing(f"there is no sandbox {name!r}: {entry.error}")
    return SandboxMissing(
        f"there is no sandbox {name!r}",
        hint="it was never made, or it was deleted, swept or lost; get_or_create() makes it",
    )
