"""The soak itself: it reports all it should, and finds what is wrong."""

import json
import os
import signal
import subprocess
import sys
import tempfile

import pytest

from project import BENCHMARKS

SOAK = [sys.executable, str(BENCHMARKS / "soak.py"), "--at-once", "4", "--seed", "7"]
SECTIONS = ("# Soak", "## Verdicts", "## Executions", "## A neighbour", "## Drift", "## How")
ABUSES = ("CPU spinner", "fork bomb", "memory bomb", "output flood", "disk filler", "all five")

pytestmark = pytest.mark.timeout(400)


def soaks(test):
    """Starts guests, in processes of its own, with limits that need control groups."""
    for mark in (
        pytest.mark.native_only("it measures this machine, through the native backend"),
        pytest.mark.needs_cgroup,
        pytest.mark.usefixtures("backend"),
    ):
        test = mark(test)
    return test


@pytest.fixture
def report(tmp_path):
    return tmp_path / "soak.md"


def run(report, *words):
    """Exit code, report and record of one that is over."""
    command = [*SOAK, "--out", str(report), *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=350, check=False)
    assert report.exists(), ended.stderr
    return ended.returncode, report.read_text(), record_of(report)


def record_of(report):
    return json.loads(report.with_suffix(".json").read_text())


@soaks
def test_a_short_soak_reports_all_of_it_and_says_when_an_expectation_is_false(report):
    status, text, record = run(report, "--minutes", "0.05", "--falsify")
    assert status == 1
    assert record["leaks"] == []
    assert all(f"\n{section}" in f"\n{text}" for section in SECTIONS)
    assert all(f"| {abuse} |" in text for abuse in ABUSES)
    assert "--seed 7" in text
    assert "Cut short" not in text
    assert record["executions"] > 10
    assert record["neighbour"]["quiet"]["caller"]["count"] > 0
    # What is false is wrong, and nothing else is.
    assert record["kinds"]["falsified"]["wrong"] == record["wrong_count"] > 0
    assert record["verdicts"][0]["holds"] is False
    assert "**does not hold**" in text
    assert "falsified: the value is" in text


@pytest.mark.stress
@soaks
def test_a_soak_that_is_told_to_end_still_reports(report):
    command = [*SOAK, "--out", str(report), "--minutes", "30"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as soak:
        assert soak.stderr is not None
        assert "executions" in soak.stderr.readline()  # its first sign of life
        soak.send_signal(signal.SIGTERM)
        assert soak.wait(timeout=200) == 0
    record = record_of(report)
    assert record["cut_short"] is True
    assert record["leaks"] == []
    assert "**Cut short:** 30 minutes were asked for." in report.read_text()


def test_a_criterion_is_judged_by_what_was_measured(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import soak_criteria

    steady = [{"at": n * 60, "memory": 50e6 + (n % 3) * 1e5, "zygotes": 40e6} for n in range(20)]
    growing = [{"at": n * 60, "memory": 50e6 + n * 1e6, "zygotes": 40e6} for n in range(20)]
    assert soak_criteria._memory(steady, "memory", "it").holds is True
    assert soak_criteria._memory(growing, "memory", "it").holds is False
    assert soak_criteria._memory(growing[:5], "memory", "it").holds is None

    def felt(p99, count=1000):
        return {"caller": {"count": count, "p99": p99}}

    beside = {"quiet": felt(0.01), "a": felt(0.029), "b": felt(0.031), "c": felt(0.5, count=10)}
    verdicts = [soak_criteria._neighbour(beside, name).holds for name in "abc"]
    assert verdicts == [True, False, None]


def test_the_record_of_a_soak_does_not_grow_with_its_length(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import soak_tally

    tally = soak_tally.Tally()
    for n in range(1, 20_000):
        tally.time("value", False, n / 1000, fifth=0)
        tally.note_wrong("value", False, "x" * 10_000)
    assert len(tally.wrong) == soak_tally.MOST_SENTENCES
    assert max(map(len, tally.wrong)) == soak_tally.MOST_LENGTH
    assert tally.wrongs == 19_999
    assert len(tally.row("value", False).latency._buckets) < 700
    assert tally.row("value", False).first.quantile(0.5) == pytest.approx(10, rel=0.03)


def test_the_census_of_a_soak_sees_what_is_left(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    import soak_census

    before = soak_census.take()
    assert soak_census.settle(before) == []
    reading, writing = os.pipe()
    (tmp_path / "left").touch()
    with subprocess.Popen(["sleep", "1000"]) as child:
        found = " ".join(soak_census.leaks(before, soak_census.take()))
        child.kill()
    os.close(reading)
    os.close(writing)
    (tmp_path / "left").unlink()
    assert f"process {child.pid} " in found
    assert "2 descriptors: pipe" in found
    assert f"files: {tmp_path}/left" in found
    assert soak_census.settle(before) == []
