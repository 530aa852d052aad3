"""What decides about images without an engine: who builds, what is said, what nobody needs."""

import dataclasses
import doctest
import importlib
import json
import re
import time

import anyio
import pytest
from test_image_key import want

from belljar import Docker, Environment
from belljar.backends import single_flight
from belljar.backends.docker import guest, owner
from belljar.backends.docker.client.engine import EngineError, parsing_answer
from belljar.backends.docker.images import build, build_stream, dockerfile, image_store, resolve
from belljar.backends.docker.images.build import explain_failure
from belljar.backends.docker.images.build_stream import BuildOrder, BuildStream, Failure
from belljar.environment.environment import BUILTIN
from belljar.errors import EnvironmentBuildError, InvalidOption
from project import DOCS
from wheels import make_wheel


@pytest.mark.parametrize(
    "name",
    [
        *(f"backends.docker.images.{name}" for name in ("context", "dockerfile", "index")),
        *(f"backends.docker.images.{name}" for name in ("image_store", "pull")),
        "environment.addresses",
    ],
)
def test_examples_in_the_source_are_true(name):
    module = importlib.import_module(f"belljar.{name}")
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
    error = explain_failure(Failure("uv: exit status 1", "install", (line,)), wanted)
    assert line in str(error)
    assert hint in error.hint
    assert "secret" not in str(error)


def test_build_that_breaks_off_says_what_was_last_heard():
    error = explain_failure(Failure("the container ended", "ended", ("Killed",)), want())
    assert "the container ended" in str(error)
    assert "Killed" in str(error)
    assert "memory" in error.hint


MISSING = [
    'runc create failed: unable to start container process: exec: "python3": executable file not '
    "found in $PATH: unknown",
    'error finding executable "python3" in PATH [/usr/bin /bin]: no such file or directory',
    "crun: executable file `python3` not found in $PATH: No such file or directory",
]
OTHER = (
    'error mounting "tmpfs" to rootfs at "/workspace": /proc/self/fd/7: no such file or directory'
)


def test_only_an_image_without_python_is_said_to_have_none():
    made = resolve.Image(id="sha256:1", reference="team/app:1", python="python3", own=True)
    for words in MISSING:
        error = guest.explain_start_error(EngineError(words), made)
        assert "has no 'python3'" in str(error)
        assert "has no python3" in str(explain_failure(Failure(words, "start"), want()))
    error = guest.explain_start_error(EngineError(OTHER), made)
    assert "the container did not start: error mounting" in str(error)
    assert "does not start: error mounting" in str(explain_failure(Failure(OTHER, "start"), want()))


# --- what a build container says ---------------------------------------------------------------

LOCK = "0" * 64
GOOD = {"done": {"python": "3.12.0rc1+", "lock": LOCK, "distributions": {}}}


class Saying:
    """The connection to a build container that says one thing, once or for ever."""

    def __init__(self, said, *, for_ever=False):
        self._piece = bytes([1, 0, 0, 0]) + len(said).to_bytes(4, "big") + said
        self._for_ever = for_ever
        self._left = self._piece

    def recv(self, size):
        data, self._left = self._left[:size], self._left[size:]
        if not self._left and self._for_ever:
            self._left = self._piece
        return data

    def send(self, data):
        return len(data)


async def nothing():
    return
    yield b""


def heard(said, news=None):
    async def listen():
        with resolve.reporting("a", (lambda each: None) if news is None else news) as teller:
            return await BuildStream(Saying(said), teller).run(nothing())

    return anyio.run(listen)


@pytest.mark.parametrize(
    "line",
    [
        "[" * 200_000,
        "9" * 5000,
        "[]",
        "7",
        '"line"',
        '{"step": "x", "text": "y"}',
        '{"step": "resolving"}',
        '{"step": {"a": 1}, "text": ["\\u001b[2J"]}',
        '{"failed": "no", "kind": "python", "lines": 5}',
        '{"failed": "no"}',
        '{"done": 5}',
        '{"done": {}}',
        f'{{"done": {{"python": "3.11\\nENTRYPOINT /evil", "lock": "{LOCK}"}}}}',
        '{"done": {"python": ["a"], "lock": {"b": 1}, "distributions": 7}}',
        '{"done": {"python": NaN, "lock": 1e999}}',
        '{"done": {"python": "3.12.1", "lock": "x"}}',
    ],
)
def test_lines_that_no_steps_would_say_end_a_build(line):
    told = heard(line.encode() + b"\n" + json.dumps(GOOD).encode() + b"\n")
    assert told == Failure(
        "the container sent something that is not a report of the build", "ended"
    )


def test_the_facts_at_the_end_of_a_build_are_those_that_labels_are_made_of():
    news = []
    lines = [{"alive": True}, {"step": "compiling", "text": "x"}, {"line": "Prepared 1"}, GOOD]
    told = heard("".join(json.dumps(each) + "\n" for each in lines).encode(), news.append)
    assert told == {"python": "3.12.0rc1+", "lock": LOCK}
    assert [each.step for each in news] == ["compiling", "installing"]


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_container_that_never_stops_talking_holds_up_nobody(loop, monkeypatch):
    monkeypatch.setattr(build_stream, "MOST_SAID", 1 << 60)
    flood = Saying(b'{"alive":true}\n' * 4000, for_ever=True)

    async def main():
        with resolve.reporting("a", lambda each: None) as teller, anyio.move_on_after(0.3) as scope:
            await BuildStream(flood, teller).run(nothing())
        return scope.cancelled_caught

    assert anyio.run(main, backend=loop)


def test_of_a_container_that_never_stops_talking_only_so_much_is_heard(monkeypatch):
    monkeypatch.setattr(build_stream, "MOST_SAID", 1 << 20)
    flood = Saying(b'{"alive":true}\n' * 4000, for_ever=True)

    async def main():
        with resolve.reporting("a", lambda each: None) as teller:
            return await BuildStream(flood, teller).run(nothing())

    assert anyio.run(main) == Failure("the container sent more than 1048576 bytes", "ended")


# --- who builds ------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_what_many_want_is_made_by_one(loop):
    shared, made = single_flight.SingleFlight(), []

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
    shared, made = single_flight.SingleFlight(), []

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
    assert resolve.is_abandoned(container(ours))
    build.in_use.add("c")
    try:
        assert not resolve.is_abandoned(container(ours))
    finally:
        build.in_use.discard("c")
    dead = ours | {owner.STARTED: "1"}
    assert resolve.is_abandoned(container(dead, running=True))
    elsewhere = ours | {owner.HOST: "0" * 16 + "." + "0" * 16}
    now = time.time()
    fresh = time.strftime("%Y-%m-%dT%H:%M:%S.5Z", time.gmtime(now - 5))
    assert not resolve.is_abandoned(container(elsewhere, created=fresh), now)
    assert resolve.is_abandoned(container(elsewhere), now)
    assert not resolve.is_abandoned(container(elsewhere, running=True), now)
    assert not resolve.is_abandoned(container({}), now), "not ours"


def test_build_container_has_no_environment_variable_of_ours():
    order = BuildOrder(plan=want(), key="k", base={"Id": "x"})
    from belljar.backends.docker.isolation import EngineFacts

    body = build.container_body(order, EngineFacts(runtimes=("runc",), default_runtime="runc"))
    assert "Env" not in body
    assert "Runtime" not in body["HostConfig"]
    assert "NetworkMode" not in body["HostConfig"]
    assert 0 < body["HostConfig"]["PidsLimit"] <= 4096
    assert body["Labels"]["belljar.build"] == "k"


def test_a_build_of_somebody_else_that_never_ends_is_not_waited_for_without_end(monkeypatch):
    monkeypatch.setattr(resolve, "MOST_WAITING", 0.0)
    elsewhere = owner.labels("build-k") | {owner.BUILD: "k", owner.HOST: "0" * 16 + "." + "0" * 16}

    class Engine:
        async def request(self, *args, **options):
            return container(elsewhere, running=True)

    async def wait():
        with resolve.reporting("a", lambda each: None) as teller:
            await resolve._wait_for_build(
                Engine(), BuildOrder(plan=want(), key="k", base={"Id": "x"}), teller
            )

    with pytest.raises(EnvironmentBuildError, match="belljar-build-k has not ended") as caught:
        anyio.run(wait)
    assert "docker rm" in caught.value.hint


# --- which images nobody needs ---------------------------------------------------------------


def listed(name, key, created, *, containers=0, dockerfile=""):
    return image_store.ListedImage(
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
    found = image_store.find_unneeded(images, {"data": "current", "gone": "not there"})
    assert {each.key for each in found} == {"newer-but-of-another-base", "old"}
    everything = image_store.find_unneeded(images, {}, everything=True)
    assert {each.key for each in images} - {each.key for each in everything} == {"used"}


def test_a_wrong_option_is_not_taken_for_a_wrong_answer():
    class Somewhere:
        endpoint = "unix:///somewhere"

    with pytest.raises(InvalidOption, match="mine"), parsing_answer(Somewhere(), "about an image"):
        raise InvalidOption("mine")
    with (
        pytest.raises(EngineError, match="an unexpected answer"),
        parsing_answer(Somewhere(), "about it"),
    ):
        raise ValueError("its")


def test_a_container_that_is_only_listed_does_not_use_its_image():
    labels = {"belljar.image": "1", "belljar.key": "k"}
    answers = {
        "/images/json": [{"Id": "i", "RepoTags": ["belljar/a:k"], "Labels": labels, "Created": 1}],
        "/containers/json": [
            {"ImageID": "i", "Names": ["/one"]},
            {"ImageID": "i", "Names": None, "Status": "Removal In Progress"},
            {"ImageID": "i"},
        ],
    }

    class Engine:
        async def request(self, method, path, **options):
            return answers[path]

    (found,) = anyio.run(image_store.list_images, Engine())
    assert found.containers == 1


def test_image_is_ours_by_its_labels_and_its_name():
    labels = {"belljar.image": "1", "belljar.key": "k"}
    tags = ["belljar/a:k", "belljar/a:other", "team/app:k", "localhost/belljar/a:k"]
    found = image_store.own_tags({"Labels": labels, "RepoTags": tags})
    assert found == ["belljar/a:k", "localhost/belljar/a:k"]
    assert image_store.own_tags({"Labels": {}, "RepoTags": tags}) == []


# --- the Dockerfile for others ---------------------------------------------------------------


def test_dockerfile_for_others_has_the_packages_and_no_password(tmp_path):
    wheel = make_wheel(tmp_path, "demo")
    packages = ["a>=1", "b @ https://me:secret@example.org/b.whl", str(wheel)]
    text = dockerfile.render_dockerfile(want(Environment("x", packages=packages, preload=["a"])))
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
    with pytest.raises(InvalidOption, match="its image is base:1"):
        dockerfile.render_dockerfile(want(BUILTIN["python"]))


# --- the guide -------------------------------------------------------------------------------


def test_table_of_the_guide_has_each_setting_with_its_default():
    text = (DOCS / "guide" / "docker.md").read_text()
    table = text[text.index("| setting |") :].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| `(.*?)` \|", table, re.MULTILINE))
    assert rows == {each.name: repr(each.default) for each in dataclasses.fields(Docker)}
