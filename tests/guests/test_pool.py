"""Pools with real guests: warm, never used, one tenant each, never too many, nothing left."""

import asyncio
import gc
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import anyio
import pytest

import census
import setting
from belljar import AsyncPool, AsyncSandbox, InvalidOption, Outcome, Pool, Sandbox, Snippet
from belljar.environment.environment import BUILTIN
from belljar.errors import (
    GuestLost,
    PoolClosed,
    PoolFull,
    SandboxClosed,
    SandboxError,
    StartError,
)
from belljar.observe.metrics import Metrics
from belljar.pool import guests as guests_module
from belljar.pool import pool as pool_module
from belljar.pool import pooled_sandbox
from belljar.pool import snippet as items
from belljar.pool.guests import Guests
from belljar.pool.pooled_sandbox import IdleGuest
from outside import guest_of
from project import ESCAPES

pytestmark = pytest.mark.contract("native")

HOSTILE = ESCAPES / "hostile.py"


@pytest.fixture(autouse=True)
def often_looked_after(monkeypatch):
    monkeypatch.setattr(pool_module, "CHECK_INTERVAL", 0.1)


def a_pool(kind=AsyncPool, **options):
    # An ordinary user without control groups has best effort.
    usual = {"environment": "python", "min_ready": 1, "max_total": 3}
    usual |= {} if setting.COUNTED else {"strict": False}
    return kind(**{**usual, **options})


async def eventually(holds):
    with anyio.fail_after(30):
        while not holds():
            await anyio.sleep(0.005)


def guests_of(pool):
    """The warm ones that wait, themselves."""
    return [
        ready.guest._guest
        for bucket in pool._guests.state.buckets.values()
        for ready in bucket.ready
    ]


# -- rehearsals --------------------------------------------------------------------------------


@pytest.mark.contract("docker")
def test_a_rehearsal_has_run_in_a_guest_that_waited_and_left_no_names(run_async):
    async def test():
        mark = "seen = 1\nopen('/tmp/mark', 'w').close()\nprint('said')"
        async with a_pool(rehearsal=mark) as pool:
            await pool.warm_up()
            async with pool.acquire() as sandbox:
                names = "[__import__('os').path.exists('/tmp/mark'), 'seen' in globals()]"
                execution = await sandbox.run_code(names)
                assert execution.value == [True, False]
                assert execution.stdout == ""
                assert execution.logs.background == ()
                assert execution.execution_count == 1

    run_async(test)


def test_who_waits_already_does_not_wait_for_a_rehearsal(run_async):
    async def test():
        async with a_pool(min_ready=0, rehearsal="import time; time.sleep(1000)") as pool:
            assert (await pool.run_code("6 * 7")).value == 42

    run_async(test)


@pytest.mark.contract("docker")
def test_a_rehearsal_that_fails_is_told_and_ends_its_guest(run_async):
    async def test():
        async with a_pool(rehearsal="1 / 0") as pool:
            with pytest.raises(StartError, match="ZeroDivisionError"):
                await pool.warm_up()
            assert pool.stats().ready == 0
        assert pool.stats().total == 0
        with pytest.raises(InvalidOption, match="rehearsal"):
            a_pool(rehearsal=7)

    run_async(test)


@pytest.mark.contract("docker")
def test_a_rehearsal_of_ours_needs_no_package(run_async):
    """An image of the caller's need not have those that the environment is said to preload."""

    async def test():
        async with a_pool(
            rehearsal=pooled_sandbox.choose_warmup_code(BUILTIN["data"], None)
        ) as pool:
            await pool.warm_up()
            assert pool.stats().start_failures == 0

    assert "pandas" in pooled_sandbox.choose_warmup_code(BUILTIN["data"], None)
    run_async(test)


# -- files that are kept -----------------------------------------------------------------------


def test_one_shots_in_a_row_can_share_a_workspace_and_a_map_one_at_a_time(run_async, tmp_path):
    async def test():
        count = "import os\nn = int(open('n').read()) if os.path.exists('n') else 0\n"
        count += "open('n', 'w').write(str(n + 1))\nn"
        async with a_pool() as pool:
            found = [(await pool.run_code(count, workspace=tmp_path)).value for _ in range(4)]
            assert found == [0, 1, 2, 3]
            mapped = pool.map([count, count], workspace=tmp_path, concurrency=1)
            assert [each.value async for each in mapped] == [4, 5]
            with pytest.raises(InvalidOption, match="one sandbox at a time"):
                pool.map([count], workspace=tmp_path, concurrency=2)

    run_async(test)


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
        codes = ["1", Snippet("2", variables={"x": object()}), "3"]
        async with a_pool() as pool:
            first, second, third = [each async for each in pool.map(codes)]
            assert (first.value, third.value) == (1, 3)
            assert (second.outcome, second.execution_count) == (Outcome.error, 0)
            assert "x" in second.error.value
            with pytest.raises(SandboxError):
                [each async for each in pool.map(codes, on_error="raise")]

    run_async(test)


# -- guests ------------------------------------------------------------------------------------


@pytest.mark.contract("docker")
def test_a_tenant_gets_a_warm_guest_that_nobody_had_and_that_nobody_gets_again(run_async):
    async def test():
        async with a_pool(min_ready=2) as pool:
            await pool.warm_up()
            waiting = [guest.location for guest in guests_of(pool)]
            assert len(waiting) == 2
            async with pool.acquire(metadata={"for": "x"}) as sandbox:
                assert isinstance(sandbox, AsyncSandbox)
                assert sandbox.alive
                assert sandbox.whereabouts in waiting
                assert guest_of(sandbox).isolation.backend in ("native", "docker")
                assert dict(sandbox.metadata) == {"for": "x"}
                assert (await sandbox.run_code("x = 6; x * 7")).value == 42
                assert pool.stats().leased == 1
            assert not sandbox.alive
            another = await pool.acquire()
            assert another.whereabouts != sandbox.whereabouts
            assert another.id != sandbox.id
            assert (await another.run_code("x")).error.name == "NameError"
            await another.close()
            await another.close()
            stats = pool.stats()
            assert stats.leases["ready"] == 2
            assert stats.leased == 0
            assert stats.total <= 3
        assert pool.stats().total == 0

    run_async(test)


def test_one_shot_runs_on_a_fresh_guest_each_time(run_async):
    async def test():
        async with a_pool() as pool:
            said = []
            execution = await pool.run_code(
                "print('hi'); y = 1; __import__('os').environ['A']",
                on_stdout=said.append,
                env={"A": "b"},
                timeout=20,
            )
            assert execution.value == "b"
            assert "".join(said) == "hi\n"
            assert (await pool.run_code("y")).error.name == "NameError"
            assert (await pool.run_code("import os; os._exit(3)")).outcome is Outcome.killed
            with pytest.raises(InvalidOption):
                await pool.run_code(b"1")
            with pytest.raises(InvalidOption, match="environmen"):
                await pool.run_code("1", environmen="data")

    run_async(test)


def test_at_the_maximum_who_asks_waits_or_is_told(run_async):
    async def test():
        async with a_pool(min_ready=0, max_total=1) as pool:
            first = await pool.acquire()
            with pytest.raises(PoolFull, match="1 are in use"):
                await pool.acquire(wait=0.01)
            with pytest.raises(PoolFull):
                await pool.run_code("1", wait=0)
            served = []

            async def ask(number):
                async with pool.acquire() as sandbox:
                    served.append(number)
                    assert (await sandbox.run_code("1")).ok

            async with anyio.create_task_group() as tasks:
                for number in range(3):
                    tasks.start_soon(ask, number)
                    await eventually(lambda n=number: pool.stats().waiting == n + 1)
                await first.close()
            assert served == [0, 1, 2]
            stats = pool.stats()
            assert stats.leases == {"ready": 0, "on_demand": 1, "at_capacity": 3}
            assert stats.refused == 2
            assert stats.waited["at_capacity"] > 0

    run_async(test)


def test_a_crowd_does_not_keep_a_single_caller_waiting(run_async):
    async def test():
        async def crowd(pool):
            async for _ in pool.map(["import time; time.sleep(0.1)"] * 40, concurrency=40):
                pass

        async with (
            a_pool(min_ready=0, max_total=1) as pool,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(crowd, pool)
            await eventually(lambda: pool.stats().waiting == 39)
            assert (await pool.run_code("2")).value == 2
            assert pool.stats().waiting >= 35
            tasks.cancel_scope.cancel()

    run_async(test)


@pytest.mark.contract("docker")
def test_warm_guests_that_are_killed_are_replaced_and_never_given(run_async):
    async def test():
        async with a_pool(min_ready=2, max_total=4) as pool:
            await pool.warm_up()
            dead = guests_of(pool)
            for guest in dead:
                guest.kill()
            for guest in dead:
                await eventually(guest.stream.ended)
            async with pool.acquire() as sandbox:
                assert (await sandbox.run_code("6 * 7")).value == 42
                assert sandbox.whereabouts not in [guest.location for guest in dead]
            await eventually(lambda: pool.stats().discarded["dead"] == 2)
            # Also if nobody asks.
            await pool.warm_up()
            guests_of(pool)[0].kill()
            await eventually(lambda: pool.stats().discarded["dead"] == 3)
            await pool.warm_up()

    run_async(test)


def test_a_warm_guest_that_does_not_answer_is_replaced(run_async, monkeypatch):
    async def test():
        async with a_pool() as pool:
            await pool.warm_up()
            asked = []

            async def answers(self):
                asked.append(self)
                return len(asked) > 1

            monkeypatch.setattr(IdleGuest, "answers", answers)
            monkeypatch.setattr(guests_module, "CHECK", 0.0)
            await eventually(lambda: len(asked) > 1)
            assert pool.stats().discarded["dead"] == 1
            await pool.warm_up()

    run_async(test)


def test_a_warm_guest_that_is_too_old_is_replaced_and_never_given(run_async, monkeypatch):
    async def test():
        async with a_pool(max_age=1000) as pool:
            await pool.warm_up()
            (old,) = guests_of(pool)
            monkeypatch.setattr(guests_module, "now", lambda: time.monotonic() + 2000)
            async with pool.acquire() as sandbox:
                assert sandbox.whereabouts != old.location
            assert pool.stats().discarded["old"] == 1

    run_async(test)


def test_another_kind_of_guest_has_a_shelf_of_its_own_and_makes_room(run_async, monkeypatch):
    async def test():
        async with a_pool(min_ready=2, max_total=2, limits={"memory": "256m"}) as pool:
            await pool.warm_up()
            async with pool.acquire(env={"A": "1"}, limits={"processes": 32}) as sandbox:
                assert (await sandbox.run_code("import os; os.environ['A']")).value == "1"
                assert sandbox.limits.processes == 32
                assert sandbox.limits.memory == 256 * 2**20
            stats = pool.stats()
            assert stats.discarded["room"] == 1
            assert len(stats.shelves) == 2
            monkeypatch.setattr(guests_module, "now", lambda: time.monotonic() + 100)
            await eventually(lambda: len(pool.stats().shelves) == 1)
            await pool.warm_up()
            assert pool.stats().ready == 2

    run_async(test)


def test_what_only_the_tenant_has_needs_no_other_guest(run_async, tmp_path):
    async def test():
        async with a_pool() as pool:
            await pool.warm_up()
            kept = tmp_path / "kept"
            kept.mkdir(exist_ok=True)
            (kept / "a.txt").write_text("6")
            async with pool.acquire(
                functions={"double": lambda x: 2 * x}, workspace=kept, record=tmp_path / "r.jsonl"
            ) as sandbox:
                code = "open('b.txt', 'w').write('7'); double(int(open('a.txt').read()))"
                assert (await sandbox.run_code(code)).value == 12
            assert (kept / "b.txt").read_text() == "7"
            assert (tmp_path / "r.jsonl").stat().st_size > 0
            assert len(pool.stats().shelves) == 1
            assert pool.stats().leases["ready"] == 1

    run_async(test)


def test_code_that_the_policy_rejects_takes_no_guest(run_async):
    async def test():
        async with a_pool(min_ready=0, policy="strict") as pool:
            rejected = await pool.run_code("import socket")
            assert rejected.outcome is Outcome.rejected
            assert rejected.policy is not None
            async with pool.map(["import socket"]) as results:
                assert [each.outcome async for each in results] == [Outcome.rejected]
            assert pool.stats().started == 0
            allowed = await pool.run_code("6 * 7")
            assert allowed.value == 42
            assert allowed.policy is not None

    run_async(test)


def test_a_fork_of_a_tenant_keeps_the_place_until_both_are_gone(run_async):
    async def test():
        async with a_pool(min_ready=0, max_total=1) as pool:
            sandbox = await pool.acquire()
            await sandbox.run_code("x = 1")
            twin = await sandbox.fork()
            await sandbox.close()
            assert (await twin.run_code("x")).value == 1
            assert pool.stats().leased == 1
            await twin.close()
            assert pool.stats().leased == 0
            # One that is not closed is ended with the pool.
            sandbox = await pool.acquire()
            twin = await sandbox.fork()
        assert pool.stats().total == 0
        assert not twin.alive

    run_async(test)


def test_forks_whose_guest_is_lost_do_not_start_one_each(run_async):
    async def test():
        async with a_pool(max_total=1) as pool:
            first = await pool.acquire()
            second = await first.fork()
            guest_of(first).kill()
            await eventually(lambda: not first.alive)
            with pytest.raises(GuestLost, match="shared"):
                await first.run_code("1")
            await second.close()
            await first.close()
            await eventually(lambda: pool.stats().leased == 0)

    run_async(test)


def test_a_tenants_close_that_asyncio_cancels_does_not_cost_a_place(backend):
    async def test():
        async with a_pool(min_ready=0, max_total=1) as pool:
            for turns in range(1, 7):  # before the first it would not even have begun
                tenant = await pool.acquire(wait=60)
                running = asyncio.create_task(tenant.run_code("import time; time.sleep(100)"))
                await asyncio.sleep(0.05)
                closing = asyncio.create_task(tenant.close())
                for _ in range(turns):
                    await asyncio.sleep(0)
                closing.cancel()
                await asyncio.gather(running, closing, return_exceptions=True)
            assert (await pool.run_code("1", wait=60)).ok

    asyncio.run(test())


def test_a_tenant_whose_guest_dies_goes_on_in_the_same_place(run_async):
    async def test():
        async with a_pool(min_ready=0, max_total=1) as pool:
            async with pool.acquire() as sandbox:
                guest_of(sandbox).kill()
                await eventually(lambda: not sandbox.alive)
                assert (await sandbox.run_code("6 * 7")).value == 42
                assert pool.stats().leased == 1
            assert pool.stats().leased == 0

    run_async(test)


# -- failures ----------------------------------------------------------------------------------


def test_a_start_that_fails_is_told_to_who_asks_and_not_repeated_at_once(run_async, monkeypatch):
    async def test():
        tried = []

        async def start(backend, spec):
            tried.append(spec)
            raise StartError("no guest today")

        with monkeypatch.context() as patch:
            patch.setattr(IdleGuest, "start", start)
            async with a_pool(min_ready=1) as pool:
                with pytest.raises(StartError, match="today"):
                    await pool.warm_up()
                for _ in range(3):
                    with pytest.raises(StartError, match="today"):
                        await pool.acquire()
                await anyio.sleep(0.1)
                assert len(tried) < 8
                assert pool.stats().last_error == "no guest today"
                assert pool.stats().start_failures == len(tried)
                with pytest.raises(StartError, match="today"):
                    async for _ in pool.map(["1"]):
                        pass
                patch.undo()
                assert (await pool.run_code("1")).ok
                assert pool.stats().last_error is None

    monkeypatch.setattr(items, "PAUSE", 0.0)
    run_async(test)


def test_snippets_whose_guest_dies_before_they_begin_are_run_on_another(run_async, monkeypatch):
    """And not again, if they may have begun."""

    async def test():
        async with a_pool() as pool:
            killed = []
            prepare = items.send_inputs

            async def prepare_and_die(tenant, part):
                await prepare(tenant, part)
                if len(killed) < 2:
                    killed.append(tenant)
                    guest_of(tenant).kill()
                    await eventually(lambda: not tenant.alive)

            monkeypatch.setattr(items, "send_inputs", prepare_and_die)
            snippet = Snippet("x + int(open('a').read())", variables={"x": 40}, files={"a": "2"})
            assert [each.value async for each in pool.map([snippet])] == [42]
            assert len(killed) == 2

            def die(text):
                for lease in pool._guests._leased:
                    lease.guest.kill()

            loop = "print('begun', flush=True)\nwhile True: pass"
            assert (await pool.run_code(loop, on_stdout=die)).outcome is Outcome.lost

    monkeypatch.setattr(items, "PAUSE", 0.0)
    run_async(test)


def test_who_is_cancelled_leaves_neither_a_place_nor_a_guest_behind(run_async, monkeypatch):
    async def test():
        async with a_pool(min_ready=1, max_total=2) as pool:
            await pool.warm_up()
            tenant = await pool.acquire()
            other = await pool.acquire()
            with anyio.move_on_after(0.02):
                await pool.acquire()
            assert pool.stats().waiting == 0

            # Given to him in the very moment in which he is cancelled.
            give = Guests._give

            def give_and_cancel(self, ticket, idle):
                given = give(self, ticket, idle)
                scope.cancel()
                return given

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(other.close)
                with monkeypatch.context() as patch, anyio.CancelScope() as scope:
                    patch.setattr(Guests, "_give", give_and_cancel)
                    await pool.acquire()
            assert scope.cancelled_caught
            assert pool.stats().leased == 1
            await tenant.close()
            with monkeypatch.context() as patch, anyio.CancelScope() as scope:
                patch.setattr(Guests, "_give", give_and_cancel)
                await pool.acquire()  # there at once
            assert scope.cancelled_caught
            assert pool.stats().leased == 0
            for delay in (0, 0.001, 0.002, 0.005, 0.01, 0.02):
                with anyio.move_on_after(delay):
                    await pool.run_code("while True: pass")
            await eventually(lambda: pool.stats().leased == pool.stats().ending == 0)
            assert (await pool.run_code("1")).ok

    run_async(test)


# -- the end -----------------------------------------------------------------------------------


@pytest.mark.contract("docker")
def test_close_ends_starts_tenants_and_those_who_wait(run_async):
    async def test():
        pool = a_pool(min_ready=3, max_total=3)
        outcomes = []

        async def work(pool):
            try:
                outcomes.append((await pool.run_code("while True: pass")).outcome)
            except PoolClosed:
                outcomes.append("closed")

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(work, pool)
            await eventually(lambda: pool.stats().leased >= 1)
            async with anyio.create_task_group() as closing:
                closing.start_soon(pool.close)
                closing.start_soon(pool.close)
        await pool.close()
        assert len(outcomes) == 5
        assert set(outcomes) <= {"closed", Outcome.killed, Outcome.lost}
        assert "closed" in outcomes
        assert pool.stats().total == 0
        with pytest.raises(PoolClosed):
            await pool.acquire()
        with pytest.raises(PoolClosed):
            pool.map(["1"])

        # In the middle of its first starts, and by an exception.
        pool = a_pool(min_ready=3)

        async def fail():
            async with pool:
                await anyio.sleep(0)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert pool.stats().total == 0
        # Never used.
        await a_pool().close()

    run_async(test)


def test_who_is_given_a_guest_while_the_pool_is_being_closed_does_not_begin(run_async):
    async def test():
        pool = a_pool()
        await pool.run_code("1")  # opens it
        stock, given = pool._guests, []

        def ends_with_this(ticket, idle, give=stock._give):
            given.append(give(ticket, idle))
            stock.state.closing = True
            return given[-1]

        stock._give = ends_with_this
        with pytest.raises(PoolClosed):
            await pool.run_code("1")
        assert given == [True]
        await pool.close()
        assert pool.stats().total == 0

    run_async(test)


def test_a_pool_that_nobody_closes_is_discarded_with_a_warning(run_async):
    found = []

    async def test():
        pool = a_pool(min_ready=2)
        await pool.warm_up()
        found.extend(guests_of(pool))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_async(test)
        gc.collect()
    assert any("was not closed" in str(each.message) for each in caught)
    deadline = time.monotonic() + 30
    while not all(guest.stream.ended() for guest in found):
        assert time.monotonic() < deadline
        gc.collect()


def test_a_pool_belongs_to_one_event_loop(run_async):
    pool = a_pool(min_ready=0)

    async def use():
        await pool.run_code("1")
        await eventually(lambda: pool.stats().total == 0)

    run_async(use)
    with pytest.raises(SandboxError, match="event loop"):
        run_async(use)


def test_a_fork_of_the_process_has_no_part_in_the_pool(backend):
    with a_pool(Pool) as pool:
        pool.warm_up()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                pool.close()
                try:
                    pool.run_code("1")
                except SandboxClosed:
                    code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert pool.run_code("6 * 7").value == 42
        assert pool.stats().leases["ready"] == 1


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


# -- blocking ----------------------------------------------------------------------------------


def test_many_threads_share_a_blocking_pool(backend):
    with a_pool(Pool, max_total=3) as pool:
        found = []

        def work(number):
            if number % 2:
                found.append(pool.run_code(f"{number}", owner=str(number)).value)
            else:
                with pool.acquire() as sandbox:
                    assert isinstance(sandbox, Sandbox)
                    sandbox.run_code(f"x = {number}")
                    found.append(sandbox.run_code("x").value)

        threads = [threading.Thread(target=work, args=[number]) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == list(range(20))
        stats = pool.stats()
        assert sum(stats.leases.values()) == 20
        assert stats.to_dict()["max_total"] == 3
        with Metrics() as metrics:
            pool.run_code("1")
            text = metrics.text()
        assert 'belljar_pool_guests{state="idle"}' in text
        assert "belljar_pool_waiting 0.0" in text
        assert "belljar_pool_leases_total{" in text
    assert pool.stats().total == 0
    pool.close()


def test_blocking_map_is_an_iterator_whose_input_is_read_in_this_thread(backend):
    with a_pool(Pool, max_total=4) as pool:
        threads = set()
        progress = []

        def codes(n):
            for number in range(n):
                threads.add(threading.current_thread())
                yield f"{number}"

        found = [
            each.value
            for each in pool.map(
                codes(12), concurrency=3, on_progress=lambda *d: progress.append(d)
            )
        ]
        assert found == list(range(12))
        assert threads == {threading.current_thread()}
        assert progress[-1] == (12, None)

        slow = "import time; time.sleep(60)"
        for execution in pool.map(["1", *[slow] * 10], concurrency=4):
            assert execution.value == 1
            break
        census.wait_until(lambda: pool.stats().leased == 0, 30, "that those are given up")
        results = pool.map(f"{1 // (3 - n)}" for n in range(10))
        assert [next(results).outcome for _ in range(3)] == [Outcome.ok] * 3
        with pytest.raises(ZeroDivisionError):
            next(results)

        def never():
            return None

        with pytest.raises(InvalidOption):
            pool.map(never)


def test_ctrl_c_in_a_map_ends_what_runs(backend):
    with a_pool(Pool, min_ready=0) as pool:

        def codes():
            yield "1"
            yield "import time; time.sleep(60)"
            threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
            yield "import time; time.sleep(60)"

        with pytest.raises(KeyboardInterrupt):
            for _ in pool.map(codes()):
                pass
        assert pool.stats().leased == 0


def test_async_with_pool_gives_the_async_pool(run_async):
    async def test():
        async with a_pool(Pool, min_ready=0) as pool:
            assert isinstance(pool, AsyncPool)
            assert (await pool.run_code("1")).ok

    run_async(test)


# -- options -----------------------------------------------------------------------------------


def test_ill_formed_options_are_said_at_once():
    for wrong in (
        {"min_ready": -1},
        {"min_ready": True},
        {"min_ready": 5, "max_total": 4},
        {"max_total": 0},
        {"max_age": 0},
        {"max_age": "1"},
        {"memory": "1g"},
        {"environmen": "data"},
    ):
        with pytest.raises(InvalidOption):
            AsyncPool(**wrong)


def test_both_pools_have_the_same_names_and_documentation():
    def public(cls):
        return {name for name in dir(cls) if not name.startswith("_")}

    assert public(Pool) == public(AsyncPool)
    for name in public(Pool):
        ours, theirs = getattr(Pool, name), getattr(AsyncPool, name)
        given, wanted = (list(inspect.signature(f).parameters) for f in (ours, theirs))
        assert given == wanted
        if name not in ("acquire", "map"):  # a context manager there, a sandbox here
            assert ours.__doc__ == theirs.__doc__
    assert Pool.__init__.__doc__ == AsyncPool.__init__.__doc__
