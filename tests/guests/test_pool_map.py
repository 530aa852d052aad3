"""Pool.map: order, back-pressure, failures, and maps that no caller ends."""

import asyncio
import os
import subprocess
import sys
import threading
import time

import anyio
import pytest

import census
from belljar import InvalidOption, Outcome, Pool, Snippet
from belljar.errors import (
    PoolClosed,
    SandboxError,
)
from pools import a_pool, eventually
from project import ESCAPES

pytestmark = pytest.mark.contract("native")

HOSTILE = ESCAPES / "hostile.py"


# -- maps that nobody ends ---------------------------------------------------------------------


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "1 / 0"])
def test_a_process_with_an_unfinished_map_ends_as_it_would_without(backend, end):
    code = "import sys\nfrom belljar import Pool\npool = Pool(environment='python')\n"
    code += f"results = pool.map(['1'] * 30, concurrency=2)\nnext(results)\n{end}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == {"": 0, "sys.exit(3)": 3, "1 / 0": 1}[end], done.stderr
    assert "hread" not in done.stderr


def test_a_fork_of_the_process_neither_reads_on_nor_ends_a_map(backend):
    with a_pool(Pool) as pool:
        results = pool.map(["1"] * 10, concurrency=2)
        assert next(results).value == 1
        child = os.fork()
        if child == 0:
            try:
                next(results)
            except PoolClosed:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert [each.value for each in results] == [1] * 9


def test_items_come_back_with_their_results_in_whichever_order(run_async):
    async def test():
        async with a_pool() as pool:
            other_is_done = anyio.Event()

            async def wait():
                await other_is_done.wait()

            codes = [Snippet("wait(); 1", metadata="slow"), "2"]
            mapped = pool.map(codes, concurrency=2, ordered=False, functions={"wait": wait})
            found = []
            async for item, each in mapped.pairs():
                found.append((item, each.value))
                other_is_done.set()
            assert found == [("2", 2), (codes[0], 1)]

    run_async(test)


def test_an_item_that_cannot_run_is_a_value_unless_it_shall_be_raised(run_async):
    async def test():
        endless = []
        endless.append(endless)
        codes = ["1", Snippet("2", variables={"x": endless}), "3"]
        async with a_pool() as pool:
            first, second, third = [each async for each in pool.map(codes)]
            assert (first.value, third.value) == (1, 3)
            assert (second.outcome, second.execution_count) == (Outcome.error, 0)
            assert "x" in second.error.value
            with pytest.raises(SandboxError):
                [each async for each in pool.map(codes, on_error="raise")]

    run_async(test)


# -- map ---------------------------------------------------------------------------------------


@pytest.mark.contract("docker")
def test_map_gives_results_in_order_and_failures_as_values(run_async):
    async def test():
        async with a_pool(max_total=4) as pool:
            progress = []
            codes = [
                "import time; time.sleep(0.2); 0",
                "1",
                "1 / 0",
                {"code": "while True: pass", "timeout": 0.2},
                Snippet("def f(x): return x * 2", then="f(x)", variables={"x": 21}),
                {"code": "1 / 0", "then": "print('never')"},
                {"code": "open('a').read()", "files": {"a": "text"}},
                {"code": "import os; os.environ['A']", "env": {"A": "b"}},
                {"code": "len(os.sched_getaffinity(0))", "options": {"limits": {"memory": "64m"}}},
            ]
            mapped = pool.map(codes, concurrency=4, on_progress=lambda *done: progress.append(done))
            found = [each async for each in mapped]
            assert [each.value for each in found[:2]] == [0, 1]
            assert found[2].error.name == "ZeroDivisionError"
            assert found[3].outcome is Outcome.timeout
            assert [each.value for each in found[4:8]] == [42, None, "text", "b"]
            assert found[5].error.name == "ZeroDivisionError"
            assert found[8].outcome is Outcome.error
            assert progress == [(number, 9) for number in range(1, 10)]
            assert [each async for each in pool.map([])] == []

    run_async(test)


FORGED = """
import fcntl, os, socket
from hostile import DONE, forge, worker
runner, request = worker()
memory = os.memfd_create("x", os.MFD_ALLOW_SEALING)
os.write(memory, bytes(300_000))
unreadable = os.open(f"/proc/self/fd/{memory}", os.O_WRONLY)
fcntl.fcntl(memory, fcntl.F_ADD_SEALS, 2 | 4 | 8)
frame = forge(DONE, request, {"status": "ok", "shared": 300_000})
socket.send_fds(runner._control, [frame], [unreadable])
"""


def test_map_goes_on_when_a_snippet_sends_memory_that_cannot_be_read(run_async):
    hostile = {"code": FORGED, "files": {"hostile.py": HOSTILE.read_text()}, "timeout": 5}

    async def test():
        async with a_pool(max_total=2) as pool:
            found = [each async for each in pool.map(["1", hostile, "2", "3"], concurrency=2)]
            assert [each.value for each in found] == [1, None, 2, 3]

    run_async(test)


def test_map_reads_its_input_as_it_is_needed_and_keeps_few_results(run_async):
    async def test():
        async with a_pool(max_total=4) as pool:
            taken = 0

            def codes():
                nonlocal taken
                for number in range(10**6):
                    taken += 1
                    yield f"{number}"

            async with pool.map(codes(), concurrency=2, window=5) as results:
                assert taken == 0
                for number in range(8):
                    assert (await anext(results)).value == number
                    assert taken <= number + 1 + 5
                await anyio.sleep(0.1)
                assert taken <= 8 + 5
            assert taken <= 8 + 5
            await eventually(lambda: pool.stats().leased == pool.stats().ending == 0)

    run_async(test)


def test_map_takes_an_input_that_depends_on_its_results(run_async):
    async def test():
        async with a_pool() as pool:
            send, receive = anyio.create_memory_object_stream(1)
            ended = []

            async def codes():
                try:
                    yield "1"
                    async for value in receive:
                        yield f"{value} * 2"
                finally:
                    ended.append(True)

            values = []
            async with send, receive, pool.map(codes(), concurrency=2) as results:
                async for execution in results:
                    values.append(execution.value)
                    if len(values) == 4:
                        break
                    await send.send(execution.value)
            assert values == [1, 2, 4, 8]
            assert ended == [True]

    run_async(test)


def test_map_that_is_left_early_leaves_nothing(run_async):
    async def test():
        async with a_pool(min_ready=0, max_total=4) as pool:
            slow = "import time; time.sleep(60)"
            async for execution in pool.map(["1", *[slow] * 10], concurrency=4):
                assert execution.value == 1
                break
            await eventually(lambda: pool.stats().leased == pool.stats().ending == 0)
            async with pool.map(["1", *[slow] * 10], concurrency=4) as results:
                await anext(results)
            assert pool.stats().leased == 0
            with anyio.move_on_after(0.1):
                async for _ in pool.map([slow]):
                    pass
            await eventually(lambda: pool.stats().leased == pool.stats().ending == 0)

    run_async(test)


def test_an_input_that_a_thread_reads_may_wait_for_results(run_async):
    async def test():
        async with a_pool() as pool:
            done, closed = threading.Semaphore(0), threading.Event()

            def codes():
                try:
                    for number in range(3):
                        yield f"{number}"
                        assert done.acquire(timeout=30)
                    raise LookupError("no more")
                finally:
                    closed.set()

            results = pool.map(codes(), concurrency=2, read_in_thread=True)
            for number in range(3):
                assert (await anext(results)).value == number
                done.release()
            with pytest.raises(LookupError):
                await anext(results)
            assert closed.is_set()

    run_async(test)


def test_a_thread_reads_no_further_than_the_window_and_ends_with_its_map(backend):
    def codes():
        for number in range(10**6):
            taken.append(number)
            yield f"{number}"

    def readers():
        return [each for each in threading.enumerate() if each.name == "belljar-input"]

    taken = []
    with a_pool(Pool, max_total=4) as pool:
        with pool.map(codes(), concurrency=2, window=5, read_in_thread=True) as results:
            assert [next(results).value for _ in range(3)] == [0, 1, 2]
            assert len(readers()) == 1
            time.sleep(0.2)
            assert len(taken) <= 3 + 5
        census.wait_until(lambda: not readers(), 30, "that the thread ends")


def test_an_input_that_ends_by_a_cancellation_of_its_own_ends_the_map(backend):
    """It awaited a task that was cancelled by other code: items that run are not affected."""

    async def codes():
        yield "1"
        yield "2"
        raise asyncio.CancelledError

    async def main():
        async with a_pool(max_total=4) as pool:
            with anyio.fail_after(60):
                return [each.value async for each in pool.map(codes(), concurrency=2)]

    assert asyncio.run(main()) == [1, 2]


def test_a_reading_thread_ends_with_its_event_loop(backend):
    def codes():
        while True:
            yield "1"

    async def main():
        pool = a_pool(max_total=4)
        await pool.__aenter__()
        unfinished = pool.map(codes(), concurrency=1, window=1, read_in_thread=True)
        await anext(unfinished)
        await pool.close()
        return unfinished

    left = asyncio.run(main())
    census.wait_until(
        lambda: "belljar-input" not in [each.name for each in threading.enumerate()],
        30,
        "that the thread ends",
    )
    del left


def test_what_the_input_or_the_callback_raises_is_raised_in_its_place(run_async):
    async def test():
        async with a_pool(max_total=4) as pool:

            def broken():
                yield "1"
                yield "2"
                raise LookupError("no more")

            async def broken_too():
                for code in broken():
                    yield code

            for codes in (broken(), broken_too()):
                results = pool.map(codes)
                assert [(await anext(results)).value for _ in range(2)] == [1, 2]
                with pytest.raises(LookupError):
                    await anext(results)
                with pytest.raises(StopAsyncIteration):
                    await anext(results)

            def complain(done, total):
                raise ArithmeticError

            with pytest.raises(ArithmeticError):
                async for _ in pool.map(["1"] * 10, on_progress=complain):
                    pass
            for wrong in ([1], [{"cod": "1"}], [{"timeout": 1}], [Snippet]):
                with pytest.raises(InvalidOption):
                    async for _ in pool.map(wrong):
                        pass
            for wrong in ("1 + 1", 3):
                with pytest.raises(InvalidOption):
                    pool.map(wrong)
            with pytest.raises(InvalidOption):
                pool.map(["1"], concurrency=0)
            await eventually(lambda: pool.stats().leased == pool.stats().ending == 0)

    run_async(test)
