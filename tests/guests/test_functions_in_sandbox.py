"""Host functions, called by code in real sandboxes."""

import contextvars
import functools
import threading
import time
from textwrap import dedent

import anyio
import pytest

import gvisor
from belljar import InvalidOption, Limits, Outcome
from belljar.functions.registry import HostFunction

# How hostile code comes by the socket: out of a stub's closure.
LINK = """\
def link_of(stub):
    for cell in stub.__closure__:
        if hasattr(cell.cell_contents, "__self__"):
            return cell.cell_contents.__self__
"""


def run(sandbox, code, **options):
    return sandbox.run_code(dedent(code), **options)


def echo(*args, **kwargs):
    return [list(args), kwargs]


def divide(a: float, b: float = 2.0) -> float:
    """Divide a by b."""
    return a / b


# --- calls -----------------------------------------------------------------------------------


def test_a_guest_calls_a_function_of_the_host(make_sandbox):
    sandbox = make_sandbox(functions={"f": echo, "divide": divide})
    execution = run(sandbox, "f(1, b=[1, 2])")
    assert execution.value == [[1], {"b": [1, 2]}]
    (call,) = execution.calls
    assert (call.name, call.ok, call.error) == ("f", True, None)
    assert 0 < call.duration < 50
    assert call.argument_bytes > 0
    assert run(sandbox, "divide(3)").value == 1.5
    assert run(sandbox, "1").calls == ()


def test_functions_may_be_given_as_a_list(make_sandbox):
    sandbox = make_sandbox(functions=[divide, HostFunction(echo, name="say")])
    assert run(sandbox, "[divide(1), say(1)]").value == [0.5, [[1], {}]]


def test_a_function_is_exposed_later_and_again(sandbox):
    assert run(sandbox, "divide(1)").error.name == "NameError"
    sandbox.expose(divide)
    assert run(sandbox, "divide(1)").value == 0.5
    sandbox.expose(lambda: "other", "divide")
    assert run(sandbox, "divide()").value == "other"
    sandbox.restart()
    assert run(sandbox, "divide()").value == "other"


def test_functions_are_there_after_the_interpreter_died(make_sandbox):
    sandbox = make_sandbox(functions=[divide])
    run(sandbox, "import os; os._exit(1)")
    assert run(sandbox, "divide(1)").value == 0.5


def test_what_cannot_be_exposed_is_refused_before_a_guest_is_made(make_sandbox, sandbox):
    for functions in ({"": divide}, [lambda: 1], {"f": 3}, "divide"):
        with pytest.raises(InvalidOption):
            make_sandbox(functions=functions)
    with pytest.raises(InvalidOption):
        sandbox.expose(lambda: 1)
    with pytest.raises(InvalidOption):
        sandbox.expose(divide, max_calls=0)


def test_a_function_reads_in_the_guest_as_on_the_host(make_sandbox):
    sandbox = make_sandbox(functions=[divide])
    execution = run(sandbox, "import inspect\nhelp(divide)\nstr(inspect.signature(divide))")
    assert execution.value == "(a: float, b: float = 2.0) -> float"
    assert "divide(a: float, b: float = 2.0) -> float" in execution.stdout
    assert "Divide a by b." in execution.stdout
    failed = run(sandbox, "divide()")
    assert failed.error.value == "divide() missing 1 required positional argument: 'a'"
    assert failed.calls == ()


def query(sql, *, api_key, allow_write=False, **more):
    return [sql, api_key, allow_write, more]


def test_what_a_partial_has_bound_is_neither_told_nor_the_guests_to_choose(make_sandbox):
    bound = functools.partial(query, api_key="sk-4711")
    bound = functools.partial(bound, allow_write=False)
    sandbox = make_sandbox(functions={"query": bound})
    code = "import inspect; (str(inspect.signature(query)), query('a', x=1))"
    told, answer = sandbox.run_code(code).value
    assert told == "(sql, **more)"
    assert answer == ["a", "sk-4711", False, {"x": 1}]
    for name in ("allow_write", "api_key"):
        error = sandbox.run_code(f"query('a', {name}=True)").error
        assert error.name == "TypeError", error
        assert name in error.value


def test_async_functions_are_called_plainly(make_sandbox):
    async def double(x):
        await anyio.sleep(0)
        return 2 * x

    sandbox = make_sandbox(functions={"double": double, "later": lambda x: double(x)})
    assert run(sandbox, "double(21) + later(1)").value == 44


def test_async_sandboxes_have_functions_too(run_async, open_sandbox):
    async def double(x):
        await anyio.sleep(0)
        return 2 * x

    async def main():
        async with open_sandbox(functions={"double": double, "divide": divide}) as sandbox:
            await sandbox.expose(echo, name="say", timeout=5, concurrency=1)
            execution = await sandbox.run_code("[double(21), divide(1), say()]")
            assert execution.value == [42, 0.5, [[], {}]]
            assert [call.name for call in execution.calls] == ["double", "divide", "say"]

    run_async(main)


def test_frames_and_arrays_are_arguments_and_results(make_sandbox):
    pandas = pytest.importorskip("pandas")
    numpy = pytest.importorskip("numpy")
    seen = []

    def query(frame, weights):
        seen.append((type(frame), type(weights), int(frame.a.sum())))
        return frame.assign(w=weights)

    sandbox = make_sandbox(environment="data", functions=[query])
    execution = run(
        sandbox,
        """
        import numpy as np, pandas as pd
        frame = pd.DataFrame({"a": range(100_000), "b": ["x"] * 100_000})
        made = query(frame, np.ones(100_000))
        assert list(made.columns) == ["a", "b", "w"], made.columns
        float(made.w.sum())
        """,
    )
    assert execution.value == 100_000.0
    assert seen == [(pandas.DataFrame, numpy.ndarray, sum(range(100_000)))]
    assert execution.calls[0].argument_bytes > 800_000


def test_a_function_may_use_its_sandbox(make_sandbox):
    sandbox = make_sandbox()

    def content(path):
        return sandbox.files.read(path)

    sandbox.expose(content)
    assert run(sandbox, "open('a.txt', 'w').write('text')\ncontent('a.txt')").value == "text"


def test_an_async_function_may_use_its_sandbox(run_async, open_sandbox):
    async def main():
        async with open_sandbox() as sandbox:

            async def content(path):
                return await sandbox.files.read(path)

            await sandbox.expose(content)
            await sandbox.files.write("a.txt", "text")
            assert (await sandbox.run_code("content('a.txt')")).value == "text"

    run_async(main)


def test_calls_work_below_a_top_level_await(make_sandbox):
    sandbox = make_sandbox(functions=[divide])
    code = """
    import asyncio
    await asyncio.gather(*(asyncio.to_thread(divide, n) for n in range(5)))
    """
    assert run(sandbox, code).value == [0.0, 0.5, 1.0, 1.5, 2.0]


# --- many at once ----------------------------------------------------------------------------

THREADS = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor({n}) as pool:
    made = list(pool.map(f, range({n})))
made
"""


def test_eight_threads_of_the_guest_call_at_once(make_sandbox):
    together = threading.Barrier(8)

    def f(x):
        together.wait(20)
        return x * x

    sandbox = make_sandbox(functions=[f])
    execution = run(sandbox, THREADS.format(n=8))
    assert execution.value == [x * x for x in range(8)]
    assert len(execution.calls) == 8
    assert all(call.ok for call in execution.calls)


@gvisor.PROCESSES
def test_more_threads_than_the_wire_takes_calls_wait_for_each_other(make_sandbox):
    function = HostFunction(lambda x: -x, concurrency=3)
    sandbox = make_sandbox(functions={"f": function}, limits={"processes": 150})
    execution = run(sandbox, THREADS.format(n=100))
    assert execution.value == [-x for x in range(100)]


def test_calls_of_one_function_keep_to_its_concurrency(make_sandbox):
    changed, inside, most = threading.Condition(), 0, 0

    def f(x):
        nonlocal inside, most
        with changed:
            inside += 1
            most = max(most, inside)
            changed.notify_all()
            assert changed.wait_for(lambda: most >= 2, 30)  # the first waits for another
        time.sleep(0.02)
        with changed:
            inside -= 1
        return x

    sandbox = make_sandbox(functions={"f": HostFunction(f, concurrency=2)})
    assert run(sandbox, THREADS.format(n=12)).value == list(range(12))
    assert most == 2


def test_no_more_calls_are_made_than_allowed(make_sandbox):
    made = []
    sandbox = make_sandbox(functions={"f": HostFunction(lambda: made.append(1), max_calls=2)})
    assert run(sandbox, "f()").ok
    execution = run(sandbox, "f()\nf()")
    assert execution.error.name == "RuntimeError"
    assert "f may be called 2 times" in execution.error.value
    assert [call.ok for call in execution.calls] == [True, False]
    sandbox.restart()
    assert run(sandbox, "f()").outcome is Outcome.error
    assert len(made) == 2


# --- errors ----------------------------------------------------------------------------------


class Custom(Exception):
    pass


def test_errors_of_the_host_are_caught_as_themselves(make_sandbox):
    def fail(kind):
        raise {"value": ValueError("no"), "key": KeyError("k"), "custom": Custom("mine")}[kind]

    sandbox = make_sandbox(functions=[fail])
    code = """
    found = []
    try: fail("value")
    except ValueError as error: found.append((type(error).__name__, str(error)))
    try: fail("key")
    except KeyError as error: found.append((type(error).__name__, str(error)))
    try: fail("custom")
    except Exception as error: found.append((type(error).__name__, str(error)))
    found
    """
    execution = run(sandbox, code)
    assert execution.value == [("ValueError", "no"), ("KeyError", "'k'"), ("Custom", "mine")]
    assert [call.error for call in execution.calls] == [
        "ValueError: no",
        "KeyError: 'k'",
        "Custom: mine",
    ]


def test_nothing_of_the_host_is_in_the_traceback(make_sandbox):
    def fail():
        with open("/home/nobody-here/secret-directory/data.csv"):
            raise AssertionError

    def fail_too():
        raise ValueError(f"cannot read {__file__}: {object()}")

    sandbox = make_sandbox(functions=[fail, fail_too])
    execution = run(sandbox, "def mine():\n    fail()\nmine()")
    assert execution.error.name == "FileNotFoundError"
    assert execution.error.value == "No such file or directory"
    assert "in mine" in execution.error.traceback
    other = run(sandbox, "fail_too()")
    assert other.error.value == "cannot read …/test_functions_in_sandbox.py: <object object>"
    for text in (execution.error.traceback, other.error.traceback, str(execution.calls)):
        for secret in ("secret-directory", "belljar", "/tests/", "threading", "anyio", "0x"):
            assert secret not in text, text


@pytest.mark.parametrize(
    "raised", ["SystemExit(3)", "KeyboardInterrupt()", "GeneratorExit()", "StopIteration(1)"]
)
def test_an_error_of_the_host_does_not_end_the_cell_in_another_way(make_sandbox, raised):
    def fail():
        raise eval(raised)

    sandbox = make_sandbox(functions=[fail])
    execution = run(sandbox, "try: fail()\nexcept Exception as error: made = str(error)\nmade")
    assert execution.value == f"fail raised {raised.partition('(')[0]}"
    assert run(sandbox, "fail()").outcome is Outcome.error


def test_what_cannot_travel_is_an_error_that_names_it(make_sandbox):
    deep = []
    deep.append(deep)
    sandbox = make_sandbox(functions={"give": lambda: {"a": [deep]}, "take": echo})
    back = run(sandbox, "give()")
    assert back.outcome is Outcome.error
    assert "['a'][0]" in back.error.value
    assert [call.ok for call in back.calls] == [False]
    there = run(sandbox, "import threading; take(1, key=[threading.Lock()])")
    assert there.outcome is Outcome.error
    assert "key" in there.error.value
    assert run(sandbox, "take(2)").value == [[2], {}]


# --- time ------------------------------------------------------------------------------------


def test_a_slow_function_is_answered_in_time(make_sandbox):
    release = threading.Event()
    sandbox = make_sandbox(functions={"f": HostFunction(lambda: release.wait(30), timeout=0.2)})
    began = time.perf_counter()
    execution = run(sandbox, "f()")
    took = time.perf_counter() - began
    release.set()
    assert (execution.error.name, execution.error.value) == (
        "TimeoutError",
        "f took longer than 0.2 s",
    )
    assert took < 25


def test_time_in_the_host_is_not_the_cells(make_sandbox):
    sandbox = make_sandbox(functions={"f": lambda: time.sleep(3.5)})
    execution = run(sandbox, "f()\n5", timeout=3)
    assert (execution.outcome, execution.value) == (Outcome.ok, 5)
    assert execution.calls[0].duration >= 3.5


def test_time_of_the_cell_goes_on_between_calls(make_sandbox):
    sandbox = make_sandbox(functions={"f": lambda: time.sleep(0.05)})
    began = time.perf_counter()
    execution = run(sandbox, "import time\nwhile True:\n    f()\n    time.sleep(0.05)", timeout=0.5)
    assert execution.outcome is Outcome.timeout
    assert time.perf_counter() - began < 50


def test_a_guest_cannot_stop_its_clock_by_calling_all_the_time(make_sandbox):
    """The host's time is not the guest's; what the guest computes meanwhile is."""
    sandbox = make_sandbox(functions={"f": lambda: time.sleep(0.2)})
    code = """
    import threading, time
    def hold():
        while True: f()
    for _ in range(3):
        threading.Thread(target=hold, daemon=True).start()
        time.sleep(0.07)
    end = time.monotonic() + 90
    while time.monotonic() < end: pass
    """
    began = time.perf_counter()
    assert run(sandbox, code, timeout=1).outcome is Outcome.timeout
    assert time.perf_counter() - began < 50


def test_code_that_calls_a_slow_function_for_ever_comes_to_its_end(make_sandbox):
    limits = Limits(timeout=0.5, host_time=1)
    sandbox = make_sandbox(functions={"slow": lambda: time.sleep(0.1)}, limits=limits)
    execution = run(sandbox, "while True: slow()")
    assert execution.outcome is Outcome.timeout
    assert execution.state_preserved
    assert any("host_time" in note for note in execution.notes), execution.notes


@pytest.mark.parametrize("host_time", [60, None])
def test_a_cell_may_wait_longer_for_the_host_than_its_time_out(make_sandbox, host_time):
    """As for a person's approval."""
    waited = threading.Event()
    limits = Limits(timeout=3, host_time=host_time)
    sandbox = make_sandbox(functions={"approval": lambda: waited.wait(3.5)}, limits=limits)
    execution = run(sandbox, "approval()\n5")
    assert execution.value == 5, execution
    assert not execution.notes


def test_one_call_that_takes_longer_than_is_excused_is_ended_too(make_sandbox):
    release = threading.Event()
    limits = Limits(timeout=1, host_time=0.01)
    sandbox = make_sandbox(functions={"f": lambda: release.wait(60)}, limits=limits)
    execution = run(sandbox, "f()")
    release.set()
    assert execution.outcome is Outcome.timeout


def test_context_variables_of_the_caller_reach_the_function(make_sandbox):
    variable = contextvars.ContextVar("variable", default="unset")
    sandbox = make_sandbox(functions={"f": variable.get})
    variable.set("set")
    assert run(sandbox, "f()").value == "set"


def test_time_in_the_host_counts_if_asked(make_sandbox):
    release = threading.Event()
    counted = HostFunction(lambda: release.wait(30), counts_time=True)
    sandbox = make_sandbox(functions={"f": counted})
    began = time.perf_counter()
    execution = run(sandbox, "f()\n5", timeout=3)
    took = time.perf_counter() - began
    release.set()
    assert execution.outcome is Outcome.timeout
    assert took < 25
    assert [(call.name, call.ok) for call in execution.calls] == [("f", False)]


def test_a_cell_is_interrupted_in_the_middle_of_a_call(make_sandbox):
    called, release = threading.Event(), threading.Event()

    def f():
        called.set()
        release.wait(30)

    def interrupt():
        assert called.wait(30)
        sandbox.interrupt()

    sandbox = make_sandbox(functions=[f, divide])
    run(sandbox, "x = 1")
    other = threading.Thread(target=interrupt)
    other.start()
    execution = run(sandbox, "f()")
    other.join()
    assert execution.outcome is Outcome.cancelled
    assert [(call.name, call.ok) for call in execution.calls] == [("f", False)]
    # The late answer is for nobody: neither the next cell nor its calls are confused by it.
    release.set()
    assert run(sandbox, "[x, divide(4)]").value == [1, 2.0]


@pytest.mark.usefixtures("patient")
def test_a_run_is_cancelled_in_the_middle_of_a_call(run_async, open_sandbox):
    async def main():
        called, ended = anyio.Event(), anyio.Event()

        async def f():
            called.set()
            try:
                await anyio.sleep_forever()
            finally:
                ended.set()

        async with open_sandbox(functions={"f": f, "divide": divide}) as sandbox:
            await sandbox.run_code("x = 1")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(sandbox.run_code, "f()")
                await called.wait()
                tasks.cancel_scope.cancel()
            assert ended.is_set()
            assert (await sandbox.run_code("[x, divide(4)]")).value == [1, 2.0]

    run_async(main)


def test_a_sandbox_is_closed_in_the_middle_of_a_call(make_sandbox):
    release = threading.Event()
    sandbox = make_sandbox()

    def f():
        sandbox.close()
        release.wait(30)

    sandbox.expose(f)
    try:
        assert run(sandbox, "f()").outcome is Outcome.killed
    finally:
        release.set()


def test_calls_that_are_left_when_the_cell_ends_are_ended(make_sandbox):
    called, release = threading.Event(), threading.Event()

    def f():
        called.set()
        release.wait(30)

    def wait():
        assert called.wait(30)

    sandbox = make_sandbox(functions=[f, wait])
    execution = run(
        sandbox,
        "import threading\nthreading.Thread(target=f, daemon=True).start()\nwait()\n1",
    )
    release.set()
    assert execution.value == 1
    assert {(call.name, call.ok) for call in execution.calls} == {("f", False), ("wait", True)}
    assert run(sandbox, "2").value == 2


# --- who may not call ------------------------------------------------------------------------


def test_a_forked_child_cannot_call(make_sandbox):
    made = []
    sandbox = make_sandbox(functions={"f": lambda: made.append(1)})
    code = """
    import os
    if os.fork() == 0:
        try: f()
        except RuntimeError as error: print(error, flush=True)
        finally: os._exit(0)
    os.wait()
    f()
    """
    execution = run(sandbox, code)
    assert execution.ok
    assert "own interpreter only" in execution.stdout
    assert made == [1]


def test_a_thread_left_over_cannot_call_between_cells(make_sandbox):
    made = []
    sandbox = make_sandbox(functions={"f": lambda: made.append(1)})
    run(
        sandbox,
        """
        import threading
        seen, go = [], threading.Event()
        def background():
            go.wait()
            while not seen:
                try: f()
                except RuntimeError as error: seen.append(str(error))
            open("seen", "w").close()
        thread = threading.Thread(target=background, daemon=True); thread.start()
        """,
    )
    run(sandbox, "go.set()")
    # Between two cells, for as long as the thread needs to notice.
    sandbox.commands.run("until [ -e seen ]; do sleep 0.02; done", timeout=60).raise_for_exit()
    execution = run(sandbox, "seen")
    assert execution.value[0].startswith(("host functions answer only", "the cell that called"))


FORGED_NAMES = ["other", "__class__", "_functions", "f.__globals__", "", "x" * 100, "call", "eval"]


@pytest.mark.parametrize("name", FORGED_NAMES)
def test_a_function_that_was_not_exposed_cannot_be_named(make_sandbox, name):
    sandbox = make_sandbox(functions={"f": echo})
    execution = run(sandbox, f"{LINK}\nlink_of(f).call({name!r}, ('id',), {{}})")
    assert execution.outcome is Outcome.error
    assert execution.error.name == "NameError"
    assert "no host function named" in execution.error.value
    assert [(call.name, call.ok) for call in execution.calls] == [(name, False)]


FRAME = """
import json, struct
def forge(request, header, payload=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("!BIII", 39, request, len(text), len(payload)) + text + payload
send = link_of(f)._socket.sendall
"""

FORGED_FRAMES = {
    "garbage for arguments": "forge(9, {'function': 'f'}, b'garbage')",
    "no arguments": "forge(9, {'function': 'f'})",
    "no name": "forge(9, {}, b'{}')",
    "a name that is none": "forge(9, {'function': ['f']})",
    "a long name": "forge(9, {'function': 'f' * 10**5})",
    "a descriptor that is not there": "forge(9, {'function': 'f', 'shared': 100})",
    "parts that never came": "forge(9, {'function': 'f', 'parts': 100})",
    "both": "forge(9, {'function': 'f', 'parts': 100, 'shared': 100})",
    "a negative size": "forge(9, {'function': 'f', 'shared': -1})",
    "a huge size": "forge(9, {'function': 'f', 'shared': 2**60})",
    "another key": "forge(9, {'function': 'f', 'call': 3, 'request': 1, 'x': {'y': 1}})",
    "the same call twice": "forge(7, {'function': 'f'}) * 2",
    "a thousand calls": "b''.join(forge(i, {'function': 'f'}) for i in range(1000))",
    "no JSON": "forge(9, b'[' * 1000)",
}


@pytest.mark.parametrize("frame", FORGED_FRAMES.values(), ids=FORGED_FRAMES)
def test_forged_calls_reach_no_function_and_hurt_only_their_sandbox(make_sandbox, frame):
    made = []

    def f(*args):
        made.append(args)

    sandbox, other = make_sandbox(functions=[f]), make_sandbox(functions=[divide])
    code = f"{LINK}{FRAME}send({frame})\nimport time\ntime.sleep(0.3)"
    execution = run(sandbox, code, timeout=60)
    assert execution.outcome in (Outcome.ok, Outcome.error, Outcome.killed, Outcome.lost)
    assert made == []
    assert run(other, "divide(1)").value == 0.5
    assert run(sandbox, "f(1)").ok
    assert made == [(1,)]


def test_a_guest_that_calls_in_a_loop_hurts_only_itself(make_sandbox):
    sandbox = make_sandbox(functions={"f": HostFunction(lambda x: None, counts_time=True)})
    other = make_sandbox(functions=[divide])
    execution = run(sandbox, "while True: f(b'x' * 1000)", timeout=1)
    assert execution.outcome is Outcome.timeout
    assert len(execution.calls) <= 10_000
    assert run(other, "divide(1)").value == 0.5


def test_a_guest_that_calls_and_does_not_read_the_answers_is_held_back(make_sandbox):
    made = []
    sandbox = make_sandbox(functions={"f": lambda: made.append(1) or "x" * 100_000})
    code = f"""{LINK}{FRAME}
    from _belljar.protocol import values
    given = values.encode({{"args": [], "kwargs": {{}}}}).join()
    for i in range(100_000): send(forge(i, {{"function": "f"}}, given))
    """
    execution = run(sandbox, dedent(code).replace("\n    ", "\n"), timeout=2)
    assert execution.outcome is not Outcome.ok
    assert run(sandbox, "len(f())").value == 100_000


# --- speed -----------------------------------------------------------------------------------


def test_a_round_trip_is_quick(make_sandbox):
    sandbox = make_sandbox(functions=[divide])
    code = """
    import time
    took = []
    for _ in range(300):
        began = time.perf_counter()
        divide(1.0)
        took.append(time.perf_counter() - began)
    sorted(took)[len(took) // 10]
    """
    run(sandbox, code)
    # A machine that does other things at the same time gets ten times what is promised, and has a
    # quiet moment for each tenth call.
    assert run(sandbox, code).value < 0.010
