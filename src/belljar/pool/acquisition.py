"""What acquire() of an AsyncPool gives: a sandbox to be awaited, or entered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any

from belljar.sandbox.sandbox import AsyncSandbox


class Acquisition:
    """`await` it for the sandbox, or `async with` it: then it is closed at the end."""

    def __init__(self, take: Callable[[], Awaitable[AsyncSandbox]]) -> None:
        self._take = take
        self._sandbox: AsyncSandbox | None = None

    def __await__(self) -> Generator[Any, Any, AsyncSandbox]:
        return self._take().__await__()

    async def __aenter__(self) -> AsyncSandbox:
        self._sandbox = await self._take()
        return self._sandbox

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._sandbox is not None
        await self._sandbox.close()
