"""Calls of host functions, without a guest: turns, counts, time-outs, threads, cancellation."""

import asyncio
import contextvars
import functools
import threading
import time

import anyio
import anyio.to_thread
import pytest

from belljar.functions.registry import HostFunction, Registry, coerce_functions

VARIABLE = contextvars.ContextVar("VARIABLE", default="unset")


@pytest.fixture(params=["asyncio", "trio"])
def run(request):
    def run(function, *args):
        return anyio.run(function, *args, backend=request.param)

    return run


def registry(*functions, **named):
    return Registry([*coerce_functions(functions).values(), *coerce_functions(named).values()])


def call(run, function, *args, **kwargs):
    """One call of one function, from a fresh event loop."""
    table = registry(f=function)

    async def main():
        return await table.call("f", args, kwargs)

    return run(main)


# --- what is called --------------------------------------------------------------------------


class Adder:
    def __init__(self, start=1):
        self.start = start

    def add(self, n):
        return self.start + n

    async def add_later(self, n):
        await anyio.sleep(0)
        return self.start + n

    def __call__(self, n):
        return self.add(n)


class LateAdder(Adder):
    async def __call__(self, n):
        return await self.add_later(n)


async def later(n):
    await anyio.sleep(0)
    return n + 1


@pytest.mark.parametrize(
    "function",
    [
        *(lambda n: n + 1, Adder().add, Adder(), functools.partial(Adder.add, Adder())),
        *(later, Adder().add_later, LateAdder(), functools.partial(later), lambda n: later(n)),
        functools.lru_cache(Adder().add),
    ],
)
def test_callables_of_every_kind_are_called(run, function):
    assert call(run, function, 2) == 3
    assert call(run, function, n=2) == 3


def test_builtins_and_classes_are_called(run):
    assert call(run, max, 1, 5, 2) == 5
    assert call(run, dict, a=1) == {"a": 1}
    assert call(run, Adder, 7).start == 7


def test_a_name_that_was_not_exposed_is_not_found(run):
    table = registry(later)

    async def main(name):
        return await table.call(name, (), {})

    for name in ("", "later2", "__class__", "call", "_functions", "later.__globals__", "x" * 10**6):
        with pytest.raises(NameError, match="no host function named") as info:
            run(main, name)
        assert len(str(info.value)) < 200


def test_arguments_that_do_not_fit_are_a_type_error_and_no_call(run):
    table = registry(f=HostFunction(lambda a, *, b: (a, b), max_calls=1))

    async def main():
        for args, kwargs in [((), {}), ((1, 2), {"b": 1}), ((1,), {"b": 1, "c": 2}), ((1,), {})]:
            with pytest.raises(TypeError, match=r"^f\(\) "):
                await table.call("f", args, kwargs)
        return await table.call("f", (1,), {"b": 2})

    assert run(main) == (1, 2)


def test_exceptions_of_a_function_are_raised_as_they_are(run):
    def fail():
        raise KeyError("a")

    async def fail_later():
        raise KeyError("a")

    for function in (fail, fail_later):
        with pytest.raises(KeyError):
            call(run, function)


@pytest.mark.parametrize(
    "error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), StopIteration(1)]
)
def test_a_function_cannot_end_the_event_loop(run, error):
    def fail():
        raise error

    with pytest.raises(RuntimeError, match=f"^f raised {type(error).__name__}$"):
        call(run, fail)


def test_an_async_function_cannot_exit_the_host(run):
    async def fail():
        raise SystemExit(1)

    with pytest.raises(RuntimeError, match="f raised SystemExit"):
        call(run, fail)


def test_a_cancellation_inside_a_function_is_an_error_of_it(run):
    async def cancelled():
        raise asyncio.CancelledError

    with pytest.raises(RuntimeError, match="f was cancelled"):
        call(run, cancelled)


def test_context_variables_are_carried_over(run):
    table = registry(plain=VARIABLE.get, awaited=later_variable)

    async def main():
        VARIABLE.set("set")
        return [await table.call("plain", (), {}), await table.call("awaited", (), {})]

    assert run(main) == ["set", "set"]


async def later_variable():
    return VARIABLE.get()


def test_ordinary_functions_run_off_the_event_loop(run):
    async def main():
        table = registry(f=threading.get_ident, g=loop_thread)
        ours = threading.get_ident()
        assert await table.call("f", (), {}) != ours
        assert await table.call("g", (), {}) == ours

    run(main)


async def loop_thread():
    return threading.get_ident()


# --- how many --------------------------------------------------------------------------------


def test_calls_are_counted_and_no_more_are_made(run):
    made = []
    table = registry(f=HostFunction(made.append, max_calls=3))
    refused = []

    async def one(i):
        try:
            await table.call("f", (i,), {})
        except RuntimeError as error:
            refused.append(str(error))

    async def main():
        async with anyio.create_task_group() as tasks:
            for i in range(10):
                tasks.start_soon(one, i)

    run(main)
    assert len(made) == 3
    assert refused == ["f may be called 3 times, no more"] * 7


class Crowd:
    """Counts those inside at once; they leave when `size` are there, or the door is opened."""

    def __init__(self):
        self.inside = self.most = 0
        self.lock = threading.Lock()
        self.open = threading.Event()
        self.changed = threading.Condition(self.lock)

    def enter(self):
        with self.changed:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.changed.notify_all()
        self.open.wait(30)
        with self.lock:
            self.inside -= 1

    def await_inside(self, number):
        with self.changed:
            assert self.changed.wait_for(lambda: self.inside >= number, 30)


@pytest.mark.parametrize("concurrency", [1, 3, 50])
def test_so_many_threads_run_at_once_and_no_more(run, concurrency):
    crowd = Crowd()
    table = registry(f=HostFunction(crowd.enter, concurrency=concurrency))

    async def main():
        async with anyio.create_task_group() as tasks:
            for _ in range(60):
                tasks.start_soon(table.call, "f", (), {})
            await anyio.to_thread.run_sync(crowd.await_inside, concurrency)
            crowd.open.set()

    run(main)
    assert (crowd.most, crowd.inside) == (concurrency, 0)


def test_so_many_async_calls_run_at_once_in_the_order_they_came(run):
    order, inside, most = [], 0, 0

    async def function(i):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        order.append(i)
        for _ in range(3):
            await anyio.sleep(0)
        inside -= 1

    table = registry(f=HostFunction(function, concurrency=2))

    async def main():
        async with anyio.create_task_group() as tasks:
            for i in range(9):
                tasks.start_soon(table.call, "f", (i,), {})
                await anyio.sleep(0)

    run(main)
    assert (most, inside) == (2, 0)
    assert order == list(range(9))


def test_a_busy_function_does_not_keep_others_or_the_program_waiting(run):
    crowd = Crowd()
    table = registry(slow=HostFunction(crowd.enter, concurrency=50), fast=lambda: 1)

    async def main():
        async with anyio.create_task_group() as tasks:
            for _ in range(50):  # more than the default limiter of threads has
                tasks.start_soon(table.call, "slow", (), {})
            await anyio.to_thread.run_sync(crowd.await_inside, 50)
            assert await table.call("fast", (), {}) == 1
            assert await anyio.to_thread.run_sync(lambda: 2) == 2
            crowd.open.set()

    run(main)


def test_copies_of_a_registry_count_together():
    made = []
    table = registry(f=HostFunction(made.append, max_calls=2))
    twin = table.copy()

    async def main():
        await table.call("f", (1,), {})
        await twin.call("f", (2,), {})
        with pytest.raises(RuntimeError):
            await twin.call("f", (3,), {})
        twin.add(HostFunction(later, name="g"))
        assert ([*table], [*twin]) == (["f"], ["f", "g"])
        assert twin.version == table.version + 1

    anyio.run(main)
    assert made == [1, 2]


def test_a_function_that_is_added_again_takes_the_place_of_the_first():
    table = registry(f=lambda: 1)
    before = table.version

    async def main():
        table.add(HostFunction(lambda: 2, name="f", counts_time=True))
        return await table.call("f", (), {})

    assert anyio.run(main) == 2
    assert table.version > before
    assert table.counts_time("f")
    assert table.counts_time("unknown")


# --- how long --------------------------------------------------------------------------------


def test_a_call_that_takes_too_long_is_answered_in_time(run):
    release = threading.Event()

    async def forever():
        await anyio.sleep_forever()

    table = registry(
        f=HostFunction(release.wait, timeout=0.1), g=HostFunction(forever, timeout=0.1)
    )

    async def main():
        began = time.perf_counter()
        for name in ("f", "g"):
            with pytest.raises(TimeoutError, match=f"^{name} took longer than 0.1 s$"):
                await table.call(name, (), {})
        return time.perf_counter() - began

    try:
        assert run(main) < 50
    finally:
        release.set()


def test_a_time_out_of_the_functions_own_is_left_as_it_is(run):
    def fail():
        raise TimeoutError("the database did not answer")

    with pytest.raises(TimeoutError, match="the database did not answer"):
        call(run, HostFunction(fail, timeout=30))


def test_a_thread_that_was_given_up_keeps_its_place_until_it_returns(run):
    crowd = Crowd()
    table = registry(f=HostFunction(crowd.enter, timeout=0.05, concurrency=2))

    async def main():
        while crowd.inside < 2:  # a thread may begin late, or its call be given up before it does
            with pytest.raises(TimeoutError):
                await table.call("f", (), {})
        for _ in range(3):  # however often it is tried, no third thread is made
            with pytest.raises(TimeoutError, match="f is busy"):
                await table.call("f", (), {})
        assert crowd.inside == crowd.most == 2
        crowd.open.set()
        with anyio.fail_after(30):
            while True:
                try:
                    return await table.call("f", (), {})
                except TimeoutError:
                    continue

    run(main)
    assert crowd.most == 2


def test_those_who_wait_for_their_turn_have_their_whole_time_after_it(run):
    """Ten calls, one at a time, that take longer together than one alone may."""
    table = registry(f=HostFunction(functools.partial(time.sleep, 0.4), timeout=3.5, concurrency=1))

    async def main():
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(table.call, "f", (), {})

    run(main)


def test_a_cancelled_call_ends_at_once_and_gives_its_place_back_when_its_thread_ends(run):
    crowd = Crowd()
    table = registry(f=HostFunction(crowd.enter, timeout=None, concurrency=1))

    async def main():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(table.call, "f", (), {})
            await anyio.to_thread.run_sync(crowd.await_inside, 1)
            tasks.cancel_scope.cancel()
        assert crowd.inside == 1  # the thread is still there, the call is not
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(table.call, "f", (), {})
            await anyio.sleep(0)
            crowd.open.set()

    run(main)
    assert crowd.most == 1


def test_a_call_cancelled_before_its_turn_leaves_no_trace(run):
    crowd = Crowd()
    table = registry(f=HostFunction(crowd.enter, timeout=None, concurrency=1, max_calls=2))

    async def main():
        async with anyio.create_task_group() as first:
            first.start_soon(table.call, "f", (), {})
            await anyio.to_thread.run_sync(crowd.await_inside, 1)
            async with anyio.create_task_group() as waiting:
                for _ in range(5):
                    waiting.start_soon(table.call, "f", (), {})
                await anyio.sleep(0)
                await anyio.sleep(0)
                waiting.cancel_scope.cancel()
            crowd.open.set()
        await table.call("f", (), {})

    run(main)


def test_a_cancelled_async_call_is_cancelled_inside(run):
    seen = []

    async def main():
        begun = anyio.Event()

        async def function():
            begun.set()
            try:
                await anyio.sleep_forever()
            finally:
                seen.append("ended")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(registry(f=function).call, "f", (), {})
            await begun.wait()
            tasks.cancel_scope.cancel()

    run(main)
    assert seen == ["ended"]


def test_a_coroutine_that_comes_too_late_is_closed(run):
    """Warnings are errors here: nobody may be told that it was never awaited."""
    release, ended = threading.Event(), threading.Event()

    def slow():
        release.wait(30)
        made = later(1)
        threading.Timer(0.1, ended.set).start()
        return made

    with pytest.raises(TimeoutError):
        call(run, HostFunction(slow, timeout=0.05))
    release.set()
    assert ended.wait(30)


def test_a_thread_that_outlives_its_event_loop_does_no_harm(run):
    release = threading.Event()
    threads = set(threading.enumerate())
    with pytest.raises(TimeoutError):
        call(run, HostFunction(release.wait, timeout=0.05))
    release.set()
    for thread in set(threading.enumerate()) - threads:
        if "Trio" not in thread.name:  # those are kept for a while
            thread.join(30)
            assert not thread.is_alive()
