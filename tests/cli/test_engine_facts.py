"""What `belljar doctor` says about a container engine, its runtimes, and their absence."""

import json
import os
import subprocess
import sys

import pytest

import census
import docker_census
from belljar.backends.docker.client.endpoint import Endpoint
from belljar.cli import host_facts
from belljar.errors import SandboxError
from fake_engine import FakeEngine, answer

INFO = {
    "Runtimes": {"runsc": {}, "io.containerd.runc.v2": {}, "runc": {}},
    "DefaultRuntime": "runc",
    "SecurityOptions": ["name=seccomp,profile=default"],
    "CgroupVersion": "2",
    "CgroupDriver": "systemd",
    "MemoryLimit": True,
    "SwapLimit": True,
    "PidsLimit": True,
    "CpuCfsQuota": True,
    "OperatingSystem": "Debian",
    "Architecture": "x86_64",
}
VERSION = {"Version": "28.0.1", "ApiVersion": "1.48", "Components": [{"Name": "Engine"}]}


class Somewhere:
    endpoint = Endpoint(kind="unix", address="/run/docker.sock", source="DOCKER_HOST")


def facts(**info):
    found = host_facts.list_engine_facts(Somewhere(), INFO | info, VERSION)
    return {fact.name: fact for fact in found}


def test_an_engine_that_can_do_everything_has_no_remedy():
    found = facts()
    assert {fact.state for fact in found.values()} == {"ok"}
    assert not any(fact.remedy for fact in found.values())
    assert found["address"].detail == "unix:///run/docker.sock (DOCKER_HOST)"
    assert "Docker Engine 28.0.1, API 1.48" in found["version"].detail
    assert found["cgroups"].detail == "version 2, driver systemd"


@pytest.mark.parametrize(
    ("info", "name"),
    [
        ({"SwapLimit": False}, "swap accounting"),
        ({"MemoryLimit": False}, "memory limit"),
        ({"PidsLimit": False}, "process limit"),
        ({"CpuCfsQuota": False}, "cpu limit"),
        ({"CgroupDriver": "none"}, "cgroups"),
        ({"SecurityOptions": []}, "seccomp"),
        ({"SecurityOptions": None}, "seccomp"),
    ],
)
def test_what_the_engine_cannot_do_comes_with_a_remedy(info, name):
    found = facts(**info)
    assert {n for n, fact in found.items() if fact.state == "no"} == {name}
    assert found[name].remedy


def test_rootless_engines_and_user_namespaces_are_told_of():
    assert "rootless" in facts(SecurityOptions=["name=seccomp", "name=rootless"])["user"].detail
    assert "user namespaces: root in" in facts(SecurityOptions=["name=userns"])["user"].detail


def test_runtimes_start_with_the_default_and_leave_out_other_names_of_runc():
    assert host_facts.list_runtimes(INFO) == ("runc", "runsc")
    assert host_facts.list_runtimes(INFO | {"DefaultRuntime": "runsc"}) == ("runsc", "runc")
    assert host_facts.list_runtimes({}) == ()
    podman = {"BuildahVersion": "1.28", "Runtimes": {"crun": {}, "kata": {}}}
    assert host_facts.list_runtimes(podman | {"DefaultRuntime": "crun"}) == ("crun",)


def runc_of(*components):
    version = VERSION | {"Components": [{"Name": "Engine"}, *components]}
    found = host_facts.list_engine_facts(Somewhere(), INFO, version)
    return [fact for fact in found if fact.name == "runc"]


@pytest.mark.parametrize(
    ("said", "older_than"),
    [
        ("1.1.5+ds1", "1.2.8"),
        ("1.2.7", "1.2.8"),
        ("1.3.2", "1.3.3"),
        ("runc version 1.0.0-rc93", "1.2.8"),
        ("1.2.8", None),
        ("1.3.3", None),
        ("1.4.0", None),
        ("2.0.0", None),
    ],
)
def test_a_runc_that_trusts_the_links_of_images_is_told_of(said, older_than):
    for name in ("runc", "OCI Runtime (runc)"):
        (fact,) = runc_of({"Name": name, "Version": said})
        assert fact.state == ("no" if older_than else "ok")
        if older_than:
            assert f"older than {older_than}," in fact.detail
            assert "runsc" in fact.remedy


def test_of_a_runtime_that_is_not_known_nothing_is_said():
    assert runc_of({"Name": "runc"}, {"Name": "runc", "Version": "unknown"}, {}) == []
    assert runc_of({"Name": "OCI Runtime (crun)", "Version": "crun version 1.8.1"}) == []


@pytest.mark.parametrize("said", [b"[]", b"7", b'"x"', b"null", b'{"Components": 5}'])
def test_what_is_no_engine_is_an_error_of_ours(short_directory, monkeypatch, said):
    path = f"{short_directory}/e"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    with FakeEngine(path, answer(said)), pytest.raises(SandboxError):
        host_facts.find_engine()


# --- on a real engine ------------------------------------------------------------------------


def doctor(*args, **environ):
    return subprocess.run(
        [sys.executable, "-m", "belljar", "doctor", *args],
        capture_output=True,
        text=True,
        env=os.environ | environ,
        timeout=100,
    )


@pytest.mark.docker
def test_doctor_measures_a_guest_on_each_runtime_of_the_engine():
    command = [sys.executable, "-m", "belljar", "doctor", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        report = json.loads(process.communicate(timeout=100)[0])["docker"]
    assert report["problem"] is None
    assert {fact["name"] for fact in report["engine"]} >= {"address", "version", "cgroups"}
    known = docker_census.ask("GET", "/info")
    measured = {each["runtime"]: each for each in report["runtimes"]}
    assert set(measured) == set(host_facts.list_runtimes(known))
    assert [name for name, each in measured.items() if each["default"]] == [known["DefaultRuntime"]]
    for each in measured.values():
        assert each["problem"] is None, each
        assert 0 < each["round_trip"] < each["first_result"]
        assert each["isolation"]["backend"] == "docker"
    # Those of others, such as of tests of another setting, come and go meanwhile.
    census.wait_until(lambda: not containers_of(process.pid), what="their end")


def containers_of(pid):
    labels = [each["Labels"] or {} for each in docker_census.containers()]
    return [each for each in labels if each.get("belljar.owner.pid") == str(pid)]


@pytest.mark.docker
def test_doctor_shows_the_engine_and_its_runtimes():
    shown = doctor().stdout
    assert "container engine\n" in shown
    assert "runc (default)" in shown
    assert "a live guest of the native backend" in shown


@pytest.mark.docker
def test_a_runtime_that_cannot_start_is_told_of_and_the_others_are_measured():
    report = json.loads(doctor("--json", BELLJAR_DOCKER_BASE="belljar-test/never-made:1").stdout)
    for each in report["docker"]["runtimes"]:
        assert "belljar-test/never-made:1" in each["problem"]
        assert each["hint"]


@pytest.mark.docker
def test_without_an_engine_doctor_says_so_in_a_line_and_its_verdict_is_the_same():
    nowhere = "unix:///nowhere/docker.sock"
    done = doctor(DOCKER_HOST=nowhere)
    assert [line for line in done.stdout.splitlines() if nowhere in line]
    told = doctor("--json", DOCKER_HOST=nowhere)
    assert nowhere in json.loads(told.stdout)["docker"]["problem"]["message"]
    assert done.returncode == told.returncode == doctor("--json").returncode
