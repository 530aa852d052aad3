"""Host functions that are awaited in the guest, and functions that come and go."""

import threading
from textwrap import dedent

import anyio
import pytest

from belljar import HostFunction, InvalidOption, Outcome
from belljar.protocol import wire

pytestmark = pytest.mark.contract("native", "docker")


def run(sandbox, code, **options):
    return sandbox.run_code(dedent(code), **options)


async def double(x):
    await anyio.sleep(0)
    return 2 * x


class Meeting:
    """An async function that returns when `size` calls of it are under way at once."""

    def __init__(self, size):
        self.size, self.here, self.most = size, 0, 0
        self.all = None

    async def meet(self, name):
        self.all = self.all or anyio.Event()
        self.here += 1
        self.most = max(self.most, self.here)
        if self.here == self.size:
            self.all.set()
        await self.all.wait()
        self.here -= 1
        return name


# --- awaited ---------------------------------------------------------------------------------


@pytest.mark.contract("gvisor")
def test_an_async_function_is_awaited(make_sandbox):
    sandbox = make_sandbox(functions=[double])
    assert run(sandbox, "await double(2) + await double(x=3)").value == 10
    assert run(sandbox, "double(4)").value == 8  # without an event loop it gives its result
    code = """
        import asyncio
        async def main():
            return await double(5)
        asyncio.run(main())
    """
    assert run(sandbox, code).value == 10


@pytest.mark.contract("gvisor")
def test_gathered_calls_run_at_once(make_sandbox):
    meeting = Meeting(3)
    sandbox = make_sandbox(functions={"meet": meeting.meet})
    execution = run(sandbox, "import asyncio\nawait asyncio.gather(*map(meet, 'abc'))")
    assert execution.value == ["a", "b", "c"]
    assert [call.name for call in execution.calls] == ["meet"] * 3


def test_an_ordinary_function_can_be_awaited_too(make_sandbox):
    barrier = threading.Barrier(3)

    def meet(name):
        barrier.wait(timeout=30)
        return name

    sandbox = make_sandbox(functions=[HostFunction(meet, awaitable=True)])
    code = "import asyncio\nawait asyncio.gather(*map(meet, 'abc'))"
    assert run(sandbox, code).value == ["a", "b", "c"]


def test_other_tasks_go_on_while_a_call_is_awaited(make_sandbox):
    went_on = threading.Event()

    def wait():
        return went_on.wait(30)

    sandbox = make_sandbox(
        functions={"wait": HostFunction(wait, awaitable=True), "go_on": went_on.set}
    )
    code = """
        import asyncio
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        go_on()
        await waiting
    """
    assert run(sandbox, code).value is True


def test_whether_it_is_awaited_can_be_said(make_sandbox):
    sandbox = make_sandbox(
        functions={
            "always": HostFunction(double, awaitable=True),
            "never": HostFunction(double, awaitable=False),
        }
    )
    assert run(sandbox, "import asyncio\nasyncio.run(always(1))").value == 2
    assert run(sandbox, "await asyncio.sleep(0)\nnever(1)").value == 2
    forgotten = run(sandbox, "always(1)")
    assert any("coroutine, which the code does not await" in note for note in forgotten.notes)


def test_a_coroutine_that_is_not_awaited_is_named_in_pythons_warning(make_sandbox):
    sandbox = make_sandbox(functions=[double])
    execution = run(sandbox, "import asyncio\ndouble(1)\nawait asyncio.sleep(0)")
    assert "coroutine 'double' was never awaited" in execution.stderr
    assert execution.calls == ()


def test_errors_of_awaited_functions_are_caught_as_themselves(make_sandbox):
    async def look(key):
        raise KeyError(key)

    sandbox = make_sandbox(functions=[look])
    code = """
        import asyncio
        found = await asyncio.gather(look("a"), look("b"), return_exceptions=True)
        [repr(error) for error in found]
    """
    assert run(sandbox, code).value == ["KeyError(\"'a'\")", "KeyError(\"'b'\")"]
    assert run(sandbox, "await look()").error.name == "TypeError"
    failed = run(sandbox, "await look(object())")
    assert failed.error.value.startswith("look(): ")
    assert "<belljar>" not in failed.error.traceback


def test_more_calls_than_slots_wait_for_their_turn(make_sandbox):
    meeting = Meeting(wire.MAX_CALLS)
    many = HostFunction(meeting.meet, name="meet", concurrency=1000)
    sandbox = make_sandbox(functions=[many])
    count = 4 * wire.MAX_CALLS
    code = f"import asyncio\nawait asyncio.gather(*map(meet, range({count})))"
    execution = run(sandbox, code, timeout=60)
    assert execution.value == list(range(count))
    assert meeting.most == wire.MAX_CALLS


def test_large_values_come_and_go_while_others_are_awaited(make_sandbox):
    async def echo(data):
        return data

    sandbox = make_sandbox(functions=[echo])
    code = """
        import asyncio
        sizes = [10, 3_000_000, 20, 5_000_000]
        found = await asyncio.gather(*(echo(b"x" * size) for size in sizes))
        [len(data) for data in found] == sizes
    """
    assert run(sandbox, code).value is True


def test_calls_of_threads_and_of_tasks_work_beside_each_other(make_sandbox):
    meeting = Meeting(4)
    sandbox = make_sandbox(functions={"meet": meeting.meet})
    code = """
        import asyncio
        in_threads = [asyncio.to_thread(meet, name) for name in "ab"]
        await asyncio.gather(*in_threads, meet("c"), meet("d"))
    """
    assert run(sandbox, code).value == ["a", "b", "c", "d"]


def test_two_event_loops_can_await_at_once(make_sandbox):
    meeting = Meeting(2)
    sandbox = make_sandbox(functions={"meet": meeting.meet})
    code = """
        import asyncio, threading
        found = []
        async def main(name):
            found.append(await meet(name))
        thread = threading.Thread(target=lambda: asyncio.run(main("a")))
        thread.start()
        await main("b")
        thread.join()
        sorted(found)
    """
    assert run(sandbox, code).value == ["a", "b"]


# --- calls that are given up -----------------------------------------------------------------


def test_calls_that_time_out_in_the_guest_do_not_use_up_the_slots(make_sandbox):
    """More of them than may be under way: init would take that for an attack."""
    release = threading.Event()

    async def hang():
        while not release.is_set():
            await anyio.sleep(0.01)

    sandbox = make_sandbox(
        functions={"hang": HostFunction(hang, concurrency=1000), "release": release.set}
    )
    code = f"""
        import asyncio
        async def give_up(task):
            task.cancel()
            return await asyncio.gather(task, return_exceptions=True)
        tasks = [asyncio.create_task(hang()) for _ in range({2 * wire.MAX_CALLS})]
        for _ in range(20):
            await asyncio.sleep(0)
        for task in tasks[:{wire.MAX_CALLS // 2}]:
            await give_up(task)
        kept = 1
    """
    execution = run(sandbox, code)
    assert execution.outcome is Outcome.ok
    release.set()
    # Calls of the first cell end with it, and give their slots back.
    code = """
        found = await asyncio.gather(*tasks, return_exceptions=True)
        names = {type(each).__name__ for each in found}
        again = await asyncio.gather(*(hang() for _ in range(200)))
        kept, sorted(names), len(again)
    """
    execution = run(sandbox, code)
    assert execution.value[0] == 1
    assert set(execution.value[1]) <= {"CancelledError", "RuntimeError", "NoneType"}
    assert execution.value[2] == 200


def test_a_cell_is_interrupted_while_it_awaits(run_async, open_sandbox):
    async def main():
        called = anyio.Event()

        async def hang():
            called.set()
            await anyio.sleep_forever()

        async with open_sandbox(functions=[hang]) as sandbox:
            await sandbox.run_code("x = 1")
            code = "try:\n    await hang()\nfinally:\n    x = 2"
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(sandbox.run_code, code)
                await called.wait()
                await sandbox.interrupt()
            return (await sandbox.run_code("x")).value

    assert run_async(main) == 2


def test_a_task_that_outlives_its_cell_is_told_that_its_call_has_ended(make_sandbox):
    called = threading.Event()

    async def hang():
        called.set()
        await anyio.sleep_forever()

    sandbox = make_sandbox(functions={"hang": hang, "called": lambda: called.wait(30)})
    code = """
        import asyncio
        task = asyncio.create_task(hang())
        await asyncio.sleep(0)
        called()
    """
    assert run(sandbox, code).outcome is Outcome.ok
    found = run(
        sandbox, "await asyncio.gather(task, return_exceptions=True)\nstr(task.exception())"
    )
    assert found.value == "the cell that called it has ended"


def test_an_async_function_takes_its_time(make_sandbox):
    async def slow():
        await anyio.sleep(1.5)
        return "done"

    sandbox = make_sandbox(functions=[slow])
    assert run(sandbox, "await slow()", timeout=1).value == "done"


def test_a_checkpoint_after_awaited_calls_lacks_nothing_of_them(make_sandbox):
    sandbox = make_sandbox(functions=[double])
    run(sandbox, "x = await double(1)")
    point = sandbox.checkpoint()
    run(sandbox, "x = await double(2)")
    sandbox.rollback(point)
    assert run(sandbox, "[x, await double(5)]").value == [2, 10]


# --- functions that come and go --------------------------------------------------------------


def test_functions_are_a_live_mapping(sandbox):
    assert dict(sandbox.functions) == {}
    sandbox.functions["twice"] = double
    assert run(sandbox, "twice(2)").value == 4
    sandbox.functions["twice"] = lambda x: [x, x]
    assert run(sandbox, "twice(2)").value == [2, 2]
    assert [*sandbox.functions] == ["twice"]
    sandbox.functions.clear()
    assert run(sandbox, "twice(2)").error.name == "NameError"
    assert run(sandbox, "1 + 1").value == 2


def test_a_function_is_taken_back(make_sandbox):
    sandbox = make_sandbox(functions={"one": lambda: 1, "two": lambda: 2})
    assert run(sandbox, "kept = one\none() + two()").value == 3
    sandbox.unexpose("one")
    assert run(sandbox, "two()").value == 2
    assert run(sandbox, "one").error.name == "NameError"
    late = run(sandbox, "kept()")  # of a function that the code has kept
    assert "there is no host function named 'one'" in late.error.value
    with pytest.raises(InvalidOption, match="unknown host function 'one'"):
        sandbox.unexpose("one")
    sandbox.restart()
    assert run(sandbox, "two()").value == 2
    assert run(sandbox, "one").error.name == "NameError"


def test_a_variable_of_the_code_stays_when_a_function_is_taken_back(make_sandbox):
    sandbox = make_sandbox(functions={"one": lambda: 1})
    run(sandbox, "one = 'mine'")
    sandbox.unexpose("one")
    assert run(sandbox, "one").value == "mine"


@pytest.mark.contract("gvisor")
def test_names_that_are_no_identifiers_are_mapped(sandbox):
    names = sandbox.expose_all({"get-weather": lambda city: f"fine in {city}", "import": len})
    assert names == {"get-weather": "get_weather", "import": "import_"}
    assert run(sandbox, "get_weather('Oslo'), import_('abc')").value == ("fine in Oslo", 3)
    assert list(sandbox.functions) == ["get-weather", "import"]
    assert sandbox.expose(len, "size of") == "size_of"
    assert sandbox.expose_all([HostFunction(len, name="__dspy_call__")])
    assert run(sandbox, "size_of('ab') + __dspy_call__('a')").value == 3
    sandbox.unexpose("get-weather")
    assert run(sandbox, "get_weather").error.name == "NameError"
    sandbox.unexpose("size_of")  # as expose() called it
    assert run(sandbox, "size_of").error.name == "NameError"
    assert "size of" not in sandbox.functions
    with pytest.raises(InvalidOption, match="unknown host function 'size_of'"):
        sandbox.unexpose("size_of")


def test_a_fork_has_functions_of_its_own(make_sandbox):
    sandbox = make_sandbox(functions={"one": lambda: 1})
    run(sandbox, "1")
    with sandbox.fork() as other:
        other.unexpose("one")
        other.functions["two"] = lambda: 2
        assert run(other, "two()").value == 2
        assert run(other, "one").error.name == "NameError"
        assert run(sandbox, "one()").value == 1


def test_the_async_api_has_the_same_functions(run_async, open_sandbox):
    async def main():
        async with open_sandbox() as sandbox:
            await sandbox.expose_all({"a-b": double})
            sandbox.functions["c"] = double
            found = await sandbox.run_code("await a_b(1) + await c(2)")
            await sandbox.unexpose("a-b")
            return found.value, list(sandbox.functions)

    assert run_async(main) == (6, ["c"])
