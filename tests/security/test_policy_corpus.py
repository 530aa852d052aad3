"""The corpora: every label holds, shares are as promised, the docs say what was measured."""

import importlib.util
import json
import sys

import pytest

from belljar.policy import RULES, Policy
from project import ROOT


def load_benchmark():
    spec = importlib.util.spec_from_file_location("policy_bench", ROOT / "benchmarks" / "policy.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["policy_bench"] = module
    spec.loader.exec_module(module)
    return module


bench = load_benchmark()
RISKY, BENIGN, UNSEEN = (bench.snippets(kind) for kind in ("risky", "benign", "unseen"))
STRICT = Policy.preset("strict")


def test_the_corpora_are_as_large_as_promised():
    assert len(RISKY) >= 240
    assert len({each["family"] for each in RISKY}) >= 16
    assert len(BENIGN) >= 150
    ids = [each["id"] for each in (*RISKY, *BENIGN, *UNSEEN)]
    assert len(set(ids)) == len(ids)
    codes = [each["code"] for each in (*RISKY, *BENIGN, *UNSEEN)]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("snippet", RISKY, ids=lambda each: each["id"])
def test_a_risky_snippet_touches_exactly_its_rules(snippet):
    assert {each.rule for each in STRICT.check(snippet["code"]).findings} == set(snippet["rules"])


@pytest.mark.parametrize("snippet", BENIGN, ids=lambda each: each["id"])
def test_a_benign_program_touches_no_rule_but_its_own(snippet):
    assert {each.rule for each in STRICT.check(snippet["code"]).findings} == set(snippet["rules"])


def test_at_least_95_percent_of_the_risky_are_stopped_by_strict():
    stopped = sum(STRICT.check(each["code"]).verdict != "allow" for each in RISKY)
    assert stopped / len(RISKY) >= 0.95


def test_permissive_denies_no_benign_program():
    permissive = Policy.preset("permissive")
    assert not [each["id"] for each in BENIGN if not permissive.check(each["code"]).allowed]


def test_data_science_lets_analysts_use_their_own_files():
    policy = Policy.preset("data-science")
    denied = {each["id"] for each in BENIGN if not policy.check(each["code"]).allowed}
    assert not denied


def test_permissive_denies_at_most_2_percent_of_real_code():
    permissive = Policy.preset("permissive")
    codes = [bench.read(path) for number, path in enumerate(bench.real_code()) if not number % 20]
    codes = [code for code in codes if code is not None]
    denied = sum(not permissive.check(code).allowed for code in codes)
    # A sample: the share of all files is in the measured data.
    assert denied / len(codes) <= 0.04
    real = json.loads(bench.MEASURED.read_text())["real"]
    assert real["denied"]["permissive"] / real["files"] <= 0.02


def test_the_labelled_figures_are_those_of_this_code():
    measured = json.loads(bench.MEASURED.read_text())
    assert measured["labelled"] == json.loads(json.dumps(bench.labelled()))


def test_the_docs_have_the_measured_tables():
    page = bench.PAGE.read_text("utf-8")
    assert bench.written(page, bench.tables(json.loads(bench.MEASURED.read_text()))) == page


def test_every_rule_that_can_be_provoked_has_a_snippet():
    by_cap = {"BJ002", "BJ003", "BJ004", "BJ005", "BJ006", "BJ007"}  # test_policy.py
    by_policy = {"BJ406", "BJ407", "BJ901"}  # need lists that strict does not have
    labelled = {rule for each in RISKY for rule in each["rules"]}
    assert set(RULES) - labelled == by_cap | by_policy
