"""Removal of containers: of one, of those that dead processes left, and until none is left.

`remove_container` tries ever stronger means, each with a time limit. It never stops a container
gracefully: that waits ten seconds for a process that will not listen.

`sweep_leftovers` removes containers whose owner is dead (owner.py). It touches a container only if
it has all our labels, exactly as we write them. Several processes may sweep at once: a container
that another process removes first counts as removed.

`Cleanup` sweeps an engine again and again, until it lists no leftover container of this process. A
failed removal starts this, and so does a request to create a container that the engine did not
answer. The engine may carry out such a request much later. Until then it does not list the
container. While it creates the container, Docker 20.10 lists it but answers 404 to its removal. So
neither a removal nor a 404 ends the sweeps: only a later list without leftovers does, and after an
unanswered request only when the engine has had LATE seconds.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import anyio

from belljar.backends.base import Host
from belljar.backends.docker import health, owner
from belljar.backends.docker.client.engine import Engine, EngineError, parsing_answer

log = logging.getLogger("belljar")

# -- one container ------------------------------------------------------------------------------

# Seconds. A removal takes some tens of milliseconds; a busy disk makes that seconds.
REMOVE_TIMEOUT = 5.0
FORCE_TIMEOUT = 8.0
KILL_TIMEOUT = 4.0
INSPECT_TIMEOUT = 5.0
GONE_TIMEOUT = 4.0  # for a removal that another process has begun
# Podman may refuse to remove a container that is just ending; or its files are in use for a moment.
RETRY_PAUSE = 0.3


async def remove_container(engine: Engine, container: str) -> None:
    """Remove it with its anonymous volumes: as it is, then by force, then killed and by force.

    `container` is an id or a name. Returns also if it is gone already or another process removes
    it. Raises the last EngineError if it is still there. May be called twice.
    """
    failure: EngineError | None = None
    means = [(False, REMOVE_TIMEOUT), (False, FORCE_TIMEOUT)] + 2 * [(True, FORCE_TIMEOUT)]
    for number, (kill, timeout) in enumerate(means):
        if failure is not None and failure.status >= 500:
            await anyio.sleep(RETRY_PAUSE)
        try:
            if kill:
                await _kill(engine, container)
            query = {"v": True, "force": number > 0}
            await engine.request("DELETE", _path(container), query=query, timeout=timeout)
            return
        except EngineError as error:
            if error.status == 404:
                return
            if _is_being_removed(error) and await _is_gone(engine, container):
                return
            failure = error
            # No answer: if the engine hangs or is away, stronger means would only wait longer.
            if error.status == 0 and not await health.is_answering(engine):
                break
    assert failure is not None
    if not _is_being_removed(failure):  # else another removal of it is under way
        raise failure


async def _kill(engine: Engine, container: str) -> None:
    try:
        await engine.request("POST", f"{_path(container)}/kill", timeout=KILL_TIMEOUT)
    except EngineError as error:
        if error.status == 404:
            raise
        # 409: it has ended. Other errors: the removal gives the better message.


def _path(container: str) -> str:
    return f"/containers/{quote(container, safe='')}"


def _is_being_removed(error: EngineError) -> bool:
    return error.status == 409 and "in progress" in error.message


async def _is_gone(engine: Engine, container: str) -> bool:
    """Wait for the removal that another process has begun; True if the container is gone."""
    with anyio.move_on_after(GONE_TIMEOUT):
        while True:
            try:
                await engine.request("GET", f"{_path(container)}/json", timeout=INSPECT_TIMEOUT)
            except EngineError as error:
                return error.status == 404
            await anyio.sleep(0.05)
    return False


# -- leftovers of dead processes ----------------------------------------------------------------

SWEEP_TIMEOUT = 20.0  # seconds for the removals, all together
LIST_TIMEOUT = 10.0
AT_ONCE = 4  # removals; more only make the engine's disk slower

# States of a container that does not run, in the words of Docker and Podman.
_STILL = {"created", "configured", "initialized", "exited", "stopped", "dead"}


@dataclass(frozen=True, kw_only=True)
class FoundContainer:
    """A container as the engine lists it."""

    id: str
    name: str
    labels: Mapping[str, str]
    running: bool


@dataclass(frozen=True, kw_only=True)
class Swept:
    """A leftover container, removed or not."""

    id: str
    name: str
    sandbox: str
    owner: int  # pid of the dead process
    created: str
    build: bool  # an image was being built in it
    removed: bool = False
    problem: str | None = None  # why it was not removed; None in a dry run


async def sweep_leftovers(
    engine: Engine,
    *,
    living: Collection[str] | None = None,
    dry_run: bool = False,
    timeout: float = SWEEP_TIMEOUT,
) -> list[Swept]:
    """Remove the containers of dead owners. Called at the backend's first use and by `belljar gc`.

    `living`: the sandboxes of this process, also those that are starting. If given, containers of
    this process that belong to other sandboxes are leftovers too: their removal failed, or the
    engine made them after the request was given up. It is read after the containers are listed.

    A failed removal does not stop the others; it is in the result. Raises EngineError only if the
    engine does not list its containers.
    """
    listed = await engine.request(
        "GET",
        "/containers/json",
        query={"all": True, "filters": {"label": [owner.PID]}},
        timeout=min(timeout, LIST_TIMEOUT),
    )
    with parsing_answer(engine, "about its containers"):
        found = find_leftovers([parse_container(each) for each in listed or []], living)
        leftovers = [
            Swept(
                id=each.id,
                name=each.name,
                sandbox=each.labels[owner.SANDBOX],
                owner=int(each.labels[owner.PID]),
                created=each.labels.get(owner.CREATED, ""),
                build=bool(each.labels.get(owner.BUILD)),
            )
            for each in found
        ]
    return leftovers if dry_run else await _remove_all(engine, leftovers, timeout)


def parse_container(listed: Mapping[str, Any]) -> FoundContainer:
    names = listed.get("Names") or [""]
    return FoundContainer(
        id=str(listed["Id"]),
        name=str(names[0]).removeprefix("/"),
        labels=listed.get("Labels") or {},
        running=listed.get("State") not in _STILL,
    )


def find_leftovers(
    containers: list[FoundContainer], living: Collection[str] | None = None
) -> list[FoundContainer]:
    return [each for each in containers if _is_leftover(each, living)]


def _is_leftover(container: FoundContainer, living: Collection[str] | None) -> bool:
    labels = container.labels
    # A container that a user made from a sandbox's image has its labels too, but not its name.
    if container.name != owner.container_name(labels):
        return False
    if owner.is_orphan(labels, running=container.running):
        return True
    # A build removes its own container. (A guest's has the label too, but empty.)
    if living is None or labels.get(owner.BUILD) or not owner.is_ours(labels):
        return False
    return labels[owner.SANDBOX] not in living


async def _remove_all(engine: Engine, leftovers: list[Swept], timeout: float) -> list[Swept]:
    limiter = anyio.CapacityLimiter(AT_ONCE)
    done = {each.id: replace(each, problem="the time for removals was over") for each in leftovers}

    async def one(each: Swept) -> None:
        async with limiter:
            try:
                await remove_container(engine, each.id)
            except EngineError as error:
                done[each.id] = replace(each, problem=error.message)
            else:
                done[each.id] = replace(each, removed=True)

    with anyio.move_on_after(timeout):
        async with anyio.create_task_group() as group:
            for each in leftovers:
                group.start_soon(one, each)
    return list(done.values())


# -- until none is left -------------------------------------------------------------------------

PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0)  # seconds before each sweep; the last one repeats
LATE = 120.0  # seconds, counted from the engine's first list after the unanswered request


class Cleanup:
    """The sweeps of all engines of a backend. Used on the runtime's thread, except `close`."""

    def __init__(self, host: Host, living: Collection[str]) -> None:
        self._host = host
        self._living = living  # sandboxes that have or will get a container
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
        """Remove containers that this process or a dead one left.

        Returns the leftovers that the engine listed; None if it did not list its containers.
        """
        try:
            swept = await sweep_leftovers(engine, living=self._living)
        except EngineError as error:
            log.info("cannot look for leftover containers: %s", error.message)
            return None
        for each in swept:
            if each.problem:
                log.warning("cannot remove the leftover container %s: %s", each.name, each.problem)
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
