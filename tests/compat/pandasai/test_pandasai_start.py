"""Where an adapter's sandbox lives, and that it begins to start when the adapter is made."""

import gc
import json
import os
import subprocess
import sys

import pytest

import census
import setting
from belljar import Docker, EnvironmentBuildError, StartError
from belljar.compat.pandasai import BelljarSandbox, DockerSandbox
from fake_engine import FakeEngine, answer

LONG = 60.0
ONE = "result = {'type': 'number', 'value': 1}"


def number_of(sandbox):
    return sandbox._queries._server._process.pid


@pytest.mark.parametrize("kind", [BelljarSandbox, DockerSandbox])
def test_guest_and_process_for_queries_start_with_the_adapter(backend, kind):
    sandbox = kind()
    (inside,) = sandbox._early._sandboxes
    census.wait_until(lambda: inside.alive, LONG, "the start in the background")
    pid = number_of(sandbox)
    assert census.alive(pid)
    assert sandbox._container is None, "for PandasAI it is not started yet"
    sandbox.start()
    assert sandbox._container is inside
    assert sandbox.execute(ONE, {})["value"] == 1
    assert sandbox._queries.run("SELECT 7 AS n", {}).n[0] == 7
    assert number_of(sandbox) == pid, "the one that was started early answers"
    sandbox.stop()
    assert not inside.alive
    assert census.process(pid) is None


def test_one_that_is_never_started_is_ended_by_stop_or_with_its_last_reference(backend):
    sandbox = BelljarSandbox()
    (inside,), pid = sandbox._early._sandboxes, number_of(sandbox)
    sandbox.stop()
    assert not inside.alive
    assert census.process(pid) is None
    dropped = BelljarSandbox()
    (inside,), pid = dropped._early._sandboxes, number_of(dropped)
    census.wait_until(lambda: inside.alive, LONG, "the start in the background")
    del dropped
    gc.collect()
    census.wait_until(lambda: not inside.alive, LONG, "the end of the guest")
    assert census.process(pid) is None


def test_a_failure_in_the_background_that_has_passed_is_forgotten(backend, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr("belljar.sandbox.sandbox.AsyncSandbox.start", fail)
        sandbox = BelljarSandbox()
        census.wait_until(lambda: sandbox._early.failed, LONG, "the failure")
    with sandbox:
        assert sandbox.execute(ONE, {})["value"] == 1
    with monkeypatch.context() as broken:
        broken.setattr("belljar.sandbox.sandbox.AsyncSandbox.start", fail)
        sandbox = BelljarSandbox()
        with pytest.raises(StartError, match="just now"):
            sandbox.start()
        assert sandbox._queries._server is None


async def fail(sandbox):
    raise StartError("not just now")


def test_a_clock_does_not_run_before_the_start(backend):
    with BelljarSandbox(limits={"lifetime": 600}) as sandbox:
        assert sandbox.execute(ONE, {})["value"] == 1
    assert BelljarSandbox(limits={"lifetime": 600})._early is None
    assert BelljarSandbox(limits={"idle": 600})._early is None


def test_one_that_was_made_before_a_fork_works_on_both_sides(backend):
    program = f"""
import os, warnings
warnings.simplefilter("ignore")
from belljar import runtime
from belljar.compat.pandasai import BelljarSandbox
sandbox = BelljarSandbox()
child = os.fork()
value = sandbox.execute({ONE!r}, {{}})["value"]
value += int(sandbox._queries.run("SELECT 7 AS n", {{}}).n[0])
sandbox.stop()
if child == 0:
    runtime.shutdown()
    os._exit(value)
print(value, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    environment = {**os.environ, "SCARF_NO_ANALYTICS": "true"}
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert ran.stdout.split() == ["8", "8"], ran.stderr


# -- an engine that answers has no image, and reaches no registry ---------------------------------


@pytest.fixture
def engine_without_images(backend, short_directory, monkeypatch):
    if setting.DOCKER:
        pytest.skip("this is about a host where native works")
    info = {"MemoryLimit": True, "SwapLimit": True, "PidsLimit": True, "CpuCfsQuota": True}
    known = {
        "/version": {"Version": "20.10.24", "ApiVersion": "1.41"},
        "/info": {**info, "Architecture": "x86_64", "SecurityOptions": ["name=seccomp"]},
        "/json": [],
    }

    def behave(sock):
        method, path = engine.requests.get().split()[:2]
        if method == "POST":
            body, status = {"message": "dial tcp: no such host"}, "500 Internal Server Error"
        elif "/images/" in path and "/images/json" not in path:
            body, status = {"message": "no such image"}, "404 Not Found"
        else:
            found = [each for end, each in known.items() if path.partition("?")[0].endswith(end)]
            body, status = (*found, {})[0], "200 OK"
        sock.sendall(answer(json.dumps(body).encode(), status=status))

    monkeypatch.delenv("BELLJAR_BACKEND", raising=False)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{short_directory}/engine.sock")
    with FakeEngine(f"{short_directory}/engine.sock", behave) as engine:
        yield engine


def test_ours_is_native_first(engine_without_images):
    with BelljarSandbox() as sandbox:
        assert sandbox._container.isolation.backend == "native"
    assert engine_without_images.ends.empty(), "the engine was not asked for anything"


def test_theirs_is_native_where_the_engine_can_have_no_image(engine_without_images, caplog):
    with DockerSandbox() as sandbox:
        assert sandbox._container.isolation.backend == "native"
        assert sandbox.execute(ONE, {})["value"] == 1
    assert "could not pull it" in caplog.text
    assert "this sandbox runs natively instead" in caplog.text


@pytest.mark.parametrize("kind", [BelljarSandbox, DockerSandbox])
def test_who_asks_for_an_engine_is_told_what_it_lacks(engine_without_images, kind):
    for asked in ("docker", Docker()):
        with pytest.raises(EnvironmentBuildError, match="could not pull it"):
            kind(backend=asked).start()


def test_an_image_that_was_asked_for_is_not_replaced(engine_without_images):
    with pytest.raises(EnvironmentBuildError, match="could not pull it"):
        DockerSandbox("my-own-image").start()
