"""`belljar check` and `belljar learn`."""

import json

import pytest

import setting
from belljar.cli import main
from belljar.policy import Policy


@pytest.fixture
def said(capsys):
    """Runs the command; gives its exit code, stdout and stderr."""

    def run(*words):
        code = main([*map(str, words)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_check_ends_with_0_1_or_2(said, tmp_path):
    (tmp_path / "good.py").write_text("import math\nprint(math.pi)\n")
    (tmp_path / "bad.py").write_text("import subprocess\n")
    assert said("check", tmp_path / "good.py")[0] == 0
    assert said("check", tmp_path / "good.py", tmp_path / "bad.py")[0] == 1
    assert said("check", tmp_path)[0] == 1
    assert said("check", tmp_path / "none.py")[0] == 2
    assert said("check")[0] == 2
    assert said("check", "-c", "1", "--policy", "stritc")[0] == 2
    assert said("check", "-c", "1", "--policy", tmp_path / "none.toml")[0] == 2


def test_the_range_is_marked_under_the_line(said):
    _, out, _ = said("check", "-c", "é = 1\ny = é + eval('1')", "--policy", "strict")
    assert out.startswith("error[BJ201 eval-exec]: eval runs code made from a string\n")
    assert " --> <code>:2:9\n" in out
    assert "2 | y = é + eval('1')\n  |         ^^^^\n" in out
    assert out.endswith("<code>: deny: 1 error (strict@1.0)\n")


def test_what_is_shown_cannot_drive_the_terminal(said):
    _, out, _ = said("check", "-c", "open('\x1b]0;owned\x07')", "--policy", "data-science")
    assert "\x1b" not in out


def test_standard_input_is_a_file_too(said, monkeypatch, tmp_path):
    import io
    import sys

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"import socket\n")))
    code, out, _ = said("check", "-")
    assert code == 1
    assert "<stdin>:1:8" in out


def test_a_file_that_does_not_decode_is_denied(said, tmp_path):
    path = tmp_path / "latin.py"
    path.write_bytes(b"x = '\xe9'\n")
    code, out, _ = said("check", path, "--policy", "permissive")
    assert code == 1
    assert "BJ007" in out


def test_json_tells_everything(said):
    code, out, _ = said("check", "-c", "import os", "--policy", "strict", "--format", "json")
    told = json.loads(out)
    assert code == 1
    assert told["policy"] == "strict@1.0"
    assert told["files"]["<code>"]["findings"][0]["rule"] == "BJ101"


def test_sarif_is_what_its_readers_expect(said, tmp_path):
    path = tmp_path / "a b.py"
    path.write_text("é = eval('1')\n")
    code, out, _ = said("check", path, "--policy", "strict", "--format", "sarif")
    told = json.loads(out)
    assert code == 1
    assert told["version"] == "2.1.0"
    [run] = told["runs"]
    [result] = run["results"]
    rule = run["tool"]["driver"]["rules"][result["ruleIndex"]]
    assert rule["id"] == result["ruleId"] == "BJ201"
    assert result["level"] == "error"
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"].endswith("a%20b.py")
    region = place["region"]
    assert (region["startLine"], region["startColumn"], region["endColumn"]) == (1, 5, 9)
    assert {each["defaultConfiguration"]["level"] for each in run["tool"]["driver"]["rules"]} <= {
        *("error", "warning", "note", "none"),
    }


def test_a_shown_policy_can_be_loaded(said, tmp_path):
    _, out, _ = said("check", "--show-policy", "--policy", "strategy")
    path = tmp_path / "mine.toml"
    path.write_text(out)
    assert Policy.load(path) == Policy.preset("strategy")


def test_rules_are_listed(said):
    assert "BJ101" in said("check", "--list-rules")[1]
    rows = json.loads(said("check", "--list-rules", "--format", "json", "--policy", "strict")[1])
    assert {"id": "BJ101", "action": "deny"}.items() <= rows[8 + 1].items()


# --- learn -----------------------------------------------------------------------------------

LEARN = """\
import importlib
import json
name = "".join(c for c in "mathX" if c.islower())
module = importlib.import_module(name)
if module.pi > 4:
    import socket
print(json.dumps(eval("[1]")))
"""


def test_a_learned_policy_allows_the_code_and_no_more(backend, said, tmp_path):
    path, learned = tmp_path / "job.py", tmp_path / "learned.toml"
    path.write_text(LEARN)
    words = ("--env", "python", "--backend", setting.BACKEND)
    code, out, err = said("learn", path, *words)
    assert code == 0, err
    assert "[1]" in err
    assert '"math",\n' in out
    assert '"socket",  # not seen to happen' in out
    learned.write_text(out)
    policy = Policy.load(learned)
    assert policy.document.imports.allow == ("importlib", "json", "math", "socket")
    assert policy.check(LEARN).allowed
    assert not policy.check("import os").allowed
    assert not policy.check("open('x')").allowed
    assert policy.actions["BJ201"] == "off"
    assert policy.actions["BJ601"] == "deny"


def test_learning_says_what_it_could_not_see(backend, said, tmp_path):
    path = tmp_path / "end.py"
    path.write_text("import json\nimport os\nos._exit(3)\n")
    words = ("--env", "python", "--backend", setting.BACKEND, "--format", "json")
    code, out, _ = said("learn", path, *words)
    told = json.loads(out)
    assert code == 0
    assert any("from the text only" in note for note in told["notes"])
    assert told["imports"] == {"json": False, "os": False}


def test_what_cannot_be_parsed_is_not_run_and_not_learned(said, tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("x = (\n")
    code, out, _ = said("learn", path)
    assert code == 1
    assert "is still denied" in out
