"""The regression guard's judgement: which ratios pass, and what a busy machine is forgiven."""

import sys

import pytest

from project import BENCHMARKS


@pytest.fixture(scope="module")
def limits():
    sys.path.append(str(BENCHMARKS))
    import guard_limits

    yield guard_limits
    sys.path.remove(str(BENCHMARKS))


def samples(limits, times):
    """Ours are so many times a yardstick of one second, for every path."""
    return {path.name: [times] for path in limits.PATHS}


def test_what_takes_as_long_as_allowed_passes(limits):
    ours = {path.name: [path.limit] for path in limits.PATHS}
    assert all(one.holds for one in limits.judge(ours, samples(limits, 1.0)))


@pytest.mark.parametrize("slow", ["start", "pool", "trip", "stream", "policy"])
def test_one_slow_path_fails_and_no_other(limits, slow):
    ours = {path.name: [path.limit * (1.01 if path.name == slow else 0.5)] for path in limits.PATHS}
    findings = limits.judge(ours, samples(limits, 1.0))
    assert [one.path.name for one in findings if not one.holds] == [slow]


def test_a_machine_that_is_slow_altogether_passes(limits):
    ours = {path.name: [path.limit * 70] for path in limits.PATHS}
    assert all(one.holds for one in limits.judge(ours, samples(limits, 100.0)))


def test_one_quiet_moment_is_enough_on_either_side(limits):
    busy, quiet = 40.0, 1.0
    ours = {path.name: [busy * path.limit, path.limit * 0.9, busy] for path in limits.PATHS}
    yardsticks = {path.name: [busy, quiet, busy] for path in limits.PATHS}
    assert all(one.holds for one in limits.judge(ours, yardsticks))


def test_a_path_that_was_not_measured_is_an_error_not_a_pass(limits):
    ours = samples(limits, 1.0)
    ours["trip"] = []
    with pytest.raises(ValueError, match="trip was not measured"):
        limits.judge(ours, samples(limits, 1.0))


def test_a_yardstick_of_nothing_is_an_error(limits):
    with pytest.raises(ValueError, match="took no time"):
        limits.judge(samples(limits, 1.0), samples(limits, 0.0))


def test_only_what_fails_in_both_rounds_fails(limits):
    def findings(*slow):
        ours = {p.name: [p.limit * (2 if p.name in slow else 0.5)] for p in limits.PATHS}
        return limits.judge(ours, samples(limits, 1.0))

    failed = limits.failed_twice(findings("trip", "pool"), findings("pool", "start"))
    assert [one.path.name for one in failed] == ["pool"]
    assert limits.failed_twice(findings("trip"), findings()) == []
