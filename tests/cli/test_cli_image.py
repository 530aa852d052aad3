"""`belljar image`, run as its users run it, on a real engine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

import census
import engine_view
from project import ROOT
from wheels import make_wheel

pytestmark = pytest.mark.docker

BELLJAR = [sys.executable, "-m", "belljar"]


@pytest.fixture
def name():
    """Of an environment that no engine has; its images are removed at the end."""
    name = f"test-{os.urandom(6).hex()}"
    yield name
    for each in engine_view.ask("/images/json"):
        for tag in each["RepoTags"] or ():
            if f"/{name}" in tag:
                engine_view.ask(f"/images/{tag}?force=1", "DELETE")


@pytest.fixture
def environ(tmp_path):
    if not os.environ.get("BELLJAR_DOCKER_BASE"):
        pytest.skip("BELLJAR_DOCKER_BASE names no base image")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("UV_", "PIP_"))}
    return {
        **kept,
        "PYTHONPATH": f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}".rstrip(":"),
        "PIP_CONFIG_FILE": os.devnull,
        "BELLJAR_CACHE": str(tmp_path / "cache"),
        "BELLJAR_BUILD_NETWORK": "none",
    }


@pytest.fixture
def belljar(environ, tmp_path):
    def run(*args):
        return subprocess.run(
            [*BELLJAR, *args],
            capture_output=True,
            text=True,
            env=environ,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            timeout=100,
        )

    return run


def listed(belljar, name):
    images = json.loads(belljar("image", "list", "--json").stdout)
    return [each for each in images if each["name"] == name]


def build_containers(pid):
    return [
        each
        for each in engine_view.containers()
        if each["Labels"].get("belljar.build") and each["Labels"]["belljar.owner.pid"] == str(pid)
    ]


def test_environment_is_built_listed_and_removed(belljar, name, tmp_path):
    wheel = make_wheel(tmp_path, "demo")
    done = belljar("image", "build", name, "--packages", str(wheel), "--preload", "demo", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["image"].startswith(f"belljar/{name}:")
    assert f"building image belljar/{name}" in done.stderr
    assert "built in" in done.stderr

    again = belljar("image", "build", name)  # it is known by its name from now on
    assert again.stdout.strip() == facts["image"]
    assert again.stderr == ""

    [image] = listed(belljar, name)
    assert image["tag"] == facts["image"]
    assert image["packages"] == [wheel.name]
    assert image["containers"] == 0
    row = next(line for line in belljar("image", "list").stdout.splitlines() if name in line)
    assert wheel.name in row

    assert belljar("image", "remove", name).returncode == 0
    assert listed(belljar, name) == []
    assert belljar("image", "remove", name).returncode == 2


def test_prune_removes_what_was_replaced(belljar, name, tmp_path):
    tags = []
    for version in ("1.0", "2.0"):
        wheel = make_wheel(tmp_path, "demo", version)
        done = belljar("image", "build", name, "--packages", str(wheel))
        assert done.returncode == 0, done.stderr
        tags.append(done.stdout.strip())
    dry = json.loads(belljar("image", "prune", name, "--dry-run", "--json").stdout)
    assert [(each["tag"], each["removed"]) for each in dry] == [(tags[0], False)]
    assert len(listed(belljar, name)) == 2

    done = belljar("image", "prune", name)
    assert f"removed {tags[0]}" in done.stderr
    assert [each["tag"] for each in listed(belljar, name)] == [tags[1]]

    keeper = f"{name}-keeper"
    subprocess.run(["docker", "create", "--name", keeper, tags[1]], check=True, timeout=30)
    try:
        done = belljar("image", "prune", name, "--all")
        assert "nothing to remove" in done.stderr
    finally:
        engine_view.ask(f"/containers/{keeper}?force=1", "DELETE")
    assert belljar("image", "prune", name, "--all").returncode == 0
    assert listed(belljar, name) == []


def test_image_in_use_is_not_removed(belljar, name, tmp_path):
    wheel = make_wheel(tmp_path, "demo")
    tag = belljar("image", "build", name, "--packages", str(wheel)).stdout.strip()
    keeper = f"{name}-keeper"
    subprocess.run(["docker", "create", "--name", keeper, tag], check=True, timeout=30)
    try:
        done = belljar("image", "remove", name)
        assert done.returncode == 120
        assert "is in use" in done.stderr
        assert "belljar gc" in done.stderr
    finally:
        engine_view.ask(f"/containers/{keeper}?force=1", "DELETE")


def test_dockerfile_is_built(belljar, name, tmp_path):
    context = tmp_path / name
    context.mkdir()
    (context / "Dockerfile").write_text(f"FROM {os.environ['BELLJAR_DOCKER_BASE']}\nENV A=1\n")
    done = belljar("image", "build", "--dockerfile", str(context))
    assert done.returncode == 0, done.stderr
    [image] = listed(belljar, name)
    assert image["tag"] == done.stdout.strip()
    assert image["dockerfile"] == "Dockerfile"


def test_dockerfile_for_others_is_printed(belljar, environ):
    done = belljar("image", "dockerfile", "data", "--base", "python:3.12-slim")
    assert done.returncode == 0
    assert "ARG BASE=python:3.12-slim" in done.stdout
    assert "scikit-learn" in done.stdout
    assert done.stdout.count("--mount=type=secret") == 2


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["build"], "there is nothing to build"),
        (["build", "nix"], "unknown environment 'nix'"),
        (["build", "data", "--packages", "six"], "comes with Belljar"),
        (["build", "a", "--dockerfile", "."], "cannot be used with --dockerfile"),
        (["build", "data", "--base", "UPPER"], "not the name of an image"),
        (["build", "data", "--ca-bundle", "nothing.pem"], "is not a file"),
        (["build", "data", "--platform", "arm64"], "linux/arm64"),
        (["build", "data", "--host", "nonsense://x"], "nonsense"),
        (["remove", "nothing"], "unknown image 'nothing'"),
        (["lst"], "did you mean 'list'"),
        (["dockerfile", "python"], "has no packages"),
    ],
)
def test_wrong_usage_is_explained(belljar, args, word):
    done = belljar("image", *args)
    assert done.returncode == 2, done.stderr
    assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_engine_that_is_not_there_is_named(belljar, tmp_path):
    done = belljar("image", "list", "--host", f"unix://{tmp_path}/no.sock")
    assert done.returncode == 120
    assert "no.sock" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_build_leaves_nothing(environ, name, tmp_path, number, code):
    """It hangs at an index that never answers, until the signal comes."""
    with socket.create_server(("127.0.0.1", 0)) as index:
        index.settimeout(60)
        environ["UV_DEFAULT_INDEX"] = f"http://127.0.0.1:{index.getsockname()[1]}/simple"
        environ["BELLJAR_BUILD_NETWORK"] = "host"
        with subprocess.Popen(
            [*BELLJAR, "image", "build", name, "--packages", "belljar-nothing"],
            env=environ,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                connection, _ = index.accept()
                with connection:
                    assert len(build_containers(process.pid)) == 1
                    process.send_signal(number)
                    _, said = process.communicate(timeout=60)
            finally:
                process.kill()
    assert process.returncode == code, said
    assert "Traceback" not in said
    census.wait_until(
        lambda: not build_containers(process.pid),
        timeout=60,
        what="the end of the build container",
    )
