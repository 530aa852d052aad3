"""The options of the docker backend, what "auto" means, and who is asked first: without engines."""

import argparse
import asyncio
import dataclasses
import os
import subprocess
import sys
import textwrap

import pytest

from belljar import (
    AsyncPool,
    AsyncSandbox,
    BackendUnavailable,
    Docker,
    Environment,
    InvalidOption,
    LimitNotEnforceable,
    Sandbox,
    StartError,
    config,
    runtime,
)
from belljar.backends.auto import AutoBackend
from belljar.backends.base import GuestSpec
from belljar.backends.docker import settings
from belljar.cli import sandbox_options
from belljar.compat import placement
from belljar.environment.environment import BUILTIN
from belljar.limits import Limits

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in ("BELLJAR_BACKEND", *settings.VARIABLES.values()):
        monkeypatch.delenv(name, raising=False)


def options(**given):
    return AsyncSandbox(**given)._options


# --- what may be given -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "image",
    [
        "python",
        "python:3.12-slim",
        "team/app:1.0",
        "localhost:5000/team/app",
        "127.0.0.1:5000/app:v1_x",
        "[::1]:5000/app",
        "a/b/c/d__e.f-g:T",
        f"python@{DIGEST}",
        f"team/app:1.0@{DIGEST}",
        DIGEST,
        "22b6b33d848d",
    ],
)
def test_names_of_images_are_taken(image):
    assert Docker(image=image).image == image
    assert Docker(base=image).base == image


@pytest.mark.parametrize(
    ("image", "hint"),
    [
        ("Python:3.12", "lower case: 'python:3.12'"),
        ("docker://python:3.12", "without a scheme: 'python:3.12'"),
        (" python", "white space"),
        ("python:", "docker run"),
        ("python:3.12:x", "docker run"),
        ("python@sha256:123", "docker run"),
        ("-it", "docker run"),
        ("", "docker run"),
        ("a" * 300, "docker run"),
        ("a--", "docker run"),
        ("python\n", "white space"),
        (f"python@{DIGEST[:-2]}", "64 digits, not 62"),
    ],
)
def test_what_is_no_name_of_an_image_is_an_error_with_a_hint(image, hint):
    with pytest.raises(InvalidOption) as caught:
        Docker(image=image)
    assert hint in str(caught.value)


def test_a_path_as_an_image_is_probably_a_dockerfile(tmp_path):
    with pytest.raises(InvalidOption, match="dockerfile="):
        Docker(image=str(tmp_path))


def test_a_dockerfile_is_a_file_or_the_directory_with_it(tmp_path, monkeypatch):
    with pytest.raises(InvalidOption, match="no Dockerfile in"):
        Docker(dockerfile=tmp_path)
    (tmp_path / "Dockerfile").write_text("FROM python\n")
    (tmp_path / "other").write_text("FROM python\n")
    assert Docker(dockerfile=tmp_path).dockerfile == tmp_path
    assert Docker(dockerfile=str(tmp_path / "other")).dockerfile == tmp_path / "other"
    monkeypatch.chdir(tmp_path)
    assert Docker(dockerfile=".").dockerfile == tmp_path  # also if somebody changes directory
    with pytest.raises(InvalidOption, match="does not exist"):
        Docker(dockerfile=tmp_path / "missing")


def test_an_image_and_a_dockerfile_exclude_each_other(tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM python\n")
    with pytest.raises(InvalidOption, match="exclude"):
        Docker(image="python", dockerfile=tmp_path)
    with pytest.raises(InvalidOption, match="exclude"):
        options(backend=Docker(image="python"), dockerfile=tmp_path)
    with pytest.raises(InvalidOption, match="base"):
        Docker(image="python", base="python")


def test_a_tag_is_for_what_a_dockerfile_becomes(tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM python\n")
    assert Docker(dockerfile=tmp_path, tag="team/app:1.0").tag == "team/app:1.0"
    with pytest.raises(InvalidOption, match="without dockerfile="):
        Docker(tag="team/app")
    with pytest.raises(InvalidOption, match="has a digest"):
        Docker(dockerfile=tmp_path, tag=f"app@sha256:{'0' * 64}")
    with pytest.raises(InvalidOption, match="lower case"):
        Docker(dockerfile=tmp_path, tag="App")


@pytest.mark.parametrize("name", ["runc", "runsc", "kata-runtime", "io.containerd.kata.v2"])
def test_runtimes(name):
    assert Docker(runtime=name).runtime == name


@pytest.mark.parametrize("name", ["host", "none", "bridge", "team_net.1", "container:0123abc"])
def test_networks_of_builds(name):
    assert Docker(build_network=name).build_network == name


@pytest.mark.parametrize("platform", ["linux/amd64", "linux/arm64", "linux/arm/v7", "linux/arm/7"])
def test_platforms(platform):
    assert Docker(platform=platform).platform == platform


@pytest.mark.parametrize(
    ("gpus", "kept"), [("all", "all"), (1, 1), ("2", 2), ("device=0,1", "device=0,1")]
)
def test_gpus(gpus, kept):
    assert Docker(gpus=gpus).gpus == kept


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ("/dev/fuse", ("/dev/fuse", "/dev/fuse", "rw")),
        ("/dev/fuse:/dev/f", ("/dev/fuse", "/dev/f", "rw")),
        ("/dev/fuse:/dev/f:r", ("/dev/fuse", "/dev/f", "r")),
        ("/dev/fuse:rwm", ("/dev/fuse", "/dev/fuse", "rwm")),
    ],
)
def test_devices(given, parts):
    assert Docker(devices=[given]).devices == (given,)
    assert settings.parse_device(given) == parts


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("image", 3),
        ("dockerfile", 3),
        ("dockerfile", ""),
        ("dockerfile", "a\0b"),
        ("runtime", "../runc"),
        ("runtime", ""),
        ("runtime", 1),
        ("platform", "arm64"),
        ("platform", "windows/amd64"),
        ("platform", 64),
        ("gpus", 0),
        ("gpus", -1),
        ("gpus", True),
        ("gpus", "some"),
        ("gpus", "device="),
        ("gpus", 1.5),
        ("devices", "/dev/fuse"),
        ("devices", ["fuse"]),
        ("devices", ["/dev/a:b"]),
        ("devices", ["/dev/a:/dev/b:x"]),
        ("devices", ["/dev/../etc"]),
        ("devices", [3]),
        ("devices", {"/dev/fuse"}),
        ("host", ""),
        ("host", 2375),
        ("base", "No"),
        ("ca_bundle", "/does/not/exist.pem"),
        ("build_network", ""),
        ("build_network", "my net"),
        ("build_network", "-x"),
        ("build_network", True),
        ("pull", "sometimes"),
        ("pull", None),
        ("noexec", 1),
        ("project", ""),
        ("project", "a\nb"),
        ("project", "x" * 200),
    ],
)
def test_bad_settings_are_errors_of_ours(name, value):
    with pytest.raises(InvalidOption):
        Docker(**{name: value})


def test_an_error_says_what_was_probably_meant():
    with pytest.raises(InvalidOption, match='did you mean "linux/arm64"'):
        Docker(platform="arm64")
    with pytest.raises(InvalidOption, match="did you mean 'always'"):
        Docker(pull="alway")


def test_settings_are_frozen_and_can_be_a_key():
    docker = Docker(devices=["/dev/fuse"], gpus="all")
    assert hash(docker) == hash(Docker(devices=("/dev/fuse",), gpus="all"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        docker.image = "python"
    assert docker.given == ("gpus", "devices")
    assert Docker().given == ()


# --- from the options of a sandbox -----------------------------------------------------------


def test_the_backend_is_a_name_or_settings():
    assert options().backend == "auto"
    assert options(backend="native").backend == "native"
    assert options(backend="docker").backend == "docker"
    given = Docker(image="python", noexec=True)
    assert options(backend=given).backend == "docker"
    assert options(backend=given).docker == given
    for bad in (3, None, Docker):
        with pytest.raises(InvalidOption, match="backend is a str or Docker"):
            options(backend=bad)
    with pytest.raises(InvalidOption, match="did you mean 'docker'"):
        options(backend="dokcer")


def test_flat_options_override_the_settings():
    given = Docker(image="python", runtime="runc", noexec=True)
    docker = options(backend=given, image="other", gpus="all").docker
    assert docker == Docker(image="other", runtime="runc", noexec=True, gpus="all")


@pytest.mark.parametrize(
    "flat",
    [
        {"image": "python"},
        {"runtime": "runsc"},
        {"platform": "linux/arm64"},
        {"gpus": 1},
        {"devices": ["/dev/fuse"]},
    ],
)
def test_who_asks_for_something_of_dockers_means_docker(flat, monkeypatch):
    monkeypatch.setenv("BELLJAR_BACKEND", "native")  # what is said here counts more
    assert options(**flat).backend == "docker"
    assert options(backend="docker", **flat).backend == "docker"
    with pytest.raises(InvalidOption, match=f"{next(iter(flat))} is an option of the docker"):
        options(backend="native", **flat)


def test_empty_devices_mean_nothing():
    assert options(devices=[]).backend == "auto"
    assert options(backend="native", devices=()).backend == "native"


def test_the_variable_says_what_auto_is(monkeypatch):
    monkeypatch.setenv("BELLJAR_BACKEND", "docker")
    assert options().backend == "docker"
    assert options(backend="native").backend == "native"
    monkeypatch.setenv("BELLJAR_BACKEND", "native")
    assert options().backend == "native"
    monkeypatch.setenv("BELLJAR_BACKEND", "auto")
    assert options().backend == "auto"
    monkeypatch.setenv("BELLJAR_BACKEND", "")
    assert options().backend == "auto"
    monkeypatch.setenv("BELLJAR_BACKEND", "dockr")
    assert options(backend="native").backend == "native"
    with pytest.raises(InvalidOption, match=r"BELLJAR_BACKEND='dockr'.*\n.*auto, native, docker"):
        options()


def test_variables_stand_for_what_nobody_gave(tmp_path, monkeypatch):
    bundle = tmp_path / "ca.pem"
    bundle.write_text("")
    monkeypatch.setenv("BELLJAR_DOCKER_RUNTIME", "runsc")
    monkeypatch.setenv("BELLJAR_DOCKER_BASE", "team/base:1")
    monkeypatch.setenv("BELLJAR_CA_BUNDLE", str(bundle))
    monkeypatch.setenv("BELLJAR_BUILD_NETWORK", "host")
    docker = options(backend="docker").docker
    assert (docker.runtime, docker.base, docker.ca_bundle) == ("runsc", "team/base:1", bundle)
    assert docker.build_network == "host"
    own = Docker(build_network="none")
    assert options(backend=own).docker.build_network == "none"
    assert options(image="python").docker.build_network == "host"  # a Dockerfile is built, too
    assert options(backend="docker", runtime="runc").docker.runtime == "runc"
    assert options(image="python").docker.base is None
    assert options(backend="native").docker == Docker()
    assert options().backend == "auto"  # a variable alone is no word for docker
    monkeypatch.setenv("BELLJAR_DOCKER_RUNTIME", "no such")
    with pytest.raises(InvalidOption, match="BELLJAR_DOCKER_RUNTIME: runtime='no such'"):
        options(backend="docker")
    assert options().backend == "auto"  # it may never be read


def test_an_image_of_ones_own_brings_its_packages():
    for environment in ("data", "python", Environment("own", preload=["json"])):
        assert options(image="python", environment=environment).docker.image == "python"
    for given in ({"packages": ["numpy"]}, {"python": "3.12"}):
        with pytest.raises(InvalidOption, match=r"base=\.\.\."):
            options(image="python", environment=Environment("own", **given))
    docker = Docker(base="python")
    own = Environment("own", packages=["numpy"])
    assert options(backend=docker, environment=own).environment == own


def test_a_fork_has_the_settings_of_its_original():
    from belljar.sandbox import options as module

    given = options(image="python", gpus=1)
    assert module.make_fork_options(given).docker == given.docker


def test_a_sandbox_asks_its_backend_with_them(monkeypatch):
    asked = []

    class Backend:
        name = "docker"

        async def start(self, spec):
            asked.append(spec)
            raise StartError("not here")

    monkeypatch.setattr(runtime.Runtime, "backend", lambda self, name: Backend())
    with pytest.raises(StartError):
        Sandbox.create(image="python", environment="python", gpus=2)
    assert asked[0].settings == Docker(image="python", gpus=2)


def test_a_package_that_is_missing_is_said_with_the_remedy():
    program = """
        import sys
        sys.modules["h11"] = None  # as if it were not installed
        import belljar
        try:
            belljar.Sandbox(backend="docker")
        except belljar.BackendUnavailable as error:
            print(error)
        belljar.Sandbox(backend="native")
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "h11" in done.stdout
    assert "pip install h11" in done.stdout


# --- auto ------------------------------------------------------------------------------------


class Fake:
    """A backend that fails as it is told, and remembers what it was asked."""

    def __init__(self, name, error=None):
        self.name = name
        self.error = error
        self.asked = []

    async def start(self, spec):
        self.asked.append(spec)
        if self.error is not None:
            raise self.error
        return f"a guest of {self.name}"


def auto(native=None, docker=None):
    backends = {"native": Fake("native", native), "docker": Fake("docker", docker)}
    return AutoBackend(backends.__getitem__), backends["native"], backends["docker"]


def start(backend):
    spec = GuestSpec(id="bj-1", environment=BUILTIN["python"], limits=Limits())
    return asyncio.run(backend.start(spec))


NO_NATIVE = BackendUnavailable("no user namespaces", hint="allow them")
NO_DOCKER = BackendUnavailable("no engine", hint="start one")


def test_auto_is_native_where_the_host_allows_it():
    backend, _, docker = auto()
    assert start(backend) == "a guest of native"
    assert docker.asked == []


def test_auto_is_docker_where_native_is_impossible_and_remembers():
    backend, native, docker = auto(native=NO_NATIVE)
    assert start(backend) == start(backend) == "a guest of docker"
    assert len(native.asked) == 1
    assert len(docker.asked) == 2


def test_auto_says_what_to_do_for_both():
    backend, native, docker = auto(native=NO_NATIVE, docker=NO_DOCKER)
    with pytest.raises(BackendUnavailable) as caught:
        start(backend)
    for words in ("no user namespaces", "allow them", "no engine", "start one"):
        assert words in str(caught.value)
    docker.error = None  # started meanwhile
    assert start(backend) == "a guest of docker"
    native.error = None
    assert start(backend) == "a guest of docker"


def test_auto_does_not_leave_a_host_that_has_held_native_guests():
    backend, native, docker = auto()
    start(backend)
    native.error = NO_NATIVE
    with pytest.raises(BackendUnavailable, match="no user namespaces"):
        start(backend)
    assert docker.asked == []


@pytest.mark.parametrize(
    "error", [LimitNotEnforceable("memory"), StartError("preload"), InvalidOption("too large")]
)
def test_auto_goes_elsewhere_for_no_other_reason(error):
    backend, _, docker = auto(native=error)
    with pytest.raises(type(error)):
        start(backend)
    assert docker.asked == []


def test_a_limit_docker_cannot_keep_is_that_error_alone():
    backend, _, _ = auto(native=NO_NATIVE, docker=LimitNotEnforceable("this engine cannot"))
    with pytest.raises(LimitNotEnforceable, match="this engine cannot"):
        start(backend)


def test_auto_reads_the_variables_when_it_comes_to_docker(monkeypatch):
    monkeypatch.setenv("BELLJAR_DOCKER_RUNTIME", "runsc")
    backend, native, docker = auto(native=NO_NATIVE)
    start(backend)
    assert native.asked[0].settings is None
    assert docker.asked[0].settings.runtime == "runsc"


# --- the command -----------------------------------------------------------------------------


def parsed(*words):
    parser = argparse.ArgumentParser()
    sandbox_options.add_record(parser)
    sandbox_options.add_files(parser)
    sandbox_options.add_all(parser)
    return sandbox_options.make(parser.parse_args(words))._sandbox._options


def test_the_command_has_the_same_options(tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM python\n")
    assert parsed().backend == "auto"
    assert parsed("--backend", "docker").backend == "docker"
    given = parsed(
        *("--image", "python", "--runtime", "runsc", "--platform", "linux/arm64"),
        *("--gpus", "2", "--device", "/dev/a", "--device", "/dev/b:/dev/c"),
    )
    assert given.backend == "docker"
    assert given.docker == Docker(
        image="python",
        runtime="runsc",
        platform="linux/arm64",
        gpus=2,
        devices=("/dev/a", "/dev/b:/dev/c"),
    )
    assert parsed("--dockerfile", os.fspath(tmp_path)).docker.dockerfile == tmp_path
    with pytest.raises(InvalidOption):
        parsed("--backend", "native", "--image", "python")


# --- what is imported in advance -------------------------------------------------------------


@pytest.mark.parametrize("own", ["image", "dockerfile"])
def test_nothing_is_imported_in_advance_in_an_image_unless_asked_for(own, tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM python")
    given = {own: "python" if own == "image" else str(tmp_path)}
    configured = config.load(None, {f"BELLJAR_DOCKER_{own.upper()}": given[own]}, project=False)
    for made in (
        options(**given),
        options(backend=Docker(**given)),
        options(**configured.sandbox_options()),
        parsed(f"--{own}", given[own]),
        AsyncPool(**given)._kinds.default,
        AsyncPool()._kinds.options(given),
        options(**adapted(None, default_image="theirs", **{"image": None} | given)),
        options(**adapted(Docker(**given), image="theirs", default_image="theirs")),
    ):
        assert made.docker.own
        assert (made.environment.preload, made.environment.warmup) == ((), "")
    asked = Environment("own", preload=["json"])
    for environment, wanted in (("data", BUILTIN["data"]), (asked, asked)):
        assert options(**given, environment=environment).environment == wanted
    assert options().environment == BUILTIN["data"]


def adapted(backend, **given):
    """What an adapter of another system's gives to Sandbox."""
    return asyncio.run(placement.place(backend, prefer_local=False, **given))
