"""Pool: the blocking twin of AsyncPool, on the runtime's event loop.

Any thread may use it. `async with Pool(...)` gives the AsyncPool instead, so that the name may be
read either way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from belljar.errors import InvalidOption
from belljar.pool.flight import Flight
from belljar.pool.map import OnProgress, check_input
from belljar.pool.pool import AsyncPool
from belljar.pool.results import Map
from belljar.pool.stats import PoolStats
from belljar.results.execution import Execution
from belljar.sandbox.blocking import Sandbox, wait
from belljar.sandbox.run import OnResult, OnText

# `wait` is the name of an option here, too.
_wait = wait


class Pool:
    """Warm guests: each is used by one tenant, and then destroyed.

    with Pool(min_ready=4, environment="python") as pool:
        execution = pool.run_code("6 * 7")
        with pool.acquire() as sandbox:
            sandbox.run_code("x = 6")
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
        self._pool = AsyncPool(
            min_ready=min_ready,
            max_total=max_total,
            max_age=max_age,
            rehearsal=rehearsal,
            **options,
        )

    def __enter__(self) -> Self:
        _wait(self._pool.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> AsyncPool:
        return await self._pool.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._pool.close()

    def __repr__(self) -> str:
        return repr(self._pool).replace("AsyncPool", type(self).__name__, 1)

    def acquire(
        self, *, owner: str | None = None, wait: float | None = None, **options: Any
    ) -> Sandbox:
        """A started sandbox, whose guest nobody has used before; its close destroys it.

        Waits while there are max_total guests: for `wait` seconds (None: as long as it takes),
        then raises PoolFull. Owners take turns. `options` are those of this sandbox; if they need
        another kind of guest, that is made, and kept ready if it is asked for again.
        """
        twin = Sandbox._from_async(_wait(self._acquire, owner=owner, most=wait, **options))
        return twin

    def run_code(
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
        return _wait(
            self._pool.run_code,
            code,
            timeout=timeout,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            on_result=on_result,
            env=env,
            variables=variables,
            files=files,
            owner=owner,
            wait=wait,
            **options,
        )

    def map(
        self,
        codes: Iterable[object],
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
    ) -> Map:
        """Run many snippets, each on a guest of its own: their Executions, in order.

        `codes` is any iterable of texts, Snippets, or mappings with the names of a Snippet; it is
        read as it is needed, in this thread, or `read_in_thread`: then it may wait for results.
        `concurrency` run at once (None: twice the number of processors), and at most `window` wait
        to run, run, or wait to be taken (None: four times as many). What code does is a value,
        also when it fails; a guest that is lost before the code began is replaced. An item that
        cannot be run is an Execution, too, of outcome error and execution_count 0, unless
        `on_error` is "raise". `ordered=False`: each as soon as it is done. `on_progress` gets how
        many are done, and of how many (`total`) if that is known. `pairs()` of what this gives is
        the same with the items; `with` or close() end it early, and so does forgetting it.
        """
        check_input(codes, on_progress)
        if not isinstance(codes, Iterable):
            raise InvalidOption("codes is an async iterable", hint="use AsyncPool")
        flight = _wait(
            self._flight,
            concurrency=concurrency,
            window=window,
            timeout=timeout,
            owner=owner,
            ordered=ordered,
            on_error=on_error,
            **options,
        )
        return Map(flight, codes, on_progress, total, read_in_thread)

    def warm_up(self, *, wait: float | None = None) -> None:
        """Wait until min_ready guests are ready, or raise why they are not."""
        return _wait(self._pool.warm_up, wait=wait)

    def stats(self) -> PoolStats:
        """What there is, what was waited for, and what was thrown away."""
        return _wait(self._stats)

    def close(self) -> None:
        """End everything, in bounded time: who waits is told, starts are given up, sandboxes that
        are in use are cut short. May be called twice."""
        return _wait(self._pool.close)

    # On the loop, where nothing changes while they look.
    async def _acquire(self, *, most: float | None, **options: Any) -> Any:
        return await self._pool.acquire(wait=most, **options)

    async def _stats(self) -> PoolStats:
        return self._pool.stats()

    async def _flight(self, **options: Any) -> Flight:
        return self._pool.flight(**options)
