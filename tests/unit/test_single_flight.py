"""One makes a thing, others wait: in several threads and kinds of event loop, without polling."""

import concurrent.futures
import itertools
import threading
import time

import anyio
import pytest

from belljar.backends.single_flight import SingleFlight, wait_until_done

LOOPS = pytest.mark.parametrize("loop", ["asyncio", "trio"])


def run_in_threads(*works):
    """Each work is a loop's name and an async function; their results, in order."""
    with concurrent.futures.ThreadPoolExecutor(len(works)) as pool:
        begun = [pool.submit(anyio.run, function, backend=loop) for loop, function in works]
        return [each.result(10) for each in begun]


@LOOPS
def test_a_future_settled_by_another_thread_wakes_its_waiter_at_once(loop):
    future = concurrent.futures.Future()
    settled = []

    def settle():
        time.sleep(0.2)
        settled.append(time.monotonic())
        future.set_result(7)

    async def main():
        threading.Thread(target=settle).start()
        await wait_until_done(future)
        return time.monotonic()

    assert anyio.run(main, backend=loop) - settled[0] < 0.1
    assert future.result() == 7


@LOOPS
@pytest.mark.parametrize("end", ["set_result", "set_exception", "cancel"])
def test_every_end_of_a_future_is_one(loop, end):
    future = concurrent.futures.Future()
    arguments = {"set_result": (1,), "set_exception": (ValueError(),), "cancel": ()}[end]

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(wait_until_done, future)
            await anyio.wait_all_tasks_blocked()
            getattr(future, end)(*arguments)
        await wait_until_done(future)  # also when it is done already

    anyio.run(main, backend=loop)


@LOOPS
def test_a_waiter_that_gave_up_and_whose_loop_is_closed_does_no_harm(loop, caplog):
    future = concurrent.futures.Future()

    async def main():
        with anyio.move_on_after(0.01):
            await wait_until_done(future)

    anyio.run(main, backend=loop)
    future.set_result(None)
    assert not caplog.records  # of an exception in a callback


def test_tasks_of_several_loops_and_threads_share_one_result():
    shared, count = SingleFlight(), itertools.count()

    async def make():
        await anyio.sleep(0.2)
        return next(count)

    async def ask():
        return await shared.once("key", make)

    assert run_in_threads(*[("asyncio", ask), ("trio", ask)] * 4) == [0] * 8
    assert run_in_threads(("trio", ask)) == [1]  # nothing is kept


def test_when_the_one_that_makes_it_is_cancelled_another_loop_makes_it():
    shared, begun = SingleFlight(), threading.Event()

    async def never():
        begun.set()
        await anyio.sleep_forever()

    async def give_up():
        with anyio.move_on_after(0.3):
            await shared.once("key", never)

    async def ask():
        await anyio.to_thread.run_sync(begun.wait)

        async def make():
            return "made"

        return await shared.once("key", make)

    assert run_in_threads(("asyncio", give_up), ("trio", ask)) == [None, "made"]
