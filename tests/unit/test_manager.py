"""SandboxManager: names, places, queues, sweeps and ends, with sandboxes that cost nothing."""

import asyncio
import contextlib
import dataclasses
import functools
import gc
import inspect
import logging
import os
import re
import threading
import weakref

import anyio
import pytest
from anyio.lowlevel import checkpoint

from belljar import InvalidOption, SandboxClosed, SandboxError
from belljar.errors import (
    ManagerClosed,
    ManagerFull,
    NameTaken,
    QuotaExceeded,
    SandboxMissing,
)
from belljar.pool import manager_table
from belljar.pool.blocking import SandboxManager
from belljar.pool.manager import AsyncSandboxManager
from belljar.pool.manager_table import Reason
from belljar.pool.stats import ManagerStats
from fake_sandboxes import Clock, FakeFactory
from project import DOCS


@pytest.fixture
def factory():
    return FakeFactory()


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(manager_table, "now", made)
    return made


@pytest.fixture(params=["asyncio", "trio"])
def loop(request):
    """Runs an async test under each event loop."""

    def run(function, *args):
        async def bounded():
            with anyio.fail_after(60):
                await function(*args)

        anyio.run(bounded, backend=request.param)

    return run


@pytest.fixture
def make(factory):
    return functools.partial(AsyncSandboxManager, factory=factory)


async def settle():
    """Let every task go as far as it can."""
    for _ in range(30):
        await checkpoint()


def test_what_a_factory_makes_needs_only_its_ends_and_what_callers_use():
    class Minimal:
        id = "minimal"
        metadata: dict[str, str] = {}  # noqa: RUF012

        async def close(self):
            self.id = "closed"

        kill = close

        async def run_code(self, code, **options):
            return f"ran {code}"

    async def factory(**options):
        return Minimal()

    with SandboxManager(factory=factory) as manager:
        sandbox = manager.get(manager.create("a"))
        assert (sandbox.id, sandbox.metadata) == ("minimal", {})
        assert sandbox.run_code("1") == "ran 1"
        assert "Minimal" in repr(sandbox)


# --- names -----------------------------------------------------------------------------------


def test_a_sandbox_is_found_by_its_name_until_it_is_deleted(loop, make, factory):
    async def test():
        async with make() as manager:
            assert await manager.create("a", colour="red") == "a"
            assert await manager.get("a") is factory.made[0]
            assert factory.made[0].options["colour"] == "red"
            assert manager.names() == ["a"]
            await manager.delete("a")
            assert factory.made[0].ended == ["close"]
            assert manager.names() == []
            with pytest.raises(SandboxMissing, match="no sandbox 'a'"):
                await manager.get("a")

    loop(test)


def test_without_a_name_each_gets_a_new_one(loop, make):
    async def test():
        async with make() as manager:
            assert await manager.create() != await manager.create()

    loop(test)


def test_a_name_is_taken_from_the_moment_somebody_asks_for_it(loop, make, factory):
    async def test():
        async with make() as manager, anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: manager.create("a", label="a", hold=True))
            await settle()
            with pytest.raises(NameTaken):
                await manager.create("a")
            factory.release("a")

    loop(test)


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 201, 7])
def test_a_name_that_cannot_be_printed_is_refused(loop, make, name):
    async def test():
        async with make() as manager:
            with pytest.raises(InvalidOption):
                await manager.create(name)

    loop(test)


def test_options_of_every_sandbox_are_given_to_each_and_can_be_overridden(loop, make, factory):
    async def test():
        async with make(colour="red", size=1) as manager:
            await manager.create(size=2)
            assert factory.made[0].options == {"label": "", "colour": "red", "size": 2}

    loop(test)


# --- creation holds nobody up ----------------------------------------------------------------


def test_a_slow_creation_keeps_nobody_waiting(loop, make, factory):
    async def test():
        async with make() as manager, anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: manager.create("slow", label="slow", hold=True))
            await settle()
            for _ in range(3):
                name = await manager.create()
                await manager.get(name)
                await manager.delete(name)
            await manager.sweep()
            assert manager.stats().starting == 1
            factory.release("slow")
            assert await manager.get("slow") is factory.made[-1]

    loop(test)


def test_who_asks_at_once_gets_the_same_one(loop, make, factory):
    async def test():
        found = []

        async def ask(manager):
            found.append(await manager.get_or_create("a", label="a", hold=True))

        async with make() as manager:
            async with anyio.create_task_group() as tasks:
                for _ in range(10):
                    tasks.start_soon(ask, manager)
                await settle()
                factory.release("a")
            assert len(factory.made) == 1
            assert found == [factory.made[0]] * 10

    loop(test)


def test_when_whoever_makes_it_is_cancelled_another_makes_it(loop, make, factory):
    async def test():
        found = []

        async def ask(manager, **options):
            found.append(await manager.get_or_create("a", **options))

        async with make() as manager, anyio.create_task_group() as tasks:
            first = anyio.CancelScope()

            async def be_cancelled():
                with first:
                    await ask(manager, label="first", hold=True)

            tasks.start_soon(be_cancelled)
            await settle()
            tasks.start_soon(lambda: ask(manager, label="second"))
            await settle()
            assert found == []
            first.cancel()
            await settle()
            assert [each.options["label"] for each in found] == ["second"]
            assert factory.cancelled == ["first"]

    loop(test)


def test_a_creation_that_fails_fails_for_all_who_wait_and_leaves_the_name_free(loop, make, factory):
    async def test():
        factory.fails.add("bad")
        failures = []

        async def ask(manager):
            try:
                await manager.get_or_create("a", label="bad", hold=True)
            except SandboxError as error:
                failures.append(error.message)

        async with make() as manager:
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(ask, manager)
                await settle()
                factory.release("bad")
            assert failures == ["bad cannot be made"] * 3
            assert factory.calls == ["bad"]
            assert manager.stats().failed == 1
            await manager.create("a")

    loop(test)


def test_what_is_deleted_while_it_is_being_made_never_is(loop, make, factory):
    async def test():
        async def ask(manager):
            with pytest.raises(SandboxMissing, match="deleted while it was being made"):
                await manager.create("a", label="a", hold=True)

        async with make(max_sandboxes=1) as manager, anyio.create_task_group() as tasks:
            tasks.start_soon(ask, manager)
            await settle()
            await manager.delete("a")
            assert factory.cancelled == ["a"]
            assert manager.stats().starting == 0
            await manager.create("a")

    loop(test)


def test_what_was_made_just_before_it_is_given_up_is_ended(loop, make, factory):
    async def test():
        async def stubborn(**options):
            with anyio.CancelScope(shield=True):
                return await factory(**options)

        async def ask(manager):
            with pytest.raises(SandboxMissing):
                await manager.create("a", label="a", hold=True)

        async with make(factory=stubborn) as manager, anyio.create_task_group() as tasks:
            tasks.start_soon(ask, manager)
            await settle()
            tasks.start_soon(manager.delete, "a")
            await settle()
            factory.release("a")
            await settle()
            assert factory.made[0].ended == ["close"]
            assert (manager.stats().starting, manager.stats().created) == (0, 0)

    loop(test)


# --- places and quotas -----------------------------------------------------------------------


def test_there_are_never_more_than_the_maximum(loop, make):
    async def test():
        async with make(max_sandboxes=2) as manager:
            await manager.create()
            await manager.create("b")
            with pytest.raises(ManagerFull, match=r"maximum number of sandboxes \(2\) reached"):
                await manager.create()
            assert manager.stats().refused == 1
            await manager.delete("b")
            await manager.create()

    loop(test)


def test_one_that_is_being_made_has_its_place_already(loop, make, factory):
    async def test():
        async with make(max_sandboxes=1) as manager, anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: manager.create("a", label="a", hold=True))
            await settle()
            with pytest.raises(ManagerFull):
                await manager.create()
            factory.release("a")

    loop(test)


def test_one_owner_cannot_take_the_places_of_all(loop, make):
    async def test():
        async with make(max_sandboxes=4, max_per_owner=2) as manager:
            await manager.create("1", owner="alice")
            await manager.create("2", owner="alice")
            with pytest.raises(QuotaExceeded, match=r"\(2\) of 'alice'"):
                await manager.create(owner="alice")
            await manager.create(owner="bob")
            await manager.create()
            assert dict(manager.stats().by_owner) == {"alice": 2, "bob": 1}
            await manager.delete("1")
            await manager.create(owner="alice")

    loop(test)


def test_who_waits_gets_the_next_place_in_the_order_of_asking(loop, make):
    async def test():
        order = []

        async def ask(manager, name, owner):
            await manager.create(name, owner=owner, wait=60)
            order.append(name)

        async with make(max_sandboxes=2, max_per_owner=1) as manager:
            await manager.create("1", owner="alice")
            await manager.create("2")
            async with anyio.create_task_group() as tasks:
                for name, owner in (("a", "alice"), ("b", "bob"), ("c", "carol")):
                    tasks.start_soon(ask, manager, name, owner)
                    await settle()
                assert manager.stats().waiting == 3
                await manager.delete("2")  # not for alice, who has one
                await settle()
                assert order == ["b"]
                await manager.delete("1")
                await settle()
                assert order == ["b", "a"]
                await manager.delete("a")
            assert order == ["b", "a", "c"]

    loop(test)


def test_who_has_waited_long_enough_is_refused(loop, make):
    async def test():
        async with make(max_sandboxes=1) as manager:
            await manager.create("a")
            with pytest.raises(ManagerFull) as caught:
                await manager.create("b", wait=0.01)
            assert "within 0.01 s" in caught.value.hint
            assert manager.stats().refused == 1
            assert manager.stats().waiting == 0
            await manager.delete("a")
            await manager.create("b")

    loop(test)


def test_who_is_cancelled_while_waiting_leaves_the_queue(loop, make):
    async def test():
        async with make(max_sandboxes=1) as manager:
            await manager.create("a")
            with anyio.move_on_after(0.01):
                await manager.create("b", wait=60)
            assert manager.stats().waiting == 0
            await manager.delete("a")
            await manager.create("b")

    loop(test)


# --- sweeps ----------------------------------------------------------------------------------


def test_an_idle_one_is_swept_and_a_used_one_stays(loop, make, clock):
    async def test():
        async with make(idle_timeout=60) as manager:
            await manager.create("idle")
            await manager.create("used")
            clock.pass_(61)
            await manager.get("used")
            assert await manager.sweep() == {"idle": Reason.idle}
            assert manager.names() == ["used"]
            assert manager.stats().swept_idle == 1

    loop(test)


def test_use_of_the_sandbox_itself_counts(loop, make, clock, factory):
    async def test():
        async with make(idle_timeout=60) as manager:
            await manager.create("a")
            clock.pass_(61)
            factory.made[0].last_used = clock()
            assert await manager.sweep() == {}
            clock.pass_(61)
            factory.made[0].busy = 1
            assert await manager.sweep() == {}
            factory.made[0].busy = 0
            assert await manager.sweep() == {"a": Reason.idle}

    loop(test)


def test_what_is_in_an_operation_is_never_swept(loop, make, clock):
    async def test():
        async with make(idle_timeout=60, lifetime=600) as manager:
            await manager.create("a")
            async with manager.operation("a"), manager.operation("a"):
                clock.pass_(10_000)
                assert await manager.sweep() == {}
                assert manager.stats().active_operations == 2
            assert manager.stats().active_operations == 0
            assert await manager.sweep() == {"a": Reason.lifetime}

    loop(test)


def test_the_end_of_an_operation_is_a_use(loop, make, clock):
    async def test():
        async with make(idle_timeout=60) as manager:
            await manager.create("a")
            async with manager.operation("a"):
                clock.pass_(100)
            assert await manager.sweep() == {}

    loop(test)


def test_a_dead_one_is_noticed_by_a_sweep_and_by_who_asks_for_it(loop, make, factory):
    async def test():
        async with make() as manager:
            await manager.create("a")
            await manager.create("b")
            for sandbox in factory.made:
                sandbox.alive = False
            with pytest.raises(SandboxMissing):
                await manager.get("a")
            assert await manager.sweep() == {"b": Reason.lost}
            assert manager.stats().lost == 2
            assert [sandbox.ended for sandbox in factory.made] == [["close"]] * 2
            assert await manager.get_or_create("a") is factory.made[-1]

    loop(test)


def test_the_dead_take_no_place_from_those_who_come(loop, make, factory):
    async def test():
        async with make(max_sandboxes=2, max_per_owner=1) as manager:
            await manager.create("a", owner="alice")
            await manager.create("b")
            factory.made[0].alive = False
            assert await manager.get_or_create("a", owner="alice") is factory.made[2]
            factory.made[1].alive = False
            await manager.create("c")
            assert manager.names() == ["a", "c"]
            assert (manager.stats().lost, manager.stats().refused) == (2, 0)

    loop(test)


def test_the_sweeper_comes_by_itself(loop, make, clock, factory):
    async def test():
        async with make(idle_timeout=60, cleanup_interval=0.01) as manager:
            await manager.create("a")
            clock.pass_(61)
            while not factory.made[0].ended:
                await anyio.sleep(0.005)
            assert manager.names() == []

    loop(test)


def test_a_sandbox_that_does_not_end_well_is_killed_and_told(loop, make, clock, factory, caplog):
    async def test():
        async with make(idle_timeout=60) as manager:
            await manager.create("a")
            factory.made[0].close_error = SandboxError("the files could not be saved")
            clock.pass_(61)
            with caplog.at_level(logging.WARNING, logger="belljar"):
                await manager.sweep()
            assert factory.made[0].ended == ["close", "kill"]
            assert "the files could not be saved" in caplog.text
            await manager.create("b")
            factory.made[1].close_error = OSError("disk full")
            with pytest.raises(SandboxError, match="disk full"):
                await manager.delete("b")
            assert manager.stats().ending == 0

    loop(test)


def test_a_cancelled_delete_goes_on_to_its_end(loop, make, factory):
    async def test():
        async with make(max_sandboxes=1) as manager:
            await manager.create("a")
            with anyio.CancelScope() as scope:
                scope.cancel()
                await manager.delete("a")
            await settle()
            assert factory.made[0].ended == ["close"]
            await manager.create("b")

    loop(test)


def test_even_a_task_of_asyncio_that_is_cancelled_ends_what_it_began_to_end(make, factory):
    async def test():
        async with make() as manager:
            await manager.create("a")
            task = asyncio.ensure_future(manager.delete("a"))
            await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await settle()
            assert factory.made[0].ended == ["close"]
            assert manager.stats().ending == 0

    asyncio.run(test())


# --- the end ---------------------------------------------------------------------------------


def test_close_ends_everything_and_refuses_what_comes_after(loop, make, factory):
    async def test():
        manager = make()
        for _ in range(5):
            await manager.create()
        await manager.close()
        await manager.close()
        assert [each.ended for each in factory.made] == [["close"]] * 5
        stats = manager.stats()
        assert (stats.total, stats.closed, stats.is_shutting_down) == (0, 5, True)
        with pytest.raises(ManagerClosed):
            await manager.create()
        assert isinstance(ManagerClosed("x"), SandboxClosed)

    loop(test)


def test_close_gives_up_what_is_being_made_and_who_waits(loop, make, factory):
    async def test():
        async def ask(manager, **options):
            with pytest.raises(ManagerClosed):
                await manager.create(**options)

        manager = make(max_sandboxes=1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: ask(manager, label="a", hold=True))
            await settle()
            tasks.start_soon(lambda: ask(manager, wait=1000))
            await settle()
            await manager.close()
        assert factory.cancelled == ["a"]
        assert manager.stats().waiting == manager.stats().starting == 0

    loop(test)


def test_operations_may_finish_within_the_grace(loop, make, factory):
    async def test():
        manager = make()
        await manager.create("a")
        let_go = anyio.Event()
        seen = []

        async def operate():
            async with manager.operation("a") as sandbox:
                await let_go.wait()
                seen.append(list(sandbox.ended))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(operate)
            await settle()
            tasks.start_soon(lambda: manager.close(grace=60))
            await settle()
            let_go.set()
        assert seen == [[]]
        assert factory.made[0].ended == ["close"]

    loop(test)


def test_close_does_not_wait_for_ever(loop, make, factory, monkeypatch):
    monkeypatch.setattr("belljar.pool.loop_binding.CLOSE_TIMEOUT", 0.05)

    async def test():
        manager = make()
        await manager.create("a")
        factory.made[0].hangs = True
        async with manager.operation("a"):
            with pytest.raises(SandboxError, match=r"a: did not close within 0\.05 s"):
                await manager.close(grace=0.01)
        assert factory.made[0].ended == ["close", "kill"]

    loop(test)


def test_a_forgotten_manager_is_not_kept_alive_by_its_sweeper(loop, make):
    async def test():
        manager = make(cleanup_interval=0.01)
        await manager.create()
        seen = weakref.ref(manager)
        del manager
        while seen() is not None:
            gc.collect()
            await anyio.sleep(0.005)

    loop(test)


# --- where it may be used --------------------------------------------------------------------


def test_a_manager_belongs_to_one_event_loop(make):
    manager = make()
    asyncio.run(manager.sweep())
    with pytest.raises(SandboxError, match="belongs to the event loop"):
        asyncio.run(manager.sweep())


def test_in_a_fork_it_is_the_parents(loop, make, monkeypatch, factory):
    async def test():
        manager = make()
        await manager.create("a")
        here = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: here + 1)
        with pytest.raises(SandboxClosed, match="belongs to the process"):
            await manager.get("a")
        await manager.close()
        assert factory.made[0].ended == []
        monkeypatch.setattr(os, "getpid", lambda: here)
        await manager.close()

    loop(test)


@pytest.mark.parametrize(
    "options",
    [
        {"max_sandboxes": 0},
        {"max_sandboxes": True},
        {"max_sandboxes": 1.5},
        {"idle_timeout": 0},
        {"idle_timeout": float("nan")},
        {"cleanup_interval": None},
        {"lifetime": -1},
        {"max_per_owner": 0},
        {"factory": 7},
    ],
)
def test_a_setting_out_of_range_is_refused(options):
    with pytest.raises(InvalidOption):
        AsyncSandboxManager(**options)


def test_an_unknown_option_names_the_nearest_of_both_kinds():
    with pytest.raises(InvalidOption, match="did you mean 'max_sandboxes'"):
        AsyncSandboxManager(max_sandbox=3)
    with pytest.raises(InvalidOption, match="did you mean 'environment'"):
        AsyncSandboxManager(enviroment="python")
    with pytest.raises(InvalidOption, match=r"limits=Limits\(memory"):
        AsyncSandboxManager(memory="1g")


def test_an_option_of_every_sandbox_is_checked_when_the_manager_is_made():
    with pytest.raises(InvalidOption):
        AsyncSandboxManager(limits={"memory": "much"})


# --- the twin --------------------------------------------------------------------------------

TWINS = {name for name in dir(AsyncSandboxManager) if not name.startswith("_")}
PLAIN = {"names", "stats"}


def test_both_have_the_names_that_are_promised():
    ours = {name for name in dir(SandboxManager) if not name.startswith("_")}
    assert ours == TWINS
    assert ours == {
        *("create", "get", "get_or_create", "operation", "run_code", "delete", "sweep"),
        *("names", "stats", "close", "shutdown"),
    }


@pytest.mark.parametrize("name", sorted(TWINS | {"__init__"}))
def test_both_have_the_same_signatures_and_documentation(name):
    ours, theirs = getattr(SandboxManager, name), getattr(AsyncSandboxManager, name)
    if name not in ("get", "get_or_create", "operation"):
        assert inspect.signature(ours) == inspect.signature(theirs)
    assert inspect.signature(ours).parameters == inspect.signature(theirs).parameters
    assert ours.__doc__ == theirs.__doc__
    assert not inspect.iscoroutinefunction(ours)
    assert inspect.iscoroutinefunction(theirs) == (name not in {*PLAIN, "operation", "__init__"})


def test_the_blocking_one_manages_from_any_thread(factory):
    with SandboxManager(factory=factory, max_sandboxes=3) as manager:
        names = []
        threads = [
            threading.Thread(target=lambda: names.append(manager.create())) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(names) == manager.names()
        with pytest.raises(ManagerFull):
            manager.create()
        manager.delete(names[0])
        assert manager.stats().total == 2
        assert manager.sweep() == {}
    assert manager.stats().closed == 2
    assert [each.ended for each in factory.made] == [["close"]] * 3


def test_async_with_of_the_blocking_one_gives_the_other(loop, factory):
    async def test():
        async with SandboxManager(factory=factory) as manager:
            assert isinstance(manager, AsyncSandboxManager)
            await manager.create("a")
        assert factory.made[0].ended == ["close"]

    loop(test)


def test_the_guide_lists_every_method_with_its_signature():
    guide = (DOCS / "guide" / "manager.md").read_text()
    listing = " ".join(re.search(r"^```text\n(create\(.*?)^```$", guide, re.M | re.S)[1].split())
    for name in (name for name in dir(SandboxManager) if not name.startswith("_")):
        _, *parameters = inspect.signature(getattr(SandboxManager, name)).parameters.values()
        plain = inspect.Signature([p.replace(annotation=p.empty) for p in parameters])
        assert f"{name}{plain}" in listing
    for field in dataclasses.fields(ManagerStats):
        assert f"{field.name}" in listing
