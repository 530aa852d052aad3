"""Events: what happens to sandboxes is told to whoever has subscribed, and to nobody else."""

import logging

import pytest

import setting
from belljar import Sandbox, SandboxClosed, SandboxError, events
from belljar.results.execution import Outcome


@pytest.fixture
def seen():
    told = []
    with events.subscribe(told.append):
        yield told


def kinds(seen):
    return [type(event).__name__ for event in seen]


def test_a_life_is_told_in_its_order(make_sandbox, seen):
    with make_sandbox(metadata={"owner": "ann"}) as sandbox:
        sandbox.run_code("1 + 1")
        sandbox.commands.run("true")
        sandbox.files.write("a.txt", "x")
        assert [each.id for each in events.live()] == [sandbox.id]
    assert events.live() == []
    assert kinds(seen) == [
        *("Starting", "Started", "CellStarting", "CellEnded"),
        *("CommandEnded", "FilesChanged", "Ended"),
    ]
    assert {event.subject.id for event in seen} == {sandbox.id}
    assert seen[-1].subject.metadata == {"owner": "ann"}
    _, started, _, cell, command, files, ended = seen
    assert started.subject.backend == setting.BACKEND
    assert set(started.stages) == {"start", "workspace"}
    assert started.whereabouts.pid or started.whereabouts.container
    assert cell.code == "1 + 1"
    assert cell.execution.outcome is Outcome.ok
    assert set(cell.stages) == {"policy", "wait", "run"}
    assert sum(cell.stages.values()) == pytest.approx(cell.seconds)
    assert command.cmd == "true"
    assert command.result.exit_code == 0
    assert files.operation == "write"
    assert ended.reason == "is closed"


def test_what_fails_is_told_too(make_sandbox, seen):
    sandbox = make_sandbox()
    sandbox.run_code("x = 1")
    sandbox.close()
    with pytest.raises(SandboxClosed):
        sandbox.run_code("x")
    assert kinds(seen)[-2:] == ["CellStarting", "CellFailed"]
    assert isinstance(seen[-1].error, SandboxClosed)


def test_who_fails_at_an_event_changes_nothing_and_is_logged_once(make_sandbox, caplog):
    def fails(event):
        raise RuntimeError("no room")

    caplog.set_level(logging.ERROR, logger="belljar")
    with events.subscribe(fails), make_sandbox() as sandbox:
        assert sandbox.run_code("2 + 2").value == 4
    assert len(caplog.records) == 1
    assert "no room" in caplog.text


def test_who_is_required_can_keep_code_from_running(make_sandbox):
    def refuses(event):
        if isinstance(event, events.CellStarting) and "secret" in event.code:
            raise SandboxError("not that")

    with make_sandbox() as sandbox, events.subscribe(refuses, required=True):
        with pytest.raises(SandboxError, match="not that"):
            sandbox.run_code("secret = 1")
        assert sandbox.run_code("'sec' + 'ret' in globals()").value is False


def test_who_is_required_and_fails_at_the_start_leaves_no_guest(backend):
    def refuses(event):
        if isinstance(event, events.Started):
            raise SandboxError("cannot be written down")

    sandbox = Sandbox(environment="python")
    subscription = events.subscribe(refuses, required=True)
    with pytest.raises(SandboxError, match="written down"):
        sandbox.start()
    subscription.cancel()
    assert events.live() == []
    assert sandbox.whereabouts is None
    sandbox.close()


def test_a_cancelled_subscription_is_told_nothing(make_sandbox):
    told = []
    subscription = events.subscribe(told.append)
    subscription.cancel()
    subscription.cancel()
    with make_sandbox() as sandbox:
        sandbox.run_code("1")
    assert told == []


def test_usage_tells_what_is_used_now(make_sandbox):
    with make_sandbox() as sandbox:
        before = sandbox.usage()
        sandbox.run_code("import subprocess; kept = bytearray(50_000_000)")
        after = sandbox.usage()
    assert after.memory > before.memory + 40_000_000
    assert after.cpu >= before.cpu
    assert after.processes >= 2
    assert after.memory_kills == 0


def test_a_sandbox_that_was_not_started_uses_nothing():
    sandbox = Sandbox(environment="python")
    assert sandbox.usage().memory is None
    assert sandbox.whereabouts is None
    sandbox.close()
