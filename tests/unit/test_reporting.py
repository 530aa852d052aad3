"""The verdict over a run of tests: a flaky test is named, a failure stays one."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import reporting
from reporting import Job, decide

PASSED = {"counts": {"passed": 1}, "failed": {}, "left_behind": [], "log": "1 passed"}
FAILED = {"counts": {"failed": 1}, "failed": {"t": "again"}, "left_behind": [], "log": "1 failed"}
LEFT = PASSED | {"left_behind": ["mount /x"]}
NOT_RUN = PASSED | {"counts": {}}


def job(again=None, *, tests=("t",), **fields):
    failed = {test: f"{test} is wrong" for test in tests}
    record = {"counts": {"failed": len(tests)}, "failed": failed, "left_behind": []}
    return Job(name="host", status="1", record=record, again=again or {}, **fields)


def test_a_test_that_passes_alone_is_flaky_and_does_not_fail_the_run():
    verdict = decide([job({"t": PASSED})])
    assert verdict.ok
    assert verdict.flaky == (("host", "t"),)


def test_what_a_flaky_test_left_behind_does_not_fail_the_run_but_is_said():
    flaky = job({"t": PASSED})
    flaky.record["left_behind"] = ["mount /x"]
    verdict = decide([flaky])
    assert verdict.ok
    assert "left behind, after a failure: host: mount /x" in reporting.describe(
        [flaky], verdict, ""
    )


@pytest.mark.parametrize("again", [{}, {"t": FAILED}, {"t": LEFT}, {"t": NOT_RUN}])
def test_a_test_that_does_not_pass_alone_fails_the_run(again):
    verdict = decide([job(again)])
    assert not verdict.ok
    assert verdict.failed == (("host", "t"),)


@pytest.mark.parametrize(("number", "ok"), [(3, True), (4, False)])
def test_three_flaky_tests_are_borne_and_four_are_not(number, ok):
    tests = [f"t{n}" for n in range(number)]
    verdict = decide([job(dict.fromkeys(tests, PASSED), tests=tests)])
    assert verdict.ok is ok
    assert len(verdict.flaky) == number


@pytest.mark.parametrize(
    "bad",
    [
        Job(name="host", problem="it was promised and is missing"),
        Job(name="host", record={"left_behind": ["mount /x"]}),
        Job(name="host", status="1"),
    ],
)
def test_what_fails_beside_the_tests_fails_the_run(bad):
    assert decide([Job(name="other")]).ok
    verdict = decide([Job(name="other"), bad])
    assert not verdict.ok
    assert verdict.problems[0].startswith("host: ")


def test_many_failures_are_not_run_again():
    assert reporting.to_run_again([job(tests="abc")]) == [("host", test) for test in "abc"]
    assert reporting.to_run_again([job(tests=[str(n) for n in range(11)])]) == []


def test_the_record_of_a_run_says_what_each_test_did(tmp_path):
    conftest = """
        import reporting
        recorder = reporting.Recorder("record.json")
        def pytest_configure(config):
            config.pluginmanager.register(recorder)
        def pytest_unconfigure():
            recorder.write(["mount /x"])
    """
    tests = """
        import pytest
        @pytest.fixture
        def broken():
            yield
            raise OSError("in its teardown")
        def test_passes(): print("not of interest")
        def test_fails(): print("said before"); assert 1 == 2
        def test_teardown(broken): pass
        def test_skipped(): pytest.skip("here")
        @pytest.mark.xfail
        def test_expected(): assert 0
    """
    (tmp_path / "conftest.py").write_text(textwrap.dedent(conftest))
    (tmp_path / "test_it.py").write_text(textwrap.dedent(tests))
    (tmp_path / "test_not_python.py").write_text("def")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=."]
    ended = subprocess.run(
        [*command, "--continue-on-collection-errors"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(reporting.__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1, ended.stdout
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["counts"] == {"passed": 1, "failed": 3, "skipped": 1, "xfailed": 1}
    assert record["left_behind"] == ["mount /x"]
    failed = record["failed"]
    assert set(failed) == {
        "test_it.py::test_fails",
        "test_it.py::test_teardown",
        "test_not_python.py",
    }
    assert "assert 1 == 2" in failed["test_it.py::test_fails"]
    assert "said before" in failed["test_it.py::test_fails"]
    assert "in its teardown" in failed["test_it.py::test_teardown"]
    assert "test_it.py::test_passes" in record["seconds"]


def test_both_outputs_of_a_flaky_test_are_kept_and_it_is_named_last(tmp_path, capsys):
    record = {"counts": {"passed": 7, "failed": 1}, "failed": {"t.py::test[a b]": "first time"}}
    record |= {"left_behind": [], "seconds": {"t.py::test[a b]": 3.25}}
    (tmp_path / "native-root.1.job").write_text("status=1\nline=(1 min 2 s)\n")
    (tmp_path / "native-root.1.json").write_text(json.dumps(record))
    assert reporting.main("failed", tmp_path) == 0
    assert capsys.readouterr().out == "native-root.1 t.py::test[a b]\n"

    again = tmp_path / "native-root.1.again-1.test"
    again.write_text("t.py::test[a b]\n")
    again.with_suffix(".json").write_text(json.dumps(PASSED))
    again.with_suffix(".log").write_text("second time: 1 passed")
    kept = tmp_path / "results" / "flaky.txt"
    assert reporting.main("verdict", tmp_path, str(kept)) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[-1] == "tests: 8 passed, 0 failed, 0 skipped"
    assert told[-3] == "flaky (passed alone): native-root.1: t.py::test[a b]"
    assert "     3.2 s  native-root.1   t.py::test[a b]" in told
    assert "first time" in kept.read_text()
    assert "second time" in kept.read_text()


def test_a_second_run_that_died_is_a_failure(tmp_path, capsys):
    record = {"counts": {"failed": 1}, "failed": {"t": "first"}, "left_behind": [], "seconds": {}}
    (tmp_path / "host.job").write_text("status=1\n")
    (tmp_path / "host.json").write_text(json.dumps(record))
    (tmp_path / "host.again-1.test").write_text("t\n")
    (tmp_path / "host.again-1.log").write_text("")
    assert reporting.main("verdict", tmp_path, str(tmp_path / "flaky.txt")) == 1
    assert "FAILED: host: t\n" in capsys.readouterr().out
