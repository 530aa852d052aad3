"""Blocking calls run in the caller's own thread, and go to the event loop when they need one."""

import asyncio
import contextlib
import os
import random
import signal
import threading
import time
import warnings

import anyio
import pytest

import census
from belljar import Outcome, Sandbox, SandboxClosed, SandboxError, runtime

pytestmark = pytest.mark.contract("native", "docker")
LOOP = "while True: pass"
# Containers have no socket that a thread could wait for.
native_only = pytest.mark.native_only("only a native guest has a socket to wait for")


@pytest.fixture
def no_loop(monkeypatch):
    """No call in this block may go to the event loop."""

    @contextlib.contextmanager
    def block():
        gone = []
        with monkeypatch.context() as patch:
            submit = runtime.Runtime.submit
            patch.setattr(
                runtime.Runtime, "submit", lambda *args: (gone.append(args), submit(*args))
            )
            yield
        assert gone == []

    return block


class Beside:
    """Another thread, that does something as soon as a cell of the sandbox runs."""

    def __init__(self, sandbox, function, *args):
        self._sandbox, self._function, self._args = sandbox, function, args
        self.made = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self):
        census.wait_until(lambda: self._sandbox._sandbox._main.run is not None, what="a cell")
        try:
            self.made = self._function(*self._args)
        except Exception as error:
            self.made = error


def interrupt_this_process():
    os.kill(os.getpid(), signal.SIGINT)


# --- without an event loop -------------------------------------------------------------------


@native_only
def test_cells_variables_files_and_commands_need_no_event_loop(sandbox, no_loop):
    with no_loop():
        assert sandbox.run_code("print('said'); 1 + 1").value == 2
        assert sandbox.run_code("1 / 0").outcome is Outcome.error
        assert sandbox.run_code("import sys; sys.exit(3)").exit_code == 3
        sandbox.put(a=[1, 2, 3], b="text" * 3000)
        assert sandbox.get("a") == [1, 2, 3]
        assert len(sandbox.get("b")) == 12_000
        sandbox.files.write("there/file", "content")
        assert sandbox.files.read("there/file") == "content"
        assert sandbox.files.exists("there")
        assert sandbox.commands.run("cat there/file; exit 2").stdout == "content"
        with pytest.raises(FileNotFoundError):
            sandbox.files.read("nowhere")


@native_only
def test_much_output_needs_no_event_loop(make_sandbox, no_loop):
    sandbox = make_sandbox(limits={"output": "16m"})
    with no_loop():
        execution = sandbox.run_code("for n in range(200_000): print(n)")
        assert (execution.outcome, execution.stdout.count("\n")) == (Outcome.ok, 200_000)


@native_only
def test_inside_a_running_event_loop_it_is_not_used(sandbox, no_loop, run_async):
    async def main():
        return sandbox.run_code("6 * 7").value

    with no_loop():
        assert run_async(main) == 42


def test_inside_a_running_event_loop_all_works(sandbox, run_async):
    async def main():
        with anyio.fail_after(60):
            assert sandbox.run_code("x = 6 * 7; x").value == 42
            assert sandbox.run_code(LOOP, timeout=0.2).outcome is Outcome.timeout
            assert sandbox.run_code("print(1)", on_stdout=heard.append).ok
            await anyio.sleep(0)

    heard = []
    run_async(main)
    assert "".join(heard) == "1\n"


# --- what needs the event loop ---------------------------------------------------------------


def test_a_cell_that_takes_too_long_is_interrupted_and_variables_stay(sandbox, patient):
    sandbox.run_code("x = 1")
    execution = sandbox.run_code(LOOP, timeout=0.2)
    assert (execution.outcome, execution.state_preserved) == (Outcome.timeout, True)
    assert sandbox.run_code("x").value == 1


def test_output_without_end_does_not_hold_up_the_time_out(make_sandbox):
    sandbox = make_sandbox(limits={"output": "1g"})
    code = "import sys\nwhile True: sys.stdout.write('x' * 1000)"
    assert sandbox.run_code(code, timeout=0.5).outcome is Outcome.timeout


def test_a_callback_may_use_the_sandbox(sandbox):
    read = []
    sandbox.run_code(
        "open('file', 'w').write('content'); print('written')",
        on_stdout=lambda text: read.append(sandbox.files.read("file")),
    )
    assert read == ["content"]


def test_a_callback_that_raises_ends_the_cell_and_variables_stay(sandbox, patient):
    def refuse(text):
        raise LookupError(text)

    sandbox.run_code("x = 1")
    with pytest.raises(LookupError, match="begun"):
        sandbox.run_code(f"print('begun', flush=True)\n{LOOP}", on_stdout=refuse)
    assert sandbox.run_code("x").value == 1


def test_host_functions_of_both_kinds_are_called(make_sandbox):
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    def third(n: int) -> float:
        return n / 3

    sandbox = make_sandbox(functions=[double])
    assert sandbox.run_code("double(4)").value == 8
    sandbox.expose(third)
    assert sandbox.run_code("third(double(3)) + 1").value == 3.0


def test_a_host_function_may_use_files_of_the_sandbox(make_sandbox):
    def read() -> str:
        return sandbox.files.read("file")

    sandbox = make_sandbox(functions=[read])
    assert sandbox.run_code("open('file', 'w').write('content'); read()").value == "content"


def test_a_guest_that_was_lost_is_replaced(sandbox, outside):
    sandbox.run_code("x = 1")
    sandbox._sandbox._session.guest.kill()
    census.wait_until(lambda: not sandbox.alive, what="its end")
    execution = sandbox.run_code("1 + 1")
    assert (execution.value, execution.state_preserved) == (2, False)


# --- Ctrl-C and other signals ----------------------------------------------------------------


def test_ctrl_c_interrupts_the_cell_and_variables_stay(sandbox, patient):
    sandbox.run_code("x = 1")
    with Beside(sandbox, interrupt_this_process), pytest.raises(KeyboardInterrupt):
        sandbox.run_code(LOOP, timeout=60)
    assert sandbox.run_code("x").value == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_at_any_moment_loses_nothing(sandbox, patient):
    """Also in the middle of our own work: cells are as short as they can be."""

    def disturb():
        chance = random.Random(1)
        while not ended.wait(chance.random() * 0.003):
            interrupt_this_process()

    sandbox.run_code("kept, count = 'kept', 0")
    ended, thread = threading.Event(), threading.Thread(target=disturb)
    interrupts, thread_began = 0, False
    try:
        deadline = time.monotonic() + 60
        while interrupts < 100 and time.monotonic() < deadline:
            try:
                if not thread_began:
                    thread_began = True
                    thread.start()
                sandbox.run_code("count += 1")
            except KeyboardInterrupt:
                interrupts += 1
    finally:
        while thread.is_alive():
            try:
                ended.set()
                thread.join()
            except KeyboardInterrupt:
                interrupts += 1
    assert interrupts >= 100
    execution = sandbox.run_code("kept, count > 0")
    assert (execution.value, execution.state_preserved) == (("kept", True), True)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_handler_of_a_signal_may_use_the_sandbox_whose_cell_runs(sandbox, patient):
    def handle(number, frame):
        sandbox.files.write("file", "content")
        sandbox.interrupt()

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with Beside(sandbox, os.kill, os.getpid(), signal.SIGUSR1):
            execution = sandbox.run_code(LOOP, timeout=60)
        assert signal.getsignal(signal.SIGUSR1) is handle
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert execution.outcome is Outcome.cancelled
    assert sandbox.files.read("file") == "content"


def test_an_exception_of_any_handler_ends_the_cell(sandbox, patient):
    """Of one that is called where it strikes, too."""

    def handle(number, frame):
        raise LookupError(number)

    for number in (signal.SIGTERM, signal.SIGWINCH):
        before = signal.signal(number, handle)
        try:
            with Beside(sandbox, os.kill, os.getpid(), number), pytest.raises(LookupError):
                sandbox.run_code(LOOP, timeout=60)
        finally:
            signal.signal(number, before)
        assert sandbox.run_code("1 + 1").value == 2


# --- several threads, forks ------------------------------------------------------------------


def test_other_threads_use_the_sandbox_while_a_cell_runs(sandbox, patient):
    def work():
        sandbox.files.write("file", "content")
        listed = sandbox.commands.run("ls").stdout.split()
        assert sandbox.usage().memory_kills == 0
        sandbox.interrupt()
        return listed, sandbox.run_code("'after'").value

    with Beside(sandbox, work) as beside:
        execution = sandbox.run_code(LOOP, timeout=60)
    assert execution.outcome is Outcome.cancelled
    assert beside.made == (["file"], "after")


def test_cells_of_many_threads_run_one_after_the_other(sandbox):
    def work():
        for _ in range(30):
            sandbox.run_code("before = count; count = before + 1")
            sandbox.files.write("file", "content")

    sandbox.run_code("count = 0")
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sandbox.run_code("count").value == 120


def test_forks_take_turns_in_several_threads(sandbox):
    def work(forked, name):
        for _ in range(15):
            forked.run_code("count += 1")
            forked.files.write(f"{name}", "content")

    sandbox.run_code("count = 0")
    with sandbox.fork() as forked:
        threads = [threading.Thread(target=work, args=(sandbox, "first"))]
        threads.append(threading.Thread(target=work, args=(forked, "second")))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for each, name in ((sandbox, "first"), (forked, "second")):
            assert each.run_code("count").value == 15
            assert [entry.name for entry in each.files.list()] == [name]


def test_close_in_another_thread_ends_the_cell(backend):
    sandbox = Sandbox.create(environment="python")
    with Beside(sandbox, sandbox.close) as beside:
        execution = sandbox.run_code(LOOP, timeout=60)
    assert (execution.outcome, beside.made) == (Outcome.killed, None)
    with pytest.raises(SandboxClosed):
        sandbox.run_code("1")


def test_a_finalizer_that_uses_the_sandbox_of_the_running_call_does_not_hang(sandbox):
    """It runs in the middle of our own work, so it can be refused, but must come back."""
    seen = []

    def handle(number, frame):  # called where it strikes, as a finalizer would be
        try:
            seen.append(sandbox.files.exists("file"))
        except SandboxError as error:
            seen.append(error)

    before = signal.signal(signal.SIGWINCH, handle)
    try:
        with Beside(sandbox, os.kill, os.getpid(), signal.SIGWINCH):
            sandbox.run_code("import time; time.sleep(0.5)")
    finally:
        signal.signal(signal.SIGWINCH, before)
    assert len(seen) == 1


def test_a_fork_of_the_host_during_a_call_keeps_signals_and_takes_nothing(sandbox):
    def fork():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            code = 1
            try:
                try:
                    sandbox.run_code("1")
                except SandboxClosed:
                    code = 2
                try:
                    interrupt_this_process()
                    time.sleep(5)
                except KeyboardInterrupt:
                    code += 40
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    with Beside(sandbox, fork) as beside:
        execution = sandbox.run_code("import time; time.sleep(0.5); 'whole'")
    assert (execution.value, beside.made) == ("whole", 42)
