"""How code ends: exits, deaths, time-outs, memory."""

from textwrap import dedent

import pytest

import census
import oracles
import setting
from belljar import Limits, Outcome, SandboxError, StartError
from belljar.backends.linux import posture
from belljar.sandbox import run as cell
from cells import LOOP, run

pytestmark = pytest.mark.contract("native", "docker")


# --- exits and deaths ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit()", 0),
        ("raise SystemExit(True)", 1),
        ("exit(4)", 4),
        ("import asyncio, sys\nawait asyncio.sleep(0)\nsys.exit(5)", 5),
    ],
)
def test_sys_exit_is_an_outcome_with_its_code_and_keeps_the_state(sandbox, code, status):
    run(sandbox, "x = 1")
    execution = run(sandbox, code)
    assert (execution.outcome, execution.exit_code) == (Outcome.exit, status)
    assert execution.state_preserved
    assert not execution.ok
    after = run(sandbox, "x")
    assert (after.value, after.state_preserved) == (1, True)


def test_sys_exit_with_a_message_says_it_on_stderr(sandbox):
    execution = run(sandbox, "import sys; sys.exit('goodbye')")
    assert (execution.exit_code, execution.stderr) == (1, "goodbye\n")


DEATHS = {
    "os._exit": ("import os; os._exit(5)", 5, None),
    "segfault": ("import ctypes; ctypes.string_at(0)", None, 11),
    "SIGKILL": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", None, 9),
    "abort": ("import os; os.abort()", None, 6),
    "SIGTERM": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", None, 15),
}


@pytest.mark.parametrize("kind", DEATHS)
def test_the_death_of_the_interpreter_is_told_and_the_next_cell_works(sandbox, kind):
    code, status, signal = DEATHS[kind]
    run(sandbox, "x = 1; open('kept', 'w').write('file')")
    execution = sandbox.run_code(f"print('before')\n{code}")
    assert execution.outcome is Outcome.killed
    assert (execution.exit_code, execution.signal) == (status, signal)
    assert execution.stdout == "before\n"
    assert not execution.state_preserved
    assert any("variables" in note for note in execution.notes)
    after = run(sandbox, "'x' in globals(), open('kept').read()")
    assert after.value == (False, "file")
    assert not after.state_preserved
    assert run(sandbox, "1").state_preserved


def test_signals_have_their_usual_meaning_for_children(sandbox):
    code = """
        import signal, subprocess
        ends = []
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            child = subprocess.Popen(["sleep", "1000"])
            child.send_signal(number)
            ends.append(child.wait() == -number)
        ends
    """
    assert run(sandbox, code).value == [True] * 4


def test_an_exit_code_of_the_guest_is_what_the_kernel_says(sandbox):
    """The worker may claim anything before it dies."""
    code = """
        import os, json, struct, socket
        for fd in range(3, 64):
            try:
                s = socket.socket(fileno=os.dup(fd))
                s.getpeername()
            except OSError:
                continue
            text = json.dumps({"status": "ok"}).encode()
            s.send(struct.pack("!BIII", 66, 1, len(text), 0) + text)
        os._exit(9)
    """
    execution = run(sandbox, code)
    assert execution.outcome is Outcome.killed
    assert execution.exit_code == 9


FORGERIES = {
    "an unknown status": 'frame(66, REQUEST, {"status": "splendid"})',
    "no status": "frame(66, REQUEST, {})",
    "a status that is a list": 'frame(66, REQUEST, {"status": [1]})',
    "no value": 'frame(66, REQUEST, {"status": "ok"}, b"\\xff\\xff")',
    "a value that is code": 'frame(66, REQUEST, {"status": "ok"}, b\'{"eval":"1"}\')',
    "an error that is none": 'frame(66, REQUEST, {"status": "error"}, b"{")',
    "an exit code that is a text": 'frame(66, REQUEST, {"status": "exit", "exit_code": "3"})',
    "a result without parts": "frame(65, 0, {})",
    "a result with bad parts": 'frame(65, 0, {"parts": [{"mime": 1, "size": -5}]})',
    "a result longer than itself": 'frame(65, 0, {"parts": [{"mime": "a", "size": 10**9}]})',
    "a frame of another kind": 'frame(35, REQUEST, {"status": "ok"})',
    "half a frame": 'frame(66, REQUEST, {"status": "ok"})[:7]',
    "garbage": "b'\\xff' * 5000",
    "a frame too large": "struct.pack('!BIII', 65, 0, 0, 2**32 - 1)",
    "a flood of results": 'frame(65, 0, {"parts": []}) * 20_000',
}


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES)
@pytest.mark.parametrize("then", ["pass", "os._exit(0)"])
def test_forged_frames_of_the_worker_harm_nobody(make_sandbox, forgery, then):
    """It finds the descriptor on which the worker speaks with init, and lies."""
    sandbox = make_sandbox()
    other = make_sandbox()
    code = """
        import json, os, socket, struct
        def frame(kind, request, header, payload=b""):
            text = json.dumps(header).encode()
            return struct.pack("!BIII", kind, request, len(text), len(payload)) + text + payload
        REQUEST = 1
        for fd in range(3, 64):
            try:
                channel = socket.socket(fileno=os.dup(fd))
                channel.getpeername()
            except OSError:
                continue
            channel.sendall(FORGERY)
        THEN
    """
    code = dedent(code).replace("FORGERY", forgery).replace("THEN", then)
    try:
        execution = sandbox.run_code(code, timeout=3)
    except SandboxError:
        pass  # our own error: that is allowed, a foreign one or a hang is not
    else:
        assert execution.outcome in Outcome
        execution.to_json()
        str(execution)
    assert other.run_code("1 + 1").value == 2
    try:
        again = [sandbox.run_code("1 + 1") for _ in range(2)][-1]
    except SandboxError:
        return
    assert again.value == 2


# --- time-outs -------------------------------------------------------------------------------


@pytest.mark.usefixtures("patient")
def test_a_time_out_interrupts_first_and_keeps_state_and_output(sandbox):
    run(sandbox, "x = 1")
    execution = sandbox.run_code(f"print('before')\n{LOOP}", timeout=3)
    assert execution.outcome is Outcome.timeout
    assert execution.stdout == "before\n"
    assert execution.state_preserved
    assert 3 <= execution.usage.wall < 25
    after = run(sandbox, "x")
    assert (after.value, after.state_preserved) == (1, True)


STUBBORN = {
    "catches": """
        import time
        while True:
            try:
                while True: time.sleep(0.01)
            except BaseException:
                print("no")
    """,
    "ignores": """
        import signal, time
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("no")
        while True: time.sleep(1)
    """,
    "blocks": """
        import signal, time
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        print("no")
        time.sleep(1000)
    """,
    "stops itself": """
        import os, signal
        print("no")
        os.kill(os.getpid(), signal.SIGSTOP)
    """,
    "is in C": """
        print("no")
        import itertools
        sum(itertools.repeat(1))
    """,
}


@pytest.mark.parametrize("kind", STUBBORN)
def test_a_stubborn_cell_is_killed_after_a_grace_and_its_output_kept(
    sandbox, outside, kind, monkeypatch
):
    if kind == "catches":
        monkeypatch.setattr(cell, "GRACE", 4.0)  # long enough to catch one
    run(sandbox, "x = 1; open('kept', 'w').write('file')")
    worker = outside(sandbox).find(run(sandbox, "import os; os.getpid()").value)
    execution = sandbox.run_code("print('before')\n" + dedent(STUBBORN[kind]), timeout=3)
    assert execution.outcome is Outcome.timeout
    assert execution.stdout.startswith("before\nno\n")
    assert not execution.state_preserved
    assert 3.9 < execution.usage.wall < 25
    assert not worker.alive()
    after = run(sandbox, "'x' in globals(), open('kept').read()")
    assert (after.value, after.state_preserved) == ((False, "file"), False)
    assert run(sandbox, "1").state_preserved


@pytest.mark.usefixtures("patient")
def test_a_time_out_reaches_a_cell_that_waits_for_its_child(sandbox, outside):
    execution = run(sandbox, "import subprocess; subprocess.run(['sleep', '1000'])", timeout=0.5)
    assert execution.outcome is Outcome.timeout
    assert execution.state_preserved
    seen = outside(sandbox)
    census.wait_until(
        lambda: not any(p.name == "sleep" for p in seen.processes()), what="the end of the child"
    )


def test_the_time_out_of_the_limits_holds_when_none_is_given(make_sandbox):
    sandbox = make_sandbox(limits=Limits(timeout=0.4))
    assert run(sandbox, LOOP).outcome is Outcome.timeout
    assert run(sandbox, "import time; time.sleep(0.6)", timeout=60).ok


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "1", True])
def test_a_time_out_that_is_no_time_is_refused(sandbox, timeout):
    with pytest.raises(ValueError, match="timeout"):
        sandbox.run_code("1", timeout=timeout)


def test_a_late_interrupt_does_not_hit_the_next_cell(sandbox):
    for _ in range(15):
        run(sandbox, "import time; time.sleep(0.02)", timeout=0.02)
        assert run(sandbox, "total = sum(range(1000)); total").value == 499500


# --- memory ----------------------------------------------------------------------------------


def test_a_memory_error_is_out_of_memory(make_sandbox):
    sandbox = make_sandbox()
    run(sandbox, "x = 1")
    execution = run(sandbox, "bytearray(1 << 50)")
    assert execution.outcome is Outcome.out_of_memory
    assert run(sandbox, "x").value == 1


def test_a_memory_bomb_ends_out_of_memory_and_the_sandbox_goes_on(make_sandbox):
    sandbox = make_sandbox(limits=Limits(memory="64m"), strict=False)
    code = "print('before')\nhoard = []\nwhile True: hoard.append(bytearray(b'x' * 1_000_000))"
    execution = sandbox.run_code(code, timeout=60)
    assert execution.outcome is Outcome.out_of_memory
    assert execution.stdout == "before\n"
    sandbox.run_code("hoard = None")
    assert run(sandbox, "1 + 1").value == 2


def test_many_restarts_between_two_cells(make_sandbox):
    """Each new interpreter tells the host that it is confined, and must not wait to be heard."""
    sandbox = make_sandbox(environment="python")
    for _ in range(30 if setting.DOCKER else 400):
        sandbox.restart()
    assert run(sandbox, "1").value == 1


@pytest.mark.skipif(setting.DOCKER, reason="a container is confined as a whole, by the engine")
def test_a_new_interpreter_that_lacks_a_layer_ends_the_guest(make_sandbox, monkeypatch):
    sandbox = make_sandbox(environment="python")
    run(sandbox, "1")
    init = oracles.init_of(sandbox)

    def lacks(seen, *, root):
        raise StartError("the new guest is not confined: it has no seccomp filter")

    monkeypatch.setattr(posture, "check", lacks)
    sandbox.restart()
    with pytest.raises(StartError, match="no seccomp filter"):
        sandbox.run_code("1")
    census.wait_until(lambda: not census.alive(init), what="the end of the guest")
