"""What decides about images without an engine: who builds, what is said, what nobody needs."""

import dataclasses
import doctest
import importlib
import re
import time
from pathlib import Path

import anyio
import pytest

from belljar import Docker, Environment
from belljar.backends.docker import (
    image,
    image_build,
    image_dockerfile,
    image_key,
    image_share,
    image_store,
    owner,
)
from belljar.backends.docker.image_failure import explained
from belljar.backends.docker.image_luggage import Order
from belljar.backends.docker.image_talk import Failure
from belljar.environment import BUILTIN
from belljar.errors import EnvironmentBuildError, InvalidOption
from test_environment import make_wheel
from test_image_key import want


@pytest.mark.parametrize(
    "name",
    [
        "dockerfile",
        "image_auth",
        "image_context",
        "image_index",
        "image_key",
        "image_steps",
        "pull",
    ],
)
def test_examples_in_the_source_are_true(name):
    module = importlib.import_module(f"belljar.backends.docker.{name}")
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed


# --- words about a failed build --------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("error: no usable wheels", "allow_builds"),
        ("invalid peer certificate: UnknownIssuer", "ca_bundle"),
        ("error sending request for url", "BELLJAR_BUILD_NETWORK=host"),
        ("Because x was not found in the package registry", "spelling"),
        ("No space left on device", "prune"),
    ],
)
def test_what_uv_complains_about_has_a_remedy(line, hint):
    wanted = want(Environment("a", packages=["x @ https://me:secret@example.org/x.whl"]))
    error = explained(Failure("uv: exit status 1", "install", (line,)), wanted)
    assert line in str(error)
    assert hint in error.hint
    assert "secret" not in str(error)


def test_build_that_breaks_off_says_what_was_last_heard():
    error = explained(Failure("the container ended", "ended", ("Killed",)), want())
    assert "the container ended" in str(error)
    assert "Killed" in str(error)
    assert "memory" in error.hint


# --- who builds ------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_what_many_want_is_made_by_one(loop):
    shared, made = image_share.Shared(), []

    async def make():
        made.append(1)
        await anyio.sleep(0.05)
        return len(made)

    async def main():
        results = []

        async def one():
            results.append(await shared.once("k", make))

        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(one)
        return results

    assert anyio.run(main, backend=loop) == [1] * 10
    assert anyio.run(main, backend=loop) == [2] * 10, "nothing is kept"


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_error_is_for_all_but_a_cancellation_only_for_its_task(loop):
    shared, made = image_share.Shared(), []

    async def hang():
        await anyio.sleep(60)

    async def fail():
        await anyio.sleep(0.05)
        made.append(1)
        raise EnvironmentBuildError("no")

    async def main():
        errors = []

        async def one():
            try:
                await shared.once("k", fail)
            except EnvironmentBuildError as error:
                errors.append(error.message)

        async with anyio.create_task_group() as group:
            with anyio.move_on_after(0.1):
                group.start_soon(one)
                group.start_soon(one)
                await shared.once("k", hang)
        return errors

    assert anyio.run(main, backend=loop) == ["no", "no"]
    assert made == [1]


def container(labels, *, running=False, created="2026-01-01T00:00:00.123456789Z", id="c"):
    return {
        "Id": id,
        "Created": created,
        "Config": {"Labels": labels},
        "State": {"Running": running},
    }


def test_build_container_is_abandoned_only_when_nobody_can_come_back():
    ours = owner.labels("build-k") | {owner.BUILD: "k"}
    assert image.is_abandoned(container(ours))
    image_build.in_use.add("c")
    try:
        assert not image.is_abandoned(container(ours))
    finally:
        image_build.in_use.discard("c")
    dead = ours | {owner.STARTED: "1"}
    assert image.is_abandoned(container(dead, running=True))
    elsewhere = ours | {owner.HOST: "0" * 16 + "." + "0" * 16}
    now = time.time()
    fresh = time.strftime("%Y-%m-%dT%H:%M:%S.5Z", time.gmtime(now - 5))
    assert not image.is_abandoned(container(elsewhere, created=fresh), now)
    assert image.is_abandoned(container(elsewhere), now)
    assert not image.is_abandoned(container(elsewhere, running=True), now)
    assert not image.is_abandoned(container({}), now), "not ours"


def test_build_container_has_no_environment_variable_of_ours():
    order = Order(wanted=want(), key="k", base={"Id": "x"})
    from belljar.backends.docker.facts import Facts

    body = image_build.created(order, Facts(runtimes=("runc",), default_runtime="runc"))
    assert "Env" not in body
    assert "Runtime" not in body["HostConfig"]
    assert "NetworkMode" not in body["HostConfig"]


# --- which images nobody needs ---------------------------------------------------------------


def listed(name, key, created, *, containers=0, dockerfile=""):
    return image_store.Listed(
        name=name,
        key=key,
        tag=f"belljar/{name}:{key}",
        id=key,
        python="",
        packages=(),
        base="",
        dockerfile=dockerfile,
        created=created,
        size=1,
        containers=containers,
    )


def test_prune_keeps_what_is_used_current_or_newest():
    images = [
        listed("data", "current", 1),
        listed("data", "newer-but-of-another-base", 2),
        listed("data", "used", 0, containers=1),
        listed("geo", "old", 1),
        listed("geo", "new", 2),
        listed("geo", "dockerfile", 0, dockerfile="Dockerfile"),
        listed("gone", "only", 1),
    ]
    found = image_store.superfluous(images, {"data": "current", "gone": "not there"})
    assert {each.key for each in found} == {"newer-but-of-another-base", "old"}
    everything = image_store.superfluous(images, {}, everything=True)
    assert {each.key for each in images} - {each.key for each in everything} == {"used"}


def test_image_is_ours_by_its_labels_and_its_name():
    labels = {"belljar.image": "1", "belljar.key": "k"}
    tags = ["belljar/a:k", "belljar/a:other", "team/app:k", "localhost/belljar/a:k"]
    found = image_key.own_tags({"Labels": labels, "RepoTags": tags})
    assert found == ["belljar/a:k", "localhost/belljar/a:k"]
    assert image_key.own_tags({"Labels": {}, "RepoTags": tags}) == []


# --- the Dockerfile for others ---------------------------------------------------------------


def test_dockerfile_for_others_has_the_packages_and_no_password(tmp_path):
    wheel = make_wheel(tmp_path, "demo")
    packages = ["a>=1", "b @ https://me:secret@example.org/b.whl", str(wheel)]
    text = image_dockerfile.written(want(Environment("x", packages=packages, preload=["a"])))
    assert "ARG BASE=base:1" in text
    assert "'a>=1'" in text
    assert "secret" not in text.replace("type=secret", "").replace("secrets", "").replace(
        "--secret", ""
    )
    assert f"source={wheel.name}" in text
    assert str(tmp_path) not in text
    assert "preload=['a']" in text
    assert "USER 1000:1000" in text


def test_environment_without_packages_has_no_dockerfile():
    with pytest.raises(InvalidOption, match="base:1 is its image"):
        image_dockerfile.written(want(BUILTIN["python"]))


# --- the guide -------------------------------------------------------------------------------


def test_table_of_the_guide_has_each_setting_with_its_default():
    text = (Path(__file__).parent.parent / "docs" / "docker.md").read_text()
    table = text[text.index("| setting |") :].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| `(.*?)` \|", table, re.MULTILINE))
    assert rows == {each.name: repr(each.default) for each in dataclasses.fields(Docker)}
