"""An engine is swept until it shows no container of ours, also one that it makes late."""

import functools
import math

import anyio
import anyio.lowlevel
import pytest

from belljar.backends.docker import cleanup, owner
from belljar.backends.docker.backend import DockerBackend
from belljar.backends.docker.cleanup import Cleanup, Pending
from belljar.backends.docker.client.engine import EngineError

SANDBOX = "late"
LIST = ("GET", "/containers/json")
ID = "c" * 64


@pytest.fixture(params=["asyncio", "trio"])
def run(request, monkeypatch):
    """Runs an async function with a host, under each event loop, and then cancels its tasks."""
    monkeypatch.setattr(cleanup, "PAUSES", (0.001,))

    async def with_host(function):
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                await function(Host(group))
                group.cancel_scope.cancel()

    return lambda function: anyio.run(with_host, function, backend=request.param)


class Host:
    def __init__(self, group):
        self._group = group

    def submit(self, function):
        self._group.start_soon(function)


class LateEngine:
    """Gives no answer to a request to create a container, and carries it out later.

    As Docker 20.10 does it: first the container is not listed; then it is, but its removal finds
    none; then it is there. Each list takes the engine one step further.
    """

    def __init__(self, steps=("asked", "listed", "there")):
        self._steps = list(steps)
        self.lists = 0
        self.removed = anyio.Event()

    async def request(self, method, path, **options):
        await anyio.lowlevel.checkpoint()
        if (method, path) == LIST:
            return await self._list()
        if path == "/containers/create":
            raise EngineError("the engine did not answer")
        if method == "DELETE" and self._step == "there":
            self._steps = ["gone"]
            self.removed.set()
            return None
        raise EngineError("No such container", status=404)

    @property
    def _step(self):
        return self._steps[0]

    async def _list(self):
        self.lists += 1
        if self.lists > 1 and len(self._steps) > 1:
            del self._steps[0]
        labels = owner.labels(SANDBOX)
        listed = {"Id": ID, "Names": [f"/{owner.container_name(labels)}"], "Labels": labels}
        return [listed | {"State": "created"}] if self._step in ("listed", "there") else []


def test_a_container_made_after_its_request_was_given_up_is_removed(run, monkeypatch):
    monkeypatch.setattr(cleanup, "LATE", math.inf)

    async def give_up(host):
        engine = LateEngine()
        with pytest.raises(EngineError):
            await DockerBackend(host)._request_container(engine, {"name": "x"}, {})
        await engine.removed.wait()
        assert engine.lists == 3

    run(give_up)


def test_a_container_that_is_listed_is_swept_again_whatever_its_removal_said(run):
    async def fail_to_remove(host):
        engine = LateEngine(["listed", "listed", "there"])
        Cleanup(host, ()).request(engine)
        await engine.removed.wait()

    run(fail_to_remove)


def test_a_request_during_a_sweep_is_not_lost(run):
    """Its container may be missing in the list of that sweep."""

    class Asking(LateEngine):
        async def _list(self):
            listed = await super()._list()
            if self.lists == 1:
                work.request(self)
            return listed

    async def ask(host):
        nonlocal work
        work = Cleanup(host, ())
        engine = Asking(["asked", "there"])
        work.request(engine)
        await engine.removed.wait()
        while work.engines:
            await anyio.sleep(0.001)
        assert engine.lists == 3

    work = None
    run(ask)


def test_after_a_failed_removal_one_list_without_leftovers_is_enough(run):
    async def sweep(host):
        engine, work = LateEngine(["gone"]), Cleanup(host, ())
        work.request(engine)
        while work.engines:
            await anyio.sleep(0.001)
        assert engine.lists == 1

    run(sweep)


def test_after_an_unanswered_request_the_engine_gets_time_from_its_first_list():
    async def decide():
        pending = Pending()
        settled = functools.partial(step, pending)
        pending.renew(late=True)
        assert not settled(None, now=0)  # away
        assert not settled([], now=1000)
        assert not settled([], now=1000 + cleanup.LATE - 1)
        assert not settled(["a leftover"], now=1000 + cleanup.LATE)
        assert settled([], now=1000 + cleanup.LATE)
        pending.renew(late=True)
        assert not settled([], now=5000)

    def step(pending, swept, *, now):
        pending.begin()
        return pending.is_settled(swept, now)

    anyio.run(decide)


def test_sweeps_become_rarer_until_one_is_requested_again():
    async def decide():
        pending, pauses = Pending(), []
        for _ in range(7):
            pauses.append(pending.next_pause())
            pending.begin()
        assert pauses == [1, 2, 5, 10, 30, 30, 30]
        pending.renew(late=False)
        assert pending.next_pause() == 1

    anyio.run(decide)
