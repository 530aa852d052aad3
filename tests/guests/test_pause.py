"""pause() and resume(): nothing runs, nothing is lost, and no clock goes on."""

import asyncio
import contextlib
import threading
import time
from textwrap import dedent

import anyio
import pytest

import census
import setting
from belljar import Limits, Outcome, SandboxClosed, SandboxError, SandboxManager, SandboxPaused

pytestmark = [pytest.mark.contract("native", "docker", "gvisor"), pytest.mark.fresh]

BUSY = "import subprocess; busy = subprocess.Popen(['sh', '-c', 'while :; do :; done'])"
# Half of it is more than the time-outs below, but for the time in which it is paused.
SLOW = "import time\nfor number in range(10): time.sleep(0.05); print(number)\n'the end'"


def spent(sandbox, seconds):
    before = sandbox.usage().cpu
    time.sleep(seconds)
    return sandbox.usage().cpu - before


def start(sandbox, code, **options):
    """Run code in another thread; gives the list that its Execution will be in."""
    ended, begun = [], threading.Event()
    options["on_stdout"] = lambda text: begun.set()
    thread = threading.Thread(target=lambda: ended.append(sandbox.run_code(code, **options)))
    thread.start()
    assert begun.wait(20)
    return ended, thread


def test_a_paused_sandbox_uses_no_processor_time(make_sandbox):
    sandbox = make_sandbox()
    sandbox.run_code(BUSY)
    assert spent(sandbox, 0.5) > 0.1
    sandbox.pause()
    assert sandbox.paused
    assert "paused" in repr(sandbox)
    assert spent(sandbox, 0.5) < 0.05
    sandbox.resume()
    assert not sandbox.paused
    assert spent(sandbox, 0.5) > 0.1
    assert sandbox.run_code("busy.poll()").outcome.value == "ok"


def test_a_cell_stands_still_and_then_goes_on(make_sandbox):
    sandbox = make_sandbox()
    ended, thread = start(sandbox, SLOW, timeout=3)
    sandbox.pause()
    time.sleep(4)
    assert not ended
    sandbox.resume()
    thread.join()
    (execution,) = ended
    assert execution.value == "the end"
    assert execution.stdout.split() == [str(number) for number in range(10)]
    assert execution.usage.wall < 3.5


def test_a_long_pause_adds_nothing_to_the_time_that_is_left(make_sandbox):
    sandbox = make_sandbox()
    ended, thread = start(sandbox, "print(1)\nwhile True: pass", timeout=1)
    sandbox.pause()
    time.sleep(4)
    sandbox.resume()
    thread.join(30)
    assert ended[0].outcome.value == "timeout"
    assert ended[0].usage.wall < 3


def test_the_time_out_of_a_started_program_stands_still(make_sandbox):
    sandbox = make_sandbox()
    process = sandbox.commands.start("sleep 1; echo done", timeout=2)
    sandbox.pause()
    time.sleep(2.5)
    sandbox.resume()
    assert (process.wait().stdout, process.returncode) == ("done\n", 0)
    assert sandbox.commands.start("sleep 60", timeout=0.2).wait().outcome.value == "timeout"


def test_the_time_out_counts_again_afterwards(make_sandbox):
    sandbox = make_sandbox()
    ended, thread = start(sandbox, "print(1)\nwhile True: pass", timeout=1)
    sandbox.pause()
    time.sleep(1.5)
    sandbox.resume()
    thread.join(30)
    assert ended[0].outcome.value == "timeout"
    assert sandbox.run_code("1").value == 1


def test_what_needs_the_guest_is_refused_with_a_hint(make_sandbox):
    sandbox = make_sandbox()
    with pytest.raises(SandboxClosed, match="no guest to pause"):
        type(sandbox)(environment="python").pause()
    sandbox.run_code("x = 1")
    sandbox.pause()
    sandbox.pause()
    for use in (
        lambda: sandbox.run_code("1"),
        lambda: sandbox.commands.run("true"),
        lambda: sandbox.files.read("x"),
        lambda: sandbox.put(x=2),
        lambda: sandbox.get("x"),
        sandbox.restart,
        sandbox.checkpoint,
        sandbox.interrupt,
        sandbox.fork,
    ):
        with pytest.raises(SandboxPaused) as caught:
            use()
        assert "resume()" in caught.value.hint
    assert sandbox.alive
    assert sandbox.usage().memory != 0
    sandbox.resume()
    sandbox.resume()
    assert sandbox.get("x") == 1


def test_a_paused_sandbox_can_be_closed_at_once(make_sandbox):
    sandbox = make_sandbox()
    ended, thread = start(sandbox, "print(1)\nimport time; time.sleep(60)", timeout=1)
    sandbox.pause()
    time.sleep(1.5)  # its time is up, which the host finds only when it goes on
    began = time.monotonic()
    sandbox.close()
    assert time.monotonic() - began < 5
    thread.join(10)
    assert ended[0].outcome.value != "ok"


def test_lifetime_and_idle_stand_still(make_sandbox):
    sandbox = make_sandbox(limits=Limits(lifetime=6, idle=1))
    sandbox.run_code("x = 1")
    sandbox.pause()
    time.sleep(7)
    sandbox.resume()
    assert sandbox.run_code("x").value == 1
    deadline = time.monotonic() + 20
    while sandbox.alive and time.monotonic() < deadline:
        time.sleep(0.1)
    with pytest.raises(SandboxClosed, match="idle"):
        sandbox.run_code("1")


def test_a_manager_does_not_sweep_what_is_paused(backend):
    with SandboxManager(idle_timeout=1, lifetime=2, cleanup_interval=600) as manager:
        manager.create("a", environment="python")
        sandbox = manager.get("a")
        sandbox.pause()
        time.sleep(2.5)
        assert manager.sweep() == {}
        sandbox.resume()
        assert sandbox.run_code("1").value == 1
        time.sleep(1.2)
        assert list(manager.sweep()) == ["a"]


def test_a_kept_workspace_is_saved_when_a_paused_sandbox_is_closed(make_sandbox, tmp_path):
    sandbox = make_sandbox(workspace=tmp_path)
    sandbox.run_code(
        "import subprocess; subprocess.run('(sleep 1; echo late > late) &', shell=True)"
    )
    time.sleep(1.5)
    sandbox.pause()
    sandbox.close()
    assert (tmp_path / "late").read_text() == "late\n"


@pytest.mark.contract("native")
def test_forks_are_paused_with_the_guest_they_share(make_sandbox):
    sandbox = make_sandbox()
    sandbox.run_code("x = 1")
    with sandbox.fork() as twin:
        sandbox.pause()
        assert twin.paused
        with pytest.raises(SandboxPaused):
            twin.run_code("x")
        twin.resume()
        assert sandbox.run_code("x").value == 1


def test_host_functions_answer_after_the_pause(make_sandbox):
    asked, answer = threading.Event(), threading.Event()

    def ask():
        asked.set()
        answer.wait(20)
        return "x" * (4 << 20)  # more than a socket takes

    sandbox = make_sandbox(functions=[ask])
    ended = []
    thread = threading.Thread(target=lambda: ended.append(sandbox.run_code("len(ask())")))
    thread.start()
    assert asked.wait(20)
    sandbox.pause()
    answer.set()
    time.sleep(0.5)
    sandbox.resume()
    thread.join(20)
    assert ended[0].value == 4 << 20


def test_it_works_under_each_event_loop(run_async, open_sandbox):
    async def main():
        async with open_sandbox() as sandbox:
            begun, ended = anyio.Event(), []

            async def run():
                on_stdout = lambda text: begun.set()  # noqa: E731
                ended.append(await sandbox.run_code(SLOW, timeout=2, on_stdout=on_stdout))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                await begun.wait()
                await sandbox.pause()
                await anyio.sleep(3)
                assert not ended
                await sandbox.resume()
            assert ended[0].value == "the end"

    run_async(main)


@pytest.mark.parametrize("what", ["pause", "resume"])
def test_a_cancelled_call_leaves_no_clock_and_no_process_stopped(open_sandbox, what):
    """asyncio's own cancellation goes through the shields of anyio."""

    async def main():
        async with open_sandbox() as sandbox:
            await sandbox.run_code("x = 1")
            for delay in (0.0001, 0.001, 0.003, 0.01, 0.03):
                if what == "resume":
                    await sandbox.pause()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(getattr(sandbox, what)(), delay)
                if sandbox.paused:
                    await sandbox.resume()
                assert (await sandbox.run_code("x")).value == 1
                program = await sandbox.commands.start("sleep 600", timeout=0.2)
                assert (await program.wait(timeout=20)).outcome is Outcome.timeout

    asyncio.run(main())


# -- by signals -----------------------------------------------------------------------------------

SIGNALS = pytest.mark.native_only("an engine has a freezer, which no process can leave")


@SIGNALS
def test_what_the_guest_itself_had_stopped_stays_so(make_sandbox):
    sandbox = make_sandbox()
    state = "open(f'/proc/{p.pid}/stat').read().rpartition(')')[2].split()[0]"
    code = """
        import os, signal, subprocess
        p = subprocess.Popen(["sleep", "60"])
        p.send_signal(signal.SIGSTOP)
        os.waitpid(p.pid, os.WUNTRACED)
    """
    sandbox.run_code(dedent(code) + state)
    sandbox.pause()
    sandbox.resume()
    assert sandbox.run_code(state).value == "T"
    assert sandbox.run_code("p.send_signal(signal.SIGCONT); p.kill(); p.wait()").value == -9


@SIGNALS
def test_a_parent_does_not_see_that_its_child_was_stopped(make_sandbox):
    sandbox = make_sandbox()
    sandbox.run_code("import os, subprocess; p = subprocess.Popen(['sleep', '60'])")
    sandbox.pause()
    sandbox.resume()
    assert sandbox.run_code("os.waitpid(p.pid, os.WNOHANG | os.WUNTRACED)").value == (0, 0)


@SIGNALS
def test_a_guest_that_lets_the_kernel_wake_it_does_not_go_on(make_sandbox):
    """By a timer that sends SIGCONT: it does not stop at all, or is stopped again, or is killed."""
    sandbox = make_sandbox()
    code = """
        import ctypes, signal, struct, time
        signal.signal(signal.SIGCONT, lambda *_: None)
        libc = ctypes.CDLL(None, use_errno=True)
        event = struct.pack("QiiQ40x", 0, signal.SIGCONT, 0, 0)
        timer = ctypes.c_void_p()
        event = ctypes.create_string_buffer(event, 64)
        assert libc.timer_create(1, event, ctypes.byref(timer)) == 0
        every = struct.pack("4q", 0, 20_000_000, 0, 20_000_000)
        assert libc.timer_settime(timer, 0, ctypes.create_string_buffer(every, 32), None) == 0
        import threading
        def run():
            while True: pass
        threading.Thread(target=run, daemon=True).start()
    """
    sandbox.run_code(dedent(code)).raise_for_outcome()
    try:
        sandbox.pause()
    except SandboxError:  # "the processes of the guest do not stop"
        assert not sandbox.paused
        return
    census.wait_until(
        lambda: not sandbox.alive or spent(sandbox, 0.3) < 0.01, 30, "the end of what it does"
    )
    sandbox.resume()
    assert sandbox.run_code("1").value == 1


def test_many_processes_that_fork_are_all_stopped(make_sandbox):
    sandbox = make_sandbox(
        limits=Limits(processes=40), strict=None if not setting.GVISOR else False
    )
    code = """
        import subprocess
        fork = "while :; do (:) & (:) & wait; done"
        for _ in range(4):
            subprocess.Popen(["bash", "-c", fork], stderr=subprocess.DEVNULL)
    """
    sandbox.run_code(dedent(code)).raise_for_outcome()
    for _ in range(3):
        sandbox.pause()
        assert spent(sandbox, 0.3) < 0.05
        sandbox.resume()
        assert spent(sandbox, 0.3) > 0.02
