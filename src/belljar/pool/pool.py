"""AsyncPool: warm guests, each for one tenant, never more than so many, nobody overtaken.

What is decided is in `decide.py`, what is done about it in `stock.py`; here is what callers see.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import warnings
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import anyio

from belljar.errors import (
    InvalidOption,
    PoolFull,
    SandboxClosed,
    SandboxError,
    unknown_option,
)
from belljar.pool import pooled_sandbox as rehearsals
from belljar.pool import settings, snippet, telling
from belljar.pool import settings as checks
from belljar.pool.guests import Guests, closed
from belljar.pool.loop_binding import LoopBinding, repeat, spawn
from belljar.pool.map import AsyncMap, Codes, MapRun, OnProgress
from belljar.pool.pooled_sandbox import Acquisition, LostBeforeStart, PooledSandbox
from belljar.pool.snippet import Snippet
from belljar.pool.stats import PoolStats
from belljar.results.execution import Execution
from belljar.sandbox import options as sandbox_options
from belljar.sandbox.options import Options
from belljar.sandbox.run import OnResult, OnText
from belljar.sandbox.sandbox import AsyncSandbox

ON_ERROR = ("return", "raise")
TICK = 1.0  # seconds between two looks at those who wait
PATIENCE = 60.0  # seconds for all guests to end

_maps = itertools.count(1)


class AsyncPool:
    """Warm guests under asyncio or trio: each is used by one tenant, and then destroyed.

    async with AsyncPool(min_ready=4, environment="python") as pool:
        execution = await pool.run_code("6 * 7")
        async with pool.acquire() as sandbox:
            await sandbox.run_code("x = 6")
    """

    def __init__(
        self,
        *,
        min_ready: int | None = None,
        max_total: int = 32,
        max_age: float | None = 3600.0,
        rehearsal: str | None = None,
        **options: Any,
    ) -> None:
        """`min_ready` guests wait for tenants (None: two, or max_total if that is less); there are
        never more than `max_total`, those in use included; one that has waited for `max_age`
        seconds is replaced (None: never). `rehearsal` is code that a guest runs before it waits, so
        that the first cell is quick (None: what suits its packages; "": none). `options` are those
        of every sandbox."""
        self._stock: Guests | None = None  # for __del__, if the rest raises
        rules = settings.make_rules(min_ready, max_total, max_age)
        self._kinds = settings.Kinds(options, settings.keyword_names(AsyncPool.__init__))
        self._home = LoopBinding()
        self._stock = Guests(rules, self._home, rehearsals.check_warmup_code(rehearsal))
        self._keeper: anyio.CancelScope | None = None
        self._closing: anyio.Event | None = None

    async def __aenter__(self) -> Self:
        self._open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closing is not None else f"{self._guests.state.total} guests"
        return f"<{type(self).__name__} ({state})>"

    # -- guests -----------------------------------------------------------------------------

    def acquire(
        self, *, owner: str | None = None, wait: float | None = None, **options: Any
    ) -> Acquisition:
        """A started sandbox, whose guest nobody has used before; its close destroys it.

        With `await` it is yours to close, `async with` closes it. Waits while there are max_total
        guests: for `wait` seconds (None: as long as it takes), then raises PoolFull. Owners take
        turns. `options` are those of this sandbox; if they need another kind of guest, that is
        made, and kept ready if it is asked for again.
        """
        own = settings.keyword_names(AsyncPool.acquire)
        return Acquisition(lambda: self._lease(self._options(options, own), owner, wait))

    async def run_code(
        self,
        code: str,
        *,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_result: OnResult | None = None,
        env: Mapping[str, str] | None = None,
        variables: Mapping[str, object] | None = None,
        files: Mapping[str, str | bytes] | None = None,
        owner: str | None = None,
        wait: float | None = None,
        **options: Any,
    ) -> Execution:
        """Run code on a guest of its own, which is destroyed afterwards.

        `variables` and `files` (by their paths) are there before it begins. `owner`, `wait` and
        `options` are as for acquire(). Code that the policy rejects takes no guest.
        """
        self._open()
        # What is wrong with it is said before a guest is taken, not after.
        part = Snippet(code, timeout=timeout, env=env, variables=variables or {}, files=files or {})
        chosen = self._options(options, settings.keyword_names(AsyncPool.run_code))

        async def run(sandbox: AsyncSandbox) -> Execution:
            return await sandbox.run_code(
                code,
                timeout=timeout,
                on_stdout=on_stdout,
                on_stderr=on_stderr,
                on_result=on_result,
                env=env,
            )

        if await snippet.is_rejected(chosen, code):
            return await snippet.run_without_guest(chosen, run)
        for attempt in itertools.count(1):
            tenant = await self._lease(chosen, owner, wait, once=True)
            try:
                await snippet.send_inputs(tenant, part)
                return await run(tenant)
            except LostBeforeStart:
                if attempt == snippet.ATTEMPTS:
                    raise
            except SandboxClosed:
                self._check_open()
                raise
            finally:
                await self._guests.finish(tenant)
        raise AssertionError

    def map(
        self,
        codes: Codes,
        *,
        concurrency: int | None = None,
        window: int | None = None,
        timeout: float | None = None,
        owner: str | None = None,
        on_progress: OnProgress | None = None,
        total: int | None = None,
        ordered: bool = True,
        on_error: str = "return",
        read_in_thread: bool = False,
        **options: Any,
    ) -> AsyncMap:
        """Run many snippets, each on a guest of its own: their Executions, in order.

        `codes` is any iterable or async iterable of texts, Snippets, or mappings with the names of
        a Snippet; it is read as it is needed: an ordinary iterable on the event loop, which waits
        for it, or `read_in_thread`. `concurrency` run at once (None: twice the number of
        processors), and at most `window` wait to run, run, or wait to be taken (None: four times
        as many). What code does is a value, also when it fails; a guest that is lost before the
        code began is replaced. An item that cannot be run is an Execution, too, of outcome error
        and execution_count 0, unless `on_error` is "raise". `ordered=False`: each as soon as it is
        done. `on_progress` gets how many are done, and of how many (`total`) if that is known.
        `pairs()` of what this gives is the same with the items. Who stops early stops what runs;
        `async with` waits for that.
        """
        total = settings.check_map_arguments(codes, on_progress, total)
        run = self._make_map_run(
            concurrency=concurrency,
            window=window,
            timeout=timeout,
            owner=owner,
            ordered=ordered,
            on_error=on_error,
            **options,
        )
        return AsyncMap(run, codes, on_progress, total, read_in_thread)

    def _make_map_run(
        self,
        *,
        concurrency: int | None,
        window: int | None,
        timeout: float | None,
        owner: str | None,
        ordered: bool,
        on_error: str,
        **options: Any,
    ) -> MapRun:
        """What map() is made of: each has an owner of its own, unless told."""
        self._open()
        concurrency, window = self._widths(concurrency, window)
        sandbox_options.check_timeout(timeout, None)
        if on_error not in ON_ERROR:
            raise unknown_option("value of on_error", str(on_error), ON_ERROR)
        # What is wrong with them is said now.
        chosen = self._options(options, settings.keyword_names(AsyncPool.map))
        if concurrency > 1 and (chosen.session is not None or chosen.workspace is not None):
            raise InvalidOption(
                "one sandbox at a time can have a session or a workspace, and here several run",
                hint="concurrency=1, or give each snippet its own in its options",
            )
        order = snippet.MapOptions(
            owner=settings.check_owner(owner) if owner is not None else ("map", next(_maps)),
            timeout=timeout,
            options=options,
            raising=on_error == "raise",
        )
        return MapRun(
            lambda number, item, at_work: snippet.run_item(self, order, number, item, at_work),
            self._home,
            concurrency,
            window,
            ordered,
        )

    async def warm_up(self, *, wait: float | None = None) -> None:
        """Wait until min_ready guests are ready, or raise why they are not."""
        self._open()
        stock = self._guests
        shelf = stock.shelf(self._kinds.key, self._kinds.default, permanent=True)
        failures = stock.stats().start_failures
        with anyio.move_on_after(wait):
            while len(shelf.ready) + shelf.checking < stock.rules.min_ready:
                if stock.stats().start_failures > failures and stock.last_error is not None:
                    raise stock.last_error
                await stock.changed()
                self._check_open()
            return
        raise PoolFull(f"the pool was not full after {wait:g} s")

    def stats(self) -> PoolStats:
        """What there is, what was waited for, and what was thrown away."""
        return self._guests.stats()

    # -- the end ----------------------------------------------------------------------------

    async def close(self) -> None:
        """End everything, in bounded time: who waits is told, starts are given up, sandboxes that
        are in use are cut short. May be called twice."""
        if not self._home.in_this_process:
            return  # a fork: it is the parent's
        if self._closing is None:
            self._home.check()
            self._closing = anyio.Event()
            spawn(self._shut)
        await self._closing.wait()
        stock = self._guests
        troubles, stock.troubles = stock.troubles, []
        if stock.state.total:
            troubles.append(f"{stock.state.total} guests have not ended in {PATIENCE:.0f} s")
        if troubles:
            raise SandboxError(f"not every guest ended as it should: {'; '.join(troubles)}")

    async def _shut(self) -> None:
        assert self._closing is not None
        telling.ends(self._guests)
        if self._keeper is not None:
            self._keeper.cancel()
        try:
            with anyio.CancelScope(shield=True), anyio.move_on_after(PATIENCE):
                await self._guests.close()
        finally:
            self._closing.set()

    def __del__(self) -> None:
        stock = self._stock
        if stock is None or not self._home.in_this_process:
            return
        if sys.is_finalizing():  # the runtime has ended every guest, and no thread starts any more
            return
        if self._closing is None and stock.state.total:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2)
        if self._keeper is not None:
            self._home.call(self._keeper.cancel)
        stock.discard()

    # -- within -----------------------------------------------------------------------------

    @property
    def _guests(self) -> Guests:
        assert self._stock is not None
        return self._stock

    def _check_open(self) -> None:
        if self._closing is not None:
            raise closed()

    def _open(self) -> None:
        """At its first use it begins to fill, and to be looked after."""
        self._home.check()
        self._check_open()
        if self._keeper is None:
            stock = self._guests
            self._keeper = anyio.CancelScope()
            telling.begins(stock)
            stock.shelf(self._kinds.key, self._kinds.default, permanent=True)
            stock.reconcile()
            # A pool that everybody forgot is not kept alive by its keeper.
            every = TICK if stock.rules.max_age is None else min(TICK, stock.rules.max_age / 2)
            care = weakref.WeakMethod(self._care)
            repeat(care, "refilling the pool", every=max(every, 0.05), scope=self._keeper)

    async def _care(self) -> None:
        await self._guests.care()

    def _options(self, given: Mapping[str, Any], own: Iterable[str] = ()) -> Options:
        return self._kinds.options(given, own)

    def _widths(self, concurrency: int | None, window: int | None) -> tuple[int, int]:
        rules = self._guests.rules
        if concurrency is None:
            concurrency = min(2 * (os.cpu_count() or 1), rules.max_total)
        checks.check_count("concurrency", concurrency)
        if window is None:
            window = 4 * concurrency
        checks.check_count("window", window)
        if window < concurrency:
            raise InvalidOption(f"window={window} is less than concurrency={concurrency}")
        return concurrency, window

    async def _lease(
        self, options: Options, owner: object, wait: float | None, *, once: bool = False
    ) -> PooledSandbox:
        self._open()
        if wait is not None:
            checks.check_seconds("wait", wait, zero=True)
        who = owner if isinstance(owner, tuple) else settings.check_owner(owner)
        stock = self._guests
        wish = stock.ask(settings.guest_key(options), options, who)
        try:
            if not wish.settled.is_set():
                with anyio.move_on_after(wait):
                    await wish.settled.wait()
        except BaseException:
            stock.withdraw(wish)
            raise
        if wish.error is not None:
            raise wish.error
        if wish.idle is None:
            stock.withdraw(wish)
            stock.refused()
            raise self._full(wait)
        if stock.state.closing:  # since he was given it: nobody would end his work
            stock.withdraw(wish)
            raise closed()
        tenant = stock.move_in(wish, replace(options, id=stock.id_of(wish)))
        tenant.once = once
        try:
            await tenant.start()
        except BaseException as error:
            await tenant.kill()
            if isinstance(error, SandboxClosed):
                self._check_open()
            raise
        return tenant

    def _full(self, wait: float | None) -> PoolFull:
        state = self._guests.state
        return PoolFull(
            f"no guest was free within {wait:g} s: {state.leased} are in use, "
            f"{state.starting} being started, of at most {self._guests.rules.max_total}",
            hint="wait longer, close sandboxes that are not needed, or raise max_total",
        )


def _at_exit() -> None:
    """Before the runtime ends the guests: that these are lost is then no failure, and nobody starts
    others instead."""
    for stock in telling.pools():
        if isinstance(stock, Guests):
            stock.state.closing = True


atexit.register(_at_exit)
