"""`belljar map`: many snippets from the command line."""

import io
import json
import signal
import subprocess
import sys

import pytest

from belljar.cli import exit_codes
from belljar.cli.entry import main

LINES = [
    {"id": "a", "code": "print('hi'); 6 * 7", "metadata": {"is": "ours"}},
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
    assert found["a"]["metadata"] == {"is": "ours"}
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
        (["in.jsonl", "--out", "in.jsonl", "--overwrite"], "is the input"),
        (["in.jsonl", "--out", "link"], "is the input"),
        (["in.jsonl", "--out", "full"], "--overwrite"),
        (["in.jsonl", "--out", "full", "--resume"], "not a file of results"),
        (["in.jsonl", "--out", "full", "--resume", "--overwrite"], "choose"),
        (["in.jsonl", "--out", "other", "--resume"], "line 1 of 'in.jsonl' has changed"),
        (["twice"], "id '2': line 1 of 'twice', and line 2 of 'twice'"),
        (["typo"], "line 2 of 'typo': unknown part of a snippet 'varables'"),
        (["in.jsonl", "--then", "nothing.py"], "cannot read 'nothing.py'"),
        (["in.jsonl", "--put", "nothing.csv"], "cannot read 'nothing.csv'"),
    ],
)
def test_wrong_usage_is_said_and_nothing_runs(there, capsys, arguments, said):
    (there / "broken").write_text("{\n")
    (there / "empty").write_text("{}\n")
    (there / "link").symlink_to("in.jsonl")
    (there / "full").write_text("notes")  # without an end of line, as what was cut off
    (there / "other").write_text('{"id": "a", "outcome": "ok", "input": "0"}\n')
    (there / "twice").write_text('{"id": 2, "code": "1"}\n"2"\n')
    (there / "typo").write_text('"1"\n{"code": "1", "varables": {}}\n')
    before = {path: path.read_bytes() for path in there.iterdir()}
    assert main(["map", *arguments]) == exit_codes.USAGE
    assert said in capsys.readouterr().err
    assert {path: path.read_bytes() for path in there.iterdir()} == before


def test_one_that_cannot_be_run_has_a_result_and_the_others_go_on(backend, there, capsys):
    lines = [{"code": "1", "timeout": -1}, {"code": "1", "files": {"/proc/x": ""}}, "3"]
    (there / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert main(["map", "in.jsonl", "--env", "python", "-q"]) == exit_codes.ERROR
    found = results(capsys.readouterr().out)
    assert [each["outcome"] for each in found.values()] == ["error", "error", "ok"]
    assert [each["execution_count"] for each in found.values()] == [0, 0, 1]
    assert found["1"]["error"]["name"] == "InvalidOption"
    assert found["3"]["value"] == 3


def test_a_resumed_run_fails_if_the_first_did_and_overwriting_begins_anew(backend, there, capsys):
    (there / "in.jsonl").write_text('"1 / 0"\n')
    arguments = ["map", "in.jsonl", "--env", "python", "-q", "--out", "r.jsonl"]
    assert main(arguments) == exit_codes.ERROR
    assert main([*arguments, "--resume"]) == exit_codes.ERROR
    assert len((there / "r.jsonl").read_text().splitlines()) == 1
    (there / "in.jsonl").write_text('"1"\n')
    assert main([*arguments, "--resume"]) == exit_codes.USAGE  # another than the result is of
    assert main([*arguments, "--overwrite"]) == exit_codes.OK
    assert main([*arguments, "--resume"]) == exit_codes.OK
    assert len((there / "r.jsonl").read_text().splitlines()) == 1


def test_code_and_files_that_all_of_them_get(backend, there, capsys):
    (there / "tests.py").write_text("double(int(open('case').read()))")
    (there / "case.txt").write_text("21")
    (there / "code").mkdir()
    (there / "code" / "a.py").write_text("def double(n): return 2 * n")
    arguments = ["map", "code", "--env", "python", "-q", "--then", "tests.py"]
    assert main([*arguments, "--put", "case.txt:case"]) == exit_codes.OK
    assert results(capsys.readouterr().out)["a.py"]["value"] == 42


def test_who_waits_for_a_result_before_he_writes_the_next_line_gets_it(backend, there):
    command = [sys.executable, "-m", "belljar", "map", "-", "--env", "python", "-q"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        value = 1
        for _ in range(3):
            process.stdin.write(json.dumps(f"{value} * 2") + "\n")
            process.stdin.flush()
            value = json.loads(process.stdout.readline())["value"]
        assert value == 8
        process.send_signal(signal.SIGINT)  # while it waits for a line
        assert process.wait(30) == exit_codes.INTERRUPTED
