"""Containers that dead owners left: found by their labels, and removed.

Nothing of anybody else is touched. What is removed must carry our labels, all of them as we
write them, and its owner must be known to be dead (see owner.py). Several processes may sweep at
once: a container that another one removes is gone all the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import anyio

from belljar.backends.docker import owner, removal
from belljar.backends.docker.client.engine import Engine, EngineError, proper

SWEEP_TIMEOUT = 20.0  # seconds for the removals, all together
LIST_TIMEOUT = 10.0
AT_ONCE = 4  # removals; more only make the engine's disk slower

# What a container that does not run may be, as Docker and as Podman say it.
_STILL = {"created", "configured", "initialized", "exited", "stopped", "dead"}


@dataclass(frozen=True, kw_only=True)
class Found:
    """A container as the engine lists it."""

    id: str
    name: str
    labels: Mapping[str, str]
    running: bool


@dataclass(frozen=True, kw_only=True)
class Swept:
    """A leftover, and what became of it."""

    id: str
    name: str
    sandbox: str
    owner: int  # the pid it had
    created: str
    build: bool  # an image was being built in it
    removed: bool
    problem: str | None = None  # why it is still there; None in a dry run


async def sweep(
    engine: Engine,
    *,
    living: Collection[str] | None = None,
    dry_run: bool = False,
    timeout: float = SWEEP_TIMEOUT,
) -> list[Swept]:
    """Remove what dead owners left. Called at the backend's first use, and by `belljar gc`.

    `living`: the sandboxes this process has, those just being started included. When given, other
    sandboxes' containers of this very process are leftovers too: their removal failed, or the
    engine made them after it had been given up. It is read after the containers are listed.

    A removal that fails does not stop the others, and is told of. Raises EngineError only if the
    engine does not even list its containers.
    """
    listed = await engine.request(
        "GET",
        "/containers/json",
        query={"all": True, "filters": {"label": [owner.PID]}},
        timeout=min(timeout, LIST_TIMEOUT),
    )
    with proper(engine, "about its containers"):
        leftovers = decide([found(each) for each in listed or []], living)
    if dry_run:
        return [_swept(each, removed=False) for each in leftovers]
    return await _remove_all(engine, leftovers, timeout)


def found(listed: Mapping[str, Any]) -> Found:
    names = listed.get("Names") or [""]
    return Found(
        id=str(listed["Id"]),
        name=str(names[0]).removeprefix("/"),
        labels=listed.get("Labels") or {},
        running=listed.get("State") not in _STILL,
    )


def decide(containers: list[Found], living: Collection[str] | None = None) -> list[Found]:
    """Those of them that are leftovers."""
    return [each for each in containers if _is_leftover(each, living)]


def _is_leftover(container: Found, living: Collection[str] | None) -> bool:
    labels = container.labels
    # A container that somebody made of a sandbox's image has its labels too, but not its name.
    if container.name != owner.name_of(labels):
        return False
    if owner.is_orphan(labels, running=container.running):
        return True
    # A build minds its own container. (A guest's has the label too, but empty.)
    if living is None or labels.get(owner.BUILD) or not owner.is_ours(labels):
        return False
    return labels[owner.SANDBOX] not in living


async def _remove_all(engine: Engine, leftovers: list[Found], timeout: float) -> list[Swept]:
    limiter = anyio.CapacityLimiter(AT_ONCE)
    done = {
        each.id: _swept(each, removed=False, problem="there was no time for it")
        for each in leftovers
    }

    async def one(container: Found) -> None:
        async with limiter:
            try:
                await removal.remove(engine, container.id)
            except EngineError as error:
                done[container.id] = _swept(container, removed=False, problem=error.message)
            else:
                done[container.id] = _swept(container, removed=True)

    with anyio.move_on_after(timeout):
        async with anyio.create_task_group() as group:
            for container in leftovers:
                group.start_soon(one, container)
    return list(done.values())


def _swept(container: Found, *, removed: bool, problem: str | None = None) -> Swept:
    return Swept(
        id=container.id,
        name=container.name,
        sandbox=container.labels[owner.SANDBOX],
        owner=int(container.labels[owner.PID]),
        created=container.labels.get(owner.CREATED, ""),
        build=bool(container.labels.get(owner.BUILD)),
        removed=removed,
        problem=problem,
    )
