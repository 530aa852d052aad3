"""`belljar map`: many snippets from the command line."""

import io
import json

import pytest

from belljar.cli import exit_codes
from belljar.cli.entry import main

LINES = [
    {"id": "a", "code": "print('hi'); 6 * 7", "more": "is not ours"},
    "1 / 0",
    {"id": 7, "code": "def f(x): return x + y", "then": "f(1)", "variables": {"y": 1}},
    {"code": "open('a').read()", "files": {"a": "text"}},
]


@pytest.fixture
def there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BELLJAR_CONFIG", "")
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, LINES)) + "\n\n")
    return tmp_path


def results(text):
    return {each["id"]: each for each in map(json.loads, text.splitlines())}


def test_results_are_lines_in_order_and_the_rest_is_a_summary(backend, there, capsys):
    code = main(["map", "in.jsonl", "--env", "python", "--concurrency", "2", "--out", "r.jsonl"])
    assert code == exit_codes.ERROR
    found = results((there / "r.jsonl").read_text())
    assert list(found) == ["a", "2", "7", "4"]
    assert [each["value"] for each in found.values()] == [42, None, 2, "text"]
    assert found["a"]["stdout"] == "hi\n"
    assert found["2"]["error"]["name"] == "ZeroDivisionError"
    said = capsys.readouterr()
    assert said.out == ""
    assert "4 snippets: 3 ok, 1 error" in said.err


def test_it_goes_on_where_it_was_interrupted(backend, there, capsys):
    done = json.dumps({"id": "a", "outcome": "ok"}) + "\n" + json.dumps({"id": "2"}) + "\n"
    (there / "r.jsonl").write_text(done + '{"id": "7", "outc')  # in the middle of a line
    arguments = ["map", "in.jsonl", "--env", "python", "--out", "r.jsonl", "--resume"]
    assert main(arguments) == exit_codes.OK
    text = (there / "r.jsonl").read_text()
    assert text.startswith(done)
    assert list(results(text)) == ["a", "2", "7", "4"]
    assert "2 snippets (2 were done before): 2 ok" in capsys.readouterr().err
    assert main(arguments) == exit_codes.OK
    assert (there / "r.jsonl").read_text() == text


def test_a_directory_and_standard_input(backend, there, capsys, monkeypatch):
    (there / "sub").mkdir()
    (there / "sub" / "b.py").write_text("2")
    (there / "a.py").write_text("1")
    assert main(["map", ".", "--env", "python", "--json", "-q"]) == exit_codes.OK
    assert list(results(capsys.readouterr().out)) == ["a.py", "sub/b.py"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'"6 * 7"')))
    assert main(["map", "-", "--env", "python", "-q"]) == exit_codes.OK
    said = capsys.readouterr()
    assert results(said.out)["1"]["value"] == 42
    assert said.err == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "cannot read 'nothing'"),
        (["in.jsonl", "--resume"], "--resume needs --out"),
        (["in.jsonl", "-j", "0"], "1 or more"),
        (["in.jsonl", "--concurency", "2"], "--concurrency"),
        (["broken"], "line 1 of 'broken' is not JSON"),
        (["empty"], "line 1 of 'empty' has no code"),
        (["in.jsonl", "--out", "in.jsonl", "--resume"], "not a file of results"),
        (["in.jsonl", "--out", "no/where"], "cannot write 'no/where'"),
    ],
)
def test_wrong_usage_is_said_and_nothing_runs(there, capsys, arguments, said):
    (there / "broken").write_text("{\n")
    (there / "empty").write_text("{}\n")
    assert main(["map", *arguments]) == exit_codes.USAGE
    assert said in capsys.readouterr().err
