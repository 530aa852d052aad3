"""Whether a container ran out of memory, when its control group goes while we look."""

import contextlib
import time

import anyio
import pytest

from belljar.backends.docker import guest


class Group:
    """A control group with two hierarchies."""

    paths = ()

    def __init__(self, cpu=1.0, kills=0):
        self.cpu, self.kills = cpu, kills

    def read(self, *names):
        nanoseconds = None if self.cpu is None else int(self.cpu * 1e9)
        values = {"cpu": nanoseconds, "peak": None, "oom_kills": self.kills}
        return [values[name] for name in names]


class Engine:
    endpoint = "somewhere"

    def __init__(self, *states, tells=False):
        self._states = list(states)
        self.tells = tells

    async def request(self, *_, **__):
        state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        return {"State": state}

    @contextlib.asynccontextmanager
    async def lines(self, method, path, *, query):
        """As long as it is asked to, it has nothing to tell; or what it is told to."""

        async def events():
            if self.tells:
                yield {"Action": "oom"}
            await anyio.sleep(max(float(query["until"]) - time.time(), 0))

        assert path == "/events"
        yield events()


RUNNING = {"Running": True, "OOMKilled": False, "ExitCode": 0}
KILLED = {"Running": False, "OOMKilled": False, "ExitCode": 137}
RAN_OUT = {"Running": False, "OOMKilled": True, "ExitCode": 137}
EXITED = {"Running": False, "OOMKilled": False, "ExitCode": 1}


@pytest.mark.parametrize("missing", ["cpu", "kills"])
def test_a_group_of_which_a_part_is_removed_is_gone(missing):
    group = Group(cpu=2.0, kills=0)
    local = guest.LocalUsage(group)
    local.read(from_now=False)
    assert not local.gone
    setattr(group, missing, None)
    assert local.read(from_now=False).cpu == 2.0
    assert local.gone


def test_where_the_kernel_does_not_count_kills_the_group_is_there():
    local = guest.LocalUsage(Group(kills=None))
    assert local.read(from_now=False).memory_kills == 0
    assert not local.gone


@pytest.mark.parametrize(
    ("states", "ran_out"),
    [
        ([RAN_OUT], True),
        ([RUNNING, RUNNING, RAN_OUT], True),
        ([{**RUNNING, "OOMKilled": True}], True),
        ([RUNNING, KILLED, RAN_OUT], True),  # the reason comes after the end
        ([RUNNING, KILLED], False),
        ([RUNNING, EXITED], False),
    ],
)
def test_why_a_container_ended(states, ran_out, monkeypatch):
    monkeypatch.setattr(guest, "REASON_TIMEOUT", 0.2)
    assert anyio.run(guest.ran_out_of_memory, Engine(*states), "c") is ran_out


@pytest.mark.parametrize(("last", "ran_out"), [(KILLED, True), (EXITED, False)])
def test_a_reason_that_an_engine_only_tells_is_one(last, ran_out):
    engine = Engine(RUNNING, last, tells=True)
    assert anyio.run(guest.ran_out_of_memory, engine, "c") is ran_out


def test_a_container_that_somebody_started_again_has_ended():
    engine = Engine({**RUNNING, "Pid": 7}, {**RUNNING, "Pid": 8})
    assert anyio.run(guest.ran_out_of_memory, engine, "c", 7) is False
