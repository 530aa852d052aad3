"""The process around the sandboxes: Ctrl-C, forks, exits, and SIGKILL at any moment."""

import contextlib
import os
import random
import signal
import time

import pytest

import census
import setting
from belljar import Sandbox, runtime
from host_script import PATIENCE, Script
from outside import guest_of


@pytest.fixture
def script(backend):
    with contextlib.ExitStack() as stack:

        def start(program):
            made = Script(program)
            stack.callback(made.kill)
            return made

        yield start


@pytest.fixture
def nothing_left(backend):
    """After the test nothing is there that was not there before."""
    before = census.take()
    yield
    assert census.settle(before, timeout=30.0, ignore=["thread"]) == []


@pytest.fixture
def nothing_left_after_the_next_start(script):
    """For processes that were not asked: their control groups are swept by the next one."""
    before = census.take()
    yield
    assert census.settle(before, timeout=30.0, ignore=["thread", *census.NOT_SWEPT]) == []
    sweep(script)
    assert census.settle(before, timeout=30.0, ignore=["thread"]) == []


def sweep(script):
    """A next start."""
    status, out, err = script('print(belljar.run("1 + 1", environment="python").value)').end()
    assert (status, out) == (0, "2\n"), err


def known():
    """Processes below us, and containers that run."""
    running = {name for state, name in census.containers() if state == "running"}
    return {(p.pid, p.started) for p in census.descendants(os.getpid())} | running


def strangers(before):
    """Those that were not there before: orphans come to us, as a subreaper."""
    return known() - before


# --- the start of the process ----------------------------------------------------------------


def test_the_first_async_sandbox_of_a_process_is_seen_by_others(script, nothing_left):
    """`belljar ps` finds a sandbox by its note, also if no blocking call came before it."""
    made = script(
        """
        import anyio

        async def main():
            async with belljar.AsyncSandbox(environment="python") as sandbox:
                from belljar.observe import presence
                print(sandbox.id in {note.id for note in presence.read_notes()})

        anyio.run(main)
        """
    )
    status, out, err = made.end()
    assert (status, out) == (0, "True\n"), err


# --- the end of the process ------------------------------------------------------------------


def test_a_script_that_does_not_close_its_sandbox_leaves_nothing(script, nothing_left):
    made = script(
        """
        sandbox = Sandbox.create(environment="python")
        print(sandbox.run_code("1 + 1").value)
        """
    )
    status, out, err = made.end()
    assert (status, out) == (0, "2\n"), err


def test_a_script_that_fails_within_its_with_block_leaves_nothing(script, nothing_left):
    made = script(
        """
        with Sandbox(environment="python") as sandbox:
            sandbox.run_code("import subprocess; subprocess.Popen(['sleep', '1000'])")
            raise RuntimeError("mine")
        """
    )
    status, _, err = made.end()
    assert status == 1
    assert "RuntimeError: mine" in err


@pytest.mark.parametrize("how", ["sys.exit(3)", "os._exit(3)"])
def test_a_script_that_exits_while_a_cell_runs_in_a_thread_leaves_nothing(
    script, nothing_left_after_the_next_start, how
):
    made = script(
        f"""
        import threading
        sandbox = Sandbox.create(environment="python")
        begun = threading.Event()
        def work():
            sandbox.run_code("print(1)\\nwhile True: pass", on_stdout=lambda text: begun.set())
        threading.Thread(target=work, daemon=True).start()
        begun.wait()
        {how}
        """
    )
    status, _, _ = made.end()
    assert status == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_that_ends_the_process_ends_its_guests(
    script, nothing_left_after_the_next_start, number
):
    before = known()
    made = script(
        """
        sandbox = Sandbox.create(environment="python")
        sandbox.run_code("import subprocess; subprocess.Popen(['sleep', '1000'])")
        sandbox.run_code("print('begun')\\nwhile True: pass", on_stdout=print)
        """
    )
    assert made.line() == "begun"
    if setting.DOCKER:
        assert len(strangers(before)) == 2  # itself, a container
    else:
        assert len(census.descendants(made.pid)) >= 5  # launcher, zygote, init, worker, sleep
    os.kill(made.pid, number)
    made.process.wait(PATIENCE)
    made.kill()  # closes its pipes
    census.wait_until(lambda: not strangers(before), timeout=30.0, what="the end of all guests")


# --- Ctrl-C ----------------------------------------------------------------------------------


def test_ctrl_c_raises_keyboard_interrupt_and_the_sandbox_can_go_on(script, nothing_left):
    made = script(
        """
        belljar.sandbox.run.GRACE = 30.0  # all the time it needs
        with Sandbox(environment="python") as sandbox:
            sandbox.run_code("x = 1")
            code = "print('begun')\\nwhile True: pass"
            try:
                sandbox.run_code(code, on_stdout=print, timeout=600)
            except KeyboardInterrupt:
                print("KeyboardInterrupt")
            print(sandbox.run_code("x").value)
        """
    )
    assert made.line() == "begun"
    before = time.monotonic()
    os.killpg(made.pid, signal.SIGINT)
    status, out, err = made.end()
    assert (status, out.split()) == (0, ["KeyboardInterrupt", "1"]), err
    assert time.monotonic() - before < 50


def test_ctrl_c_that_nobody_catches_ends_the_script_and_leaves_nothing(script, nothing_left):
    made = script(
        """
        with Sandbox(environment="python") as sandbox:
            sandbox.run_code(STUBBORN, on_stdout=print)
        """
    )
    assert made.line() == "begun"
    os.killpg(made.pid, signal.SIGINT)
    status, _, err = made.end()
    assert status == -signal.SIGINT
    assert "KeyboardInterrupt" in err


def test_ctrl_c_ends_a_command(script, nothing_left):
    made = script(
        """
        with Sandbox(environment="python") as sandbox:
            try:
                sandbox.commands.run("echo begun; sleep 1000", on_stdout=print)
            except KeyboardInterrupt:
                print("KeyboardInterrupt")
            print(sandbox.commands.run("echo fine").stdout)
        """
    )
    assert made.line() == "begun"
    os.killpg(made.pid, signal.SIGINT)
    status, out, err = made.end()
    assert (status, out.split()) == (0, ["KeyboardInterrupt", "fine"]), err


def test_ctrl_c_during_the_start_leaves_nothing(script, nothing_left):
    for delay in (0.1, 0.2, 0.3, 0.4, 0.6):
        made = script(
            """
            print("begun")
            with Sandbox(environment="python") as sandbox:
                sandbox.run_code("while True: pass")
            """
        )
        assert made.line() == "begun"
        time.sleep(delay)  # a moment of the start, which one does not matter
        os.killpg(made.pid, signal.SIGINT)
        status, _, err = made.end()
        assert status == -signal.SIGINT, err


def test_ctrl_c_twice_still_ends(script, nothing_left):
    made = script(
        """
        with Sandbox(environment="python") as sandbox:
            sandbox.run_code(STUBBORN, on_stdout=print)
        """
    )
    assert made.line() == "begun"
    os.killpg(made.pid, signal.SIGINT)
    time.sleep(0.1)
    os.killpg(made.pid, signal.SIGINT)
    status, _, _ = made.end()
    assert status in (-signal.SIGINT, 1)


# --- forks -----------------------------------------------------------------------------------


def test_a_fork_starts_its_own_runtime_and_does_not_disturb_the_parents(script, nothing_left):
    made = script(
        """
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        sandbox = Sandbox.create(environment="python")
        sandbox.run_code("x = 5")
        child = os.fork()
        if child == 0:
            try:
                sandbox.run_code("x = 6")
            except belljar.SandboxClosed as error:
                print("child:", error.message)
            with Sandbox(environment="python") as own:
                print("child:", own.run_code("1 + 1").value, "x" in own.run_code("dir()").value)
            sandbox.close()
            sys.exit(0)
        print("parent:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print("parent:", sandbox.run_code("x").value)
        sandbox.close()
        print("parent:", belljar.run("2 + 2", environment="python").value)
        """
    )
    status, out, err = made.end()
    assert status == 0, err
    assert [line for line in out.splitlines() if line.startswith("child")] == [
        "child: this sandbox belongs to the process that made it",
        "child: 2 False",
    ]
    assert [line for line in out.splitlines() if line.startswith("parent")] == [
        "parent: 0",
        "parent: 5",
        "parent: 4",
    ]


def test_a_fork_while_other_threads_use_sandboxes_is_fine(script, nothing_left):
    made = script(
        """
        import threading, warnings, belljar.runtime
        warnings.simplefilter("ignore", DeprecationWarning)
        stop = threading.Event()
        begun = threading.Barrier(4)
        def work():
            with Sandbox(environment="python") as sandbox:
                sandbox.run_code("1")
                begun.wait()  # a fork in the middle of an import is beyond anybody's help
                while not stop.is_set():
                    assert sandbox.run_code("1 + 1").value == 2
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads: thread.start()
        begun.wait()
        codes = []
        for _ in range(5):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    code = 0 if belljar.run("3", environment="python").value == 3 else 2
                    belljar.runtime.shutdown()
                finally:
                    os._exit(code)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        stop.set()
        for thread in threads: thread.join()
        print(codes)
        """
    )
    status, out, err = made.end()
    assert (status, out.strip()) == (0, "[0, 0, 0, 0, 0]"), err


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_multiprocessing_have_their_own_sandboxes(
    script, nothing_left_after_the_next_start, method, tmp_path
):
    module = tmp_path / "work_module.py"
    module.write_text(
        "import belljar\n"
        "def work(n): return belljar.run(f'{n} * {n}', environment='python').value\n"
    )
    made = script(
        f"""
        import multiprocessing, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        sys.path.insert(0, {str(tmp_path)!r})
        from work_module import work
        with Sandbox(environment="python") as sandbox:
            sandbox.run_code("x = 5")
            with multiprocessing.get_context({method!r}).Pool(2) as pool:
                print(pool.map(work, range(4)))
            print(sandbox.run_code("x").value)
        """
    )
    status, out, err = made.end()
    assert (status, out.splitlines()) == (0, ["[0, 1, 4, 9]", "5"]), err


def test_a_child_killed_does_not_take_the_parents_guests_with_it(
    script, nothing_left_after_the_next_start
):
    made = script(
        """
        import signal, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        sandbox = Sandbox.create(environment="python")
        sandbox.run_code("x = 5")
        child = os.fork()
        if child == 0:
            own = Sandbox.create(environment="python")
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        print(sandbox.run_code("x").value)
        """
    )
    status, out, err = made.end()
    assert (status, out) == (0, "5\n"), err


# --- shutdown --------------------------------------------------------------------------------


def test_shutdown_closes_everything_and_the_next_sandbox_starts_anew(script, nothing_left):
    made = script(
        """
        import threading
        from belljar import runtime
        for _ in range(3):
            sandbox = Sandbox.create(environment="python")
            assert sandbox.run_code("1 + 1").value == 2
            sandbox.close()
            runtime.shutdown()
            runtime.shutdown()
            for thread in set(threading.enumerate()) - {threading.main_thread()}:
                thread.join(30)  # those of anyio's pool are told to end, and end soon
            print([thread.name for thread in threading.enumerate()])
            children = open(f"/proc/self/task/{os.getpid()}/children").read()
            assert children == "", children
        """
    )
    status, out, err = made.end()
    assert status == 0, err
    assert out.splitlines() == ["['MainThread']"] * 3


@pytest.mark.native_only("a container has no zygote")
def test_the_runtime_is_shared_and_started_once(backend):
    with Sandbox(environment="python") as a, Sandbox(environment="python") as b:
        a.run_code("1")
        b.run_code("1")
        parents = {census.process(guest_of(s).pid).parent for s in (a, b)}
        assert len(parents) == 1  # one zygote
    assert runtime.current() is runtime.current()


# --- SIGKILL of the host ---------------------------------------------------------------------

VICTIM = """
    import threading
    def work():
        while True:
            with Sandbox(environment="python") as sandbox:
                sandbox.run_code("import subprocess; subprocess.Popen(['sleep', '1000'])")
                sandbox.run_code("1 + 1")
    for _ in range(2):
        threading.Thread(target=work).start()
    print("begun")
"""


def kill_at_random_moments(script, times, seed):
    moments = random.Random(seed)
    for _ in range(times):
        before = known()
        made = script(VICTIM)
        if moments.random() < 0.8:
            assert made.line() == "begun"
        time.sleep(moments.random() * 1.2)  # the random moment itself
        made.kill()
        census.wait_until(
            lambda before=before: not strangers(before), timeout=30.0, what="the end of all guests"
        )


def test_sigkill_of_the_host_at_a_random_moment_leaves_nothing(
    script, nothing_left_after_the_next_start
):
    kill_at_random_moments(script, 5, seed=time.time_ns())


@pytest.mark.stress
@pytest.mark.timeout(900)
def test_sigkill_of_the_host_at_fifty_random_moments_leaves_nothing(
    script, nothing_left_after_the_next_start
):
    kill_at_random_moments(script, 50, seed=time.time_ns())


def test_what_the_host_ignores_or_blocks_means_nothing_to_its_guests(script):
    """As under nohup, or in the background of a shell."""
    made = script(
        """
        import signal
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})
        with Sandbox(environment="python") as sandbox:
            shown = sandbox.commands.run("grep -E 'Sig(Blk|Ign)' /proc/self/status").stdout
            print(*[int(line.split()[1], 16) for line in shown.splitlines()])
        """
    )
    blocked, ignored = map(int, made.line().split())
    assert blocked == 0
    assert ignored & ~(1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1) == 0
