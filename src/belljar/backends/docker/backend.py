"""The docker backend: a guest is PID 1 of a container, its stream the container's standard streams.

Works with Docker Engine, Podman and other engines with the same API, local or remote. Nothing is
mounted or installed: the first thing that the host sends is the guest's program.
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
from dataclasses import dataclass, replace
from typing import Any

import anyio

from belljar.backends import base, bundle
from belljar.backends.base import Guest, GuestSpec, Host
from belljar.backends.docker import cleanup, health, isolation, owner, profile, spec
from belljar.backends.docker.cleanup import Cleanup
from belljar.backends.docker.client import endpoint
from belljar.backends.docker.client.engine import Engine, EngineError, parsing_answer
from belljar.backends.docker.guest import DockerGuest, explain_early_end, explain_start_error
from belljar.backends.docker.health import EngineWatch
from belljar.backends.docker.images import resolve
from belljar.backends.docker.images.resolve import Image
from belljar.backends.docker.isolation import EngineFacts, guest_kernel
from belljar.backends.docker.settings import Docker, docker_settings
from belljar.backends.docker.stream import AttachedStream
from belljar.backends.isolation import Isolation, Layer, describe_mounts
from belljar.backends.linux.guest_view import PATH, VARIABLES, user_name
from belljar.errors import InvalidOption, StartError
from belljar.protocol import wire
from belljar.text import printable

CREATE_TIMEOUT = 20.0
START_TIMEOUT = 60.0
HELLO_TIMEOUT = 180.0  # imports of large packages on a cold disk
FACTS_TIMEOUT = 60.0  # the engine runs programs for them
CLOSE_TIMEOUT = 30.0

_ID = re.compile(r"[0-9a-f]{64}")
_ENTRY = f"{bundle.PACKAGE}.guest.container"

log = logging.getLogger("belljar")


@dataclass(frozen=True, kw_only=True)
class _Launch:
    """What a guest is started with."""

    asked: GuestSpec
    docker: Docker
    engine: Engine
    facts: EngineFacts
    image: Image


class DockerBackend:
    name = "docker"

    def __init__(self, host: Host) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._engines: dict[str, Engine] = {}
        self._facts: dict[Engine, EngineFacts] = {}
        self._watches: dict[Engine, EngineWatch] = {}
        self._guests: weakref.WeakSet[DockerGuest] = weakref.WeakSet()
        self._sandboxes: set[str] = set()  # that have or will get a container
        self._cleanup = Cleanup(host, self._sandboxes)
        self._magics: dict[str, str] = {}  # image -> version of the bytecode that its Python reads

    async def start(self, spec: GuestSpec) -> Guest:
        docker = docker_settings(spec.settings)
        engine = self._engine(docker)
        if not spec.ahead:  # preloading takes longer than the imports of most code
            spec = replace(spec, environment=spec.environment.without_preload())
        work = functools.partial(self._start_watched, spec, docker, engine)
        return await health.run_detached(self._host, work, undo=DockerGuest.discard)

    async def _start_watched(self, asked: GuestSpec, docker: Docker, engine: Engine) -> DockerGuest:
        try:
            work = functools.partial(self._start, asked, docker, engine)
            return await health.run_while_answering(engine, work)
        except EngineError:
            with self._lock:
                self._facts.pop(engine, None)  # the next engine at this address may be another
            raise

    async def _start(self, asked: GuestSpec, docker: Docker, engine: Engine) -> DockerGuest:
        facts = await self._get_facts(engine)
        with parsing_answer(engine, "about an image"):
            image = await resolve.ensure_image(engine, asked.environment, docker, facts)
        launch = _Launch(asked=asked, docker=docker, engine=engine, facts=facts, image=image)
        self._sandboxes.add(asked.id)
        container = ""
        try:
            with contextlib.ExitStack() as until_it_runs:
                container, warnings = await self._create(launch, until_it_runs)
                limits = isolation.describe_limits(
                    asked.limits, facts, warnings, runtime=docker.runtime
                )
                base.check_limits(asked, limits, "this engine")
                return await self._bring_up(launch, container, limits)
        except BaseException:
            self._sandboxes.discard(asked.id)
            with anyio.CancelScope(shield=True):
                if container:
                    await self._remove(engine, container)
            raise

    # -- the engine -------------------------------------------------------------------------

    def _engine(self, docker: Docker) -> Engine:
        where = endpoint.find_endpoint(docker.host)
        with self._lock:
            engine = self._engines.setdefault(str(where), Engine(where))
            self._watches.setdefault(engine, EngineWatch(self._host, engine))
            return engine

    async def _get_facts(self, engine: Engine) -> EngineFacts:
        facts = self._facts.get(engine)
        if facts is None:
            info = await engine.request("GET", "/info", timeout=FACTS_TIMEOUT)
            version = await engine.request("GET", "/version", timeout=FACTS_TIMEOUT)
            with parsing_answer(engine, "about itself"):
                facts = EngineFacts.parse(info, version)
            with self._lock:
                first = engine not in self._facts
                self._facts[engine] = facts
            if first:
                self._host.submit(functools.partial(self._cleanup.first, engine))
        return facts

    # -- one guest --------------------------------------------------------------------------

    async def _create(
        self, launch: _Launch, until_it_runs: contextlib.ExitStack
    ) -> tuple[str, list[str]]:
        """Create the container; return its id and the engine's warnings."""
        asked, docker, engine, facts = launch.asked, launch.docker, launch.engine, launch.facts
        uid = spec.pick_uid(facts, asked.mounts)
        _check_mounts(launch)
        spec.check_mounts(asked.mounts, uid, same_uids=facts.unique_uids)
        filter_ = spec.seccomp_filter(asked, facts)
        labels = owner.labels(asked.id, docker.project)
        made = launch.image
        body = functools.partial(
            spec.container_body,
            asked,
            docker,
            facts,
            image=made.id,
            command=[
                made.python,
                *(() if made.site else ("-S",)),
                "-c",
                bundle.BOOTSTRAP,
                "0",
                _ENTRY,
            ],
            # The caller's own image keeps its PATH.
            env=VARIABLES if made.own else {"PATH": PATH, **VARIABLES},
            uid=uid,
            labels=labels,
            volumes=made.volumes,
            # Podman takes a path.
            filter_=str(profile.write_profile(filter_)) if facts.engine == "podman" else filter_,
        )
        accounts: dict[str, str] = {}
        named = docker.named_user if docker.named_user is not None else not made.own
        if named and engine.endpoint.kind == "unix":
            files = profile.account_files(uid, user_name(asked.env))
            accounts = until_it_runs.enter_context(files)
        query = {"name": owner.container_name(labels), **spec.create_query(docker)}
        try:
            answer = await self._request_container(engine, query, body(accounts=accounts))
        except EngineError as error:
            if not any(path in error.message for path in accounts.values()):
                raise
            log.info("the container's user gets no name: %s", error.message)
            answer = await self._request_container(engine, query, body())
        with parsing_answer(engine, "about a new container"):
            if not _ID.fullmatch(answer["Id"]):
                raise ValueError(answer["Id"])
            return answer["Id"], [str(each) for each in answer.get("Warnings") or []]

    async def _request_container(
        self, engine: Engine, query: Mapping[str, str], body: object
    ) -> Any:
        try:
            # The engine completes a cancelled request too; its container would be unknown here.
            with anyio.CancelScope(shield=True):
                return await engine.request(
                    "POST", "/containers/create", query=query, body=body, timeout=CREATE_TIMEOUT
                )
        except EngineError as error:
            if not error.status:  # no answer: the container may exist now or later
                self._cleanup.request(engine, late=True)
            raise

    async def _bring_up(
        self, launch: _Launch, container: str, limits: tuple[Layer, ...]
    ) -> DockerGuest:
        asked, engine, facts = launch.asked, launch.engine, launch.facts
        query = dict.fromkeys(("stream", "stdin", "stdout", "stderr"), True)
        connection = await engine.upgrade(f"/containers/{container}/attach", query=query)
        stream = AttachedStream(connection)
        guest = DockerGuest(self._host, engine, container, stream, self._remove)
        try:
            hello = await self._run_container(launch, container, stream)
            inspected = await engine.request("GET", f"/containers/{container}/json")
            with parsing_answer(engine, "about the container"):
                local = guest.find_process(int(inspected["State"].get("Pid") or 0))
                pid = guest.pid if local else 0
                measured = isolation.measure_layers(pid, inspected, facts, asked=asked)
                most = isolation.read_file_limit(pid, inspected, facts)
                limits = base.limit_open_files(asked, limits, most)
            guest.isolation = Isolation(
                backend=self.name, layers=(*measured, *describe_mounts(asked.mounts)), limits=limits
            )
            if hello.get("skipped"):
                log.info("the image lacks modules to preload: %s", _text_of(hello, "skipped"))
        except BaseException:
            guest.abandon()
            raise
        self._guests.add(guest)
        self._watches[engine].watch(guest)
        guest.on_removed = functools.partial(self._sandboxes.discard, asked.id)
        return guest

    async def _run_container(
        self, launch: _Launch, container: str, stream: AttachedStream
    ) -> Mapping[str, Any]:
        """Start the container and send its program meanwhile; return the guest's greeting."""
        asked, made = launch.asked, launch.image
        config = {
            "setup": {
                **base.init_settings(asked.limits, share=False),
                "workspace": asked.workdir,
                "data": None,
                "archive_size": asked.limits.workspace,
                "site": made.site,
            },
            "preload": list(asked.environment.preload),
            "warmup": asked.environment.warmup,
            "own_image": made.own,
            # Not in the container's settings: every user of the engine can read those.
            "env": dict(asked.env),
        }
        failed: BaseException | None = None
        hello: Mapping[str, Any] | None = None
        late = True

        async def start() -> None:
            nonlocal failed
            path = f"/containers/{container}/start"
            try:
                await launch.engine.request("POST", path, timeout=START_TIMEOUT)
            except EngineError as error:
                failed = explain_start_error(error, made)
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(start)
            with anyio.move_on_after(HELLO_TIMEOUT):
                try:
                    program = bundle.make(config, self._magics.get(made.id, ""))
                    with contextlib.suppress(OSError):  # it has ended, and may have said why
                        await stream.send(program + stream.key)
                    hello = await _read_hello(stream)
                except OSError:
                    hello = None
                except wire.WireError as error:
                    failed = StartError(
                        f"the guest of image {made.reference!r} did not send a greeting: {error}"
                    )
                    group.cancel_scope.cancel()
                    hello = {}
                if hello is None:
                    failed = failed or await explain_early_end(
                        launch.engine, container, made, stream
                    )
                late = False
            if late:
                group.cancel_scope.cancel()
        if failed is not None:
            raise failed
        if late or hello is None:
            raise StartError(f"the guest did not come up in {HELLO_TIMEOUT:.0f} s")
        if "failed" in hello:
            raise StartError(
                f"the imports in image {made.reference!r} failed: {_text_of(hello, 'message')}",
                hint="fix the Environment's `preload` and `warmup`, or the image",
            )
        self._magics[made.id] = str(hello.get("magic"))
        return hello

    # -- the end ----------------------------------------------------------------------------

    async def _remove(self, engine: Engine, container: str) -> None:
        """Remove the container; if the engine does not answer, sweeps do it later."""
        try:
            await cleanup.remove_container(engine, container)
        except EngineError as error:
            log.warning("cannot remove container %s now: %s", container[:40], error.message)
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
                log.warning(
                    "the engine did not remove all containers in %g s; `belljar gc` removes them",
                    CLOSE_TIMEOUT,
                )

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
        self._watches.clear()
        self._engines.clear()
        resolve.building.clear()  # the parent's builds do not run here


def _check_mounts(launch: _Launch) -> None:
    mounts, engine = launch.asked.mounts, launch.engine
    if mounts and engine.endpoint.kind != "unix":
        raise InvalidOption(
            f"the engine at {engine.endpoint} is on another machine and cannot mount directories "
            "of this host",
            hint="files.upload() copies a tree into the sandbox",
        )
    runtime = launch.docker.runtime or launch.facts.default_runtime
    if guest_kernel(runtime) and not all(mount.read_only for mount in mounts):
        raise InvalidOption(
            f"the runtime {runtime!r} does not apply our seccomp filter, which prevents "
            "set-user-id files in writable mounts",
            hint="mount it read-only, or keep the files with workspace=",
        )


def _text_of(hello: Mapping[str, Any], name: str) -> str:
    """Text in a greeting, made safe to show: the image may have sent anything."""
    return printable(str(hello.get(name)))[:2000]


async def _read_hello(stream: AttachedStream) -> dict[str, Any] | None:
    """The guest's first frame; None if the stream ended before it."""
    reader = wire.Reader(wire.FROM_GUEST)
    while data := await stream.receive():
        reader.feed(data)
        for frame in reader.frames():
            if frame.kind != wire.HELLO:
                raise wire.WireError("its first frame is of another kind")
            return frame.header
    return None
