"""Forks of a sandbox: two that go on from one state."""

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

import census
import gvisor
from belljar import (
    Limits,
    Outcome,
    Sandbox,
    SandboxClosed,
)
from checkpoints import WORST, ok, some, value


@pytest.mark.contract("docker")
def test_a_fork_goes_on_by_itself_and_so_does_the_original(sandbox):
    ok(sandbox, "x = [1]; open('f', 'w').write('a'); import os")
    with sandbox.fork() as fork:
        assert fork.id != sandbox.id
        assert value(fork, "x, open('/workspace/f').read()") == ([1], "a")
        ok(fork, "x.append('fork'); open('/workspace/f', 'w').write('fork'); os.mkdir('only fork')")
        assert value(sandbox, "x, open('/workspace/f').read(), os.listdir()") == ([1], "a", ["f"])
        ok(sandbox, "x.append('original'); open('f', 'w').write('original')")
        assert value(fork, "x, open('f').read()") == ([1, "fork"], "fork")
    assert value(sandbox, "x, open('f').read()") == ([1, "original"], "original")


@pytest.mark.contract("docker")
def test_a_fork_of_a_fork_outlives_both(backend, outside):
    first = Sandbox(environment="python")
    ok(first, "x = 1; open('f', 'w').write('1')")
    guest = outside(first)
    second = first.fork()
    ok(second, "x += 1; open('f', 'a').write('2')")
    third = second.fork()
    ok(third, "x += 1; open('f', 'a').write('3')")
    first.close()
    assert value(third, "x, open('f').read()") == (3, "123")
    assert value(second, "x, open('f').read()") == (2, "12")
    second.close()
    with pytest.raises(SandboxClosed):
        second.run_code("1")
    assert value(third, "x, open('f').read()") == (3, "123")
    assert guest.alive()
    census.wait_until(lambda: len(guest.processes()) == 2)
    third.close()
    assert not guest.alive()


@pytest.mark.contract("docker")
def test_files_commands_and_values_are_the_branchs_own(make_sandbox, tmp_path):
    sandbox = make_sandbox(functions={"who": lambda: "host"})
    sandbox.files.write("f", "original")
    with sandbox.fork() as fork:
        fork.files.write("f", "fork")
        fork.put(x=1)
        sandbox.put(x=2)
        assert sandbox.commands.run("cat f").stdout == "original"
        assert fork.commands.run("cat /workspace/f").stdout == "fork"
        assert (sandbox.get("x"), fork.get("x")) == (2, 1)
        local = tmp_path / "up"
        local.write_text("uploaded")
        fork.files.upload(local, "up")
        assert not sandbox.files.exists("up")
        fork.files.download("f", tmp_path / "down")
        assert (tmp_path / "down").read_text() == "fork"
        assert sandbox.files.read("f") == "original"
        assert value(fork, "who()") == "host"
        fork.expose(lambda: "only here", "mine")
        assert value(fork, "mine()") == "only here"
        assert sandbox.run_code("mine()").error.name == "NameError"


@pytest.mark.contract("docker")
def test_a_fork_may_go_back_to_a_checkpoint_of_the_original(sandbox):
    ok(sandbox, "x = 1; open('f', 'w').write('1')")
    checkpoint = sandbox.checkpoint()
    ok(sandbox, "x = 2; open('f', 'w').write('2')")
    with sandbox.fork() as fork:
        fork.rollback(checkpoint)
        assert value(fork, "x, open('f').read()") == (1, "1")
        assert value(sandbox, "x, open('f').read()") == (2, "2")
        inner = fork.checkpoint()
        ok(fork, "x = 3")
        fork.rollback(inner)
        assert value(fork, "x") == 1
    assert value(sandbox, "x, open('f').read()") == (2, "2")


@pytest.mark.parametrize("worst", some("crash", "exit", "loop", "bomb", "stubborn"))
def test_what_ends_one_branch_leaves_the_other(sandbox, worst):
    ok(sandbox, "x = 1; open('f', 'w').write('a')")
    with sandbox.fork() as fork:
        fork.run_code(WORST[worst], timeout=1)
        assert value(sandbox, "x, open('f').read()") == (1, "a")
        assert value(fork, "open('f').read()") == "a"
        sandbox.run_code(WORST[worst], timeout=1)
        assert value(fork, "open('f').read()") == "a"


@pytest.mark.contract("docker")
@pytest.mark.needs_cgroup
@gvisor.MEMORY
def test_out_of_memory_in_one_branch_leaves_the_other(make_sandbox):
    sandbox = make_sandbox(limits=Limits(memory="256m"), strict=False)
    ok(sandbox, "x = bytearray(b'1') * (80 << 20)")
    with sandbox.fork() as fork:
        execution = fork.run_code("y = [bytearray(b'1') * (1 << 20) for i in range(1000)]")
        assert execution.outcome is Outcome.out_of_memory
        assert value(sandbox, "len(x)") == 80 << 20


def test_what_one_branch_left_running_stands_still_meanwhile(sandbox):
    ok(
        sandbox,
        """
        import os, subprocess, time
        p = subprocess.Popen(['sh', '-c', 'while :; do echo >> /workspace/ticks; done'])
        while not os.path.exists('ticks'): time.sleep(0.01)
        """,
    )
    with sandbox.fork() as fork:
        assert any("child processes" in note for note in fork.run_code("1").notes)
        ok(fork, "import os, time; os.path.exists('ticks') and os.remove('ticks'); time.sleep(0.3)")
        assert value(fork, "os.path.exists('/workspace/ticks')") is False
        before = value(sandbox, "import os; os.path.getsize('ticks')")
        census.wait_until(lambda: value(sandbox, "os.path.getsize('ticks')") > before)
        assert value(fork, "os.path.exists('/workspace/ticks')") is False


@pytest.mark.contract("docker")
def test_open_files_go_on_when_another_branch_has_had_its_turn(sandbox):
    ok(
        sandbox,
        """
        import os
        log = open('log', 'a'); log.write('one\\n'); log.flush()
        gone = open('gone', 'w+'); gone.write('x'); gone.flush(); os.remove('gone')
        open('gone', 'w').write('another'); os.makedirs('a/b'); os.chdir('a/b')
        """,
    )
    with sandbox.fork() as fork:
        for i in range(2):
            for one in (fork, sandbox):
                name = "fork" if one is fork else "original"
                ok(one, f"log.write('{name}\\n'); log.flush()")
                assert value(one, "os.getcwd(), open('/workspace/log').read()") == (
                    "/workspace/a/b",
                    "one\n" + f"{name}\n" * (i + 1),
                )
                assert value(one, "gone.seek(0), gone.read()") == (0, "x")


def test_branches_alternate_without_a_mix_up(sandbox):
    ok(sandbox, "n = 0; import os")
    with sandbox.fork() as fork:
        for i in range(50):
            for one in (sandbox, fork):
                name = "fork" if one is fork else "original"
                code = f"n += 1; open(f'{name}-{{n}}', 'w').close(); n, len(os.listdir())"
                assert value(one, code) == (i + 1, i + 1)


def test_branches_are_used_from_threads_at_once(sandbox):
    ok(sandbox, "n = 0; import os; open('n', 'w').write('0')")
    forks = [sandbox.fork() for _ in range(3)]
    step = "n += 1; m = int(open('n').read()) + 1; open('n', 'w').write(str(m)); n, m"

    def work(one):
        return [value(one, step) for _ in range(20)]

    try:
        with ThreadPoolExecutor(4) as pool:
            for seen in pool.map(work, [sandbox, *forks]):
                assert seen == [(i, i) for i in range(1, 21)]
    finally:
        for fork in forks:
            fork.close()


def test_branches_are_used_by_tasks_at_once(run_async, open_sandbox):
    async def main():
        async with open_sandbox() as sandbox:
            await sandbox.run_code("n = 0; open('n', 'w').write('0')")
            forks = [await sandbox.fork() for _ in range(3)]
            step = "n += 1; m = int(open('n').read()) + 1; open('n', 'w').write(str(m)); n, m"

            async def work(one):
                for i in range(1, 21):
                    assert (await one.run_code(step)).value == (i, i)
                    await one.files.write("own", str(i))

            async with anyio.create_task_group() as group:
                for one in (sandbox, *forks):
                    group.start_soon(work, one)
            checkpoint = await forks[0].checkpoint()
            await forks[0].run_code("n = 'x'")
            await forks[0].rollback(checkpoint)
            assert (await forks[0].run_code("n")).value == 20
            async with anyio.create_task_group() as group:
                for one in forks:
                    group.start_soon(one.close)

    run_async(main)


def test_closing_a_branch_ends_what_it_has_under_way(sandbox):
    ok(sandbox, "x = 1")
    for call in ("run_code", "command"):
        fork = sandbox.fork()
        begun = threading.Event()

        def work(fork=fork, begun=begun, call=call):
            if call == "command":
                say = {"on_stdout": lambda text: begun.set()}
                return fork.commands.run("echo begun; exec sleep 100", **say)
            return fork.run_code("print(1)\nwhile True: pass", on_stdout=lambda text: begun.set())

        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(work)
            assert begun.wait(60)
            fork.kill()
            result = future.result(60)
        assert result.outcome is Outcome.killed, result
        assert value(sandbox, "x") == 1


def test_a_host_function_that_uses_the_other_branch_does_not_hang(make_sandbox):
    branches = []
    sandbox = make_sandbox(functions={"ask": lambda: branches[0].run_code("1").value})
    with sandbox.fork() as fork:
        branches.append(fork)
        execution = sandbox.run_code("ask()", timeout=60)
        assert execution.error.name == "SandboxError", execution
        assert value(fork, "1") == 1


@pytest.mark.contract("docker")
def test_a_fork_that_nobody_closed_does_not_keep_the_guest(backend, outside):
    sandbox = Sandbox(environment="python")
    ok(sandbox, "x = 1")
    guest = outside(sandbox)
    forgotten = [sandbox.fork()]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)
        census.forget(forgotten, told)
    assert value(sandbox, "x") == 1
    sandbox.close()
    census.wait_until(lambda: not guest.alive())


def test_the_guest_dies_for_all_branches(sandbox, outside):
    ok(sandbox, "x = 1")
    with sandbox.fork() as fork:
        guest = outside(sandbox)
        guest.end()
        for one in (sandbox, fork):
            execution = one.run_code("'x' in globals()")
            assert execution.value is False
            assert not execution.state_preserved
        ok(fork, "open('f', 'w').write('own guest now')")
        assert value(sandbox, "import os; os.listdir()") == []


def test_with_blocks_and_errors_close_forks(sandbox, outside):
    ok(sandbox, "1")
    guest = outside(sandbox)
    before = len(guest.processes())

    def fail():
        with sandbox.fork() as fork:
            ok(fork, "1")
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    ok(sandbox, "1")
    census.wait_until(lambda: len(guest.processes()) == before)


def test_many_forks_one_after_another_leave_nothing(sandbox, outside):
    ok(sandbox, "import os; open('f', 'wb').write(os.urandom(1 << 20))")
    guest = outside(sandbox)
    before = len(guest.processes())
    for i in range(20):
        with sandbox.fork() as fork:
            ok(fork, f"open('g', 'wb').write(bytes({i} << 10))")
    ok(sandbox, "1")
    census.wait_until(lambda: len(guest.processes()) == before)
    used = "s = os.statvfs('/workspace'); (s.f_blocks - s.f_bfree) * s.f_bsize >> 20"
    census.wait_until(lambda: value(sandbox, used) == 1)
