"""Warm guests: started in advance, leased once, retired without a trace."""

import time
import uuid

import pytest

from belljar import AsyncSandbox, Limits, SandboxError, runtime
from belljar.backends.base import GuestSpec
from belljar.environment.environment import BUILTIN
from belljar.pool.pooled_sandbox import IdleGuest
from belljar.sandbox.guest_session import Place

pytestmark = pytest.mark.contract("native", "docker")


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """On a busy machine an answer may take longer than a pool waits for it."""
    monkeypatch.setattr("belljar.pool.pooled_sandbox.ANSWER_TIMEOUT", 30.0)


def spec():
    name = f"bj-warm-{uuid.uuid4().hex[:8]}"
    return GuestSpec(id=name, environment=BUILTIN["python"], limits=Limits())


async def warm():
    return await IdleGuest.start(runtime.current().backend("auto"), spec())


def test_it_is_ready_until_it_is_leased_and_then_somebody_elses(run_async):
    async def use():
        waiting = await warm()
        assert await waiting.answers()
        assert await waiting.answers()  # asking changes nothing
        assert not waiting.ended
        guest = waiting.take_guest()
        assert waiting.ended
        assert not await waiting.answers()
        with pytest.raises(SandboxError):
            waiting.take_guest()
        await waiting.close()  # the tenant's now
        sandbox = AsyncSandbox(environment="python")
        sandbox._place = Place(guest, Limits().memory)
        try:
            assert (await sandbox.run_code("6 * 7")).text == "42"
        finally:
            await sandbox.close()

    run_async(use)


def test_one_that_was_retired_or_killed_is_not_ready(run_async):
    async def use():
        waiting = await warm()
        guest = waiting._guest
        await waiting.close()
        assert not await waiting.answers()
        assert guest.stream is not None
        killed = await warm()
        killed._guest.kill()
        deadline = time.monotonic() + 30
        while await killed.answers():
            assert time.monotonic() < deadline
        await killed.close()

    run_async(use)
