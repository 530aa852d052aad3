"""Every option of DockerConfig has an effect, or is an error that says what to do."""

import dataclasses
import json
import re
import shutil
from importlib import resources

import pytest

from belljar import InvalidOption
from belljar.compat.executor import translate
from belljar.compat.executor.docker_config import DockerConfig
from belljar.compat.executor.docker_executor import DockerExecutor
from project import DOCS

PLACED = {
    "native": {"backend": "native", "environment": "data"},
    "docker": {"backend": "docker", "environment": "data"},
}
# Those that a sandbox does not show: what the executor does by them is tested in
# test_compat_executor.py, by the test named here.
ELSEWHERE = {
    "enabled": "test_a_disabled_executor_refuses",
    "image": "test_an_image_that_is_not_there_is_named_with_the_remedy",
    "timeout_seconds": "test_the_plan_has_the_limits",
    "output_dir": "test_files_of_the_code_are_saved_below_output_dir",
    "cleanup_on_exit": "test_a_sandbox_is_kept_when_cleanup_on_exit_is_false",
    "fallback_to_direct": "test_the_fallback_is_loud_and_in_a_process_of_its_own",
    "export_container_stats": "test_metrics_are_served_on_the_port",
    "alert_on_orphaned_containers": "test_more_orphans_than_the_threshold_are_a_warning",
    "prometheus_port": "test_metrics_are_served_on_the_port",
    "runtime_monitor_enabled": "test_the_runtime_monitor_ends_code_and_the_error_says_so",
}
# A value that is not the default, and what it changes: ("native" or "docker") → option or error.
CHANGES = {
    "memory_limit": ("64m", {"native": "limits", "docker": "limits"}),
    "cpu_limit": (2.0, {"native": "limits", "docker": "limits"}),
    "tmpfs_size": ("16m", {"native": "limits", "docker": "limits"}),
    "memory_swap_limit": ("4g", {"native": "has no swap", "docker": "has no swap"}),
    "network_mode": ("bridge", {"native": "needs docker", "docker": "network"}),
    "read_only": (False, {"native": "always read-only", "docker": "always read-only"}),
    "tmpfs_path": ("/scratch", {"native": "is /tmp", "docker": "is /tmp"}),
    "tmpfs_options": ("rw,nosuid", {"native": "noexec", "docker": "noexec"}),
    "seccomp_profile": ("missing.json", {"native": "not found", "docker": "not found"}),
}
FIELDS = [field.name for field in dataclasses.fields(DockerConfig)]


def made(backend, **changes):
    return translate.make(DockerConfig(**changes), PLACED[backend], 5)[0]


@pytest.mark.parametrize("name", FIELDS)
def test_every_option_is_accounted_for(name):
    assert (name in ELSEWHERE) != (name in CHANGES)
    if name in ELSEWHERE:
        import test_compat_executor
        import test_compat_executor_monitor

        tests = {**vars(test_compat_executor), **vars(test_compat_executor_monitor), **globals()}
        assert ELSEWHERE[name] in tests


def test_the_guide_says_what_each_option_does():
    guide = DOCS / "compat" / "strategy-executor.md"
    _, _, table = guide.read_text().partition("| option | what it does |\n|---|---|\n")
    rows = re.findall(r"\| `(\w+)` \| [^|]+ \|\n", table.partition("\n\n")[0] + "\n")
    assert rows == FIELDS


@pytest.mark.parametrize("backend", PLACED)
@pytest.mark.parametrize("name", CHANGES)
def test_an_option_changes_the_sandbox_or_is_an_error(name, backend):
    value, effects = CHANGES[name]
    effect = effects[backend]
    plain = made(backend)
    if effect in plain:
        changed = made(backend, **{name: value})
        # What somebody chose must be enforced; the defaults are best effort where they cannot be.
        strict = {"strict"} if name in ("memory_limit", "cpu_limit") else set()
        assert {key for key in plain if plain[key] != changed[key]} == {effect} | strict
    else:
        with pytest.raises(InvalidOption, match=effect):
            made(backend, **{name: value})


def test_the_plan_has_the_limits():
    limits = translate.make(DockerConfig(), PLACED["native"], 7)[0]["limits"]
    assert (limits.memory, limits.cpus, limits.tmp, limits.timeout) == (2**31, 0.5, 2**30, 7)
    assert {"memory", "cpus", "tmp", "timeout"} <= limits.explicit


def test_the_host_network_is_refused_on_docker_as_well():
    for backend in PLACED:
        with pytest.raises(InvalidOption, match="every service of this machine"):
            made(backend, network_mode="host")


@pytest.mark.parametrize("options", ["ro", "rw,size=5m", "rw,exec,noexec"])
def test_tmpfs_options_that_cannot_be_kept_are_errors(options):
    with pytest.raises(InvalidOption, match="tmpfs_options"):
        made("docker", tmpfs_options=options)


def test_noexec_holds_unless_left_out():
    for backend in PLACED:
        assert made(backend)["noexec"] is True
        assert made(backend, tmpfs_options="rw,nosuid")["noexec"] is False


def test_too_little_memory_for_python_is_said():
    with pytest.raises(InvalidOption, match="too little for Python"):
        made("native", memory_limit="1m")


def test_the_seccomp_profile_is_ours_unless_a_file_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert made("docker")["backend"].seccomp is None  # the default path, where nothing is
    assert made("docker", seccomp_profile="")["backend"].seccomp is None
    profile = tmp_path / "mine.json"
    profile.write_text(json.dumps({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": []}))
    assert made("docker", seccomp_profile=str(profile))["backend"].seccomp == profile


def test_natively_a_profile_of_the_projects_own_is_a_note_that_says_which_one_holds(tmp_path):
    profile = tmp_path / "mine.json"
    profile.write_text(json.dumps({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": []}))
    config = DockerConfig(seccomp_profile=str(profile))
    _, note = translate.make(config, PLACED["native"], 5)
    assert str(profile) in note
    assert "it uses Belljar's own profile" in note
    assert translate.make(config, PLACED["docker"], 5)[1] is None


def test_a_profile_that_others_can_write_and_nobody_named_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    profile = tmp_path / "config" / "seccomp_profile.json"
    profile.parent.mkdir()
    profile.write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW"}))
    profile.chmod(0o666)
    with pytest.raises(InvalidOption, match="another user owns"):
        made("docker")
    made("native")  # there it is not used
    named = "./config/seccomp_profile.json"
    assert made("docker", seccomp_profile=named)["backend"].seccomp == profile
    profile.chmod(0o644)
    assert made("docker")["backend"].seccomp == profile


def test_our_own_profile_as_a_file_is_fine_natively(tmp_path):
    own = resources.files("belljar.backends.linux").joinpath("seccomp.json")
    with resources.as_file(own) as path:
        shutil.copy(path, tmp_path / "copy.json")
    copy = DockerConfig(seccomp_profile=str(tmp_path / "copy.json"))
    assert translate.make(copy, PLACED["native"], 5)[1] is None


def test_a_profile_that_is_no_profile_is_an_error(tmp_path):
    (tmp_path / "bad.json").write_text("{")
    for backend in PLACED:
        with pytest.raises(InvalidOption, match="cannot be read"):
            made(backend, seccomp_profile=str(tmp_path / "bad.json"))


def test_an_option_that_cannot_be_kept_is_told_in_the_result(backend, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = DockerConfig(network_mode="host", export_container_stats=False)
    with DockerExecutor(config, backend=backend.partition("-")[0]) as executor:
        result = executor.execute("signal = 1")
    assert result["error"].startswith("Invalid configuration: network_mode='host'")
    assert (result["success"], result["container_id"]) == (False, None)
