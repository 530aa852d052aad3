"""SandboxManager: the blocking twin of AsyncSandboxManager, on the runtime's event loop.

Any thread may use it. `async with SandboxManager(...)` gives the AsyncSandboxManager instead, so
that the name may be read either way.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from belljar.pool.manager import AsyncSandboxManager
from belljar.pool.manager_decide import ManagerStats, Reason
from belljar.pool.manager_settings import Factory
from belljar.results.execution import Execution
from belljar.sandbox.blocking import Sandbox, wait
from belljar.sandbox.run import OnResult, OnText
from belljar.sandbox.sandbox import AsyncSandbox

# `wait` is the name of an option here, too.
_wait = wait


class SandboxManager:
    """Named sandboxes: a maximum, quotas, idle ones swept, an orderly end.

    with SandboxManager(max_sandboxes=20, environment="python") as manager:
        name = manager.create(owner="alice")
        execution = manager.run_code(name, "6 * 7")
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> AsyncSandboxManager:
        return await self._manager.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
        """Make a sandbox and start it; gives its name (None: a new one).

        Raises NameTaken, and ManagerFull or QuotaExceeded when there is no place, unless one
        becomes free within `wait` seconds. `options` are those of the sandbox.
        """
        return _wait(self._manager.create, name, owner=owner, wait=wait, **options)

    def get(self, name: str) -> Sandbox:
        """The sandbox of this name; one that is being made is waited for.

        What is done with it counts as use, and keeps it from being swept. Between two uses only
        operation() does.
        """
        return self._twin(_wait(self._manager.get, name))

    def get_or_create(
        self,
        name: str,
        *,
        owner: str | None = None,
        wait: float | None = None,
        **options: Any,
    ) -> Sandbox:
        """The sandbox of this name, made if there is none. Who asks at once gets the same one.

        Raises NameTaken if `owner` is given, and the sandbox is another's.
        """
        made = _wait(self._manager.get_or_create, name, owner=owner, wait=wait, **options)
        return self._twin(made)

    @contextlib.contextmanager
    def operation(self, name: str) -> Iterator[Sandbox]:
        """The sandbox of this name, which is not swept while this lasts."""
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
        )

    def delete(self, name: str) -> None:
        """End the sandbox of this name, busy or not; one that is being made is given up."""
        return _wait(self._manager.delete, name)

    def sweep(self) -> dict[str, Reason]:
        """End now what is idle, too old or lost, as the sweeper does at each cleanup_interval.
        Gives the names, and why."""
        return _wait(self._manager.sweep)

    def names(self) -> list[str]:
        """Of the sandboxes that can be used."""
        return _wait(self._names)

    def stats(self) -> ManagerStats:
        return _wait(self._stats)

    def close(self, *, grace: float = 0.0) -> None:
        """End everything, all at once, and be done in bounded time. May be called twice.

        Nothing new is made; what is being made is given up. Operations under way have `grace`
        seconds to come to their end, and are then cut short, as by the close of a sandbox.
        """
        return _wait(self._manager.close, grace=grace)

    shutdown = close

    # On the loop, where nothing changes while they count.
    async def _names(self) -> list[str]:
        return self._manager.names()

    async def _stats(self) -> ManagerStats:
        return self._manager.stats()

    def _twin(self, sandbox: AsyncSandbox) -> Sandbox:
        """The same one for the same sandbox, as long as somebody has it."""
        twin = Sandbox._from_async(sandbox)
        return self._twins.setdefault(sandbox.id, twin)
