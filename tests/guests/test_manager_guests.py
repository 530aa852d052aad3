"""SandboxManager with real guests: state, deaths, sweeps beside work, crashes of its process."""

import contextlib
import functools
import os
import sys
import threading
import time

import anyio
import pytest

import census
from belljar import AsyncSandbox, Limits, Outcome, Sandbox
from belljar.errors import SandboxMissing
from belljar.pool import manager_table, settings
from belljar.pool.blocking import SandboxManager
from belljar.pool.manager import AsyncSandboxManager
from belljar.pool.manager_table import Reason
from host_script import Script
from outside import guest_of
from project import BENCHMARKS

pytestmark = pytest.mark.contract("native")

sys.path.insert(0, str(BENCHMARKS))


@pytest.fixture
def script(backend):
    with contextlib.ExitStack() as stack:

        def start(program):
            made = Script(program)
            stack.callback(made.kill)
            return made

        yield start


def test_a_named_sandbox_keeps_its_state_and_its_death_is_noticed(run_async, monkeypatch):
    async def test():
        async with SandboxManager(
            environment="python", limits={"memory": "256m"}, strict=False
        ) as manager:
            await manager.create("a", owner="alice", limits={"timeout": 20})
            assert (await manager.run_code("a", "x = 6")).ok
            assert (await manager.run_code("a", "x * 7")).value == 42
            sandbox = await manager.get("a")
            assert isinstance(sandbox, AsyncSandbox)
            assert dict(sandbox.metadata) == {"name": "a", "owner": "alice"}
            assert (sandbox.limits.memory, sandbox.limits.timeout) == (256 * 2**20, 20.0)

            # At work, it is not idle, however late it is.
            began = anyio.Event()
            async with anyio.create_task_group() as tasks:
                ended = []

                async def work():
                    loop = "print('begun', flush=True)\nwhile True: pass"
                    ended.append(await sandbox.run_code(loop, on_stdout=lambda _: began.set()))

                tasks.start_soon(work)
                await began.wait()
                with monkeypatch.context() as patch:
                    patch.setattr(manager_table, "now", lambda: time.monotonic() + 7200)
                    assert await manager.sweep() == {}
                guest_of(sandbox).kill()
            assert ended[0].outcome in (Outcome.lost, Outcome.killed)
            with anyio.fail_after(30):
                while sandbox.alive:  # an engine takes a moment to tell
                    await anyio.sleep(0.01)
            assert await manager.sweep() == {"a": Reason.lost}
            with pytest.raises(SandboxMissing):
                await manager.run_code("a", "x")
            assert (await manager.get_or_create("a")) is not sandbox
        assert manager.stats().closed == manager.stats().lost == 1

    run_async(test)


def test_threads_share_a_blocking_manager(backend):
    with SandboxManager(environment="python", max_sandboxes=2) as manager:
        found = []

        def work(number):
            sandbox = manager.get_or_create("shared")
            found.append((sandbox, sandbox.run_code(f"{number} * 2").value))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sandboxes, values = zip(*found, strict=True)
        assert set(sandboxes) == {manager.get("shared")}
        assert isinstance(sandboxes[0], Sandbox)
        assert sorted(values) == [0, 2, 4, 6]
        with manager.operation("shared") as sandbox:
            sandbox.files.write("a.txt", "kept")
            assert manager.stats().active_operations == 1
        printed = []
        execution = manager.run_code(
            "shared", "print(open('a.txt').read())", on_stdout=printed.append
        )
        assert (execution.stdout, "".join(printed)) == ("kept\n", "kept\n")
    assert manager.stats().total == 0


def test_limits_of_every_sandbox_stay_when_one_asks_for_other_ones():
    merged = settings.merge_options(
        {"limits": Limits(memory="64m"), "environment": "python"}, {"limits": {"timeout": 5}}
    )
    assert (merged["limits"].memory, merged["limits"].timeout) == (64 * 2**20, 5.0)
    assert merged["limits"].explicit == {"memory", "timeout"}


MANAGER = """
    import anyio
    from belljar.pool.blocking import SandboxManager
    manager = SandboxManager(environment="python", cleanup_interval=0.05)
    for name in "ab":
        manager.create(name)
        manager.run_code(name, "import subprocess; p = subprocess.Popen(['sleep', '1000'])")
"""


def test_nothing_is_left_of_a_manager_whose_process_was_killed(script):
    before = census.take()
    made = script(MANAGER + "\n    print('begun')\n    manager.run_code('a', 'while True: pass')")
    assert made.line() == "begun"
    made.kill()
    # Guests die with their process; what the kernel or the engine keeps is for the next start.
    assert census.settle(before, timeout=30, ignore=["thread", *census.NOT_SWEPT]) == []
    next_one = script(
        """
        from belljar.pool.blocking import SandboxManager
        with SandboxManager(environment="python") as manager:
            print(manager.run_code(manager.create("a"), "1 + 1").value)
        """
    )
    status, out, err = next_one.end()
    assert (status, out) == (0, "2\n"), err
    assert census.settle(before, timeout=30, ignore=["thread"]) == []


def test_a_fork_leaves_the_parents_manager_alone(script):
    made = script(
        MANAGER
        + """
    import warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    child = os.fork()
    if child == 0:
        try:
            manager.run_code("a", "1")
        except belljar.SandboxClosed as error:
            print("child:", error.message, flush=True)
        manager.close()
        os._exit(0)
    os.waitpid(child, 0)
    print("parent:", manager.run_code("a", "p.poll()").value, manager.stats().total)
    manager.close()
"""
    )
    status, out, err = made.end()
    assert status == 0, err
    assert out.splitlines() == [
        "child: this manager belongs to the process that forked this one",
        "parent: None 2",
    ]


def test_a_process_may_end_without_closing_its_manager(script):
    before = census.take()
    status, _, err = script(MANAGER).end()
    assert (status, err) == (0, "")
    assert census.settle(before, timeout=30, ignore=["thread"]) == []


@pytest.mark.native_only("containers start too slowly for a load of a few seconds")
def test_under_load_nothing_is_wrong_swept_while_busy_or_left(run_async, monkeypatch):
    import manager as benchmark

    monkeypatch.setattr(benchmark, "DYING", 10.0)
    executions, seconds = 0, 2.5
    while executions <= 20:  # a busy machine needs longer for as many
        assert seconds < 30
        found = run_async(
            functools.partial(
                benchmark.measure, seconds, 8, idle=0.4, environment="python", seed=os.getpid()
            )
        )
        assert found["wrong"] == []
        assert found["leaks"] == []
        assert found["busy_swept"] == 0
        assert found["loop"] == run_async.loop
        executions, seconds = executions + found["executions"], seconds * 2


def test_a_manager_makes_its_sandboxes_where_it_was_told(backend):
    async def main():
        async with AsyncSandboxManager(environment="python") as manager:
            name = await manager.create()
            assert manager.stats().created == 1
            return (await manager.get(name)).isolation.backend

    assert anyio.run(main) == backend.partition("-")[0]
