"""What a sweep ends: decided from what was seen, without any sandbox."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.pool.manager_table import Reason, Seen, decide


def seen(**changes):
    return Seen(**{"name": "a", "age": 10.0, "idle": 5.0, "busy": False, **changes})


def reason(one, *, idle_timeout=60.0, lifetime=600.0):
    return decide([one], idle_timeout=idle_timeout, lifetime=lifetime).get(one.name)


def test_what_is_young_and_in_use_stays():
    assert reason(seen()) is None


def test_idle_longer_than_allowed_goes():
    assert reason(seen(idle=60.0)) is None
    assert reason(seen(idle=60.1)) is Reason.idle


def test_older_than_allowed_goes_even_if_it_was_just_used():
    assert reason(seen(age=601.0, idle=0.0)) is Reason.lifetime


def test_what_has_died_goes_for_that_reason():
    assert reason(seen(age=601.0, idle=601.0, alive=False)) is Reason.lost


@pytest.mark.parametrize("changes", [{"idle": 1e9}, {"age": 1e9}, {"alive": False}])
def test_a_busy_one_stays_whatever_else_is_so(changes):
    assert reason(seen(busy=True, **changes)) is None


def test_without_limits_only_the_dead_go():
    assert reason(seen(age=1e9, idle=1e9), idle_timeout=None, lifetime=None) is None
    dead = seen(alive=False)
    assert reason(dead, idle_timeout=None, lifetime=None) is Reason.lost


seconds = st.floats(0, 1e6)
anyone = st.builds(
    Seen, name=st.text(), age=seconds, idle=seconds, busy=st.booleans(), alive=st.booleans()
)


@given(st.lists(anyone, unique_by=lambda one: one.name), seconds, seconds)
def test_each_is_judged_for_itself(everyone, idle_timeout, lifetime):
    found = decide(everyone, idle_timeout=idle_timeout, lifetime=lifetime)
    for one in everyone:
        alone = decide([one], idle_timeout=idle_timeout, lifetime=lifetime)
        assert found.get(one.name) == alone.get(one.name)
        assert not (one.busy and alone)
