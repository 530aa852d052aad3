"""Containers of dead owners are removed; nothing of anybody else is ever touched."""

import functools
import json
import os
import subprocess
import sys
import time
import uuid
from textwrap import dedent

import anyio
import pytest

import census
import docker_census
from belljar.backends.docker import cleanup, owner
from belljar.backends.docker.cleanup import sweep_leftovers
from belljar.backends.docker.client import endpoint
from belljar.backends.docker.client.engine import Engine, EngineError
from belljar.observe import orphans
from fake_engine import FakeEngine, answer

pytestmark = pytest.mark.docker

IMAGE = os.environ.get("BELLJAR_DOCKER_BASE", "belljar-base:bookworm")


@pytest.fixture(params=["asyncio", "trio"])
def call(request):
    """Calls an async function with an engine, under each event loop."""
    engine = Engine(endpoint.find_endpoint())

    def call(function, *args, **options):
        task = functools.partial(function, engine, *args, **options)
        return anyio.run(task, backend=request.param)

    return call


@pytest.fixture
def make():
    """Makes containers, by the engine's API alone, and removes those that are left."""
    made = []

    def make(labels, *, start=False, command="exec sleep 1000", name=None, **settings):
        unique = f"test-{uuid.uuid4().hex[:12]}"
        if labels.get("belljar.sandbox"):
            labels = labels | {"belljar.sandbox": unique}
        body = {"Image": IMAGE, "Cmd": ["sh", "-c", command], "Labels": labels, **settings}
        body["HostConfig"] = {"NetworkMode": "none", **settings.get("HostConfig", {})}
        name = name or f"belljar-{unique}"
        made.append(docker_census.ask("POST", "/containers/create", body=body, name=name)["Id"])
        if start:
            docker_census.ask("POST", f"/containers/{made[-1]}/start")
        return made[-1]

    yield make
    for container in made:
        try:
            docker_census.ask("DELETE", f"/containers/{container}", force="1", v="1")
        except docker_census.Refused as error:
            if error.status not in (404, 409):  # it is gone, or just going
                raise


@pytest.fixture(autouse=True)
def on_a_host_of_our_own(monkeypatch):
    """Others that use this engine, such as tests of another setting, must not sweep for us."""
    monkeypatch.setattr(
        owner, "_read_host", lambda: (uuid.uuid5(HERE, "m").hex[:16], HERE.hex[:16])
    )


HERE = uuid.uuid4()


@pytest.fixture
def dead():
    """Labels as a process wrote them that is no more."""
    process = subprocess.Popen(["true"])
    labels = labels_of(process)
    process.wait()
    return labels


@pytest.fixture
def living():
    """Labels as a process wrote them that goes on."""
    process = subprocess.Popen(["sleep", "1000"])
    yield labels_of(process)
    process.kill()
    process.wait()


def labels_of(process):
    started = census.process(process.pid).started
    return owner.labels("x") | {owner.PID: str(process.pid), owner.STARTED: str(started)}


def inspect(container):
    return docker_census.ask("GET", f"/containers/{container}/json")


def sandbox_of(container):
    return inspect(container)["Config"]["Labels"]["belljar.sandbox"]


def exists(container):
    try:
        return bool(inspect(container))
    except docker_census.Refused as error:
        if error.status != 404:
            raise
        return False


# --- what goes -------------------------------------------------------------------------------


def test_what_a_dead_process_left_is_removed_whatever_its_state(call, make, dead):
    created = make(dead)
    running = make(dead, start=True)
    ended = make(dead, start=True, command="true")
    paused = make(dead, start=True)
    docker_census.ask("POST", f"/containers/{paused}/pause")
    census.wait_until(lambda: not inspect(ended)["State"]["Running"], what="the end")
    leftovers = {created, running, ended, paused}

    swept = call(sweep_leftovers, timeout=60)

    mine = [each for each in swept if each.id in leftovers]
    assert {each.id for each in mine} == leftovers
    assert all(each.removed and each.problem is None for each in mine)
    assert {f"belljar-{each.sandbox}" for each in mine} == {each.name for each in mine}
    assert {str(each.owner) for each in mine} == {dead["belljar.owner.pid"]}
    assert not any(map(exists, leftovers))


def test_a_dry_run_tells_what_would_go_and_removes_nothing(call, make, dead):
    container = make(dead, start=True)
    (seen,) = [each for each in call(sweep_leftovers, dry_run=True) if each.id == container]
    assert not seen.removed
    assert seen.problem is None
    assert inspect(container)["State"]["Running"]


def test_the_volumes_that_came_with_a_container_go_with_it(call, make, dead):
    container = make(dead, start=True, Volumes={"/data": {}})
    (volume,) = [mount["Name"] for mount in inspect(container)["Mounts"]]
    assert volume in docker_census.take().volumes
    call(sweep_leftovers)
    assert not exists(container)
    assert volume not in docker_census.take().volumes


def test_a_left_over_build_container_goes_and_is_called_one(call, make, dead):
    container = make(dead | {"belljar.build": "data"}, start=True)
    (swept,) = [each for each in call(sweep_leftovers) if each.id == container]
    assert swept.build
    assert not exists(container)


# --- what stays ------------------------------------------------------------------------------


def test_nothing_of_anybody_else_is_touched(call, make, dead, living):
    malformed = dead | {"belljar.owner.started": "long ago"}
    elsewhere = dead | {"belljar.owner.host": "0123456789abcdef.0123456789abcdef"}
    inner = dead | {"belljar.owner.pid_namespace": "1"}
    spared = [
        make({}, start=True),
        make({"belljar.sandbox": "x"}),
        make({"belljar.owner.pid": dead["belljar.owner.pid"]}),
        make({"com.example.owner": "me"}),
        make(malformed, start=True),
        make(elsewhere, start=True),
        make(inner),
        make(living, start=True),
        make(owner.labels("x"), start=True),
    ]
    swept = call(sweep_leftovers)
    swept += call(sweep_leftovers, living={sandbox_of(spared[-1])})
    assert not {each.id for each in swept} & set(spared)
    assert all(map(exists, spared))
    started = [container for container in spared if inspect(container)["State"]["StartedAt"] > "1"]
    assert len(started) == 5
    assert all(inspect(container)["State"]["Running"] for container in started)


def test_what_somebody_made_of_a_sandboxs_image_is_not_touched(call, make, dead):
    """Who commits a container gets its labels, and so do the containers of that image."""
    sandbox = make(dead)
    image = docker_census.ask("POST", "/commit", container=sandbox, body={})["Id"]
    copy = make({}, Image=image, start=True)
    try:
        assert inspect(copy)["Config"]["Labels"]["belljar.owner.pid"] == dead["belljar.owner.pid"]
        call(sweep_leftovers)
        assert not exists(sandbox)
        assert inspect(copy)["State"]["Running"]
    finally:
        docker_census.ask("DELETE", f"/containers/{copy}", force="1")
        docker_census.ask("DELETE", f"/images/{image}")


def test_of_our_own_only_what_no_living_sandbox_has_goes(call, make):
    wanted, left = make(owner.labels("x"), start=True), make(owner.labels("x"), start=True)
    build = make(owner.labels("x") | {"belljar.build": "data"})
    assert not {each.id for each in call(sweep_leftovers)} & {wanted, left}
    swept = {each.id: each.removed for each in call(sweep_leftovers, living=[sandbox_of(wanted)])}
    assert swept[left]
    assert not {wanted, build} & set(swept)
    assert exists(wanted)
    assert exists(build)


# --- how it goes -----------------------------------------------------------------------------


def test_one_that_cannot_be_removed_does_not_stop_the_others(call, make, dead, monkeypatch):
    containers = [make(dead) for _ in range(6)]
    stuck = containers[2]
    remove = cleanup.remove_container

    async def failing(engine, container):
        if container == stuck:
            raise EngineError("device or resource busy", status=500)
        await remove(engine, container)

    monkeypatch.setattr(cleanup, "remove_container", failing)
    swept = {each.id: each for each in call(sweep_leftovers)}
    assert not swept[stuck].removed
    assert swept[stuck].problem == "device or resource busy"
    assert [container for container in containers if exists(container)] == [stuck]


def test_a_sweep_that_runs_out_of_time_says_what_it_did_not_do(call, make, dead, monkeypatch):
    container = make(dead)

    async def endless(engine, container):
        await anyio.sleep_forever()

    monkeypatch.setattr(cleanup, "remove_container", endless)
    (swept,) = [each for each in call(sweep_leftovers, timeout=0.2) if each.id == container]
    assert not swept.removed
    assert "the time for removals was over" in swept.problem


def test_an_engine_that_is_not_there_is_an_error_of_the_sweep(call):
    async def elsewhere(engine):
        await sweep_leftovers(Engine(endpoint.find_endpoint("unix:///nowhere/docker.sock")))

    with pytest.raises(EngineError):
        call(elsewhere)


# --- one removal -----------------------------------------------------------------------------


def test_removing_what_is_gone_is_fine(call):
    call(cleanup.remove_container, "belljar-test-never-was")


def test_a_container_can_be_removed_by_its_name(call, make):
    container = make({}, start=True)
    call(cleanup.remove_container, inspect(container)["Name"].removeprefix("/"))
    assert not exists(container)


def test_several_may_remove_the_same_container_at_once(call, make):
    container = make({}, start=True)

    async def all_at_once(engine):
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(cleanup.remove_container, engine, container)

    call(all_at_once)
    assert not exists(container)


def test_a_removal_never_asks_politely_and_waits(call, make):
    """A process that ignores SIGTERM would be given ten seconds."""
    began = str(int(time.time()))
    container = make({}, start=True, command="trap '' TERM; while :; do sleep 1; done")
    call(cleanup.remove_container, container)
    assert not exists(container)
    events = signals_sent_to(container, began)
    assert "9" in events
    assert "15" not in events


def signals_sent_to(container, since):
    filters = {"container": [container], "event": ["kill"]}
    until = str(time.time() + 1)
    events = docker_census.raw("GET", "/events", since=since, until=until, filters=filters)
    return [json.loads(line)["Actor"]["Attributes"]["signal"] for line in events.splitlines()]


@pytest.mark.parametrize("failing", [1, 2])
def test_when_one_way_fails_the_next_stronger_one_is_taken(call, make, failing):
    container = make({}, start=True)

    async def remove(engine):
        await cleanup.remove_container(Refusing(engine, failing), container)

    call(remove)
    assert not exists(container)


def test_when_every_way_fails_the_reason_is_raised(call, make):
    container = make({}, start=True)

    async def remove(engine):
        await cleanup.remove_container(Refusing(engine, 99), container)

    with pytest.raises(EngineError, match="device or resource busy"):
        call(remove)
    assert exists(container)


class Refusing:
    """An engine that refuses the first removals."""

    def __init__(self, engine, times):
        self._engine = engine
        self._left = times

    async def request(self, method, path, **options):
        if method == "DELETE" and self._left:
            self._left -= 1
            raise EngineError("device or resource busy", status=500)
        return await self._engine.request(method, path, **options)


# --- the command -----------------------------------------------------------------------------


def belljar(*args, **environ):
    return subprocess.run(
        [sys.executable, "-m", "belljar", *args],
        capture_output=True,
        text=True,
        env=os.environ | environ,
        timeout=60,
    )


def test_gc_without_an_engine_sweeps_the_rest_and_says_so():
    done = belljar("gc", DOCKER_HOST="unix:///nowhere/docker.sock")
    assert done.returncode == 0
    assert "docker was left out" in done.stderr
    done = belljar("gc", "--json", DOCKER_HOST="unix:///nowhere/docker.sock")
    assert "docker" in json.loads(done.stdout)["skipped"]


def test_gc_of_docker_alone_fails_without_an_engine():
    done = belljar("gc", "--backend", "docker", DOCKER_HOST="unix:///nowhere/docker.sock")
    assert done.returncode == 120
    assert "/nowhere/docker.sock" in done.stderr


# --- the census itself -----------------------------------------------------------------------


def seen_by_the_census(before):
    return " ".join(docker_census.leaks(before, docker_census.take()))


def test_the_census_sees_containers_and_whose_they_are(make, dead, living):
    before = docker_census.take()
    container = make(dead)
    name = inspect(container)["Name"].removeprefix("/")
    assert f"container {name}" in seen_by_the_census(before)
    assert any(name in each for each in docker_census.ours())
    other = inspect(make(living))["Name"].removeprefix("/")
    assert other not in seen_by_the_census(before)


def test_the_census_sees_networks_volumes_and_images_without_a_name(make):
    before = docker_census.take()
    name = f"belljar-test-{uuid.uuid4().hex[:12]}"
    image = docker_census.ask("POST", "/commit", container=make({}), body={})["Id"]
    docker_census.ask("POST", "/volumes/create", body={"Name": name})
    docker_census.ask(
        "POST", "/networks/create", body={"Name": name, "Driver": "bridge", "Internal": True}
    )
    try:
        found = seen_by_the_census(before)
        assert f"network {name}" in found
        assert f"volume {name}" in found
        assert f"untagged image {image}" in found
    finally:
        docker_census.ask("DELETE", f"/networks/{name}")
        docker_census.ask("DELETE", f"/volumes/{name}")
        docker_census.ask("DELETE", f"/images/{image}")


@pytest.mark.parametrize("said", [b"[1]", b'{"message": 1}', b"7", b'[{"Labels": []}]'])
def test_a_list_of_containers_that_is_none_is_an_error_of_the_engine(
    short_directory, monkeypatch, said
):
    path = f"{short_directory}/e"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    with FakeEngine(path, answer(said)), pytest.raises(EngineError):
        orphans.find_orphans("docker")


def test_orphans_can_be_looked_for_while_the_process_exits():
    script = """
        import atexit
        from belljar.observe import orphans
        atexit.register(lambda: print(len(orphans.find_orphans("docker").skipped)))
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(script)], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("0\n", "")
