"""Pool and SandboxManager: the async classes, blocking, on the runtime's event loop.

Any thread may use them. `async with Pool(...)` gives the AsyncPool instead, and `async with
SandboxManager(...)` the AsyncSandboxManager.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar

from belljar.pool.manager import AsyncSandboxManager
from belljar.pool.manager_table import Reason
from belljar.pool.map import Map, OnProgress
from belljar.pool.pool import AsyncPool
from belljar.pool.settings import Factory, ManagerSettings, check_map_arguments
from belljar.pool.stats import ManagerStats, PoolStats
from belljar.results.execution import Execution
from belljar.runtime import wait as _wait  # `wait` is an option here
from belljar.sandbox.blocking import Sandbox
from belljar.sandbox.run import OnResult, OnText
from belljar.sandbox.sandbox import AsyncSandbox

T = TypeVar("T")


async def _call(function: Callable[[], T]) -> T:
    """Call a function on the loop, where nothing changes meanwhile."""
    return function()


class Pool:
    """Guests that are started ahead: each is used once, and destroyed.

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
        """The pool keeps `min_ready` unused guests (None: two, or max_total if that is less). There
        are never more than `max_total` guests, those in use included. An unused guest is replaced
        after `max_age` seconds (None: never). `rehearsal` is code that a guest runs ahead, so that
        the first cell is quick (None: what suits its packages; "": no code). `options` are those of
        every sandbox."""
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

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> AsyncPool:
        return await self._pool.__aenter__()

    async def __aexit__(self, *exception: object) -> None:
        await self._pool.close()

    def __repr__(self) -> str:
        return repr(self._pool).replace("AsyncPool", type(self).__name__, 1)

    def acquire(
        self, *, owner: str | None = None, wait: float | None = None, **options: Any
    ) -> Sandbox:
        """A started sandbox on an unused guest; its close destroys the guest.

        Waits while there are max_total guests: for `wait` seconds (None: as long as it takes), then
        raises PoolFull. Owners take turns. `options` are those of this sandbox; if they need
        another kind of guest, the pool starts one, and keeps that kind ready if it is requested
        again.
        """
        return Sandbox._from_async(_wait(self._pool.acquire, owner=owner, wait=wait, **options))

    def run_code(
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
        return _wait(
            self._pool.run_code,
            code,
            timeout=timeout,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            on_result=on_result,
            env=env,
            allow_return=allow_return,
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
        """Run many snippets, each on an unused guest: their Executions, in order.

        `codes` is any iterable of texts, Snippets, or mappings with the names of a Snippet. It is
        read as it is needed, in the thread that iterates, or in its own thread with
        `read_in_thread`: then it may wait for results. `concurrency` run at once (None: twice the
        number of processors), and at most `window` wait to run, run, or wait to be taken (None:
        four times as many). What code does is a value, also when it fails; a guest that is lost
        before the code began is replaced. An item that cannot be run is an Execution, too, of
        outcome error and execution_count 0, unless `on_error` is "raise". `ordered=False`: each as
        soon as it is done. `on_progress` gets how many are done, and of how many (`total`) if that
        is known. `pairs()` of the result is the same with the items. `with`, close() and
        dropping the iterator stop what runs.
        """
        total = check_map_arguments(codes, on_progress, total, blocking=True)
        make = self._pool._make_map_run
        how = (concurrency, window, timeout, owner, ordered, on_error, options)
        run = _wait(_call, lambda: make(*how))
        return Map(run, codes, on_progress, total, read_in_thread)

    def warm_up(self, *, wait: float | None = None) -> None:
        """Wait until min_ready guests are ready. Raises the error of a start that failed."""
        return _wait(self._pool.warm_up, wait=wait)

    def stats(self) -> PoolStats:
        """How many guests there are, what callers waited for, and what was discarded."""
        return _wait(_call, self._pool.stats)

    def close(self) -> None:
        """End everything, in bounded time: callers that wait get PoolClosed, starts are cancelled,
        and sandboxes in use are closed. May be called twice."""
        return _wait(self._pool.close)


class SandboxManager:
    """Named sandboxes: a maximum, quotas, and idle ones are closed.

    with SandboxManager(max_sandboxes=20, environment="python") as manager:
        name = manager.create(owner="alice")
        execution = manager.run_code(name, "6 * 7")
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
        self._manager = AsyncSandboxManager(
            max_sandboxes=max_sandboxes,
            idle_timeout=idle_timeout,
            cleanup_interval=cleanup_interval,
            lifetime=lifetime,
            max_per_owner=max_per_owner,
            factory=factory,
            **defaults,
        )
        self._twins: weakref.WeakValueDictionary[str, Sandbox] = weakref.WeakValueDictionary()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> AsyncSandboxManager:
        return await self._manager.__aenter__()

    async def __aexit__(self, *exception: object) -> None:
        await self._manager.close()

    def __repr__(self) -> str:
        return repr(self._manager).replace("AsyncSandboxManager", type(self).__name__, 1)

    def create(
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
        return _wait(self._manager.create, name, owner=owner, wait=wait, **options)

    def get(self, name: str) -> Sandbox:
        """The sandbox of this name; waits if it is being made.

        A sandbox in use is not swept. Between two uses only operation() protects it.
        """
        return self._twin(_wait(self._manager.get, name))

    def get_or_create(
        self, name: str, *, owner: str | None = None, wait: float | None = None, **options: Any
    ) -> Sandbox:
        """The sandbox of this name, made if it is missing. Concurrent callers get the same one.

        Raises NameTaken if `owner` is given, and the sandbox has another owner.
        """
        made = _wait(self._manager.get_or_create, name, owner=owner, wait=wait, **options)
        return self._twin(made)

    @contextlib.contextmanager
    def operation(self, name: str) -> Iterator[Sandbox]:
        """The sandbox of this name, which is not swept inside the `with` block."""
        operation = self._manager.operation(name)
        sandbox = _wait(operation.__aenter__)
        try:
            yield self._twin(sandbox)
        finally:
            _wait(operation.__aexit__, None, None, None)

    def run_code(
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
        return _wait(
            self._manager.run_code,
            name,
            code,
            timeout=timeout,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            on_result=on_result,
            env=env,
            undo_on_error=undo_on_error,
            allow_return=allow_return,
        )

    def delete(self, name: str) -> None:
        """Close the sandbox of this name, busy or not; cancel it if it is being made."""
        return _wait(self._manager.delete, name)

    def sweep(self) -> dict[str, Reason]:
        """Close sandboxes that are idle, too old or lost, as the manager does by itself at each
        cleanup_interval. Returns their names, and why."""
        return _wait(self._manager.sweep)

    def names(self) -> list[str]:
        """The names of the sandboxes that can be used."""
        return _wait(_call, self._manager.names)

    def stats(self) -> ManagerStats:
        return _wait(_call, self._manager.stats)

    def close(self, *, grace: float = 0.0) -> None:
        """Close all sandboxes at once, in bounded time. May be called twice.

        Creations are refused or cancelled. Operations have `grace` seconds to finish, and are then
        stopped, as by the close of a sandbox.
        """
        return _wait(self._manager.close, grace=grace)

    shutdown = close

    def _twin(self, sandbox: AsyncSandbox) -> Sandbox:
        """The blocking Sandbox; the same object for the same sandbox, while callers hold it."""
        return self._twins.setdefault(sandbox.id, Sandbox._from_async(sandbox))
