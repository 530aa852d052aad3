"""`belljar config`: what is shown, what is said of mistakes, and the reference."""

import json

import pytest

from belljar.cli import main


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return tmp_path / "belljar.toml"


def test_show_tells_every_value_and_where_it_came_from(project, capsys, monkeypatch):
    project.write_text("[limits]\nmemory = '64m'\n[env]\nTOKEN = 'hunter2'\n")
    monkeypatch.setenv("BELLJAR_LIMITS_CPUS", "2")
    assert main(["config", "show"]) == 0
    rows = {
        words[0]: words[1:]
        for line in capsys.readouterr().out.splitlines()
        if (words := line.split())
    }
    assert rows["limits.memory"] == ["64m", f"{project}:2"]
    assert rows["limits.cpus"] == ["2", "variable", "BELLJAR_LIMITS_CPUS"]
    assert rows["limits.tmp"] == ["100m", "default"]
    assert rows["env"][0] == "TOKEN=(hidden)"


def test_show_as_json_and_only_what_was_changed(project, capsys, tmp_path):
    other = tmp_path / "other.toml"
    other.write_text("environment = 'python'\n[env]\nTOKEN = 'hunter2'\n")
    assert main(["config", "show", "--json", "--changed", "--config", str(other)]) == 0
    out = capsys.readouterr().out
    assert "hunter2" not in out
    shown = json.loads(out)
    assert shown["environment"] == {
        "value": "python",
        "from": f"{other}:1",
        "default": "data",
        "variable": "BELLJAR_ENVIRONMENT",
        "meaning": "the Python and the packages of the code",
    }
    assert main(["config", "show", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) > 40


def test_check_says_yes_or_everything_that_is_wrong(project, capsys, tmp_path):
    project.write_text("[limits]\nmemory = '64m'\n")
    assert main(["config", "check"]) == 0
    assert "the configuration is valid" in capsys.readouterr().err
    project.write_text("[limits]\nmemmory = '64m'\ncpus = 'many'\n")
    assert main(["config", "check"]) == 2
    said = capsys.readouterr().err
    assert f"{project}:2: limits.memmory: unknown key" in said
    assert f"{project}:3: limits.cpus: " in said
    fine = tmp_path / "fine.toml"
    fine.write_text("network = 'none'")
    assert main(["config", "check", str(fine)]) == 0  # that one alone
