"""Belljar from a pool: guests that were started before the request."""

from __future__ import annotations

import time
from typing import Any

import anyio

from peers.contract import ANSWER, FIRST, Missing, Place, expect
from peers.ours import Belljar, Blocking, options_of

READY = {"native": 8, "docker": 2}
MOST = {"native": 72, "docker": 40}


def pool_class(name: str) -> Any:
    import belljar

    try:
        return getattr(belljar, name)
    except AttributeError:
        raise Missing(f"this Belljar has no {name}") from None


class Pooled(Belljar):
    works = ("cold", "throughput", "burst")
    cannot = {"*": "a guest from a pool is a guest like any other"}  # noqa: RUF012

    def __init__(self, backend: str = "native") -> None:
        super().__init__(backend)
        self.works, self.cannot = Pooled.works, Pooled.cannot
        if backend != "native":
            self.works = ("cold", "throughput")
        self.title += ", pool"
        self.settings = f"`Pool(min_ready={READY[backend]})`, full when the clock starts"
        self._pool: Any = None
        self._open: Any = None  # an AsyncPool, for storms

    def prepare(self) -> None:
        super().prepare()
        pool_class("Pool")

    def _options(self) -> dict[str, Any]:
        sizes = {"min_ready": READY[self.backend], "max_total": MOST[self.backend]}
        return options_of(self.backend, {}) | sizes

    def start(self, **wishes: object) -> Place:
        if self._pool is None:
            self.settle()
        return Blocking(self._pool.acquire())

    def settle(self) -> None:
        """A pool that has as many as it wants, and nothing under way."""
        if self._pool is None:
            self._pool = pool_class("Pool")(**self._options())
            self._pool.__enter__()
        until = time.monotonic() + 60
        while self._pool.stats().ready < READY[self.backend]:
            if time.monotonic() > until:
                raise TimeoutError("the pool does not fill")
            time.sleep(0.01)

    async def shot(self) -> None:
        expect((await self._open.run_code(FIRST)).stdout, ANSWER)

    def ready(self) -> Any:
        return _Open(self)

    def burst(self, count: int) -> dict[str, object]:
        waits: list[float] = []
        answers: list[float] = []
        full = 0.0

        async def ask(began: float) -> None:
            async with self._open.acquire() as sandbox:
                waits.append(time.perf_counter() - began)
                expect((await sandbox.run_code(FIRST)).stdout, ANSWER)
                answers.append(time.perf_counter() - began)

        async def main() -> None:
            nonlocal full
            async with self.ready():
                began = time.perf_counter()
                async with anyio.create_task_group() as tasks:
                    for _ in range(count):
                        tasks.start_soon(ask, began)
                ended = time.perf_counter()
                await self.filled()
                full = time.perf_counter() - ended

        self.loop().call(main)
        return {"waits": waits, "answers": answers, "full": full}

    async def filled(self) -> None:
        """Until the AsyncPool has what it wants ready, and nothing else."""
        with anyio.fail_after(60):
            while (now := self._open.stats()).ready < READY[self.backend] or now.total > now.ready:
                await anyio.sleep(0.005)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        if self._open is not None:
            self.loop().call(self._open.close)
        super().close()


class _Open:
    """An AsyncPool for storms, full and warm when one starts."""

    def __init__(self, peer: Pooled) -> None:
        self._peer = peer

    async def __aenter__(self) -> None:
        peer = self._peer
        if peer._open is None:
            peer._open = await pool_class("AsyncPool")(**peer._options()).__aenter__()
        await peer.shot()
        await peer.filled()

    async def __aexit__(self, *of: object) -> None:
        return None
