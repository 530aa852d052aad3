"""DockerConfig: defaults, ranges, the YAML file of the document. No guest is started."""

import copy
import dataclasses
import logging
import os
import pickle
import re

import pytest

from belljar.compat.executor.docker_config import DockerConfig
from belljar.compat.executor.docker_executor import DockerExecutor
from project import DOCS

DOCUMENT = """\
docker:
  enabled: true
  image: python:3.10-slim
  memory_limit: 2g
  cpu_limit: 0.5
  timeout_seconds: 600
  network_mode: none
  read_only: true
  tmpfs:
    path: /tmp
    size: 1g
    options: rw,noexec,nosuid
  seccomp_profile: config/seccomp_profile.json
  cleanup_on_exit: true
  fallback_to_direct: false

monitoring:
  export_container_stats: true
  alert_on_orphaned_containers: 3
  prometheus_port: 8000
"""


@pytest.fixture
def load(tmp_path):
    def load(text):
        path = tmp_path / "docker_config.yaml"
        path.write_text(text)
        return DockerConfig.from_yaml(str(path))

    return load


def test_defaults_are_those_of_the_document():
    assert dataclasses.asdict(DockerConfig()) == {
        "enabled": True,
        "image": "python:3.10-slim",
        "memory_limit": "2g",
        "memory_swap_limit": "2g",
        "cpu_limit": 0.5,
        "timeout_seconds": 600,
        "network_mode": "none",
        "read_only": True,
        "tmpfs_path": "/tmp",
        "tmpfs_size": "1g",
        "tmpfs_options": "rw,noexec,nosuid",
        "seccomp_profile": "config/seccomp_profile.json",
        "output_dir": "sandbox_output",
        "cleanup_on_exit": True,
        "fallback_to_direct": False,
        "export_container_stats": True,
        "alert_on_orphaned_containers": 3,
        "prometheus_port": 8000,
        "runtime_monitor_enabled": True,
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"memory_limit": "abc"}, "Invalid memory_limit format"),
        ({"memory_limit": "123"}, "Invalid memory_limit format"),
        ({"memory_limit": "-1g"}, "Invalid memory_limit format"),
        ({"memory_limit": "2.5.3m"}, "Invalid memory_limit format"),
        ({"memory_limit": "1g\n"}, "Invalid memory_limit format"),
        ({"memory_limit": 123}, "memory_limit must be string"),
        ({"memory_limit": "512k"}, "memory_limit too small"),
        ({"memory_limit": "128g"}, "memory_limit too large"),
        ({"memory_swap_limit": "x"}, "Invalid memory_swap_limit format"),
        ({"tmpfs_size": "invalid"}, "Invalid tmpfs_size format"),
        ({"cpu_limit": "0.5"}, "cpu_limit must be numeric"),
        ({"cpu_limit": 0}, "cpu_limit must be positive"),
        ({"cpu_limit": float("nan")}, "cpu_limit must be positive"),
        ({"cpu_limit": 128}, "cpu_limit too high"),
        ({"timeout_seconds": 60.5}, "timeout_seconds must be integer"),
        ({"timeout_seconds": True}, "timeout_seconds must be integer"),
        ({"timeout_seconds": 0}, "timeout_seconds must be positive"),
        ({"timeout_seconds": 7200}, "timeout_seconds too high"),
        ({"network_mode": "invalid"}, "Invalid network_mode"),
        ({"alert_on_orphaned_containers": 3.5}, "must be integer"),
        ({"alert_on_orphaned_containers": -1}, "must be non-negative"),
        ({"prometheus_port": "8000"}, "must be integer"),
        ({"prometheus_port": 80}, "must be in range"),
        ({"prometheus_port": 70000}, "must be in range"),
        ({"enabled": "yes"}, "enabled must be True or False"),
        ({"image": None}, "image must be string"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(given, said):
    with pytest.raises(ValueError, match=said):
        DockerConfig(**given)


@pytest.mark.parametrize("limit", ["512m", "1g", "2G", "4096m", "1024k", "0.5g"])
def test_sizes_are_kept_as_written(limit):
    assert DockerConfig(memory_limit=limit).memory_limit == limit


def test_an_assignment_is_checked_too():
    config = DockerConfig()
    with pytest.raises(ValueError, match="timeout_seconds too high"):
        config.timeout_seconds = 7200
    assert config.timeout_seconds == 600


def test_a_swap_limit_nobody_chose_follows_the_memory():
    config = DockerConfig(memory_limit="4g")
    config.memory_limit = "100m"
    assert config.memory_swap_limit == "100m"
    chosen = DockerConfig(memory_limit="1g", memory_swap_limit="2g")
    chosen.memory_limit = "512m"
    assert chosen.memory_swap_limit == "2g"


def test_the_documents_yaml_is_read(load):
    assert load(DOCUMENT) == DockerConfig()


def test_the_guide_has_the_whole_layout(load, monkeypatch):
    monkeypatch.delenv("STRATEGY_SECONDS", raising=False)
    guide = DOCS / "compat" / "strategy-executor.md"
    block = re.search(r"^```yaml\n(.*?)^```$", guide.read_text(), re.MULTILINE | re.DOTALL)[1]
    assert load(block) == DockerConfig()
    for name in dataclasses.asdict(DockerConfig()):
        assert f" {name.removeprefix('tmpfs_')}:" in block


def test_a_misspelt_option_is_named_with_the_nearest():
    with pytest.raises(TypeError, match="'memory_limt'; did you mean 'memory_limit'"):
        DockerConfig(memory_limt="1g")
    with pytest.raises(AttributeError, match="'cpu_limt'; did you mean 'cpu_limit'"):
        DockerConfig().cpu_limt = 1


def test_a_configuration_can_be_copied_and_pickled():
    config = DockerConfig(memory_limit="1g")
    assert copy.deepcopy(config) == config == pickle.loads(pickle.dumps(config))
    assert dataclasses.replace(config, cpu_limit=1).memory_limit == "1g"


def test_a_file_that_is_named_and_missing_is_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"nosuch\.yaml\n  hint: "):
        DockerConfig.from_yaml("nosuch.yaml")


def test_the_default_path_is_looked_for_below_the_working_directory(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.INFO, logger="belljar"):
        assert DockerConfig.from_yaml() == DockerConfig()
    assert "there is no config/docker_config.yaml" in caplog.text
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "docker_config.yaml").write_text("docker: {cpu_limit: 1.0}")
    assert DockerConfig.from_yaml().cpu_limit == 1.0


def test_to_dict_can_be_written_and_read_again(load):
    import yaml

    config = DockerConfig(memory_limit="4g", cpu_limit=1.0, prometheus_port=9090, tmpfs_size="1m")
    assert load(yaml.safe_dump(config.to_dict())) == config


@pytest.mark.parametrize("text", ["", "docker:\n", "monitoring: {}\n"])
def test_an_empty_file_means_the_defaults(load, text):
    assert load(text) == DockerConfig()


def test_variables_are_replaced(load, monkeypatch):
    monkeypatch.setenv("REGISTRY", "registry.example")
    monkeypatch.setenv("VERSION", "3.10")
    monkeypatch.setenv("SECONDS", "30")
    monkeypatch.delenv("NOT_THERE", raising=False)
    config = load(
        "docker:\n  image: ${REGISTRY}/python:${VERSION}\n  timeout_seconds: ${SECONDS}\n"
        "  seccomp_profile: ${NOT_THERE:}\n  read_only: ${NOT_THERE:true}\n"
        "  memory_limit: ${NOT_THERE:1g}\n  tmpfs: {size: '${NOT_THERE:64m}'}\n"
    )
    assert config.image == "registry.example/python:3.10"
    assert config.timeout_seconds == 30
    assert config.seccomp_profile == ""
    assert config.read_only is True
    assert (config.memory_limit, config.tmpfs_size) == ("1g", "64m")


def test_a_variable_that_is_not_set_is_an_error(load, monkeypatch):
    monkeypatch.delenv("NOT_THERE", raising=False)
    with pytest.raises(ValueError, match="NOT_THERE"):
        load("docker: {image: '${NOT_THERE}'}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("docker: {memry_limit: 1g}", "'memry_limit'[^']*'memory_limit'"),
        ("docker: {tmpfs: {siz: 1g}}", "'siz'[^']*'size'"),
        ("monitoring: {prometheus_prt: 8000}", "'prometheus_prt'[^']*'prometheus_port'"),
        ("dcker: {}", "'dcker'[^']*'docker'"),
        (
            "docker: {prometheus_port: 1}",
            "'prometheus_port' does not belong in docker.*monitoring:",
        ),
        ("monitoring: {image: x}", "'image' does not belong in monitoring.*docker:"),
        ("docker: {size: 1g}", r"'size' does not belong in docker.*docker\.tmpfs:"),
        ("enabled: true", "'enabled' does not belong in the file.*docker:"),
        ("docker: 3", "docker must be a mapping"),
        ("docker: {cpu_limit: -1}", "must be positive"),
        ("docker:\n  enabled: true\n  invalid yaml here\n  more: [\n", "Failed to parse YAML"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_the_nearest_key(load, text, said):
    with pytest.raises(ValueError, match=f"(?s){said}") as caught:
        load(text)
    assert "docker_config.yaml" in str(caught.value)


def test_a_bomb_of_aliases_is_refused_unread(load):
    layers = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    with pytest.raises(ValueError, match=r"config\.yaml:2: aliases \(\*a0\) are not allowed"):
        load("\n".join(["a0: &a0 [x, x, x]", *layers]))


@pytest.mark.parametrize("text", ["docker: " + "[" * 5000, "docker: " + "{a: " * 100])
def test_deep_nesting_is_an_error_like_any_other(load, text):
    with pytest.raises(ValueError, match=r"docker_config\.yaml:1: is nested too deeply"):
        load(text)


def test_a_file_without_end_is_not_read_to_it(load):
    with pytest.raises(ValueError, match=r"docker_config\.yaml has more than \d+ bytes"):
        load("#" * (2**20 + 1))


def test_a_key_that_is_there_twice_is_an_error(load):
    with pytest.raises(ValueError, match="'cpu_limit' is there twice"):
        load("docker:\n  cpu_limit: 1.0\n  cpu_limit: 2.0\n")


@pytest.mark.root_only
@pytest.mark.parametrize("whose", ["config", "config/docker_config.yaml", "."])
def test_a_file_of_another_user_that_nobody_named_is_refused(tmp_path, monkeypatch, whose):
    """It could turn the sandbox off: fallback_to_direct."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "docker_config.yaml").write_text("docker: {enabled: false}")
    os.chown(tmp_path / whose, 12345, 12345)
    with pytest.raises(ValueError, match="or may write to it\n  hint: if you trust it, name it"):
        DockerConfig.from_yaml()
    with pytest.raises(ValueError, match="another user owns"):
        DockerExecutor()
    assert DockerConfig.from_yaml("config/docker_config.yaml").enabled is False


def test_a_file_that_others_can_write_and_nobody_named_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").mkdir()
    file = tmp_path / "config" / "docker_config.yaml"
    file.write_text("docker: {cpu_limit: 1}")
    file.chmod(0o666)
    with pytest.raises(ValueError, match="another user owns"):
        DockerConfig.from_yaml()
    file.chmod(0o644)
    assert DockerConfig.from_yaml().cpu_limit == 1
