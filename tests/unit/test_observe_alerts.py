"""Alerts: when they begin and end, and who is told."""

import logging
import re
import threading

import pytest

from belljar import InvalidOption
from belljar.observe import enable
from belljar.observe.alerts import Alerts, Rules, State, decide
from belljar.observe.sampling import Sample


def seen(memory=0.0, cpu=None, sandbox="bj-1"):
    """Shares of the limit, of a sandbox with 100 bytes and 2 processors."""
    return Sample(
        time=0.0,
        sandbox=sandbox,
        memory=None if memory is None else int(memory * 100),
        memory_limit=100,
        cpu_percent=None if cpu is None else cpu * 200,
        cpus=2.0,
    )


def replay(rules, *rounds):
    """What began and ended in each round: `+memory`, `-memory`."""
    state, told = State(), []
    for each in rounds:
        state, changed = decide(rules, state, each)
        told.append([f"{'-' if alert.ended else '+'}{alert.kind}" for alert in changed])
    return told


def test_an_alert_begins_after_so_many_readings_in_a_row():
    rules = Rules(memory=0.9, samples=3)
    high, low = [seen(0.95)], [seen(0.5)]
    assert replay(rules, high, high, low, high, high, high, high) == [
        *([], [], [], [], []),
        ["+memory"],
        [],
    ]


def test_a_value_that_trembles_around_the_threshold_is_told_once():
    rules = Rules(memory=0.9, samples=1, margin=0.1)
    rounds = [[seen(share)] for share in (0.91, 0.89, 0.91, 0.85, 0.92, 0.79, 0.91)]
    assert replay(rules, *rounds) == [["+memory"], [], [], [], [], ["-memory"], ["+memory"]]


def test_cpu_is_a_share_of_the_limit_not_of_one_processor():
    rules = Rules(cpu=0.9, samples=1)
    assert replay(rules, [seen(cpu=0.5)], [seen(cpu=0.95)]) == [[], ["+cpu"]]


def test_what_cannot_be_read_neither_begins_nor_ends_an_alert():
    rules = Rules(memory=0.9, samples=2)
    high, unknown = [seen(0.95)], [seen(None)]
    assert replay(rules, high, unknown, high, unknown, [seen(0.1)]) == [
        [],
        [],
        ["+memory"],
        [],
        ["-memory"],
    ]


def test_a_sandbox_that_has_gone_is_forgotten():
    state, _ = decide(Rules(samples=1), State(), [seen(0.95)])
    assert decide(Rules(samples=1), state, []) == (State(above={}, active={}), [])


def test_each_sandbox_counts_for_itself():
    rules = Rules(samples=2)
    one, other = seen(0.95, sandbox="a"), seen(0.95, sandbox="b")
    assert replay(rules, [one], [other], [one, other]) == [[], [], ["+memory"]]


def test_none_turns_a_rule_off():
    rules = Rules(memory=None, cpu=None, orphans=None, samples=1)
    assert decide(rules, State(), [seen(5.0, 5.0)], orphans=100)[1] == []


def test_more_orphans_than_allowed_are_told_until_they_are_gone():
    rules, state = Rules(orphans=3), State()
    told = []
    for number in (3, 4, None, 5, 3):
        state, changed = decide(rules, state, None, orphans=number)
        told.append([alert.ended for alert in changed])
    assert told == [[], [False], [], [], [True]]


def test_a_look_for_orphans_alone_leaves_the_sandboxes_alerts_as_they_are():
    state, _ = decide(Rules(samples=1), State(), [seen(0.95)])
    again, changed = decide(Rules(samples=1), state, None, orphans=0)
    assert again.active == state.active
    assert changed == []


def test_alerts_go_to_the_log_and_to_the_callbacks(caplog):
    told = []
    alerts = Alerts(Rules(samples=1), told.append)
    with caplog.at_level(logging.INFO, logger="belljar.alerts"):
        alerts.look([seen(0.95)])
        alerts.look([seen(0.1)])
    assert [alert.ended for alert in told] == [False, True]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "uses 95% of its memory" in caplog.records[0].getMessage()
    assert caplog.records[0].belljar_alert == told[0]
    assert alerts.active == ()


def test_a_callback_that_fails_does_not_keep_others_from_being_told(caplog):
    told = []

    def broken(alert):
        raise ValueError("no")

    Alerts(Rules(samples=1), broken, told.append).look([seen(0.95)])
    assert len(told) == 1
    assert "an on_alert callback failed" in caplog.text


@pytest.mark.parametrize(
    "wrong",
    [
        *({"memory": 0}, {"memory": True}, {"cpu": "90"}, {"samples": 0}, {"samples": True}),
        *({"margin": 1}, {"orphans": -1}, {"memory": 90}, {"cpu": 1.5}),
    ],
)
def test_rules_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InvalidOption):
        Rules(**wrong)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"metrics_prot": 9100}, "'metrics_prot'\n  hint: did you mean 'metrics_port'"),
        ({"audit": 3}, "audit=3 is neither a path"),
        ({"metrics": "yes"}, "metrics='yes'"),
        ({"metrics_port": "9100"}, "metrics_port='9100'"),
        ({"metrics_port": 70_000}, "metrics_port=70000"),
        ({"metrics_addr": None}, "metrics_addr=None"),
        ({"tracing": "yes"}, "tracing='yes'"),
        ({"alerts": 3}, "alerts=3"),
        ({"alerts": True, "on_alert": 3}, "on_alert=3 cannot be called"),
        ({"on_alert": print}, "on_alert without alerts"),
        ({"interval": 0}, "interval=0 "),
        ({"interval": "1"}, "interval='1' "),
        ({"interval": float("nan")}, "interval=nan "),
        ({"orphans_interval": 0}, "orphans_interval=0 "),
        ({"orphans_interval": True}, "orphans_interval=True "),
    ],
)
def test_options_of_enable_that_make_no_sense_are_refused(given, said):
    before = set(threading.enumerate())
    with pytest.raises(InvalidOption, match=re.escape(said)):
        enable(**given)
    assert set(threading.enumerate()) <= before
