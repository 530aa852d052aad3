"""Watching real sandboxes: one guest with everything turned on, and each part is asked about it."""

import functools
import gc
import json
import logging
import os
import threading
import urllib.request
from types import SimpleNamespace

import anyio
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

import setting
from belljar import AsyncSandbox, Sandbox, events
from belljar.observe import Audit, AuditFailed, Metrics, Monitor, Rules, Tracing, enable, presence
from belljar.observe.audit import verify
from belljar.observe.live_sandboxes import LiveSandboxes, kill
from census import wait_until

BUSY = "while True: pass"
LONG = 30.0  # seconds: on a busy machine


@pytest.fixture(scope="module", autouse=True)
def directory(tmp_path_factory):
    """Presence files of these tests alone."""
    path = tmp_path_factory.mktemp("runtime")
    path.chmod(0o700)
    before = os.environ.get("BELLJAR_RUNTIME_DIR")
    os.environ["BELLJAR_RUNTIME_DIR"] = str(path)
    yield path
    if before is None:
        del os.environ["BELLJAR_RUNTIME_DIR"]
    else:
        os.environ["BELLJAR_RUNTIME_DIR"] = before


@pytest.fixture(scope="module")
def watched(backend, tmp_path_factory):
    """A sandbox's life with everything turned on, and what was seen of it."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    path = tmp_path_factory.mktemp("audit") / "audit.jsonl"
    alerts = []
    tracer = provider.get_tracer("test")
    with enable(
        audit=Audit(path, code="full"),
        metrics=Metrics(per_sandbox=True),
        metrics_port=0,
        alerts=Rules(memory=0.001, samples=1),
        on_alert=alerts.append,
        tracing=provider,
        interval=0.1,
    ) as observing:
        with (
            tracer.start_as_current_span("request"),
            Sandbox(
                environment="python",
                functions={"double": functools.partial(_double, tracer)},
                metadata={"owner": "ann"},
            ) as sandbox,
        ):
            sandbox.run_code("print(double(21))")
            sandbox.run_code("open('made.txt', 'w').write('x'); 1 / 0")
            sandbox.commands.run("echo hello")
            sandbox.files.write("given.txt", b"content")
            wait_until(lambda: len(observing.monitor.series(sandbox.id)) >= 2, LONG, "two samples")
            wait_until(lambda: alerts, LONG, "an alert")
            with urllib.request.urlopen(
                f"http://127.0.0.1:{observing.metrics_port}/metrics"
            ) as answer:
                text = answer.read().decode()
            seen = SimpleNamespace(
                id=sandbox.id,
                backend=sandbox.isolation.backend,
                text=text,
                series=observing.monitor.series(sandbox.id),
                alerts=alerts,
                path=path,
                exporter=exporter,
            )
        wait_until(lambda: not observing.monitor.latest(), LONG, "the end of its samples")
    return seen


def _double(tracer, number):
    with tracer.start_as_current_span("double"):
        return 2 * number


def test_a_scrape_has_what_the_sandbox_did_and_uses(watched):
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(watched.text)
        for sample in family.samples
    }
    where = watched.backend
    assert found["belljar_cells_total", *sorted(("ok", where, "python"))] == 1
    assert found["belljar_cells_total", *sorted(("error", where, "python"))] == 1
    assert found["belljar_commands_total", *sorted(("ok", where))] == 1
    assert found["belljar_host_calls_total", "double", "ok"] == 1
    assert found["belljar_file_changes_total", "write"] == 1
    assert found["belljar_starts_total", *sorted((where, "python"))] == 1
    assert found["belljar_sandboxes", where] == 1
    assert found["belljar_stage_seconds_count", *sorted((where, "total"))] == 2
    assert found["belljar_stage_seconds_count", *sorted((where, "start"))] == 1
    if setting.COUNTED:
        assert found["belljar_memory_bytes", where] > 100_000
        assert found["belljar_sandbox_memory_bytes", *sorted((watched.id, where))] > 100_000


def test_samples_are_read_from_outside_and_go_with_the_sandbox(watched):
    first, *_, last = watched.series
    assert first.cpu_percent is None
    assert last.cpu_percent is not None
    assert last.cpu >= first.cpu >= 0
    assert last.memory > 100_000
    assert last.processes >= 1
    assert last.memory_limit == 512 * 2**20
    assert last.backend == watched.backend


def test_a_sandbox_above_its_threshold_raises_an_alert(watched):
    assert {(alert.kind, alert.sandbox) for alert in watched.alerts} >= {("memory", watched.id)}


def test_the_audit_log_tells_its_whole_life(watched):
    checked = verify(watched.path)
    assert checked.ok, checked.damage
    lines = [json.loads(line) for line in watched.path.read_text().splitlines()]
    assert [line["event"] for line in lines] == [
        *("sandbox.starting", "sandbox.started"),
        *("cell.starting", "cell.ended") * 2,
        *("command.ended", "files.changed", "sandbox.ended"),
    ]
    assert {(line["sandbox"], line["who"]["owner"]) for line in lines} == {(watched.id, "ann")}
    first, second = lines[3], lines[5]
    assert [call["name"] for call in first["calls"]] == ["double"]
    assert first["usage"]["output_bytes"] == 3
    assert second["outcome"] == "error"
    assert second["error"] == "ZeroDivisionError"
    assert second["files"] == {"created": ["made.txt"]}
    assert second["code"] == "open('made.txt', 'w').write('x'); 1 / 0"
    assert lines[6]["command"] == "echo hello"
    assert lines[7]["fields"]["path"] == "given.txt"
    assert lines[8]["reason"] == "is closed"


def test_spans_hang_below_the_callers_and_host_functions_below_the_cell(watched):
    spans = {}
    for span in watched.exporter.get_finished_spans():
        spans.setdefault(span.name, []).append(span)
    (request,), (start,), (double,) = spans["request"], spans["sandbox.start"], spans["double"]
    first, second = spans["run_code"]
    assert start.parent.span_id == request.context.span_id
    assert first.parent.span_id == second.parent.span_id == request.context.span_id
    assert double.parent.span_id == first.context.span_id
    assert first.attributes["belljar.outcome"] == "ok"
    assert first.attributes["belljar.sandbox"] == watched.id
    assert first.attributes["belljar.owner"] == "ann"
    assert second.status.description == "error"
    assert not second.status.is_ok
    assert "made.txt" not in str(dict(second.attributes))


def test_everything_works_in_either_event_loop(run_async, open_sandbox, tmp_path):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def main():
        with (
            Audit(tmp_path / "audit.jsonl"),
            Tracing(provider),
            Metrics() as metrics,
        ):
            monitor = Monitor()
            async with open_sandbox() as sandbox:
                await sandbox.run_code("1")
                found = await monitor.sample()
                assert found[sandbox.id].memory > 0
            return metrics.text()

    assert 'outcome="ok"' in run_async(main)
    assert [span.name for span in exporter.get_finished_spans()] == ["sandbox.start", "run_code"]
    assert verify(tmp_path / "audit.jsonl").lines == 5


def test_a_required_audit_log_that_cannot_be_written_keeps_code_from_running(sandbox, tmp_path):
    path = tmp_path / "audit.jsonl"
    sandbox.run_code("ran = 0")
    with Audit(path, required=True):
        sandbox.run_code("ran = 1")
        path.unlink()
        path.mkdir()
        with pytest.raises(AuditFailed, match=r"audit\.jsonl"):
            sandbox.run_code("ran = 2")
    assert sandbox.get("ran") == 1


def test_an_audit_log_that_is_not_required_does_not_keep_code_from_running(
    sandbox, tmp_path, caplog
):
    path = tmp_path / "audit.jsonl"
    with Audit(path), caplog.at_level(logging.ERROR, logger="belljar"):
        path.unlink()
        path.mkdir()
        assert sandbox.run_code("1").ok
        assert sandbox.run_code("1").ok
    assert len([r for r in caplog.records if "subscriber" in r.getMessage()]) == 1


def test_code_that_the_policy_rejects_is_counted_and_written_down(backend, tmp_path):
    path = tmp_path / "audit.jsonl"
    sandbox = Sandbox(environment="python", policy="strict")
    with Audit(path), Metrics() as metrics:
        assert sandbox.run_code("import socket\nsocket.socket()").outcome == "rejected"
        sandbox.close()
    text = metrics.text()
    assert 'belljar_refusals_total{backend="' in text
    assert 'stage="policy"' in text
    assert 'stage="run"' not in text  # it did not run, and so is no short run
    starting, ended = [json.loads(line) for line in path.read_text().splitlines()]
    assert starting["event"] == "cell.starting"
    assert (ended["outcome"], ended["verdict"]) == ("rejected", "deny")
    assert ended["policy"].startswith("strict@")
    assert ended["findings"][0]["line"] == 1
    assert ended["findings"][0]["rule"]


# --- presence, as other processes see it -------------------------------------------------------


@pytest.fixture(scope="module")
def seen(backend, directory):
    """A sandbox that tells of itself, with code that runs in it."""
    presence.install()  # again, if a test has uninstalled it
    with Sandbox(
        environment="python", metadata={"owner": "ann"}, limits={"timeout": 600}
    ) as sandbox:
        thread = threading.Thread(target=sandbox.run_code, args=(BUSY,))
        thread.start()
        try:
            yield sandbox
        finally:
            sandbox.interrupt()
            thread.join(20)
    assert not (directory / sandbox.id).exists()


def by_id(sightings):
    return {each.note.id: each for each in sightings.look()}


def test_a_live_sandbox_is_seen_with_what_it_uses(seen, directory):
    with LiveSandboxes() as sightings:

        def busy():
            found = by_id(sightings)[seen.id]
            # It may be seen before it has forked the worker.
            return found if found.state == "busy" and found.processes >= 2 else None

        found = wait_until(busy, LONG, "busy")
    assert found.note.owner.pid == os.getpid()
    assert found.note.metadata == {"owner": "ann"}
    assert found.note.limits["memory"] == 512 * 2**20
    assert found.memory > 100_000
    assert (directory / seen.id).stat().st_mode & 0o777 == 0o600


def test_idle_is_told_from_busy_and_the_end_from_both(backend, directory, seen):
    with Sandbox(environment="python") as other, LiveSandboxes() as sightings:
        other.run_code("1")

        def states():
            found = by_id(sightings)
            return found[seen.id].state, found[other.id].state

        wait_until(lambda: states() == ("busy", "idle"), LONG, "both states")
        kill(by_id(sightings)[other.id].note)
        wait_until(lambda: states()[1] == "ended", LONG, "the end")
        # A new guest, once the sandbox has seen that the old one is gone; it is seen again.
        wait_until(lambda: other.run_code("2").text == "2", LONG, "a new guest")
        wait_until(lambda: states()[1] in ("busy", "idle"), LONG, "that it is seen")
    assert not (directory / other.id).exists()


def test_a_sandbox_that_nobody_closed_is_not_seen_for_ever(backend, directory, seen):
    async def forget():
        sandbox = AsyncSandbox(environment="python")
        await sandbox.start()
        id = sandbox.id
        del sandbox
        return id

    def forgotten():
        id = anyio.run(forget)
        gc.collect()
        return id

    with pytest.warns(ResourceWarning) as caught:  # it may be collected before we do it
        id = forgotten()
    assert any(id in str(each.message) for each in caught)
    assert id not in {sandbox.id for sandbox in events.live()}
    with LiveSandboxes() as sightings:
        wait_until(
            lambda: (found := by_id(sightings).get(id)) is None or not found.live,
            LONG,
            "its end",
        )
    presence._installed[0].remove_dead(at_least=0)
    assert not (directory / id).exists()
