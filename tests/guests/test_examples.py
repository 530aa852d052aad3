"""Each example runs by itself, in a process of its own, and does what it says."""

import dataclasses
import os
import runpy
import subprocess
import sys

import pytest

from project import ROOT

DIRECTORY = ROOT / "examples"

SAID = {
    "checkpoints.py": ["score at first: -6", "drop repetitions: 2", "in the fork: clean.json"],
    "agent_loop.py": ["attempt 1", "FileNotFoundError", "attempt 3: the answer is 22.0"],
    "charts.py": ["the figure is a bar chart", "'Sales', in EUR", "Mar south: 6.0"],
    "demo.py": ["failed, as it should: fill the memory of the host"],
    "fan_out.py": ["20 sandboxes", "pi is about 3.1"],
    "grade.py": [
        "ada: passed",
        "bob: wrong answer",
        "cyd: too slow",
        "dan: too much memory",
        "eve: ended its own process",
        "fay: OSError",
        "gus: SyntaxError",
    ],
    "host_functions.py": ["refused: OperationalError", "most was sold in Rome"],
    "own_environment.py": ["2.5 billion"],
    "plot.py": ["growth.csv", "growth.png"],
    "pool_grading.py": ["passed: 40", "wrong answer: 20", "too slow: 20", "shortest: b1"],
    "record_and_replay.py": [
        "4 cells recorded",
        "cell 3: differs",
        "cell 4: same",
        "session.html",
    ],
    "session.py": [
        "after tuesday: 2 days, 42 sold",
        "Read-only file system",
        "brought here: 1 file",
    ],
    "streaming.py": ["step 5", "stopped after 6 lines", "the loop stood at step 5"],
}
MAKES_A_PICTURE = {"demo.py": "demo-output/revenue.png", "plot.py": "plot-output/growth.png"}


def test_every_example_is_run_here():
    assert {path.name for path in DIRECTORY.glob("*.py")} == set(SAID)


@pytest.mark.parametrize("name", SAID)
def test_example_runs(backend, name, tmp_path):
    command = [sys.executable, "-W", "error", str(DIRECTORY / name)]
    state = {**os.environ, "BELLJAR_STATE": str(tmp_path / "state")}
    done = subprocess.run(
        command, cwd=tmp_path, env=state, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for words in SAID[name]:
        assert words in done.stdout
    if name in MAKES_A_PICTURE:
        assert (tmp_path / MAKES_A_PICTURE[name]).read_bytes().startswith(b"\x89PNG")
    assert "SUCCEEDED" not in done.stdout


@pytest.mark.parametrize("attack", ["read_a_secret", "open_a_socket"])
def test_demo_notices_an_attack_that_succeeds(attack, sandbox, tmp_path, monkeypatch):
    monkeypatch.setenv("BELLJAR_DEMO_SECRET", "")  # set by the demo; as before afterwards
    demo = runpy.run_path(str(DIRECTORY / "demo.py"))
    story = demo["Demo"](tmp_path)

    class Broken:
        """A sandbox that is none: its code runs on the host."""

        def run_code(self, code):
            return dataclasses.replace(sandbox.run_code(""), stdout=demo["_unconfined"](code))

    getattr(story, attack)(Broken())
    assert [held for _, held in story.attacks] == [False]
    getattr(story, attack)(sandbox)
    assert [held for _, held in story.attacks] == [False, True]
