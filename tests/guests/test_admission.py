"""A sandbox with a policy: what it denies does not run, and nothing is started for it."""

import pytest

from belljar import ExecutionError, InvalidOption, Outcome, Policy, Sandbox, events, record
from belljar.policy import Verdict

DENIED = "import os\nos.system('touch x')"


@pytest.fixture
def seen():
    told = []
    with events.subscribe(told.append):
        yield told


def test_rejected_code_starts_nothing_and_says_why(seen):
    sandbox = Sandbox(environment="python", policy="strict")
    rejected = sandbox.run_code(DENIED)
    assert rejected.outcome is Outcome.rejected
    assert not sandbox.alive
    assert rejected.policy.verdict is Verdict.deny
    assert {each.rule for each in rejected.policy.findings} == {"BJ101", "BJ601"}
    assert rejected.error.name == "PolicyRejected"
    assert "the import of os is denied" in rejected.error.value
    assert "BJ101" in str(rejected.notes)
    with pytest.raises(ExecutionError, match="the import of os is denied"):
        rejected.raise_for_outcome()
    assert rejected.to_dict()["policy"]["verdict"] == "deny"
    sandbox.close()
    assert [type(event).__name__ for event in seen] == ["CellStarting", "CellEnded"]
    assert seen[1].stages["run"] == 0.0


def test_allowed_code_runs_and_has_its_report(make_sandbox):
    with make_sandbox(policy="strict") as sandbox:
        execution = sandbox.run_code("import math\nmath.sqrt(16)")
        assert execution.value == 4.0
        assert execution.policy.verdict is Verdict.allow
        sandbox.run_code("x = 1")
        assert sandbox.run_code(DENIED).outcome is Outcome.rejected
        after = sandbox.run_code("x")
        assert (after.value, after.execution_count) == (1, 3)  # what did not run is not counted
        assert sandbox.commands.run("touch y").ok  # it judges Python, not shells


def test_a_fork_has_the_same_policy(make_sandbox):
    with make_sandbox(policy="strict") as sandbox, sandbox.fork() as twin:
        assert twin.policy == Policy.preset("strict")
        assert twin.run_code(DENIED).outcome is Outcome.rejected


def test_a_record_keeps_what_was_rejected_and_its_replay_does_not_run_it(make_sandbox, tmp_path):
    path = tmp_path / "record"
    with make_sandbox(policy="strict", record=path) as sandbox:
        sandbox.run_code(DENIED)
        sandbox.run_code("1 + 1")
    session = record.read(path).sessions[0]
    assert [getattr(step, "kind", "cell") for step in session.steps] == ["rejected", "cell"]


@pytest.mark.parametrize("given", ["stricter", 3, {"unknow": "deny"}, "no/such.toml"])
def test_a_policy_that_is_none_is_refused_at_once(given):
    with pytest.raises(InvalidOption):
        Sandbox(policy=given)


def test_a_policy_that_extends_a_preset_adds_to_its_lists(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('extends = "strict"\n[imports]\nextend_allow = ["os"]\n')
    policy = Policy.coerce(path)
    assert policy.check("import os").allowed
    assert policy.check("import math").allowed
    assert not policy.check("import socket").allowed
    assert policy.name == "mine"
    path.write_text('extends = "strict"\n[imports]\nextend_alow = ["os"]\n')
    with pytest.raises(InvalidOption, match=r"mine\.toml: .*extend_alow"):
        Policy.coerce(path)
