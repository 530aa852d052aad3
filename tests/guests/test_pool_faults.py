"""Pools when guests fail, die or refuse to start; and the end of a pool."""

import gc
import os
import time
import warnings

import anyio
import pytest

from belljar import Outcome, Pool, Snippet
from belljar.errors import (
    PoolClosed,
    SandboxClosed,
    SandboxError,
    StartError,
)
from belljar.pool import pool as pool_module
from belljar.pool import snippet as items
from belljar.pool.guests import Guests
from belljar.pool.pooled_sandbox import IdleGuest
from outside import guest_of
from pools import a_pool, eventually, guests_of

pytestmark = pytest.mark.contract("native")


@pytest.fixture(autouse=True)
def often_looked_after(monkeypatch):
    monkeypatch.setattr(pool_module, "CHECK_INTERVAL", 0.1)


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
