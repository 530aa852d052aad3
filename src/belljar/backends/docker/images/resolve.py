"""The image a guest starts from: the caller's own, or the one that an Environment becomes.

Nothing about images is cached between calls. To ask the engine takes some milliseconds, and the
answer is right also when an image was removed or a newer one pulled.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import anyio

from belljar.backends.docker import cleanup, owner
from belljar.backends.docker.client.engine import Engine, EngineError
from belljar.backends.docker.images import dockerfile, image_store, pull
from belljar.backends.docker.images.build import GUEST_PYTHON, BuildTaken, build_image, in_use
from belljar.backends.docker.images.build_script import ROOT
from belljar.backends.docker.images.build_stream import BuildOrder, Progress, Reporter, reporting
from belljar.backends.docker.images.image_store import ImagePlan, inspect_image
from belljar.backends.docker.isolation import EngineFacts
from belljar.backends.docker.settings import Docker, fill_from_environment
from belljar.backends.single_flight import SingleFlight
from belljar.environment.environment import Environment
from belljar.errors import EnvironmentBuildError

WAIT_INTERVAL = 0.3  # seconds between two looks at another process's build
MOST_WAITING = 3600.0  # seconds until a build counts as one that never ends
# Seconds that an owner on another machine has to start the container it created, or to remove one
# that has ended.
GRACE = 120.0


@dataclass(frozen=True, kw_only=True)
class Image:
    id: str
    reference: str  # the name that the caller gave, or its tag
    python: str  # name or path of the guest's interpreter
    own: bool  # the caller's, which may lack modules to preload
    site: bool = True  # False: packages are for the worker only, not for init
    volumes: tuple[str, ...] = ()  # that the image declares


building: SingleFlight[str] = SingleFlight()  # tag -> id of the image


async def ensure_image(
    engine: Engine,
    environment: Environment,
    docker: Docker,
    facts: EngineFacts,
    *,
    progress: Progress = "auto",
) -> Image:
    """The image for a guest, built or pulled if the engine does not have it.

    Called at each start of a guest, by any number of tasks in any loop and thread. When it fails or
    is cancelled, it leaves at most layers that were already pulled.
    """
    docker = fill_from_environment(docker)
    if docker.image is not None:
        found = await ensure_present(engine, docker.image, docker, progress)
        return _image(found, docker.image, environment, own=True)
    if docker.dockerfile is not None:
        return await _from_dockerfile(engine, environment, docker, progress)
    plan = await image_store.plan_in_thread(environment, docker)
    if not environment.packages:
        found = await ensure_present(engine, plan.base, docker, progress)
        return _image(found, plan.base, environment)
    return await _ensure_built(engine, plan, docker, facts, progress)


async def image_exists(engine: Engine, environment: Environment, docker: Docker) -> bool:
    """True if `ensure_image` would neither build nor pull anything."""
    docker = fill_from_environment(docker)
    if docker.pull == "always":
        return False
    if docker.dockerfile is not None:
        tag, _ = await dockerfile.plan_dockerfile(docker)
        return await inspect_image(engine, tag) is not None
    if docker.image is not None:
        return await inspect_image(engine, docker.image, docker.platform) is not None
    plan = await image_store.plan_in_thread(environment, docker)
    if environment.packages:
        return await _by_label(engine, image_store.RECIPE, plan.recipe) is not None
    return await inspect_image(engine, plan.base, docker.platform) is not None


def _image(
    found: Mapping[str, Any], reference: str, environment: Environment, *, own: bool = False
) -> Image:
    config = found.get("Config") or {}
    variables = config.get("Env") or []
    return Image(
        id=str(found["Id"]),
        reference=reference,
        # The caller's image may be one of Belljar's, or built on one.
        python=GUEST_PYTHON if f"VIRTUAL_ENV={ROOT}" in variables else "python3",
        own=own,
        site=own or not environment.confines_site,
        volumes=tuple(config.get("Volumes") or ()),
    )


async def ensure_present(
    engine: Engine, reference: str, docker: Docker, progress: Progress
) -> dict[str, Any]:
    """Pull the image if that is needed; return what the engine says about it."""
    found = None
    if docker.pull != "always":
        found = await inspect_image(engine, reference, docker.platform)
        if found is not None:
            return found
        if docker.pull == "never":
            raise pull.missing_error(reference, docker.platform)

    async def fetch() -> str:
        with reporting(reference, progress) as reporter:
            await pull.pull_image(engine, reference, docker.platform, reporter)
        return reference

    await building.once((str(engine.endpoint), "pull", reference, docker.platform), fetch)
    found = await inspect_image(engine, reference, docker.platform)
    if found is None:
        raise pull.pull_error(reference, "it is not there after the pull", docker.platform)
    return found


async def _from_dockerfile(
    engine: Engine, environment: Environment, docker: Docker, progress: Progress
) -> Image:
    tag, context = await dockerfile.plan_dockerfile(docker)
    found = await inspect_image(engine, tag)
    if found is None or docker.pull == "always":

        async def make() -> str:
            with reporting(context.directory.name, progress) as reporter:
                await dockerfile.build_dockerfile(engine, docker, tag, context, reporter)
            return tag

        await building.once((str(engine.endpoint), tag), make)
        found = await inspect_image(engine, tag)
        if found is None:
            raise EnvironmentBuildError(f"image {tag} was removed while it was being built")
    if docker.tag is not None:
        await _tag_image(engine, str(found["Id"]), docker.tag)
    return _image(found, tag, environment, own=True)


async def _tag_image(engine: Engine, id: str, reference: str) -> None:
    """Give an image another name. An image that had this name before loses it."""
    repository, tag = pull.split_reference(reference)
    await engine.request("POST", f"/images/{id}/tag", query={"repo": repository, "tag": tag})


# -- images of Environments ---------------------------------------------------------------------


async def _ensure_built(
    engine: Engine, plan: ImagePlan, docker: Docker, facts: EngineFacts, progress: Progress
) -> Image:
    base = await inspect_image(engine, plan.base, docker.platform)
    if base is None or docker.pull == "always":
        found = await _by_label(engine, image_store.RECIPE, plan.recipe)
        if found is not None and docker.pull != "always":
            return _image(found, image_store.own_tags(found)[0], plan.environment)
        base = await ensure_present(engine, plan.base, docker, progress)
    order = BuildOrder(plan=plan, key=plan.key(str(base["Id"])), base=base, docker=docker)
    found = await find_built(engine, order)
    if found is None:
        make = functools.partial(_build_or_wait, engine, order, facts, progress)
        made = await building.once((str(engine.endpoint), order.tag), make)
        found = await inspect_image(engine, made)
        if found is None:
            raise EnvironmentBuildError(f"image {order.tag} was removed while it was being built")
    return _image(found, order.tag, plan.environment)


async def find_built(engine: Engine, order: BuildOrder) -> dict[str, Any] | None:
    """The image, if it was built before. One with another name gets this name too."""
    found = await inspect_image(engine, order.tag)
    if found is not None:
        labels = (found.get("Config") or {}).get("Labels") or {}
        if labels.get(image_store.KEY) == order.key:
            return found
    found = await _by_label(engine, image_store.KEY, order.key)
    if found is not None:
        await _tag_image(engine, str(found["Id"]), order.tag)
    return found


async def _by_label(engine: Engine, label: str, value: str) -> dict[str, Any] | None:
    """The newest of Belljar's images that has this label."""
    filters = {"label": [f"{label}={value}"]}  # only one: with two labels, Podman 4 finds nothing
    listed = await engine.request("GET", "/images/json", query={"filters": filters})
    ours = [
        each
        for each in listed or []
        # A Dockerfile's image may inherit the labels of the image it starts from.
        if image_store.own_tags(each) and not each["Labels"].get(image_store.DOCKERFILE)
    ]
    if not ours:
        return None
    newest = max(ours, key=lambda each: int(each.get("Created", 0)))
    return await inspect_image(engine, image_store.own_tags(newest)[0])


async def _build_or_wait(
    engine: Engine, order: BuildOrder, facts: EngineFacts, progress: Progress
) -> str:
    """Build the image, or wait while another process does."""
    name = order.plan.environment.name
    with reporting(name, progress) as reporter:
        waited = False
        while True:
            found = await find_built(engine, order)
            if found is not None:
                return str(found["Id"])
            if not waited:
                count = len(order.plan.environment.packages)
                what = f"{count} package{'' if count == 1 else 's'} on {order.plan.base}"
                reporter.say("resolving", f"building image {order.tag} ({what}), once")
            started = time.monotonic()
            try:
                made = await build_image(engine, order, facts, reporter)
            except BuildTaken:
                await _wait_for_build(engine, order, reporter)
            else:
                reporter.say(
                    "finished", f"image {order.tag} built in {time.monotonic() - started:.1f} s"
                )
                return made
            waited = True


async def _wait_for_build(engine: Engine, order: BuildOrder, reporter: Reporter) -> None:
    """Wait until another process's build container is gone; remove it if its owner is dead."""
    told = False
    began = time.monotonic()
    while True:
        try:
            found = await engine.request("GET", f"/containers/{order.container}/json")
        except EngineError as error:
            # Podman 4 says the latter while it removes a container.
            if error.status == 404 or "no such container" in error.message:
                await anyio.sleep(WAIT_INTERVAL)  # until its name is free too
                return
            raise
        if not (found["Config"].get("Labels") or {}).get(owner.BUILD):
            raise EnvironmentBuildError(
                f"a container that is not Belljar's has the name {order.container}",
                hint="rename or remove it: builds use this name as a lock",
            )
        if is_abandoned(found):
            await cleanup.remove_container(engine, str(found["Id"]))
            return
        if time.monotonic() - began > MOST_WAITING:
            raise EnvironmentBuildError(
                f"the build of image {order.tag} in the container {order.container} has not ended "
                f"in {MOST_WAITING:g} s",
                hint=f"if it hangs: docker rm --force {order.container}",
            )
        if not told:
            reporter.say("waiting", f"waiting for another process that is building {order.tag}")
            told = True
        await anyio.sleep(WAIT_INTERVAL)


def is_abandoned(container: Mapping[str, Any], now: float | None = None) -> bool:
    """True if no process will use a build container again. Looks only at processes."""
    labels = container["Config"].get("Labels") or {}
    state = container["State"]
    running = bool(state.get("Running"))
    if owner.is_ours(labels):  # not removed, or created after this process gave up
        return str(container["Id"]) not in in_use
    if not labels.get(owner.BUILD):
        return False  # not one of Belljar's, in spite of its name
    orphan = owner.is_orphan(labels, running=running)
    if orphan is not None:
        return orphan
    if running:
        return False  # it ends by itself when its owner does
    created = datetime.fromisoformat(str(container["Created"])[:19] + "+00:00").timestamp()
    return (time.time() if now is None else now) - created > GRACE
