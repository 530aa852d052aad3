"""Credentials for registries, found the way the docker command finds them."""

import json
import traceback

import anyio
import pytest

from belljar.backends.docker.images import pull
from belljar.errors import EnvironmentBuildError


def header(reference, directory):
    import base64

    async def ask():
        return await pull.pull_auth_header(reference, {"DOCKER_CONFIG": str(directory)})

    found = anyio.run(ask)
    if not found:
        return None
    return json.loads(base64.urlsafe_b64decode(found["X-Registry-Auth"]))


def test_credentials_are_found_under_each_spelling_of_a_registry(tmp_path):
    # "bWU6cHc=" is me:pw
    auths = {
        "https://index.docker.io/v1/": {"auth": "bWU6cHc="},
        "https://quay.example/v2/": {"auth": "bWU6cHc="},
        "token.example": {"identitytoken": "t"},
    }
    (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))
    hub = {"username": "me", "password": "pw", "serveraddress": "https://index.docker.io/v1/"}
    assert header("python:3.12", tmp_path) == hub
    assert header("docker.io/library/python", tmp_path) == hub
    assert header("quay.example/team/app:1", tmp_path)["password"] == "pw"
    assert header("token.example/app", tmp_path)["identitytoken"] == "t"
    assert header("other.example/app", tmp_path) is None


def test_without_a_configuration_there_are_no_credentials(tmp_path):
    assert header("python:3.12", tmp_path) is None


def test_broken_configuration_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(EnvironmentBuildError, match=r"config\.json"):
        header("python:3.12", tmp_path)


def credentials(directory):
    async def ask():
        return await pull.build_auth_header({"DOCKER_CONFIG": str(directory)})

    return anyio.run(ask)


@pytest.mark.parametrize(
    "config",
    [
        [],
        {"auths": None, "credHelpers": None, "credsStore": None},
        {"auths": 5, "credHelpers": [1], "credsStore": {"a": 1}},
        {"auths": {"quay.example": None}, "credHelpers": {"quay.example": None}},
        {"auths": {"quay.example": {"username": 5, "password": [], "identitytoken": 1}}},
        {"credHelpers": {"quay.example": 5}},
    ],
)
def test_odd_configuration_has_no_credentials(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert header("quay.example/team/app", tmp_path) is None
    assert credentials(tmp_path) == {}


@pytest.mark.parametrize("auth", [5, "ü", [1], "/w=="])
def test_credentials_that_cannot_be_read_are_an_error(tmp_path, auth):
    (tmp_path / "config.json").write_text(json.dumps({"auths": {"quay.example": {"auth": auth}}}))
    with pytest.raises(EnvironmentBuildError, match=r"unreadable credentials for quay\.example"):
        header("quay.example/team/app", tmp_path)


@pytest.mark.parametrize("said", ["[]", "5", "S3CRET"])
def test_helper_that_answers_something_else_is_named(tmp_path, monkeypatch, said):
    (tmp_path / "config.json").write_text(json.dumps({"credsStore": "odd"}))
    helper = tmp_path / "docker-credential-odd"
    helper.write_text(f"#!/bin/sh\ncat >/dev/null\necho '{said}'\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(EnvironmentBuildError, match="did not print a JSON object") as caught:
        header("quay.example/team/app", tmp_path)
    assert "S3CRET" not in "".join(traceback.format_exception(caught.value))
    helper.write_text('#!/bin/sh\ncat >/dev/null\necho \'{"Username": "<token>"}\'\n')
    assert header("quay.example/team/app", tmp_path)["identitytoken"] == ""


def test_progress_of_a_pull_counts_layers_and_bytes():
    layers = pull.PullProgress()
    for line in (
        {"status": "Pulling fs layer", "id": "a"},
        {"status": "Already exists", "id": "b"},
        {"status": "Downloading", "id": "a", "progressDetail": {"current": 2**20, "total": 2**22}},
    ):
        layers.take(line)
    assert str(layers) == " (1 of 2 layers, 1.0 of 4.0 MiB)"


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("dial tcp: lookup registry on 10.0.0.1: no such host", "docker save"),
        ("pull access denied for x, repository does not exist", "docker login"),
        ("manifest for x:9 not found: manifest unknown", "and the tag"),
        ("no matching manifest for linux/arm64 in the manifest list", "platform"),
        ("x509: certificate signed by unknown authority", "certs.d"),
    ],
)
def test_error_of_a_pull_says_what_to_do(said, hint):
    error = pull.pull_error("x:9", said)
    assert said in error.message
    assert hint in error.hint
