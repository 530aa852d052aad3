"""Pools on real guests: what a caller gets, and what stays warm."""

import asyncio
import inspect
import os
import signal
import threading
import time

import anyio
import pytest

import census
from belljar import AsyncPool, AsyncSandbox, InvalidOption, Outcome, Pool, Sandbox
from belljar.environment.environment import BUILTIN
from belljar.errors import (
    GuestLost,
    PoolFull,
    StartError,
)
from belljar.observe.metrics import Metrics
from belljar.pool import guests as guests_module
from belljar.pool import pool as pool_module
from belljar.pool import pooled_sandbox
from belljar.pool.pooled_sandbox import IdleGuest
from outside import guest_of
from pools import a_pool, eventually, guests_of

pytestmark = pytest.mark.contract("native")


@pytest.fixture(autouse=True)
def often_looked_after(monkeypatch):
    monkeypatch.setattr(pool_module, "CHECK_INTERVAL", 0.1)


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
