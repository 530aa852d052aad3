"""Sweeps an engine again and again, until it lists no leftover container of this process.

A failed removal starts this, and so does a request to create a container that the engine did not
answer. The engine may carry out such a request much later. Until then it does not list the
container. While it creates the container, Docker 20.10 lists it but answers 404 to its removal. So
neither a removal nor a 404 ends the sweeps: only a later list without leftovers does, and after an
unanswered request only when the engine has had LATE seconds.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection

import anyio

from belljar.backends.base import Host
from belljar.backends.docker import sweep
from belljar.backends.docker.client.engine import Engine, EngineError
from belljar.backends.docker.sweep import Swept

PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0)  # seconds before each sweep; the last one repeats
LATE = 120.0  # seconds, counted from the engine's first list after the unanswered request

log = logging.getLogger("belljar")


class Cleanup:
    """The sweeps of all engines of a backend. Used on the runtime's thread, but for `close`."""

    def __init__(self, host: Host, living: Collection[str]) -> None:
        self._host = host
        self._living = living  # sandboxes that have, or may yet get, a container
        self._pending: dict[Engine, Pending] = {}
        self._closed = False

    @property
    def engines(self) -> set[Engine]:
        """Engines that may still have a container of this process."""
        return set(self._pending)

    def request(self, engine: Engine, *, late: bool = False) -> None:
        """Sweep it until no leftover is there. Called after a removal that failed, and with
        `late` after a request to create a container that was not answered."""
        known = engine in self._pending
        self._pending.setdefault(engine, Pending()).renew(late=late)
        if not known and not self._closed:
            self._host.submit(functools.partial(self._repeat, engine))

    async def first(self, engine: Engine) -> None:
        """The sweep at the first use of an engine."""
        if await self.sweep(engine) != []:
            self.request(engine)

    async def sweep(self, engine: Engine) -> list[Swept] | None:
        """Remove containers that this process, or one that was killed, has left.

        Returns the leftovers that the engine listed; None if it did not list its containers.
        """
        try:
            swept = await sweep.sweep(engine, living=self._living)
        except EngineError as error:
            log.info("leftover containers could not be looked for: %s", error.message)
            return None
        for each in swept:
            if each.problem:
                log.warning("a leftover container %s stays: %s", each.name, each.problem)
        return swept

    def close(self) -> None:
        """Start no further sweeps; `sweep` still works."""
        self._closed = True

    async def _repeat(self, engine: Engine) -> None:
        pending = self._pending[engine]
        while not self._closed:
            with anyio.move_on_after(pending.next_pause()):
                await pending.renewed.wait()
                await anyio.sleep(PAUSES[0])
            pending.begin()
            swept = await self.sweep(engine)
            if pending.is_settled(swept, anyio.current_time()):
                del self._pending[engine]
                return


class Pending:
    """Whether one engine must be swept again. Decides without I/O."""

    def __init__(self) -> None:
        self.renewed = anyio.Event()  # set by a request since the last sweep began
        self._late = False
        self._listed: float | None = None  # when it first listed its containers after that
        self._sweeps = 0

    def renew(self, *, late: bool) -> None:
        self.renewed.set()
        self._sweeps = 0
        if late:
            self._late, self._listed = True, None

    def next_pause(self) -> float:
        return PAUSES[min(self._sweeps, len(PAUSES) - 1)]

    def begin(self) -> None:
        """Note that a sweep begins: its list may miss what is requested from now on."""
        self.renewed = anyio.Event()
        self._sweeps += 1

    def is_settled(self, swept: list[Swept] | None, now: float) -> bool:
        if swept is None or self.renewed.is_set():
            return False
        if self._listed is None:
            self._listed = now
        return not swept and (not self._late or now >= self._listed + LATE)
