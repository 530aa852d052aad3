"""AsyncPool: guests that are started ahead, each for one sandbox, up to a maximum, in fair order.

`decide.py` decides what to do, `guests.py` does it; here is what callers see.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import sys
import warnings
import weakref
from collections.abc import Hashable, Mapping
from typing import Any, Self

import anyio

from belljar import events
from belljar.backends.event_loop import spawn
from belljar.errors import InvalidOption, PoolFull, SandboxClosed, SandboxError, unknown_option
from belljar.pool import settings, snippet
from belljar.pool.guests import Guests, pool_closed
from belljar.pool.loop_binding import LoopBinding, repeat
from belljar.pool.map import AsyncMap, Codes, MapRun, OnProgress
from belljar.pool.pooled_sandbox import Acquisition, PooledSandbox
from belljar.pool.snippet import Snippet
from belljar.pool.stats import PoolStats
from belljar.results.execution import Execution
from belljar.sandbox import options as sandbox_options
from belljar.sandbox.options import Options
from belljar.sandbox.run import OnResult, OnText
from belljar.sandbox.sandbox import AsyncSandbox

ON_ERROR = ("return", "raise")
CHECK_INTERVAL = 1.0  # seconds between two looks at the idle guests
CLOSE_TIMEOUT = 60.0  # seconds for all guests to end

_maps = itertools.count(1)


class AsyncPool:
    """Guests that are started ahead, under asyncio or trio: each is used once, and destroyed.

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
        """The pool keeps `min_ready` unused guests (None: two, or max_total if that is less). There
        are never more than `max_total` guests, those in use included. An unused guest is replaced
        after `max_age` seconds (None: never). `rehearsal` is code that a guest runs ahead, so that
        the first cell is quick (None: what suits its packages; "": no code). `options` are those of
        every sandbox."""
        if rehearsal is not None and not isinstance(rehearsal, str):
            raise InvalidOption(f"rehearsal is code as a str, not {type(rehearsal).__name__}")
        rules = settings.make_rules(min_ready, max_total, max_age)
        self._kinds = settings.Kinds(options, settings.keyword_names(AsyncPool.__init__))
        self._binding = LoopBinding()
        self._checker: anyio.CancelScope | None = None
        self._closing: anyio.Event | None = None
        self._guests = Guests(rules, self._binding, rehearsal)

    async def __aenter__(self) -> Self:
        self._open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closing is not None else f"{self._guests.state.total} guests"
        return f"<{type(self).__name__} ({state})>"

    # -- guests -----------------------------------------------------------------------------

    def acquire(
        self, *, owner: str | None = None, wait: float | None = None, **options: Any
    ) -> Acquisition:
        """A started sandbox on an unused guest; its close destroys the guest.

        With `await` you close it, `async with` closes it for you. Waits while there are max_total
        guests: for `wait` seconds (None: as long as it takes), then raises PoolFull. Owners take
        turns. `options` are those of this sandbox; if they need another kind of guest, the pool
        starts one, and keeps that kind ready if it is requested again.
        """
        own = settings.keyword_names(AsyncPool.acquire)
        return Acquisition(lambda: self._lease(self._kinds.options(options, own), owner, wait))

    async def run_code(
        self,
        code: str,
        *,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_result: OnResult | None = None,
        env: Mapping[str, str] | None = None,
        allow_return: bool = False,
        variables: Mapping[str, object] | None = None,
        files: Mapping[str, str | bytes] | None = None,
        owner: str | None = None,
        wait: float | None = None,
        **options: Any,
    ) -> Execution:
        """Run code on an unused guest, which is destroyed afterwards.

        `variables` and `files` (by their paths) are there before it begins. `owner`, `wait` and
        `options` are as for acquire(). Code that the policy rejects takes no guest.
        """
        self._open()
        # Made first: it checks the arguments before a guest is taken.
        part = Snippet(code, timeout=timeout, env=env, variables=variables or {}, files=files or {})
        chosen = self._kinds.options(options, settings.keyword_names(AsyncPool.run_code))

        async def run(sandbox: AsyncSandbox) -> Execution:
            return await sandbox.run_code(
                code,
                timeout=timeout,
                on_stdout=on_stdout,
                on_stderr=on_stderr,
                on_result=on_result,
                env=env,
                allow_return=allow_return,
            )

        return await snippet.run_on_guest(
            self, chosen, part, run, owner=owner, wait=wait, at_work=set()
        )

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
        """Run many snippets, each on an unused guest: their Executions, in order.

        `codes` is any iterable or async iterable of texts, Snippets, or mappings with the names of
        a Snippet. It is read as it is needed: an ordinary iterable on the event loop, which it
        blocks, or in a thread with `read_in_thread`. `concurrency` run at once (None: twice the
        number of processors), and at most `window` wait to run, run, or wait to be taken (None:
        four times as many). What code does is a value, also when it fails; a guest that is lost
        before the code began is replaced. An item that cannot be run is an Execution, too, of
        outcome error and execution_count 0, unless `on_error` is "raise". `ordered=False`: each as
        soon as it is done. `on_progress` gets how many are done, and of how many (`total`) if that
        is known. `pairs()` of the result is the same with the items. Leaving the loop early stops
        what runs; `async with` waits for that.
        """
        total = settings.check_map_arguments(codes, on_progress, total)
        run = self._make_map_run(concurrency, window, timeout, owner, ordered, on_error, options)
        return AsyncMap(run, codes, on_progress, total, read_in_thread)

    def _make_map_run(
        self,
        concurrency: int | None,
        window: int | None,
        timeout: float | None,
        owner: str | None,
        ordered: bool,
        on_error: str,
        options: Mapping[str, Any],
    ) -> MapRun:
        """What runs the items of a map. Without `owner`, each map is an owner."""
        self._open()
        concurrency, window = self._widths(concurrency, window)
        sandbox_options.check_timeout(timeout, None)
        if on_error not in ON_ERROR:
            raise unknown_option("value of on_error", str(on_error), ON_ERROR)
        chosen = self._kinds.options(options, settings.keyword_names(AsyncPool.map))
        if concurrency > 1 and (chosen.session is not None or chosen.workspace is not None):
            raise InvalidOption(
                "one sandbox at a time can have a session or a workspace, and here several run",
                hint="concurrency=1, or give each snippet its own in its options",
            )
        run_item = functools.partial(
            snippet.run_item,
            self,
            owner=("map", next(_maps)) if owner is None else settings.check_name("owner", owner),
            timeout=timeout,
            options=options,
            raising=on_error == "raise",
        )
        return MapRun(run_item, self._binding, concurrency, window, ordered)

    async def warm_up(self, *, wait: float | None = None) -> None:
        """Wait until min_ready guests are ready. Raises the error of a start that failed."""
        self._open()
        guests = self._guests
        bucket = guests.ensure_bucket(self._kinds.key, self._kinds.default, permanent=True)
        failures = guests.start_failures
        with anyio.move_on_after(wait):
            while len(bucket.ready) + bucket.checking < guests.rules.min_ready:
                if guests.start_failures > failures and guests.last_error is not None:
                    raise guests.last_error
                await guests.wait_for_change()
                self._check_open()
            return
        raise PoolFull(f"the pool was not full after {wait:g} s")

    def stats(self) -> PoolStats:
        """How many guests there are, what callers waited for, and what was discarded."""
        return self._guests.stats()

    # -- close ------------------------------------------------------------------------------

    async def close(self) -> None:
        """End everything, in bounded time: callers that wait get PoolClosed, starts are cancelled,
        and sandboxes in use are closed. May be called twice."""
        if not self._binding.in_this_process:
            return  # a fork: the pool is the parent's
        if self._closing is None:
            self._binding.check()
            self._closing = anyio.Event()
            spawn(self._close_guests)
        await self._closing.wait()
        guests = self._guests
        troubles, guests.troubles = guests.troubles, []
        if guests.state.total:
            troubles.append(f"{guests.state.total} guests have not ended in {CLOSE_TIMEOUT:.0f} s")
        if troubles:
            raise SandboxError(f"closing guests of the pool failed: {'; '.join(troubles)}")

    async def _close_guests(self) -> None:
        assert self._closing is not None
        events.pools.remove(self._guests)
        if self._checker is not None:
            self._checker.cancel()
        try:
            with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_TIMEOUT):
                await self._guests.close()
        finally:
            self._closing.set()

    def __del__(self) -> None:
        guests: Guests | None = getattr(self, "_guests", None)
        if guests is None or not self._binding.in_this_process:
            return
        if sys.is_finalizing():  # the runtime has killed every guest, and no thread can start
            return
        if self._closing is None and guests.state.total:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2)
        if self._checker is not None:
            self._binding.call(self._checker.cancel)
        guests.discard()

    # -- within -----------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closing is not None:
            raise pool_closed()

    def _open(self) -> None:
        """At its first use the pool begins to start guests, and to check them."""
        self._binding.check()
        self._check_open()
        if self._checker is None:
            guests = self._guests
            self._checker = anyio.CancelScope()
            events.pools.add(guests)
            guests.ensure_bucket(self._kinds.key, self._kinds.default, permanent=True)
            guests.reconcile()
            age = guests.rules.max_age
            every = CHECK_INTERVAL if age is None else min(CHECK_INTERVAL, age / 2)
            # A weak reference: the check must not keep a dropped pool alive.
            check = weakref.WeakMethod(guests.check_idle)
            repeat(check, "checking the pool's guests", every=max(every, 0.05), scope=self._checker)

    def _widths(self, concurrency: int | None, window: int | None) -> tuple[int, int]:
        rules = self._guests.rules
        if concurrency is None:
            concurrency = min(2 * (os.cpu_count() or 1), rules.max_total)
        settings.check_count("concurrency", concurrency)
        if window is None:
            window = 4 * concurrency
        settings.check_count("window", window)
        if window < concurrency:
            raise InvalidOption(f"window={window} is less than concurrency={concurrency}")
        return concurrency, window

    async def _lease(
        self, options: Options, owner: Hashable, wait: float | None, *, once: bool = False
    ) -> PooledSandbox:
        """Owners take turns; None: all callers that name no owner."""
        self._open()
        if wait is not None:
            settings.check_seconds("wait", wait, zero=True)
        if owner is not None and not isinstance(owner, tuple):
            settings.check_name("owner", owner)
        guests = self._guests
        request = guests.request(settings.guest_key(options), options, owner)
        try:
            if not request.settled.is_set():
                with anyio.move_on_after(wait):
                    await request.settled.wait()
        except BaseException:
            guests.withdraw(request)
            raise
        if request.error is not None:
            raise request.error
        if request.ready is None:
            guests.withdraw(request, refused=True)
            state = guests.state
            raise PoolFull(
                f"no guest was free within {wait:g} s: {state.leased} are in use, "
                f"{state.starting} being started, of at most {guests.rules.max_total}",
                hint="wait longer, close sandboxes that are not needed, or raise max_total",
            )
        if guests.state.closing:  # close() has listed the sandboxes: it would miss this one
            guests.withdraw(request)
            raise pool_closed()
        sandbox = guests.lease(request, options)
        sandbox.once = once
        try:
            await sandbox.start()
        except BaseException as error:
            await sandbox.kill()
            if isinstance(error, SandboxClosed):
                self._check_open()
            raise
        return sandbox


def _at_exit() -> None:
    """Runs before the runtime kills the guests: pools must not report these as lost, nor start
    other guests instead."""
    for guests in events.pools.all():
        guests.state.closing = True


atexit.register(_at_exit)
