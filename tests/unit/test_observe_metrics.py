"""Metrics: counted from events, read by the parser that Prometheus' own client brings."""

import urllib.request

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

import observe_events as made
from belljar import InvalidOption, events
from belljar.errors import LimitNotEnforceable, StartError
from belljar.observe.metrics import METRICS, MOST_VALUES, Metrics, make_reference
from belljar.results.execution import Outcome


@pytest.fixture
def metrics():
    with Metrics() as counting:
        yield counting


def values(metrics, name):
    """{label values in the order of the table: value}, as a scrape sees it."""
    table = {metric.name: metric.labels for metric in METRICS}
    return {
        tuple(sample.labels[label] for label in table[name]): sample.value
        for family in text_string_to_metric_families(metrics.text())
        for sample in family.samples
        if sample.name == name
    }


def test_cells_are_counted_by_outcome_backend_and_environment(metrics):
    for outcome in (Outcome.ok, Outcome.ok, Outcome.timeout):
        events.tell(made.cell(outcome=outcome))
    assert values(metrics, "belljar_cells_total") == {
        ("ok", "native", "python"): 2,
        ("timeout", "native", "python"): 1,
    }
    assert values(metrics, "belljar_output_bytes_total") == {("native",): 30}


def test_every_stage_has_its_latency(metrics):
    events.tell(made.started())
    events.tell(made.cell())
    seen = {
        sample.labels["stage"]: sample.value
        for family in text_string_to_metric_families(metrics.text())
        for sample in family.samples
        if sample.name == "belljar_stage_seconds_sum"
    }
    expected = {"start": 0.09, "workspace": 0.01, "policy": 0, "wait": 0.001, "run": 0.01}
    assert seen == pytest.approx({**expected, "total": 0.02})


def test_failures_and_refusals_are_counted_by_their_reason(metrics):
    for error in (StartError("no"), LimitNotEnforceable("no"), OSError("no"), KeyboardInterrupt()):
        events.tell(events.StartFailed(subject=made.subject(), seconds=1.0, error=error))
    events.tell(made.cell(outcome=Outcome.rejected))
    assert values(metrics, "belljar_start_failures_total") == {
        ("StartError", "native"): 1,
        ("LimitNotEnforceable", "native"): 1,
        ("other", "native"): 1,
        ("cancelled", "native"): 1,
    }
    assert values(metrics, "belljar_refusals_total") == {
        ("limits", "native"): 1,
        ("policy", "native"): 1,
    }


def test_an_exception_of_the_programs_own_does_not_become_a_label(metrics):
    invented = type("Invented", (StartError,), {"__module__": "elsewhere"})
    events.tell(events.StartFailed(subject=made.subject(), seconds=1.0, error=invented("no")))
    assert set(values(metrics, "belljar_start_failures_total")) == {("StartError", "native")}


def test_names_that_a_guest_invents_do_not_become_labels(metrics):
    calls = [made.call(f"nonsense{n}", ok=False) for n in range(500)]
    events.tell(made.cell(calls=(made.call("query"), made.call("query", ok=False), *calls)))
    assert values(metrics, "belljar_host_calls_total") == {
        ("query", "ok"): 1,
        ("query", "failed"): 1,
        ("other", "failed"): 500,
    }


def test_a_label_of_the_programs_own_has_a_bounded_number_of_values(metrics):
    for number in range(MOST_VALUES + 100):
        events.tell(made.cell(of=made.subject(environment=f"env{number}")))
    found = values(metrics, "belljar_cells_total")
    assert len(found) == MOST_VALUES + 1
    assert found["ok", "native", "other"] == 100


def test_commands_file_changes_and_ends_are_counted(metrics):
    events.tell(made.command())
    events.tell(events.FilesChanged(subject=made.subject(), operation="write", fields={}))
    for reason in ("is closed", "was idle for more than 5 s", "has reached its lifetime of 3 s"):
        events.tell(events.Ended(subject=made.subject(), reason=reason, seconds=1.0))
    assert values(metrics, "belljar_commands_total") == {("ok", "native"): 1}
    assert values(metrics, "belljar_file_changes_total") == {("write",): 1}
    assert set(values(metrics, "belljar_ends_total")) == {
        ("closed", "native"),
        ("idle", "native"),
        ("lifetime", "native"),
    }


def test_the_pool_has_no_guests_until_somebody_knows_of_some(metrics):
    assert values(metrics, "belljar_pool_guests") == {("idle",): 0}
    metrics.gauge_source("belljar_pool_guests", lambda: {("idle",): 3, ("leased",): 2})
    assert values(metrics, "belljar_pool_guests") == {("idle",): 3, ("leased",): 2}


def test_a_source_of_a_gauge_that_is_none_is_refused(metrics):
    with pytest.raises(InvalidOption, match="belljar_pool_guests"):
        metrics.gauge_source("belljar_pool_guest", dict)
    with pytest.raises(InvalidOption):
        metrics.gauge_source("belljar_cells_total", dict)


def test_it_is_served_over_http_and_no_more_after_close():
    metrics = Metrics()
    port = metrics.serve(0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    assert "belljar_sandboxes" in {family.name for family in text_string_to_metric_families(text)}
    metrics.close()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5)


def test_a_port_that_is_taken_is_said():
    with Metrics() as one, Metrics() as other:
        port = one.serve(0)
        with pytest.raises(InvalidOption, match="cannot be served"):
            other.serve(port)
        with pytest.raises(InvalidOption, match="not a port"):
            other.serve(70000)


def test_a_registry_of_the_programs_own_gets_our_metrics_beside_its():
    registry = prometheus_client.CollectorRegistry()
    prometheus_client.Counter("theirs", "their own", registry=registry).inc()
    with Metrics(registry=registry) as metrics:
        events.tell(made.cell())
        text = metrics.text()
    assert "theirs_total 1.0" in text
    assert "belljar_cells_total{" in text


def test_two_may_count_at_once_and_a_closed_one_counts_no_more():
    with Metrics() as one:
        with Metrics() as other:
            events.tell(made.cell())
        events.tell(made.cell())
    events.tell(made.cell())
    key = ("ok", "native", "python")
    assert values(one, "belljar_cells_total")[key] == 2
    assert values(other, "belljar_cells_total")[key] == 1


def test_every_metric_stands_in_the_table_and_in_the_reference(metrics):
    events.tell(made.cell(calls=(made.call("f"),)))
    events.tell(made.started())
    known = {metric.name.removesuffix("_total") for metric in METRICS}
    families = [family.name for family in text_string_to_metric_families(metrics.text())]
    assert {name for name in families if not name.endswith("_created")} <= known
    for metric in METRICS:
        assert f"| `{metric.name}` | {metric.kind} |" in make_reference()


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(Exception, match="pip install prometheus-client"):
        Metrics()
