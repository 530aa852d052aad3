"""A cell as an iterator of events, and copies of sandboxes."""

import copy
import gc
import pickle
import threading

import anyio
import pytest

from belljar import (
    CannotTravel,
    EndEvent,
    InvalidOption,
    Outcome,
    OutputEvent,
    ResultEvent,
    Sandbox,
    SandboxClosed,
)

CONTRACT = pytest.mark.contract("native", "docker", "gvisor")
# Each step waits until the test has seen the one before.
STEPS = """
import os, sys
def wait(name):
    while not os.path.exists(name): pass
print("one"); wait("1"); print("two", file=sys.stderr); wait("2"); print("three"); wait("3")
display({"a": 1})
4
"""


@CONTRACT
def test_events_come_while_the_code_runs(sandbox):
    seen = []
    for event in sandbox.stream(STEPS, timeout=60):
        seen.append(event)
        if isinstance(event, OutputEvent) and event.text.endswith("\n"):
            sandbox.files.write(str(len(seen)), "")
    end = seen.pop()
    assert isinstance(end, EndEvent)
    assert end.execution.value == 4
    assert seen[:3] == [
        OutputEvent(type="stdout", text="one\n"),
        OutputEvent(type="stderr", text="two\n"),
        OutputEvent(type="stdout", text="three\n"),
    ]
    assert [type(each) for each in seen[3:]] == [ResultEvent, ResultEvent]
    assert [each.result.text for each in seen[3:]] == ["{'a': 1}", "4"]
    assert end.execution.logs.merged == "one\ntwo\nthree\n"
    assert end.execution.for_model() == "one\ntwo\nthree\n{'a': 1}\n4\n[created 1, 2, 3]"


def test_code_that_fails_ends_with_its_execution_too(sandbox):
    *_, end = sandbox.stream("print(1)\n1 / 0")
    assert (end.type, end.execution.outcome) == ("end", Outcome.error)
    *_, end = sandbox.stream("while True: pass", timeout=0.5)
    assert end.execution.outcome is Outcome.timeout


def test_options_are_those_of_run_code(sandbox):
    *_, end = sandbox.stream("input() + os.environ['A']", stdin="x", env={"A": "y"})
    assert end.execution.error.name == "NameError"
    *_, end = sandbox.stream("import os; input() + os.environ['A']", stdin="x", env={"A": "y"})
    assert end.execution.value == "xy"
    for wrong in ({"on_stdout": print}, {"timeuot": 3}):
        with pytest.raises(InvalidOption, match=next(iter(wrong))):
            sandbox.stream("1", **wrong)


def test_nothing_runs_before_the_first_event_is_asked_for(sandbox):
    events = sandbox.stream("x = 1")
    assert sandbox.run_code("'x' in globals()").value is False
    events.close()
    assert list(events) == []
    assert sandbox.run_code("'x' in globals()").value is False


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("way", ["close", "with", "break", "error"])
def test_leaving_early_interrupts_the_code_and_keeps_its_variables(sandbox, way):
    code = "x = 1; print('ready')\nwhile True: pass"
    if way == "close":
        events = sandbox.stream(code)
        assert next(events).text == "ready\n"
        events.close()
        events.close()
        assert list(events) == []
    elif way == "with":
        with sandbox.stream(code) as events:
            next(events)
    elif way == "break":
        for _ in sandbox.stream(code):
            break
    else:
        with pytest.raises(ZeroDivisionError):
            leave_by_error(sandbox.stream(code))
    gc.collect()
    assert sandbox.run_code("x").value == 1


def leave_by_error(events):
    for _ in events:
        1 / 0  # noqa: B018


def test_a_reader_that_waits_does_not_delay_the_code(sandbox):
    events = sandbox.stream("for i in range(1000): print('x' * 100)\nopen('done', 'w').close()")
    first = next(events)
    with sandbox.files.watch() as changes:
        assert sandbox.files.exists("done") or next(changes).name == "done"
    *output, end = events
    assert end.execution.ok
    assert sum(len(event.text) for event in (first, *output)) == 101_000


def test_what_belljar_cannot_do_is_raised(make_sandbox):
    sandbox = make_sandbox()
    sandbox.close()
    events = sandbox.stream("1")
    with pytest.raises(SandboxClosed):
        next(events)
    assert list(events) == []


def test_the_end_of_the_sandbox_ends_its_streams(make_sandbox):
    sandbox = make_sandbox()
    events = sandbox.stream("print(1)\nwhile True: pass")
    assert next(events).text == "1\n"
    thread = threading.Thread(target=sandbox.kill)
    thread.start()
    *_, end = events
    thread.join()
    assert end.execution.outcome is Outcome.killed


def test_host_functions_are_called_beside_it(make_sandbox):
    sandbox = make_sandbox(functions={"double": lambda number: 2 * number})
    *_, end = sandbox.stream("double(4)")
    assert end.execution.value == 8


def test_both_event_loops_iterate(run_async, open_sandbox):
    async def main():
        async with open_sandbox() as sandbox:
            seen = [event async for event in sandbox.stream("print(1)\n2")]
            assert [event.type for event in seen] == ["stdout", "result", "end"]
            async with sandbox.stream("x = 1; print(1)\nwhile True: pass") as events:
                await anext(events)
                with anyio.move_on_after(0.1):  # a cancelled wait does not end the code
                    await anext(events)
                    raise AssertionError("there is nothing more")
            assert (await sandbox.run_code("x")).value == 1
            async for _ in sandbox.stream("x = 2; print(1)\nwhile True: pass"):
                break
            gc.collect()
            assert (await sandbox.run_code("x")).value == 2

    run_async(main)


def test_a_cancelled_reader_ends_the_code(run_async, open_sandbox):
    async def read(sandbox, ready):
        async with sandbox.stream("print(1)\nwhile True: pass") as events:
            async for _ in events:
                ready.set()

    async def main():
        async with open_sandbox() as sandbox:
            ready = anyio.Event()
            async with anyio.create_task_group() as group:
                group.start_soon(read, sandbox, ready)
                await ready.wait()
                group.cancel_scope.cancel()
            assert (await sandbox.run_code("1")).ok

    run_async(main)


# --- copies --------------------------------------------------------------------------------------


def test_a_copy_of_a_sandbox_is_the_sandbox(sandbox):
    for each in (sandbox, sandbox._sandbox, sandbox.files, sandbox.commands):
        assert copy.copy(each) is each
        assert copy.deepcopy({"tool": [each]})["tool"][0] is each
    assert sandbox.run_code("1").ok


def test_a_sandbox_cannot_be_pickled_and_says_what_to_do():
    sandbox = Sandbox(environment="python")
    for each in (sandbox, sandbox._sandbox, sandbox.files, sandbox.commands):
        with pytest.raises(CannotTravel, match="cannot be pickled") as caught:
            pickle.dumps(each)
        assert "other process" in caught.value.hint
        assert isinstance(caught.value, TypeError)
