"""Images on a real engine: built once from Environments and Dockerfiles, pulled, left alone."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import textwrap
import threading
from functools import partial
from pathlib import Path

import anyio
import pytest

import census
import engine_view
import image_registry
from belljar import Docker, Environment
from belljar.backends.docker import owner
from belljar.backends.docker.client import endpoint
from belljar.backends.docker.client.engine import Engine, EngineError
from belljar.backends.docker.images import build, build_stream, image_store, resolve
from belljar.backends.docker.images.build_stream import BuildOrder
from belljar.backends.docker.isolation import EngineFacts
from belljar.environment.environment import BUILTIN
from belljar.environment.uv import find_uv
from belljar.errors import EnvironmentBuildError
from wheels import make_source_distribution, make_wheel

pytestmark = pytest.mark.docker

LOOPS = pytest.mark.parametrize("loop", ["asyncio", "trio"])
SECRET = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def engine():
    return Engine(endpoint.find_endpoint())


@pytest.fixture(scope="module")
def facts(engine):
    async def ask():
        return EngineFacts.parse(
            await engine.request("GET", "/info"), await engine.request("GET", "/version")
        )

    return anyio.run(ask)


@pytest.fixture(scope="module")
def base():
    """A reference of the base image, with python3."""
    name = os.environ.get("BELLJAR_DOCKER_BASE")
    if not name:
        pytest.skip("BELLJAR_DOCKER_BASE names no base image")
    return name


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """Builds install wheels of the test alone, and need no network."""
    monkeypatch.setenv("BELLJAR_BUILD_NETWORK", "none")
    for name in list(os.environ):
        if name.startswith(("UV_", "PIP_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


@pytest.fixture
def describe(tmp_path, base):
    """An Environment that no engine has yet, of one wheel; its images are removed at the end."""
    names = []

    def make(version="1.0", *, module="demo", **options):
        name = f"test-{os.urandom(6).hex()}"
        directory = tmp_path / name
        directory.mkdir()
        # A version of its own makes a key of its own.
        wheel = make_wheel(directory, module, f"{version}.{int.from_bytes(os.urandom(3), 'big')}")
        names.append(name)
        return Environment(name, packages=[str(wheel)], **options)

    yield make
    for listed in engine_view.ask("/images/json?all=0"):
        for tag in listed["RepoTags"] or ():
            if any(f"/{name}" in tag for name in names):
                engine_view.ask(f"/images/{tag}?force=1", "DELETE")


@pytest.fixture
def ensure(engine, facts):
    def run(environment, *, loop="asyncio", progress=None, **settings):
        async def make():
            docker = Docker(**settings)
            return await resolve.ensure_image(engine, environment, docker, facts, progress=progress)

        return anyio.run(make, backend=loop)

    return run


def build_containers(pid=None):
    """Those of this process, or of another."""
    wanted = str(pid or os.getpid())
    return [
        each
        for each in engine_view.containers()
        if each["Labels"].get("belljar.build") and each["Labels"]["belljar.owner.pid"] == wanted
    ]


def inspect(reference):
    return engine_view.ask(f"/images/{reference}/json")


def run(reference, *command):
    """What a command says in a container of the image, without a network."""
    done = subprocess.run(
        ["docker", "run", "--rm", "--network", "none", reference, *command],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- an Environment becomes an image ---------------------------------------------------------


@LOOPS
def test_environment_becomes_an_image_that_can_import_its_packages(describe, ensure, loop):
    environment = describe(preload=["demo"], warmup="1")
    made = ensure(environment, loop=loop)
    assert made.reference.startswith(f"belljar/{environment.name}:")
    assert made.python == "/opt/env/bin/python"
    assert not made.own
    code = "import demo, sys; print(sys.prefix, demo.__cached__); demo.main()"
    said = run(made.id, made.python, "-c", code).split()
    assert said[0] == "/opt/env"
    assert said[2] == "demo"
    assert build_containers() == []


def test_image_is_built_once(describe, ensure):
    environment, news = describe(), []
    first = ensure(environment, progress=news.append)
    assert news[0].step == "resolving"
    assert news[-1].step == "finished"
    news.clear()
    assert ensure(environment, progress=news.append) == first
    assert news == []


def test_same_content_under_another_name_is_the_same_image(describe, ensure):
    one = describe()
    other = Environment(f"{one.name}-too", packages=one.packages)
    first, second = ensure(one), ensure(other)
    assert first.id == second.id
    assert second.reference.startswith(f"belljar/{one.name}-too:")


def test_environment_without_packages_is_the_base_image(ensure, base):
    made = ensure(BUILTIN["python"])
    assert made.id == inspect(base)["Id"]
    assert made.python == "python3"


def test_image_says_what_it_is_and_runs_as_nobody_special(describe, ensure, base):
    environment = describe()
    made = ensure(environment)
    config = inspect(made.id)["Config"]
    key = made.reference.rpartition(":")[2]
    labels = config["Labels"]
    assert labels["belljar.image"] == "1"
    assert labels["belljar.environment"] == environment.name
    assert labels["belljar.key"] == key
    assert labels["belljar.base"] == base
    [wheel] = json.loads(labels["belljar.packages"])
    assert wheel.startswith("demo-1.0")
    assert "/" not in wheel
    assert labels["belljar.python"] == run(made.id, "python3", "--version").split()[1]
    assert config["User"] == "1000:1000"
    assert config["WorkingDir"] == "/workspace"
    assert not config["Entrypoint"]
    names = {each.partition("=")[0] for each in config["Env"]}
    base_names = {each.partition("=")[0] for each in inspect(base)["Config"]["Env"] or ()}
    assert names == base_names | {"PATH", "VIRTUAL_ENV"}


def test_lock_with_hashes_is_in_the_image(describe, ensure):
    made = ensure(describe())
    lock = run(made.id, "cat", "/opt/env/belljar.lock")
    assert lock.startswith("demo-1.0")
    assert "--hash=sha256:" in lock
    labels = inspect(made.id)["Config"]["Labels"]
    digest = run(made.id, "sha256sum", "/opt/env/belljar.lock").split()[0]
    assert labels["belljar.lock"] == digest


def test_container_of_the_image_inherits_no_owner(describe, ensure):
    """Labels of a container go to the image that is made of it, and on to its containers."""
    made = ensure(describe())
    labels = inspect(made.id)["Config"]["Labels"]
    assert owner.Owner.parse(labels) is None
    assert not labels.get(owner.SANDBOX)
    assert not labels.get(owner.BUILD)


def test_secrets_of_the_build_are_in_no_layer(describe, ensure, monkeypatch, tmp_path):
    bundle = tmp_path / "ca.pem"
    pem = f"-----BEGIN CERTIFICATE-----\n{SECRET}-ca\n-----END CERTIFICATE-----\n"
    bundle.write_text(pem)
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine pypi.invalid login me password {SECRET}-netrc\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"https://me:{SECRET}-index@pypi.invalid/simple")
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:{SECRET}-proxy@proxy.invalid")
    made = ensure(describe(), ca_bundle=bundle)
    saved = subprocess.run(
        ["docker", "save", made.reference], capture_output=True, timeout=120, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(saved)) as archive:
        names = archive.getnames()
    assert len(names) > 2
    assert saved.count(b"belljar.lock")  # layers in it are not compressed
    assert SECRET.encode() not in saved
    assert b"pypi.invalid" not in saved


def test_settings_of_this_host_reach_the_build(describe, ensure, monkeypatch):
    """Seen from an index that is not there: its name is in uv's complaint, its password not."""
    environment = describe()
    environment = Environment(environment.name, packages=[*environment.packages, "belljar-nothing"])
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"https://me:{SECRET}@pypi.invalid/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(EnvironmentBuildError) as caught:
        ensure(environment)
    assert "pypi.invalid" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert "BELLJAR_BUILD_NETWORK=host" in caught.value.hint
    assert build_containers() == []


@pytest.mark.parametrize(
    "index",
    [
        f"https://me:a/{SECRET}@pypi.invalid/simple",
        f"https://pypi.invalid/simple?token={SECRET}",
        f"https://me:{SECRET}@[pypi.invalid/simple",
    ],
)
def test_password_that_uv_itself_would_show_is_not_shown(describe, ensure, monkeypatch, index):
    environment = describe()
    environment = Environment(environment.name, packages=[*environment.packages, "belljar-nothing"])
    monkeypatch.setenv("UV_DEFAULT_INDEX", index)
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    news = []
    with pytest.raises(EnvironmentBuildError) as caught:
        ensure(environment, progress=news.append)
    assert "pypi.invalid" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert SECRET not in str(news)


def test_directories_of_this_host_are_noted_and_never_replaced(describe, ensure, monkeypatch):
    environment = describe()
    environment = Environment(environment.name, packages=[*environment.packages, "six"])
    monkeypatch.setenv("PIP_INDEX_URL", "file:///srv/mirror/simple")
    news = []
    with pytest.raises(EnvironmentBuildError) as caught:
        ensure(environment, progress=news.append)
    assert any("file:///srv/mirror/simple" in each.text for each in news)
    assert "no package index for a container" in caught.value.hint


def test_source_distribution_is_built_only_when_allowed(describe, ensure, tmp_path):
    environment = describe()
    make_source_distribution(tmp_path, "stubborn", tmp_path / "canary")
    archive = next(tmp_path.glob("*.tar.gz"))
    refused = Environment(environment.name, packages=[f"stubborn @ {archive.as_uri()}"])
    with pytest.raises(EnvironmentBuildError):
        ensure(refused)
    assert not (tmp_path / "canary").exists()


def test_base_without_the_python_asked_for_is_refused(describe, ensure, base):
    with pytest.raises(EnvironmentBuildError) as caught:
        ensure(describe(python="3.99"))
    assert "not 3.99" in str(caught.value)
    assert base in str(caught.value)
    assert "base" in caught.value.hint
    assert build_containers() == []


def test_base_without_python_is_refused(describe, ensure):
    tag = "belljar-test/empty:1"
    make_image(tag, {"hello": b""})
    try:
        with pytest.raises(EnvironmentBuildError, match="has no python3"):
            ensure(describe(), base=tag)
    finally:
        engine_view.ask(f"/images/{tag}?force=1", "DELETE")
    assert build_containers() == []


@pytest.mark.parametrize("place", ["/opt", "/nowhere/../opt", "//opt/env/"])
def test_base_that_keeps_opt_in_a_volume_is_refused(describe, ensure, context, base, place):
    (context / "Dockerfile").write_text(f'FROM {base}\nVOLUME ["/data", "{place}"]\n')
    with_volume = ensure(BUILTIN["python"], dockerfile=context)
    with pytest.raises(EnvironmentBuildError, match=r"opt.* as a volume"):
        ensure(describe(), base=with_volume.reference)


@pytest.mark.parametrize(
    ("program", "complaint"),
    [
        ("exec yes '{\"alive\": true}'", "sent more than"),
        ("echo '{\"done\": {}}'; exec sleep 1000", "not a report of the build"),
    ],
)
def test_base_with_a_python_that_is_none_is_given_up(
    describe, ensure, context, base, monkeypatch, program, complaint
):
    monkeypatch.setattr(build_stream, "MOST_SAID", 4 << 20)
    (context / "python3").write_text(f"#!/bin/sh\n{program}\n")
    (context / "python3").chmod(0o755)
    path = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/bin:/bin"
    (context / "Dockerfile").write_text(f"FROM {base}\nCOPY python3 /usr/local/sbin/\n{path}\n")
    lying = ensure(BUILTIN["python"], dockerfile=context)
    environment = describe()
    with pytest.raises(EnvironmentBuildError, match=complaint):
        ensure(environment, base=lying.reference)
    assert build_containers() == []
    tags = [tag for each in engine_view.ask("/images/json") for tag in each["RepoTags"] or ()]
    assert not any(f"/{environment.name}:" in tag for tag in tags)


def test_standard_library_without_bytecode_is_compiled(describe, ensure, context, base):
    """As the official images come; a guest cannot write any."""
    text = "RUN find / -xdev -name '*.pyc' -delete"
    (context / "Dockerfile").write_text(f"FROM {base}\n{text}\n")
    bare = ensure(BUILTIN["python"], dockerfile=context)
    made = ensure(describe(), base=bare.reference)
    code = "import os, json; print(os.path.exists(json.__cached__))"
    assert run(bare.id, "python3", "-B", "-c", code).strip() == "False"
    assert run(made.id, made.python, "-B", "-c", code).strip() == "True"


@pytest.fixture
def foreign_uv(tmp_path, monkeypatch):
    """This host's uv is a program that containers cannot run."""
    program = tmp_path / "uv"
    program.write_text("#!/nowhere\n")
    program.chmod(0o755)
    monkeypatch.setattr(build_stream, "find_uv", lambda: str(program))


def test_uv_of_the_image_is_used_when_that_of_this_host_cannot_be(
    describe, ensure, context, base, request
):
    (context / "uv").write_bytes(Path(find_uv()).read_bytes())
    (context / "uv").chmod(0o755)
    (context / "Dockerfile").write_text(f"FROM {base}\nCOPY uv /usr/local/bin/uv\n")
    with_uv = ensure(BUILTIN["python"], dockerfile=context)
    request.getfixturevalue("foreign_uv")
    made = ensure(describe(), base=with_uv.reference)
    assert run(made.id, "demo-tool") == run(made.id, "/opt/env/bin/demo-tool")


def test_base_in_which_there_is_no_uv_to_be_had_is_refused(describe, ensure, foreign_uv):
    with pytest.raises(EnvironmentBuildError) as caught:
        ensure(describe())
    assert "uv could not be installed" in str(caught.value)
    assert "pip" in caught.value.hint


def make_image(tag, files):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    done = subprocess.run(
        ["docker", "import", "-", tag], input=data.getvalue(), capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_image_is_found_where_its_base_is_not(describe, ensure, base):
    """docker save on one machine, docker load on another: the base's name is not in it."""
    alias = f"belljar-test/base:{os.urandom(4).hex()}"
    subprocess.run(["docker", "tag", base, alias], check=True, timeout=30)
    environment = describe()
    made = ensure(environment, base=alias)
    subprocess.run(["docker", "rmi", alias], check=True, capture_output=True, timeout=30)
    assert ensure(environment, base=alias, pull="never") == made


# --- many at once ----------------------------------------------------------------------------


@LOOPS
def test_tasks_that_want_the_same_image_wait_for_one_build(engine, facts, describe, loop):
    environment, news, made = describe(), [], []

    async def one():
        made.append(
            await resolve.ensure_image(engine, environment, Docker(), facts, progress=news.append)
        )

    async def main():
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(one)

    anyio.run(main, backend=loop)
    assert len(set(made)) == 1
    assert [each.step for each in news].count("finished") == 1


def test_threads_with_loops_of_their_own_wait_for_one_build(ensure, describe):
    environment, news, made = describe(), [], []

    def one(loop):
        made.append(ensure(environment, loop=loop, progress=news.append))

    threads = [threading.Thread(target=one, args=[loop]) for loop in ["asyncio", "trio"] * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4
    assert len(set(made)) == 1
    assert [each.step for each in news].count("finished") == 1


@LOOPS
def test_cancelled_builder_leaves_nothing_and_the_next_takes_over(engine, facts, describe, loop):
    environment, news = describe(), []
    result = []

    async def main():
        begun = anyio.Event()
        with anyio.CancelScope() as scope:

            def cancel(each):
                begun.set()
                if each.step == "compiling":
                    scope.cancel()

            async with anyio.create_task_group() as group:
                group.start_soon(second, begun)
                await resolve.ensure_image(engine, environment, Docker(), facts, progress=cancel)
        return scope.cancelled_caught

    async def second(begun):
        with anyio.CancelScope(shield=True):
            await begun.wait()  # else it might be the first that builds
            result.append(
                await resolve.ensure_image(
                    engine, environment, Docker(), facts, progress=news.append
                )
            )

    assert anyio.run(main, backend=loop)
    assert len(result) == 1
    assert news[-1].step == "finished"
    assert build_containers() == []


@LOOPS
def test_cancelled_build_leaves_no_container_and_no_image(engine, facts, describe, loop):
    environment = describe()

    async def main():
        with anyio.CancelScope() as scope:

            def cancel(each):
                if each.step == "compiling":
                    scope.cancel()

            await resolve.ensure_image(engine, environment, Docker(), facts, progress=cancel)
        assert scope.cancelled_caught

    anyio.run(main, backend=loop)
    assert build_containers() == []
    assert tags_of(environment) == []


def tags_of(environment):
    listed = engine_view.ask("/images/json")
    tags = [tag for each in listed for tag in each["RepoTags"] or ()]
    return [tag for tag in tags if f"/{environment.name}:" in tag]


PROGRAM = textwrap.dedent(
    """
    import os, signal, sys, time
    import anyio
    from belljar import Docker, Environment
    from belljar.backends.docker.client import endpoint
    from belljar.backends.docker.images import resolve as image
    from belljar.backends.docker.client.engine import Engine
    from belljar.backends.docker.isolation import EngineFacts

    name, wheel, at, flag = sys.argv[1:]

    def news(each):
        print(each.step, flush=True)
        if each.step == at == "compiling":
            while not os.path.exists(flag):
                time.sleep(0.01)

    async def main():
        engine = Engine(endpoint.find_endpoint())
        info = await engine.request("GET", "/info")
        facts = EngineFacts.parse(info, await engine.request("GET", "/version"))
        environment = Environment(name, packages=[wheel])
        made = await image.ensure_image(engine, environment, Docker(), facts, progress=news)
        print("made", made.id, flush=True)

    anyio.run(main)
    """
)


@contextlib.contextmanager
def another_process(environment, flag, at=""):
    """Builds it; stops at a step until the file `flag` is there."""
    command = [sys.executable, "-c", PROGRAM, environment.name, environment.packages[0], at, flag]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process, word):
    """Read until it says so; the line."""
    for line in process.stdout:
        if line.startswith(word):
            return line
    raise AssertionError(f"it never said {word!r}")


def test_process_waits_for_another_that_builds_the_same(describe, tmp_path):
    environment, flag = describe(), tmp_path / "go"
    with another_process(environment, flag, "compiling") as first:
        said(first, "compiling")
        with another_process(environment, flag) as second:
            said(second, "waiting")
            flag.touch()
            assert said(first, "made") == said(second, "made")
            assert build_containers(first.pid) == build_containers(second.pid) == []


def test_build_of_a_killed_process_ends_and_the_next_builds(describe, ensure, tmp_path):
    environment = describe()
    with another_process(environment, tmp_path / "never", "compiling") as first:
        said(first, "compiling")
        assert len(build_containers(first.pid)) == 1
        first.send_signal(signal.SIGKILL)
        first.wait()
    census.wait_until(
        lambda: not build_containers(first.pid), timeout=60, what="the end of the container"
    )
    ensure(environment)
    assert len(tags_of(environment)) == 1


def create_build_container(engine, key, labels):
    async def create():
        body = {"Image": os.environ["BELLJAR_DOCKER_BASE"], "Cmd": ["python3"], "Labels": labels}
        query = {"name": f"belljar-build-{key}"}
        await engine.request("POST", "/containers/create", query=query, body=body)

    anyio.run(create)


def key_of(environment, base):
    return image_store.plan_image(environment, base, None).key(inspect(base)["Id"])


def test_build_container_of_a_dead_process_is_no_obstacle(describe, ensure, engine, base):
    environment = describe()
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        dead.wait()
    labels = owner.labels("build-x") | {owner.BUILD: "x", owner.PID: str(dead.pid)}
    create_build_container(engine, key_of(environment, base), labels)
    ensure(environment)
    assert build_containers(dead.pid) == build_containers() == []


def test_container_of_somebody_else_with_that_name_is_not_touched(describe, ensure, engine, base):
    environment = describe()
    key = key_of(environment, base)
    create_build_container(engine, key, {})
    try:
        with pytest.raises(EnvironmentBuildError, match="not Belljar's"):
            ensure(environment)
        assert engine_view.inspect(f"belljar-build-{key}") is not None
    finally:
        engine_view.ask(f"/containers/belljar-build-{key}?force=1", "DELETE")


def test_build_container_that_is_removed_by_hand_is_a_clear_error(describe, engine, facts):
    environment = describe()

    def remove(each):
        if each.step == "compiling":
            [container] = build_containers()
            engine_view.ask(f"/containers/{container['Id']}?force=1", "DELETE")

    async def main():
        await resolve.ensure_image(engine, environment, Docker(), facts, progress=remove)

    with pytest.raises((EnvironmentBuildError, EngineError)):
        anyio.run(main)
    assert build_containers() == []
    assert tags_of(environment) == []


def test_build_container_is_confined_and_off_the_default_runtime_of_gvisor(describe, base):
    environment = describe()
    wanted = image_store.plan_image(environment, base, None)
    order = BuildOrder(plan=wanted, key="k", base={"Id": "x"}, docker=Docker(build_network="none"))
    facts = EngineFacts(runtimes=("runc", "runsc"), default_runtime="runsc")
    host = build.container_body(order, facts)["HostConfig"]
    assert host["Runtime"] == "runc"
    assert host["CapDrop"] == ["ALL"]
    assert host["NetworkMode"] == "none"
    assert "no-new-privileges" in host["SecurityOpt"]


# --- the caller's own image ------------------------------------------------------------------


def test_image_of_the_caller_is_used_as_it_is(ensure, base):
    made = ensure(BUILTIN["data"], image=base)
    assert (made.id, made.reference) == (inspect(base)["Id"], base)
    assert made.own
    assert made.python == "python3"


def test_what_would_have_to_be_built_or_fetched_is_not_there(engine, ensure, describe, base):
    def is_there(environment, **settings):
        return anyio.run(partial(resolve.image_exists, engine, environment, Docker(**settings)))

    environment = describe()
    assert not is_there(environment, base=base)
    ensure(environment, base=base)
    assert is_there(environment, base=base)
    assert is_there(BUILTIN["python"], base=base)
    assert is_there(BUILTIN["data"], image=base)
    assert not is_there(BUILTIN["data"], image=base, pull="always")
    assert not is_there(BUILTIN["data"], image="belljar-test/nothing:1")


def test_missing_image_is_pulled_with_progress(ensure):
    with image_registry.serve() as registry:
        news = []
        try:
            made = ensure(BUILTIN["python"], image=registry.reference, progress=news.append)
            assert made.id == inspect(registry.reference)["Id"]
            assert news[0].text == f"pulling image {registry.reference}"
            assert news[-1].step == "finished"
            asked = len(registry.asked)
            ensure(BUILTIN["python"], image=registry.reference)
            assert len(registry.asked) == asked, "it is there now"
            ensure(BUILTIN["python"], image=registry.reference, pull="always")
            assert len(registry.asked) > asked
        finally:
            engine_view.ask(f"/images/{registry.reference}?force=1", "DELETE")


def test_credentials_of_the_docker_command_are_used(ensure, tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with image_registry.serve(password=SECRET) as registry:
        with pytest.raises(EnvironmentBuildError, match="no image"):
            ensure(BUILTIN["python"], image=registry.reference)
        helper = tmp_path / "docker-credential-fake"
        answer = json.dumps({"Username": "me", "Secret": SECRET})
        helper.write_text(
            f"#!/bin/sh\nread host\necho \"$host\" > {tmp_path}/asked\necho '{answer}'\n"
        )
        helper.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        address = f"127.0.0.1:{registry.port}"
        (tmp_path / "config.json").write_text(json.dumps({"credHelpers": {address: "fake"}}))
        try:
            ensure(BUILTIN["python"], image=registry.reference)
        finally:
            engine_view.ask(f"/images/{registry.reference}?force=1", "DELETE")
        assert (tmp_path / "asked").read_text().strip() == address


def test_image_that_cannot_be_pulled_says_what_to_do(ensure):
    with image_registry.serve() as registry:
        nowhere = f"127.0.0.1:{registry.port}/belljar-test/nothing:1"
        with pytest.raises(EnvironmentBuildError) as caught:
            ensure(BUILTIN["python"], image=nowhere)
    assert nowhere in str(caught.value)
    assert "check the name" in caught.value.hint
    with pytest.raises(EnvironmentBuildError) as caught:  # the registry is gone
        ensure(BUILTIN["python"], image=nowhere)
    assert "docker save" in caught.value.hint


def test_engine_that_may_not_pull_does_not(ensure):
    with pytest.raises(EnvironmentBuildError, match="forbids to pull it"):
        ensure(BUILTIN["python"], image="belljar-test/nothing:1", pull="never")


# --- Dockerfiles -----------------------------------------------------------------------------


@pytest.fixture
def context(tmp_path, base):
    directory = tmp_path / f"test-{os.urandom(6).hex()}"
    directory.mkdir()
    (directory / "Dockerfile").write_text(f"FROM {base}\nCOPY . /srv/\n")
    yield directory
    for each in engine_view.ask("/images/json"):
        for tag in each["RepoTags"] or ():
            if f"/{directory.name}:" in tag:
                engine_view.ask(f"/images/{tag}?force=1", "DELETE")


@LOOPS
def test_dockerfile_becomes_an_image_once_for_each_content(context, ensure, loop):
    (context / "data.txt").write_text("one")
    (context / "sub").mkdir()
    (context / "sub" / "kept.log").write_text("")
    (context / "noise.log").write_text("")
    (context / "link").symlink_to("data.txt")
    (context / ".dockerignore").write_text("**/*.log\n!sub/kept.log\n")
    news = []
    first = ensure(BUILTIN["python"], dockerfile=context, loop=loop, progress=news.append)
    assert first.own
    assert first.reference.startswith(f"belljar/{context.name}:")
    files = run(first.id, "find", "/srv", "-mindepth", "1", "-printf", "%P %y %l\n").splitlines()
    assert {" ".join(each.split()) for each in files} == {
        *("Dockerfile f", "data.txt f", "sub d", "sub/kept.log f"),
        *("link l data.txt", ".dockerignore f"),
    }
    assert any(each.text.startswith("step 2: COPY") for each in news)
    news.clear()
    assert ensure(BUILTIN["python"], dockerfile=context, progress=news.append) == first
    assert news == []
    (context / "noise.log").write_text("what is ignored changes nothing")
    assert ensure(BUILTIN["python"], dockerfile=context) == first
    (context / "data.txt").write_text("two")
    assert ensure(BUILTIN["python"], dockerfile=context).id != first.id


@pytest.mark.parametrize("tag", ["{}", "{}:1.0", "localhost:5000/{}"])
def test_image_of_a_dockerfile_gets_the_name_that_is_asked_for(context, ensure, tag):
    name = tag.format(f"named-{context.name}")
    plain = ensure(BUILTIN["python"], dockerfile=context)
    assert engine_view.ask(f"/images/{name}/json") is None
    try:
        # It was built before, and has the name all the same.
        assert ensure(BUILTIN["python"], dockerfile=context, tag=name) == plain
        assert engine_view.ask(f"/images/{name}/json")["Id"] == plain.id
    finally:
        engine_view.ask(f"/images/{name}", "DELETE")
    assert engine_view.ask(f"/images/{plain.reference}/json")["Id"] == plain.id


def test_directory_of_a_dockerfile_may_have_any_name(context, ensure):
    directory = context.rename(context.with_name(f"{context.name} 日本 (2)"))
    made = ensure(BUILTIN["python"], dockerfile=directory)
    try:
        assert made.reference.startswith(f"belljar/{context.name}-2:")
        assert ensure(BUILTIN["python"], dockerfile=directory) == made
    finally:
        engine_view.ask(f"/images/{made.reference}?force=1", "DELETE")


def test_network_of_builds_is_that_of_the_settings(describe, base, context, ensure, engine, facts):
    """Only the setting names a network that is there; the variable is not asked."""
    environment = describe()
    nowhere = "belljar-no-such-network"
    with pytest.raises(EnvironmentBuildError, match=nowhere):
        ensure(environment, build_network=nowhere)
    (context / "Dockerfile").write_text(f"FROM {base}\nRUN true {context.name}\n")
    with pytest.raises(EnvironmentBuildError, match=nowhere):
        ensure(BUILTIN["python"], dockerfile=context, build_network=nowhere)
    assert ensure(BUILTIN["python"], dockerfile=context)  # by the variable: none
    assert build_containers() == []


def test_failing_step_of_a_dockerfile_is_shown_with_its_last_lines(context, ensure, base):
    text = f"FROM {base}\nRUN for i in $(seq 100); do echo line $i; done; echo why; exit 3\n"
    (context / "Dockerfile").write_text(text)
    before = {each["Id"] for each in engine_view.ask("/containers/json?all=1")}
    with pytest.raises(EnvironmentBuildError) as caught:
        ensure(BUILTIN["python"], dockerfile=context)
    shown = str(caught.value)
    assert "returned a non-zero code: 3" in shown
    assert "line 100\nwhy" in shown
    assert "line 1\n" not in shown
    made_here = [
        each
        for each in engine_view.ask("/containers/json?all=1")
        if each["Id"] not in before and "seq 100" in each["Command"]
    ]
    assert made_here == []


def test_refused_dockerfile_with_a_large_context_is_explained(context, ensure):
    """The engine answers before it has everything."""
    (context / "Dockerfile").write_text("FRM nothing\n")
    (context / "large.bin").write_bytes(bytes(64 * 2**20))
    with pytest.raises(EnvironmentBuildError, match="FRM"):
        ensure(BUILTIN["python"], dockerfile=context)


@pytest.mark.parametrize(
    "line", ["RUN --mount=type=secret,id=x true", "RUN <<EOF\necho hi\nEOF", "FRM nothing"]
)
def test_what_only_buildkit_knows_is_left_to_the_docker_command(context, ensure, base, line):
    (context / "Dockerfile").write_text(f"FROM {base}\n{line}\n")
    with pytest.raises(EnvironmentBuildError) as caught:
        ensure(BUILTIN["python"], dockerfile=context)
    assert "docker build -t NAME" in caught.value.hint
    assert "image='NAME'" in caught.value.hint


def test_dockerfile_that_starts_from_one_of_our_images_keeps_its_python(describe, ensure, context):
    below = ensure(describe())
    (context / "Dockerfile").write_text(f"FROM {below.reference}\nENV A=1\n")
    made = ensure(BUILTIN["python"], dockerfile=context)
    assert made.python == "/opt/env/bin/python"
    assert made.id != below.id


def test_image_that_was_built_on_one_of_ours_is_not_taken_for_it(describe, ensure, base):
    """It has our labels, because it inherits them, but neither our content nor our name."""
    environment = describe()
    ours = ensure(environment)
    foreign = f"belljar-test/app:{os.urandom(4).hex()}"
    text = f"FROM {ours.reference}\nENV THEIRS=1\n"
    subprocess.run(
        ["docker", "build", "-t", foreign, "-"],
        input=text.encode(),
        env={**os.environ, "DOCKER_BUILDKIT": "0"},
        capture_output=True,
        check=True,
        timeout=60,
    )
    try:
        listed = anyio.run(image_store.list_images, Engine(endpoint.find_endpoint()))
        assert foreign not in {each.tag for each in listed}
        subprocess.run(["docker", "rmi", ours.reference], check=True, capture_output=True)
        again = ensure(environment)
        config = inspect(again.id)["Config"]
        assert "THEIRS=1" not in config["Env"]
    finally:
        engine_view.ask(f"/images/{foreign}?force=1", "DELETE")
