"""Every fuzzer: what it has found once is found no more, and a few cases, the same each time.

`scripts/fuzz` runs them for as long as one likes, with other cases each time.
"""

import importlib

import pytest

import fuzzing
from project import TESTS

HERE = TESTS / "support"
# How many cases are a second or two.
CASES = {
    "answers": 60,
    "config": 120,
    "engine": 80,
    "frames": 25,
    "guest": 120,
    "paths": 100,
    "policy": 150,
    "seccomp": 20,
    "values": 150,
}
REGRESSIONS = sorted(fuzzing.KEPT.glob("*/*.bin"))
PATIENCE = 110.0  # seconds: on a busy machine one case may take long


def test_every_fuzzer_has_its_share():
    assert {path.stem.removeprefix("fuzz_") for path in HERE.glob("fuzz_*.py")} == set(CASES)


@pytest.mark.parametrize("name", sorted(CASES))
def test_some_cases_are_without_a_finding(name, tmp_path, capfd):
    found = fuzzing.run(
        name, PATIENCE, seed=1, most=CASES[name], longest=PATIENCE - 10, keep=tmp_path
    )
    assert not found, capfd.readouterr().out[-5000:]


@pytest.mark.parametrize("case", REGRESSIONS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_was_found_once_is_found_no_more(case):
    module = importlib.import_module(f"fuzz_{case.parent.name}")
    try:
        assert fuzzing.judge(module, case.read_bytes()) == ("", "")
    finally:
        getattr(module, "finish", lambda: None)()
