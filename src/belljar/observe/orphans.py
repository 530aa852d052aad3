"""What killed processes left behind: counted, listed, removed. `belljar gc` is its front end.

An orphan is a thing of ours whose owner is known to be dead. What belongs to a living process, to
another host, or to somebody else is none, and is never touched.
"""

from __future__ import annotations

import contextvars
import functools
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

from belljar.errors import SandboxError, unknown_option

T = TypeVar("T")

BACKENDS = ("native", "docker", "all")
DOCKER_TIMEOUT = 300.0  # seconds; somebody waits for it, and wants it done

Kind = Literal["control group", "environment", "container", "build container", "presence"]

# What still holds processes or a container. Half-built directories and stale notes only take room.
RUNNING: frozenset[Kind] = frozenset(("control group", "container", "build container"))


@dataclass(frozen=True, kw_only=True)
class Leftover:
    backend: Literal["native", "docker"]
    kind: Kind
    name: str
    owner: int | None  # the pid it had; None: nobody wrote it down
    removed: bool
    problem: str | None = None  # why it is still there
    id: str | None = None  # of a container


@dataclass(frozen=True, kw_only=True)
class Collected:
    leftovers: list[Leftover]
    skipped: dict[str, str]  # a backend that was not looked at, and why


def find(backend: str = "all") -> Collected:
    """What is left over now; nothing is removed. Blocks; an engine is asked if there is one."""
    return collect(backend, dry_run=True)


def count(backend: str = "all") -> int:
    """How many sandboxes and builds nobody looks after any more."""
    return sum(each.kind in RUNNING for each in find(backend).leftovers)


def collect(backend: str = "all", *, dry_run: bool = False) -> Collected:
    """Sweep, or only look. Of a backend that is not there, `all` says so in `skipped`."""
    if backend not in BACKENDS:
        raise unknown_option("backend", backend, BACKENDS)
    leftovers: list[Leftover] = []
    skipped: dict[str, str] = {}
    for name, sweep in (("native", _native), ("docker", _docker)):
        if backend not in (name, "all"):
            continue
        try:
            leftovers += sweep(dry_run)
        except SandboxError as error:
            if backend == name:
                raise
            skipped[name] = error.message
    leftovers += [each for each in _presence(dry_run) if backend in (each.backend, "all")]
    return Collected(leftovers=leftovers, skipped=skipped)


def _native(dry_run: bool) -> list[Leftover]:
    from belljar.backends.native.backend import check_host

    check_host()
    return [*_control_groups(dry_run), *_environments(dry_run)]


def _control_groups(dry_run: bool) -> Iterator[Leftover]:
    from belljar.backends.linux import cgroup
    from belljar.backends.linux.cgroup.tree import Owner

    trees = cgroup.leftovers()
    if not dry_run:
        cgroup.sweep()
    left = cgroup.leftovers()
    for paths in trees:
        owner = Owner.parse(os.path.basename(paths[0]))
        stays = paths in left and not dry_run
        yield Leftover(
            backend="native",
            kind="control group",
            name=paths[0],
            owner=None if owner is None else owner.pid,
            removed=paths not in left,
            problem="it is still in use" if stays else None,
        )


def _environments(dry_run: bool) -> Iterator[Leftover]:
    from belljar.environment.store import Store

    for path in Store.default().sweep(dry_run=dry_run):
        yield Leftover(
            backend="native", kind="environment", name=str(path), owner=None, removed=not dry_run
        )


def _docker(dry_run: bool) -> list[Leftover]:
    import anyio

    from belljar.backends.docker.cleanup import sweep_leftovers
    from belljar.backends.docker.client import endpoint
    from belljar.backends.docker.client.engine import Engine

    engine = Engine(endpoint.find_endpoint())
    ask = functools.partial(sweep_leftovers, engine, dry_run=dry_run, timeout=DOCKER_TIMEOUT)
    return [
        Leftover(
            backend="docker",
            kind="build container" if each.build else "container",
            name=each.name,
            owner=each.owner,
            removed=each.removed,
            problem=each.problem,
            id=each.id,
        )
        for each in _in_a_thread(functools.partial(anyio.run, ask))
    ]


def _in_a_thread(function: Callable[[], T]) -> T:
    """An event loop cannot be run inside of another, and the caller may be in one."""
    made: list[T] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            made.append(function())
        except BaseException as error:
            failed.append(error)

    # A new context: that of the caller may say which event loop it is in.
    context = contextvars.Context()
    thread = threading.Thread(target=context.run, args=(work,), name="belljar-orphans")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


def _presence(dry_run: bool) -> Iterator[Leftover]:
    from belljar.observe import presence

    for note in presence.stale():
        removed = not dry_run and presence.remove(note)
        yield Leftover(
            backend="docker" if note.backend == "docker" else "native",
            kind="presence",
            name=note.path,
            owner=note.owner.pid,
            removed=removed,
            problem=None if removed or dry_run else "it could not be removed",
        )
