"""Warm guests: started in advance, leased once, retired without a trace."""

import time
import uuid

import pytest

from belljar import AsyncSandbox, Limits, SandboxError, runtime
from belljar.backends.base import GuestSpec
from belljar.environment.environment import BUILTIN
from belljar.pool.idle_guest import Warm
from belljar.sandbox.guest_session import GuestSession

pytestmark = pytest.mark.contract("native", "docker")


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """On a busy machine an answer may take longer than a pool waits for it."""
    monkeypatch.setattr("belljar.pool.idle_guest.READY_TIMEOUT", 30.0)


def spec():
    name = f"bj-warm-{uuid.uuid4().hex[:8]}"
    return GuestSpec(id=name, environment=BUILTIN["python"], limits=Limits())


async def warm():
    return await Warm.start(runtime.current().backend("auto"), spec())


def test_it_is_ready_until_it_is_leased_and_then_somebody_elses(run_async):
    async def use():
        waiting = await warm()
        assert await waiting.ready()
        assert await waiting.ready()  # asking changes nothing
        assert waiting.age > 0
        assert not waiting.leased
        guest = waiting.lease()
        assert waiting.leased
        assert not await waiting.ready()
        with pytest.raises(SandboxError):
            waiting.lease()
        await waiting.retire()  # the tenant's now
        sandbox = AsyncSandbox(environment="python")
        sandbox._lifecycle.session = GuestSession(guest, Limits().memory)
        try:
            assert (await sandbox.run_code("6 * 7")).text == "42"
        finally:
            await sandbox.close()

    run_async(use)


def test_one_that_was_retired_or_killed_is_not_ready(run_async):
    async def use():
        waiting = await warm()
        guest = waiting._guest
        await waiting.retire()
        assert not await waiting.ready()
        assert guest.stream is not None
        killed = await warm()
        killed._guest.kill()
        deadline = time.monotonic() + 30
        while await killed.ready():
            assert time.monotonic() < deadline
        await killed.retire()

    run_async(use)
