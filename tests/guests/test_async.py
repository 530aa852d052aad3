"""AsyncSandbox under asyncio and trio: awaited, at once, cancelled."""

import asyncio
import contextlib
import functools
import time

import anyio
import anyio.to_thread
import pytest

import census
import setting
from belljar import (
    AsyncSandbox,
    ExecutionTimeout,
    Limits,
    Outcome,
    Sandbox,
    SandboxClosed,
    SandboxError,
)

LOOP = "while True: pass"


def test_a_sandbox_is_awaited(run_async, open_sandbox):
    async def main():
        async with open_sandbox() as sandbox:
            execution = await sandbox.run_code("x = 20\nprint('hi')\nx + 1")
            assert (execution.value, execution.stdout) == (21, "hi\n")
            assert (await sandbox.run_code("x")).value == 20
            await sandbox.files.write("a.txt", "text")
            assert await sandbox.files.read("a.txt") == "text"
            assert [entry.name for entry in await sandbox.files.list()] == ["a.txt"]
            assert (await sandbox.commands.run("cat a.txt")).stdout == "text"
            await sandbox.restart()
            assert (await sandbox.run_code("'x' in globals()")).value is False
            assert sandbox.isolation.backend == setting.BACKEND
        with pytest.raises(SandboxClosed):
            await sandbox.run_code("1")

    run_async(main)


def test_create_starts_at_once_and_close_may_be_repeated(run_async, backend, outside):
    async def main():
        sandbox = await AsyncSandbox.create(environment="python", metadata={"a": "b"})
        seen = outside(sandbox)
        assert seen.alive()
        assert sandbox.metadata == {"a": "b"}
        await sandbox.close()
        await sandbox.close()
        await sandbox.kill()
        assert not seen.alive()

    run_async(main)


def test_callbacks_may_be_plain_or_awaited(run_async, open_sandbox):
    async def main():
        plain, awaited = [], []

        async def on_stderr(text):
            await anyio.sleep(0)
            awaited.append(text)

        async with open_sandbox() as sandbox:
            await sandbox.run_code(
                "import sys\nprint('out')\nprint('err', file=sys.stderr)\ndisplay(5)",
                on_stdout=plain.append,
                on_stderr=on_stderr,
                on_result=lambda result: plain.append(result.text),
            )
        assert ("".join(plain), "".join(awaited)) == ("out\n5", "err\n")

    run_async(main)


def test_an_awaited_callback_may_use_the_sandbox(run_async, open_sandbox):
    async def main():
        async with open_sandbox() as sandbox:

            async def on_stdout(text):
                await sandbox.files.write("go", "")

            code = "import os, time\nprint(1)\nwhile not os.path.exists('go'): time.sleep(0.01)"
            assert (await sandbox.run_code(code, on_stdout=on_stdout, timeout=60)).ok

    run_async(main)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("kind", ["plain", "awaited"])
def test_a_callback_that_fails_ends_the_cell(run_async, open_sandbox, kind):
    async def main():
        def plain(text):
            raise RuntimeError("mine")

        async def awaited(text):
            raise RuntimeError("mine")

        async with open_sandbox() as sandbox:
            await sandbox.run_code("x = 1")
            callback = plain if kind == "plain" else awaited
            with anyio.fail_after(50), pytest.raises(RuntimeError, match="mine"):
                await sandbox.run_code(f"print(1)\n{LOOP}", on_stdout=callback, timeout=90)
            assert (await sandbox.run_code("x")).value == 1

    run_async(main)


def test_interrupt_within_a_callback_cancels_the_cell(run_async, open_sandbox):
    async def main():
        async with open_sandbox() as sandbox:

            async def on_stdout(text):
                await sandbox.interrupt()

            execution = await sandbox.run_code(f"print(1)\n{LOOP}", on_stdout=on_stdout)
            assert execution.outcome is Outcome.cancelled

    run_async(main)


# --- cancellation ----------------------------------------------------------------------------


@pytest.mark.parametrize("stubborn", [False, True])
def test_cancelling_a_run_ends_the_work_of_the_guest(
    run_async, open_sandbox, outside, stubborn, request
):
    code = "print('begun')\n" + LOOP
    if not stubborn:
        request.getfixturevalue("patient")
    else:
        code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" + code

    async def main():
        async with open_sandbox() as sandbox:
            await sandbox.run_code("x = 1")
            worker = outside(sandbox).find((await sandbox.run_code("import os; os.getpid()")).value)
            before = time.monotonic()
            with anyio.CancelScope() as scope:
                await sandbox.run_code(code, on_stdout=lambda text: scope.cancel(), timeout=60)
            assert scope.cancelled_caught
            assert time.monotonic() - before < 50
            # Looked at from outside: the interpreter is gone, or at rest.
            if worker.alive():
                used = worker.cpu()
                await anyio.sleep(0.3)
                assert worker.cpu() - used < 0.035
            execution = await sandbox.run_code("'x' in globals()")
            assert execution.value is not stubborn
            assert execution.state_preserved is not stubborn

    run_async(main)


def test_cancelling_a_command_ends_it(run_async, open_sandbox, outside):
    async def main():
        async with open_sandbox() as sandbox:
            seen = outside(sandbox)
            with anyio.CancelScope() as scope:
                await sandbox.commands.run(
                    "echo x; sleep 1000", on_stdout=lambda text: scope.cancel()
                )
            census.wait_until(
                lambda: not any(p.name == "sleep" for p in seen.processes()), what="its end"
            )
            assert (await sandbox.commands.run("echo y")).stdout == "y\n"

    run_async(main)


def test_a_deadline_of_the_caller_holds(run_async, open_sandbox):
    async def main():
        async with open_sandbox() as sandbox:
            with pytest.raises(TimeoutError), anyio.fail_after(0.5):
                await sandbox.run_code(LOOP)
            assert (await sandbox.run_code("1 + 1")).value == 2

    run_async(main)


def test_cancelling_one_who_waits_for_his_turn_leaves_the_other_alone(run_async, open_sandbox):
    async def main():
        async with open_sandbox() as sandbox, anyio.create_task_group() as group:
            results = []

            async def first():
                code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n'first'"
                results.append((await sandbox.run_code(code)).value)

            group.start_soon(first)
            await anyio.wait_all_tasks_blocked()
            with anyio.move_on_after(0.2) as scope:
                await sandbox.run_code("open('ran', 'w').close()")
            assert scope.cancelled_caught
            await sandbox.files.write("go", "")
            with anyio.fail_after(60):
                while not results:
                    await anyio.sleep(0.01)
            assert results == ["first"]
            assert not await sandbox.files.exists("ran")

    run_async(main)


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.005, 0.01, 0.02, 0.05])
def test_cancelling_a_start_leaves_nothing(run_async, open_sandbox, delay):
    async def main():
        async with open_sandbox() as warm:
            await warm.run_code("1")
            before = census.take()
            for _ in range(3):
                sandbox = open_sandbox()
                with anyio.move_on_after(delay):
                    await sandbox.start()
                with anyio.fail_after(60):
                    await sandbox.close()
            assert census.settle(before, timeout=30.0, ignore=["thread"]) == []

    run_async(main)


def test_cancelling_at_any_moment_leaves_a_usable_sandbox(run_async, open_sandbox):
    async def main():
        async with open_sandbox() as sandbox:
            for step in range(25):
                with anyio.move_on_after(step / 5000):
                    await sandbox.run_code("sum(range(20_000)); print('x' * 1000)")
                with anyio.fail_after(60):
                    assert (await sandbox.run_code("1 + 1")).value == 2

    run_async(main)


# --- several at once -------------------------------------------------------------------------


def test_sandboxes_work_at_the_same_time(run_async, open_sandbox):
    """Each waits for a file that is written when all have begun."""

    async def main():
        async with contextlib.AsyncExitStack() as stack:
            boxes = [await stack.enter_async_context(open_sandbox()) for _ in range(5)]
            begun, done = [], []

            async def work(sandbox):
                code = "import os, time\nprint(1)\nwhile not os.path.exists('go'): time.sleep(0.01)"

                async def on_stdout(text):
                    if sandbox not in begun:
                        begun.append(sandbox)
                        if len(begun) == len(boxes):
                            for other in boxes:
                                await other.files.write("go", "")

                done.append(await sandbox.run_code(code, on_stdout=on_stdout, timeout=60))

            async with anyio.create_task_group() as group:
                for sandbox in boxes:
                    group.start_soon(work, sandbox)
            assert all(execution.ok for execution in done)
            assert len(done) == 5

    run_async(main)


def test_cells_files_and_commands_of_one_sandbox_at_once(run_async, open_sandbox):
    async def main():
        async with open_sandbox() as sandbox:
            await sandbox.run_code("n = 0")

            async def cell():
                assert (await sandbox.run_code("n += 1")).ok

            async def file(number):
                await sandbox.files.write(str(number), "x" * 100_000)
                assert len(await sandbox.files.read(str(number))) == 100_000

            async def command(number):
                assert (await sandbox.commands.run(f"echo {number}")).stdout == f"{number}\n"

            with anyio.fail_after(60):
                async with anyio.create_task_group() as group:
                    for number in range(10):
                        group.start_soon(cell)
                        group.start_soon(file, number)
                        group.start_soon(command, number)
            assert (await sandbox.run_code("n")).value == 10

    run_async(main)


def test_the_loop_is_not_blocked_while_code_runs(run_async, open_sandbox):
    """The cell waits for a file that is written when the loop has turned often enough."""

    async def main():
        async with open_sandbox() as sandbox:
            begun = anyio.Event()

            async def tick():
                await begun.wait()
                for _ in range(15):
                    await anyio.sleep(0.01)
                await sandbox.files.write("go", "")

            async with anyio.create_task_group() as group:
                group.start_soon(tick)
                code = "import os, time\nprint(1)\nwhile not os.path.exists('go'): time.sleep(0.01)"
                assert (await sandbox.run_code(code, on_stdout=lambda _: begun.set())).ok

    run_async(main)


def test_close_while_a_cell_runs_ends_it(run_async, open_sandbox):
    async def main():
        sandbox = open_sandbox()
        executions = []

        async def work():
            execution = await sandbox.run_code(f"print(1)\n{LOOP}", on_stdout=lambda _: begun.set())
            executions.append(execution)

        begun = anyio.Event()
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(work)
                await begun.wait()
                await sandbox.close()
        assert executions[0].outcome is Outcome.killed

    run_async(main)


def test_limits_hold_for_the_awaited_one_too(run_async, open_sandbox):
    async def main():
        async with open_sandbox(limits=Limits(timeout=0.4, output="1k")) as sandbox:
            execution = await sandbox.run_code(LOOP)
            assert execution.outcome is Outcome.timeout
            with pytest.raises(ExecutionTimeout):
                execution.raise_for_outcome()
            execution = await sandbox.run_code("while True: print('x' * 100)")
            assert execution.outcome is Outcome.output_limit

    run_async(main)


def test_a_loop_after_another_may_make_its_own(backend):
    """Nothing is kept that belongs to a loop that has ended."""

    async def main():
        async with AsyncSandbox(environment="python") as sandbox:
            return (await sandbox.run_code("1 + 1")).value

    assert [anyio.run(main, backend=loop) for loop in ("asyncio", "trio", "asyncio")] == [2, 2, 2]


@pytest.mark.parametrize("first", ["asyncio", "trio"])
@pytest.mark.parametrize("second", ["asyncio", "trio"])
def test_a_sandbox_made_under_one_loop_works_under_another(backend, tmp_path, first, second):
    async def make():
        made = AsyncSandbox(environment="python", workspace=tmp_path / "workspace")
        await made.run_code("x = 1")
        return made

    async def use(sandbox):
        checkpoint = await sandbox.checkpoint()
        await sandbox.run_code("x = 2; open('f', 'w').write('x')")
        await sandbox.rollback(checkpoint)
        executions = [await sandbox.run_code("x")]
        await sandbox.files.write("g", "text")
        executions.append(await sandbox.commands.run("cat g"))
        await sandbox.close()
        return executions

    sandbox = anyio.run(make, backend=first)
    value, text = anyio.run(use, sandbox, backend=second)
    assert (value.value, text.stdout) == (1, "text")
    assert [path.name for path in (tmp_path / "workspace").iterdir()] == ["g"]


@pytest.mark.parametrize("first", ["asyncio", "trio"])
@pytest.mark.parametrize("second", ["asyncio", "trio"])
def test_a_sandbox_in_use_under_one_loop_is_refused_to_another(backend, first, second):
    async def attempt(work):
        with pytest.raises(SandboxError, match="another event loop") as caught:
            await work()
        assert caught.value.hint

    async def main():
        async with AsyncSandbox(environment="python") as sandbox, await sandbox.fork() as fork:
            begun = anyio.Event()
            executions = []

            async def work():
                code = "import os, time\nprint(1)\nwhile not os.path.exists('go'): time.sleep(0.01)"
                ran = await sandbox.run_code(code, timeout=60, on_stdout=lambda _: begun.set())
                executions.append(ran)

            async with anyio.create_task_group() as group:
                group.start_soon(work)
                await begun.wait()
                for other in (
                    lambda: sandbox.run_code("1"),
                    lambda: sandbox.put(x=1),
                    lambda: sandbox.files.list(),
                    lambda: sandbox.commands.run("true"),
                    lambda: sandbox.checkpoint(),
                    lambda: fork.run_code("1"),
                    lambda: fork.files.list(),
                ):
                    run = functools.partial(anyio.run, attempt, other, backend=second)
                    await anyio.to_thread.run_sync(run)
                await sandbox.files.write("go", "")
            assert executions[0].ok
            assert (await sandbox.run_code("1 + 1")).value == 2

    anyio.run(main, backend=first)


def test_a_sandbox_closed_under_another_loop_ends_at_once_and_is_closed_again(backend):
    """Its guest is killed; the rest is for the loop that uses it."""

    async def main():
        sandbox = await AsyncSandbox.create(environment="python")
        begun = anyio.Event()
        executions = []

        async def work():
            ran = await sandbox.run_code(f"print(1)\n{LOOP}", on_stdout=lambda _: begun.set())
            executions.append(ran)

        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await begun.wait()
            with pytest.raises(SandboxError, match="another event loop"):
                await anyio.to_thread.run_sync(functools.partial(anyio.run, sandbox.close))
        assert executions[0].outcome is Outcome.killed
        await sandbox.close()
        assert not sandbox.alive

    anyio.run(main)


def test_a_blocking_sandbox_works_in_code_of_trio(backend, tmp_path):
    async def main():
        with Sandbox(environment="python", workspace=tmp_path / "workspace") as sandbox:
            sandbox.run_code("open('f', 'w').write('x')")
            return sandbox.run_code("1 + 1").value

    assert anyio.run(main, backend="trio") == 2
    assert (tmp_path / "workspace/f").read_text() == "x"


def test_asyncio_wait_for_and_gather_work(backend):
    async def main():
        async with AsyncSandbox(environment="python") as sandbox:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(sandbox.run_code(LOOP), 0.5)
            executions = await asyncio.gather(*(sandbox.run_code(str(n)) for n in range(5)))
            return [execution.value for execution in executions]

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]
