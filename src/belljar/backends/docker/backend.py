"""The docker backend: a guest is PID 1 of a container, its wire the container's standard streams.

Works with Docker Engine, Podman, and whatever else speaks the engine's API, near or far. Nothing
is mounted and nothing installed: the guest's program is the first thing that is sent.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import logging
import re
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import anyio

from belljar.backends import base, bundle
from belljar.backends.base import Guest, GuestSpec, Host
from belljar.backends.docker import (
    detached,
    health,
    layers,
    owner,
    profile,
    removal,
    spec,
    usage,
    user_name,
)
from belljar.backends.docker.cleanup import Cleanup
from belljar.backends.docker.client import endpoint
from belljar.backends.docker.client.engine import Engine, EngineError, proper
from belljar.backends.docker.facts import Facts, own_kernel
from belljar.backends.docker.guest import DockerGuest
from belljar.backends.docker.health import Vigil
from belljar.backends.docker.images import resolve
from belljar.backends.docker.images.resolve import Image
from belljar.backends.docker.settings import Docker
from belljar.backends.docker.stream import AttachedStream
from belljar.backends.isolation import Isolation, Layer, describe_mounts
from belljar.backends.linux.guest_view import PATH, VARIABLES
from belljar.errors import InvalidOption, StartError
from belljar.protocol import wire
from belljar.text import printable

CREATE_TIMEOUT = 20.0
START_TIMEOUT = 60.0
HELLO_TIMEOUT = 180.0  # imports of large packages on a cold disk
FACTS_TIMEOUT = 60.0  # it runs programs of its own for them
END_TIMEOUT = 20.0
CLOSE_TIMEOUT = 30.0

log = logging.getLogger("belljar")


class DockerBackend:
    name = "docker"

    def __init__(self, host: Host) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._engines: dict[str, Engine] = {}
        self._facts: dict[Engine, Facts] = {}
        self._vigils: dict[Engine, Vigil] = {}
        self._guests: weakref.WeakSet[DockerGuest] = weakref.WeakSet()
        self._sandboxes: set[str] = set()  # that have, or may yet get, a container
        self._cleanup = Cleanup(host, self._sandboxes)
        self._magics: dict[str, str] = {}  # image -> the bytecode its Python reads

    async def start(self, spec: GuestSpec) -> Guest:
        engine = self._engine(spec.docker)
        work = functools.partial(self._watched, spec, engine)
        return await detached.run(self._host, work, undo=DockerGuest.discard)

    async def _watched(self, spec: GuestSpec, engine: Engine) -> DockerGuest:
        try:
            work = functools.partial(self._make, spec, engine)
            return await health.unless_it_hangs(engine, work)
        except EngineError:
            with self._lock:
                self._facts.pop(engine, None)  # it may be another one by now
            raise

    async def _make(self, spec: GuestSpec, engine: Engine) -> DockerGuest:
        facts = await self._facts_of(engine)
        with proper(engine, "about an image"):
            made = await resolve.ensure(engine, spec.environment, spec.docker, facts)
        return await self._start(spec, engine, facts, made)

    # -- the engine -------------------------------------------------------------------------

    def _engine(self, docker: Docker) -> Engine:
        where = endpoint.find(docker.host)
        with self._lock:
            engine = self._engines.setdefault(str(where), Engine(where))
            if engine not in self._vigils:
                self._vigils[engine] = Vigil(self._host, engine)
            return engine

    async def _facts_of(self, engine: Engine) -> Facts:
        facts = self._facts.get(engine)
        if facts is None:
            info = await engine.request("GET", "/info", timeout=FACTS_TIMEOUT)
            version = await engine.request("GET", "/version", timeout=FACTS_TIMEOUT)
            with proper(engine, "about itself"):
                facts = Facts.of(info, version)
            with self._lock:
                first = engine not in self._facts
                self._facts[engine] = facts
            if first:
                self._host.submit(functools.partial(self._cleanup.first, engine))
        return facts

    # -- one guest --------------------------------------------------------------------------

    async def _start(
        self, spec: GuestSpec, engine: Engine, facts: Facts, made: Image
    ) -> DockerGuest:
        self._sandboxes.add(spec.id)
        container = ""
        try:
            with contextlib.ExitStack() as until_it_runs:
                container, warnings = await self._create(spec, engine, facts, made, until_it_runs)
                limits = _insist(spec, facts, warnings)
                return await self._bring_up(spec, engine, facts, made, container, limits)
        except BaseException:
            self._sandboxes.discard(spec.id)
            with anyio.CancelScope(shield=True):
                if container:
                    await self._remove(engine, container)
            raise

    async def _create(
        self,
        asked: GuestSpec,
        engine: Engine,
        facts: Facts,
        made: Image,
        until_it_runs: contextlib.ExitStack,
    ) -> tuple[str, list[str]]:
        uid = spec.pick_uid(facts, asked.mounts)
        if asked.mounts and engine.endpoint.kind != "unix":
            raise InvalidOption(
                f"mounts are directories of this host, and the engine at {engine.endpoint} is on "
                "another",
                hint="files.upload() copies a tree into the sandbox",
            )
        runtime = asked.docker.runtime or facts.default_runtime
        if own_kernel(runtime) and not all(mount.read_only for mount in asked.mounts):
            raise InvalidOption(
                f"writable mounts are not for the runtime {runtime!r}: our filter, which keeps "
                "set-user-id files from being made there, is not applied in it",
                hint="mount it read-only, or keep the files with workspace=",
            )
        spec.check_mounts(asked.mounts, uid, same_uids=facts.unique_uids)
        filter_ = spec.seccomp(asked, facts)
        labels = owner.labels(asked.id, asked.docker.project)
        body = functools.partial(
            spec.body,
            asked,
            asked.docker,
            facts,
            image=made.id,
            command=[
                made.python,
                *(() if made.site else ("-S",)),
                "-c",
                bundle.BOOTSTRAP_INPUT,
                _ENTRY,
            ],
            env=_variables(made),
            uid=uid,
            labels=labels,
            volumes=made.volumes,
            # Podman wants a path.
            filter_=str(profile.as_file(filter_)) if facts.engine == "podman" else filter_,
        )
        passwd = None
        if asked.docker.named_user and engine.endpoint.kind == "unix":
            passwd = until_it_runs.enter_context(user_name.passwd_file(uid))
        query = {"name": owner.name_of(labels), **spec.query(asked.docker)}
        try:
            answer = await self._ask_for(engine, query, body(passwd=passwd))
        except EngineError as error:
            if passwd is None or passwd not in error.message:
                raise
            log.info("the user of the container has no name: %s", error.message)
            answer = await self._ask_for(engine, query, body())
        with proper(engine, "about a new container"):
            if not _ID.fullmatch(answer["Id"]):
                raise ValueError(answer["Id"])
            return answer["Id"], [str(each) for each in answer.get("Warnings") or []]

    async def _ask_for(self, engine: Engine, query: Mapping[str, str], body: object) -> Any:
        try:
            # An engine goes on with what its caller has given up, and nobody knew of it then.
            with anyio.CancelScope(shield=True):
                return await engine.request(
                    "POST", "/containers/create", query=query, body=body, timeout=CREATE_TIMEOUT
                )
        except EngineError as error:
            if not error.status:  # no answer: it may have been made, or be made yet
                self._cleanup.request(engine, late=True)
            raise

    async def _bring_up(
        self,
        asked: GuestSpec,
        engine: Engine,
        facts: Facts,
        made: Image,
        container: str,
        limits: tuple[Layer, ...],
    ) -> DockerGuest:
        query = dict.fromkeys(("stream", "stdin", "stdout", "stderr"), True)
        connection = await engine.upgrade(f"/containers/{container}/attach", query=query)
        stream = AttachedStream(connection)
        guest = DockerGuest(self._host, engine, container, stream, self._remove)
        try:
            said = await self._converse(asked, engine, container, made, stream)
            inspected = await engine.request("GET", f"/containers/{container}/json")
            with proper(engine, "about the container"):
                local = guest.meet(int(inspected["State"].get("Pid") or 0))
                pid = guest.pid if local else 0
                measured = layers.measured(pid, inspected, facts, asked=asked)
                limits = base.limit_open_files(
                    asked, limits, layers.most_files(pid, inspected, facts)
                )
            guest.isolation = Isolation(
                backend=self.name, layers=(*measured, *describe_mounts(asked.mounts)), limits=limits
            )
            if said.get("skipped"):
                log.info("not in the image, and so not preloaded: %s", _words(said, "skipped"))
        except BaseException:
            guest.abandon()
            raise
        self._guests.add(guest)
        self._vigils[engine].watch(guest)
        guest.left = functools.partial(self._sandboxes.discard, asked.id)
        return guest

    async def _converse(
        self, asked: GuestSpec, engine: Engine, container: str, made: Image, stream: AttachedStream
    ) -> Mapping[str, Any]:
        """Start it, and send its program meanwhile; what it says when it is ready."""
        config = {
            "setup": {
                **base.init_settings(asked.limits, share=False),
                "workspace": asked.workdir,
                "data": None,
                "archive_size": asked.limits.workspace,
                "site": made.site,
            },
            "preload": list(made.preload),
            "warmup": made.warmup,
            "own_image": made.own,
            # Not among the container's settings: those are read by all who may ask the engine.
            "env": dict(asked.env),
        }
        failed: BaseException | None = None
        said: Mapping[str, Any] | None = None
        late = True

        async def started() -> None:
            nonlocal failed
            path = f"/containers/{container}/start"
            try:
                await engine.request("POST", path, timeout=START_TIMEOUT)
            except EngineError as error:
                failed = _explained(error, made)
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(started)
            with anyio.move_on_after(HELLO_TIMEOUT):
                try:
                    program = bundle.framed(config, self._magics.get(made.id))
                    with contextlib.suppress(OSError):  # it has ended, and may have said why
                        await stream.send(program + stream.key)
                    said = await _hello(stream)
                except OSError:
                    said = None
                except wire.WireError as error:
                    words = f"what came of image {made.reference!r} is no greeting: {error}"
                    failed = StartError(words)
                    group.cancel_scope.cancel()
                    said = {}
                if said is None:
                    failed = failed or await self._stillborn(engine, container, made, stream)
                late = False
            if late:
                group.cancel_scope.cancel()
        if failed is not None:
            raise failed
        if late or said is None:
            raise StartError(f"the guest did not come up in {HELLO_TIMEOUT:.0f} s")
        if "failed" in said:
            raise StartError(
                f"the imports in image {made.reference!r} failed: {_words(said, 'message')}",
                hint="fix the Environment's `preload` and `warmup`, or the image",
            )
        self._magics[made.id] = str(said.get("magic"))
        return said

    async def _stillborn(
        self, engine: Engine, container: str, made: Image, stream: AttachedStream
    ) -> StartError:
        """Why there is no greeting, when the engine has heard of the end."""
        words = printable(stream.last_words).strip()[-1000:]
        state: Mapping[str, Any] = {}
        try:
            with anyio.move_on_after(END_TIMEOUT):
                state = await usage.ending(engine, container)
            ran_out = await usage.for_want_of_memory(engine, container, state)
        except EngineError as error:
            return StartError(f"the container is gone: {error.message}")
        if ran_out:
            return StartError(
                f"the guest of image {made.reference!r} needs more memory to start than its limit",
                hint="Limits(memory=...)",
            )
        ended = f"ended with status {state.get('ExitCode')}" if state else "hung up"
        detail = words or str(state.get("Error") or "") or "it said nothing"
        return StartError(
            f"the guest of image {made.reference!r} {ended} before it was ready: {detail}",
            hint=f"the image needs a `{made.python}` of 3.9 or later with its standard library",
        )

    # -- the end ----------------------------------------------------------------------------

    async def _remove(self, engine: Engine, container: str) -> None:
        """Gone when this returns; or, with an engine that does not answer, as soon as it does."""
        try:
            await removal.remove(engine, container)
        except EngineError as error:
            log.warning("container %s cannot be removed now: %s", container[:40], error.message)
            self._cleanup.request(engine)

    def close(self) -> None:
        self._cleanup.close()
        guests = [guest for guest in self._guests if not guest.closed]
        for guest in guests:
            guest.kill()
        if guests or self._facts:
            done: concurrent.futures.Future[None] = concurrent.futures.Future()
            self._host.submit(functools.partial(self._close, guests, done))
            try:
                done.result(CLOSE_TIMEOUT)
            except concurrent.futures.TimeoutError:
                log.warning("the engine did not remove all containers; `belljar gc` will")

    async def _close(
        self, guests: list[DockerGuest], done: concurrent.futures.Future[None]
    ) -> None:
        try:
            async with anyio.create_task_group() as group:
                for guest in guests:
                    group.start_soon(guest.close)
            for engine in {*self._cleanup.engines, *self._facts}:
                await self._cleanup.sweep(engine)
        finally:
            done.set_result(None)

    def abandon(self) -> None:
        self._lock = threading.Lock()
        for guest in list(self._guests):
            guest.abandon()
        self._guests = weakref.WeakSet()
        self._cleanup = Cleanup(self._host, self._sandboxes)
        self._vigils.clear()
        self._engines.clear()
        resolve.after_fork()


_ID = re.compile(r"[0-9a-f]{64}")
_ENTRY = f"{bundle.PACKAGE}.guest.container"


def _variables(made: Image) -> dict[str, str]:
    """An image of the caller's keeps its own PATH."""
    return VARIABLES if made.own else {"PATH": PATH, **VARIABLES}


def _insist(asked: GuestSpec, facts: Facts, warnings: list[str]) -> tuple[Layer, ...]:
    kept = spec.kept(asked.limits, facts, warnings, runtime=asked.docker.runtime)
    base.check_limits(asked, kept, "this engine")
    return kept


def _words(said: Mapping[str, Any], name: str) -> str:
    """Out of a greeting, which an image may have made up."""
    return printable(str(said.get(name)))[:2000]


async def _hello(stream: AttachedStream) -> dict[str, Any] | None:
    """The guest's first frame; None if it ended without a word."""
    reader = wire.Reader(wire.FROM_GUEST)
    while data := await stream.receive():
        reader.feed(data)
        for frame in reader.frames():
            if frame.kind != wire.HELLO:
                raise wire.WireError("the guest began with something else than its greeting")
            return frame.header
    return None


def _explained(error: EngineError, made: Image) -> StartError:
    """Why a container did not start, where the engine's own words need help."""
    words = error.message
    if "gathering device information" in words:
        return StartError(
            f"the container did not start: {words}", hint="devices= are of the engine's machine"
        )
    # Of the runtimes each has its own words; those about a missing file may be about a mount.
    missing = "no such file or directory" in words.lower() and made.python in words
    if "executable file not found" in words or missing:
        return StartError(
            f"image {made.reference!r} has no {made.python!r}: {words}",
            hint="any image with a python3 of 3.9 or later works, such as python:3.12-slim",
        )
    hint = error.hint
    if "unknown runtime" in words.lower() or "Unknown runtime" in words:
        hint = "`belljar doctor` lists the runtimes that the engine has"
    if "could not select device driver" in words:
        hint = "the engine's machine needs the driver's container toolkit (NVIDIA's, for gpus=)"
    if "root network namespace" in words:  # versions of gVisor that do not know newer kernels
        hint = "register gVisor with the engine with runtimeArgs --network=none"
    return StartError(f"the container did not start: {words}", hint=hint)
