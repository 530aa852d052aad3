"""A manager under whatever may happen to it, step by step, against a ledger of its sandboxes."""

import asyncio
import contextlib
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from belljar import SandboxError
from belljar.errors import ManagerFull, NameTaken, SandboxMissing
from belljar.pool import manager_table
from belljar.pool.manager import AsyncSandboxManager
from fake_sandboxes import Clock, FakeFactory

NAMES = st.sampled_from("abcdef")
OWNERS = st.sampled_from(["alice", "bob", None])
IDLE, LIFETIME, PLACES, PER_OWNER = 60, 600, 4, 2


class Life(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = Clock()
        self.patch = mock.patch.object(manager_table, "now", self.clock)
        self.patch.start()
        self.factory = FakeFactory()
        self.pending = {}  # creations that are held up: label -> task
        self.count = 0
        self.operations = []  # (exit stack, sandbox)
        self.may_end = set()  # sandboxes that somebody wanted to end: busy or not
        self.refusals = 0

    @initialize()
    def begin(self):
        self.manager = AsyncSandboxManager(
            max_sandboxes=PLACES,
            max_per_owner=PER_OWNER,
            idle_timeout=IDLE,
            lifetime=LIFETIME,
            cleanup_interval=1e6,
            factory=self.factory,
        )

    def teardown(self):
        async def end():
            for stack, _ in self.operations:
                await stack.aclose()
            await self.manager.close()
            await asyncio.gather(*self.pending.values(), return_exceptions=True)

        if hasattr(self, "manager"):
            self.runner.run(end())
            assert all(sandbox.ended for sandbox in self.factory.made)
            assert self.manager.stats().total == self.manager.stats().ending == 0
        self.runner.close()
        self.patch.stop()

    def do(self, coroutine):
        async def run():
            try:
                return await coroutine
            finally:
                await self.settle()

        return self.runner.run(run())

    async def settle(self):
        for _ in range(25):
            await asyncio.sleep(0)

    # -- what users do ----------------------------------------------------------------------

    @rule(name=NAMES, owner=OWNERS)
    def create(self, name, owner):
        before = self.manager.stats()
        try:
            self.do(self.manager.create(name, owner=owner))
        except NameTaken:
            assert self.knows(name)
        except ManagerFull:
            self.refusals += 1
            places = before.total + before.starting + before.ending
            assert places == PLACES or before.by_owner[owner] == PER_OWNER
        else:
            assert name in self.manager.names()

    @rule(name=NAMES, owner=OWNERS, wait=st.booleans(), join=st.booleans())
    def begin_creation(self, name, owner, wait, join):
        self.count += 1
        label = f"{name}{self.count}"
        make = self.manager.get_or_create if join else self.manager.create
        options = {"owner": owner, "wait": 1e6 if wait else None, "label": label, "hold": True}

        async def begin():
            self.pending[label] = asyncio.ensure_future(make(name, **options))

        self.do(begin())

    @precondition(lambda self: self.factory.held)
    @rule(data=st.data(), fails=st.booleans())
    def finish_creation(self, data, fails):
        label = data.draw(st.sampled_from(sorted(self.factory.held)))
        if fails:
            self.factory.fails.add(label)

        async def finish():
            self.factory.release(label)

        self.do(finish())

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def give_up(self, data):
        label = data.draw(st.sampled_from(sorted(self.pending)))

        async def cancel():
            self.pending[label].cancel()

        self.do(cancel())

    @rule(name=NAMES)
    def delete(self, name):
        entry = self.manager._table.named.get(name)
        if entry is not None and entry.sandbox is not None:
            self.may_end.add(entry.sandbox)
        with contextlib.suppress(SandboxMissing):
            self.do(self.manager.delete(name))
        assert name not in self.manager.names()

    @precondition(lambda self: self.manager.names())
    @rule(data=st.data())
    def begin_operation(self, data):
        name = data.draw(st.sampled_from(self.manager.names()))

        async def begin():
            stack = contextlib.AsyncExitStack()
            sandbox = await stack.enter_async_context(self.manager.operation(name))
            self.operations.append((stack, sandbox))

        with contextlib.suppress(SandboxMissing):  # it has died
            self.do(begin())

    @precondition(lambda self: self.operations)
    @rule(data=st.data())
    def end_operation(self, data):
        index = data.draw(st.integers(0, len(self.operations) - 1))
        stack, _ = self.operations.pop(index)
        self.do(stack.aclose())

    # -- what happens to them ---------------------------------------------------------------

    @rule(seconds=st.sampled_from([1, 30, 61, 300]))
    def time_passes(self, seconds):
        self.clock.pass_(seconds)

    @precondition(lambda self: self.factory.made)
    @rule(data=st.data())
    def one_dies(self, data):
        data.draw(st.sampled_from(self.factory.made)).alive = False

    @rule()
    def sweep(self):
        self.do(self.manager.sweep())
        for entry in self.manager._table.there:
            seen = entry.observe()
            assert seen.busy or (seen.alive and seen.idle <= IDLE and seen.age <= LIFETIME)

    # -- what always holds ------------------------------------------------------------------

    def knows(self, name):
        return name in self.manager._table.named

    @invariant()
    def nothing_that_is_busy_was_ended_unasked(self):
        for _, sandbox in self.operations:
            assert not sandbox.ended or sandbox in self.may_end

    @invariant()
    def the_numbers_are_exact(self):
        if not hasattr(self, "manager"):
            return
        for label in [label for label, task in self.pending.items() if task.done()]:
            task = self.pending.pop(label)
            if not task.cancelled() and (error := task.exception()) is not None:
                assert isinstance(error, SandboxError)
                self.refusals += isinstance(error, ManagerFull)
        stats = self.manager.stats()
        alive = [sandbox for sandbox in self.factory.made if not sandbox.ended]
        assert stats.total == len(self.manager.names()) == len(alive)
        assert stats.total + stats.starting + stats.ending <= PLACES
        assert stats.created == len(self.factory.made)
        ended = stats.deleted + stats.swept_idle + stats.swept_lifetime + stats.lost + stats.closed
        assert stats.created == stats.total + ended
        assert stats.starting == len(self.factory.held)
        assert stats.active_operations == len(
            [sandbox for _, sandbox in self.operations if not sandbox.ended]
        )
        assert stats.refused == self.refusals
        assert all(count <= PER_OWNER for count in stats.by_owner.values())


TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=60,
    stateful_step_count=40,
)
