"""What killed processes left behind: found and removed. `belljar gc` is its front end.

An orphan is a thing that Belljar made and whose owner is known to be dead. Things of a living
process, of another host or of another user are not orphans, and are never touched.
"""

from __future__ import annotations

import contextvars
import functools
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

from belljar.errors import SandboxError, unknown_option

BACKENDS = ("native", "docker", "all")
DOCKER_TIMEOUT = 300.0  # seconds

Kind = Literal["control group", "environment", "container", "build container", "presence"]

# These may still run something. Half-built directories and stale notes only take space.
RUNNING: frozenset[Kind] = frozenset(("control group", "container", "build container"))


@dataclass(frozen=True, kw_only=True)
class Leftover:
    backend: Literal["native", "docker"]
    kind: Kind
    name: str
    owner: int | None  # its pid; None: unknown
    removed: bool
    problem: str | None = None  # why it is still there
    id: str | None = None  # of a container


@dataclass(frozen=True, kw_only=True)
class Collected:
    leftovers: list[Leftover]
    skipped: dict[str, str]  # backends that were not searched, and why


def find_orphans(backend: str = "all") -> Collected:
    """The orphans now; nothing is removed. Blocks; asks the container engine, if there is one."""
    return collect_orphans(backend, dry_run=True)


def collect_orphans(backend: str = "all", *, dry_run: bool = False) -> Collected:
    """Remove the orphans, or only find them. With `all`, a missing backend is in `skipped`."""
    if backend not in BACKENDS:
        raise unknown_option("backend", backend, BACKENDS)
    leftovers: list[Leftover] = []
    skipped: dict[str, str] = {}
    for name, sweep in (("native", _collect_native), ("docker", _collect_docker)):
        if backend not in (name, "all"):
            continue
        try:
            leftovers += sweep(dry_run)
        except SandboxError as error:
            if backend == name:
                raise
            skipped[name] = error.message
    leftovers += [each for each in _collect_presence(dry_run) if backend in (each.backend, "all")]
    return Collected(leftovers=leftovers, skipped=skipped)


def _collect_native(dry_run: bool) -> list[Leftover]:
    from belljar.backends.native.zygote_client import check_host

    check_host()
    return [*_collect_control_groups(dry_run), *_collect_environments(dry_run)]


def _collect_control_groups(dry_run: bool) -> Iterator[Leftover]:
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
            problem="the control group is still in use" if stays else None,
        )


def _collect_environments(dry_run: bool) -> Iterator[Leftover]:
    from belljar.environment.store import Store

    for path in Store.default().sweep(dry_run=dry_run):
        yield Leftover(
            backend="native", kind="environment", name=str(path), owner=None, removed=not dry_run
        )


def _collect_docker(dry_run: bool) -> list[Leftover]:
    import anyio

    from belljar.backends.docker.cleanup import sweep_leftovers
    from belljar.backends.docker.client import endpoint
    from belljar.backends.docker.client.engine import Engine

    engine = Engine(endpoint.find_endpoint())
    ask = functools.partial(sweep_leftovers, engine, dry_run=dry_run, timeout=DOCKER_TIMEOUT)
    # The caller may run an event loop: a second one needs its own thread, and a context that does
    # not name the first.
    asked: Future[list[Any]] = Future()

    def work() -> None:
        try:
            asked.set_result(anyio.run(ask))
        except BaseException as error:
            asked.set_exception(error)

    # Not a ThreadPoolExecutor: that refuses work in atexit callbacks.
    threading.Thread(target=contextvars.Context().run, args=(work,), name="belljar-orphans").start()
    found = asked.result()
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
        for each in found
    ]


def _collect_presence(dry_run: bool) -> Iterator[Leftover]:
    from belljar.observe import presence

    for note in presence.read_notes():
        if not note.stale:
            continue
        removed = not dry_run and presence.remove_stale(note)
        yield Leftover(
            backend="docker" if note.backend == "docker" else "native",
            kind="presence",
            name=note.path,
            owner=note.owner.pid,
            removed=removed,
            problem=None if removed or dry_run else "the file could not be removed",
        )
